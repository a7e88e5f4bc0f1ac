//! Takes the bytes of a ring apart into records (`perf_event_open(2)`, "MMAP layout").
//!
//! The kernel writes them, but a length is checked as if it did not: what does not fit is skipped.

/// What a record says.
#[derive(Debug, PartialEq)]
pub(crate) enum Record<'a> {
    /// A page fault.
    Sample(Sample<'a>),
    /// So many records were lost because the ring was full.
    Lost(u64),
    /// Code was mapped.
    NewCode,
    /// Another program is executed.
    Exec,
}

/// A page fault of a thread.
#[derive(Debug, PartialEq)]
pub(crate) struct Sample<'a> {
    pub(crate) in_kernel: bool,
    pub(crate) pid: u32,
    pub(crate) tid: u32,
    /// `CLOCK_MONOTONIC`, in nanoseconds, at which the fault was resolved.
    pub(crate) time_ns: u64,
    /// The address that faulted.
    pub(crate) address: u64,
    pub(crate) stack: Callers<'a>,
}

/// From what the callers are found.
#[derive(Debug, PartialEq)]
pub(crate) enum Callers<'a> {
    /// Addresses as the kernel found them by frame pointers: instruction pointer and return
    /// addresses, with marks in between.
    Chain(&'a [u8]),
    /// Registers of the user and a copy of the stack from there on.
    Stack {
        registers: Registers,
        copy: &'a [u8],
        /// Whether the copy has its full length: it ends before, where the stack does.
        is_full: bool,
    },
}

/// The registers that unwinding begins with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Registers {
    pub(crate) bp: u64,
    pub(crate) sp: u64,
    pub(crate) ip: u64,
}

/// Bits of `sample_regs_user` on x86 (`asm/perf_regs.h`): bp, sp and ip, which come in this order.
pub(crate) const REGISTERS: u64 = 1 << 6 | 1 << 7 | 1 << 8;

const LOST: u32 = 2;
const MMAP: u32 = 1;
const COMM: u32 = 3;
const SAMPLE: u32 = 9;
const MISC_CPUMODE: u16 = 7;
const MISC_KERNEL: u16 = 1;
const MISC_COMM_EXEC: u16 = 1 << 13;

/// Calls `each` with all records of known types; `dwarf` says which kind of samples there are.
pub(crate) fn for_each(bytes: &[u8], dwarf: bool, mut each: impl FnMut(Record<'_>)) {
    let mut rest = bytes;
    while let Some((header, _)) = rest.split_first_chunk::<8>() {
        let kind = u32::from_ne_bytes([header[0], header[1], header[2], header[3]]);
        let misc = u16::from_ne_bytes([header[4], header[5]]);
        let length = usize::from(u16::from_ne_bytes([header[6], header[7]]));
        let Some(body) = rest.get(8..length) else {
            return;
        };
        rest = &rest[length..];
        let record = match kind {
            LOST => number(body, 8).map(Record::Lost),
            MMAP => Some(Record::NewCode),
            COMM if misc & MISC_COMM_EXEC != 0 => Some(Record::Exec),
            SAMPLE => sample(body, misc, dwarf).map(Record::Sample),
            _ => None,
        };
        if let Some(record) = record {
            each(record);
        }
    }
}

/// The addresses of a chain, without the marks.
pub(crate) fn addresses(chain: &[u8]) -> impl Iterator<Item = u64> {
    let words = chain.chunks_exact(8);
    let words = words.filter_map(|word| word.try_into().ok().map(u64::from_ne_bytes));
    // PERF_CONTEXT_USER and others: small negative numbers.
    words.filter(|address| *address < 0u64.wrapping_sub(4096))
}

fn sample(body: &[u8], misc: u16, dwarf: bool) -> Option<Sample<'_>> {
    let ids = number(body, 8)?.to_ne_bytes();
    let stack = match dwarf {
        false => {
            let count = usize::try_from(number(body, 32)?).ok()?;
            let bytes = body.get(40..)?.get(..count.checked_mul(8)?)?;
            Callers::Chain(bytes)
        }
        // Without registers (a kernel thread's work) there is nothing to begin with.
        true if number(body, 32)? == 0 => Callers::Chain(&[]),
        true => {
            let registers = Registers {
                bp: number(body, 40)?,
                sp: number(body, 48)?,
                ip: number(body, 56)?,
            };
            let size = usize::try_from(number(body, 64)?).ok()?;
            let copy = match size {
                0 => &[],
                _ => {
                    let copied = number(body, 72usize.checked_add(size)?)?;
                    let bytes = body.get(72..)?.get(..size)?;
                    &bytes[..size.min(usize::try_from(copied).ok()?)]
                }
            };
            Callers::Stack {
                registers,
                copy,
                is_full: copy.len() == size,
            }
        }
    };
    Some(Sample {
        in_kernel: misc & MISC_CPUMODE == MISC_KERNEL,
        pid: u32::from_ne_bytes([ids[0], ids[1], ids[2], ids[3]]),
        tid: u32::from_ne_bytes([ids[4], ids[5], ids[6], ids[7]]),
        time_ns: number(body, 16)?,
        address: number(body, 24)?,
        stack,
    })
}

fn number(bytes: &[u8], at: usize) -> Option<u64> {
    let bytes = bytes.get(at..)?.first_chunk()?;
    Some(u64::from_ne_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(kind: u32, misc: u16, words: &[u64]) -> Vec<u8> {
        let mut bytes = kind.to_ne_bytes().to_vec();
        bytes.extend(misc.to_ne_bytes());
        bytes.extend((8 + 8 * words.len() as u16).to_ne_bytes());
        bytes.extend(words.iter().flat_map(|word| word.to_ne_bytes()));
        bytes
    }

    fn kinds(bytes: &[u8], dwarf: bool) -> Vec<String> {
        let mut all = Vec::new();
        for_each(bytes, dwarf, |record| {
            all.push(match record {
                Record::Sample(sample) => match sample.stack {
                    Callers::Chain(chain) => format!(
                        "{} {} {} {:x} {:?}",
                        sample.in_kernel,
                        sample.tid,
                        sample.time_ns,
                        sample.address,
                        addresses(chain).collect::<Vec<_>>()
                    ),
                    Callers::Stack {
                        registers,
                        copy,
                        is_full,
                    } => format!("{} {} {} {is_full}", registers.ip, registers.sp, copy.len()),
                },
                other => format!("{other:?}"),
            });
        });
        all
    }

    #[test]
    fn records_of_known_types_are_read_and_others_skipped() {
        let ids = u64::from(3u32) | u64::from(4u32) << 32;
        let mark = 0u64.wrapping_sub(512);
        let mut bytes = record(SAMPLE, 2, &[7, ids, 99, 0x1000, 3, mark, 7, 8]);
        bytes.extend(record(LOST, 0, &[1, 12]));
        bytes.extend(record(COMM, 0, &[1, 2]));
        bytes.extend(record(COMM, MISC_COMM_EXEC, &[1, 2]));
        bytes.extend(record(SAMPLE, 1, &[7, ids, 100, 0x2000, 0]));
        assert_eq!(
            kinds(&bytes, false),
            [
                "false 4 99 1000 [7, 8]",
                "Lost(12)",
                "Exec",
                "true 4 100 2000 []"
            ]
        );
        let dwarf = record(SAMPLE, 2, &[7, ids, 99, 0x1000, 2, 11, 12, 13, 16, 0, 0, 8]);
        assert_eq!(kinds(&dwarf, true), ["13 12 8 false"]);
    }

    #[test]
    fn no_bytes_are_too_strange() {
        let mut random = fastrand::Rng::with_seed(7);
        for _ in 0..20_000 {
            let words: Vec<u64> = (0..random.usize(0..12))
                .map(|_| random.u64(..) >> random.u32(0..64))
                .collect();
            let mut bytes = record(random.u32(0..11), random.u16(..), &words);
            if random.bool() {
                bytes.truncate(random.usize(0..=bytes.len()));
            } else if !words.is_empty() {
                bytes[6] = random.u8(..);
            }
            kinds(&bytes, random.bool());
        }
    }
}
