//! What host and agent say to each other: a request, and its answer.
//!
//! A message is [`MAGIC`], a kind, the length of its body as four bytes, and the body; numbers are
//! little-endian. A set of pages is the number of its ranges and, for each, the pages since the end
//! of the one before and the pages in it, all in the variable length of LEB128.

use std::io::{self, Read, Write};

use pagetrail::{PageRange, PageSet};

/// Begins every message: another protocol, or a version of this one that is not understood, is
/// noticed at once.
const MAGIC: [u8; 4] = *b"PTg1";
/// A body is no longer. A set of all the single pages of 64 GiB, every second one, is 16 MiB.
const BODY_MAX: u32 = 64 << 20;
/// The first answer is no longer: a list of memory that machines have in few parts, and proofs.
pub(super) const HELLO_MAX: u32 = 64 << 10;
/// What of an answer does not grow with memory, and room for pages of devices.
const REST_MAX: u64 = 4096;
/// Beyond what processors address.
const PAGES_MAX: u64 = 1 << 40;
/// Guest-physical pages are of this size here, whatever either machine calls a page.
pub(super) const PAGE_BYTES: u64 = 4096;
/// What of a page proves where it is.
pub(super) const PROOF_BYTES: usize = 32;
const PROOFS_MAX: usize = 64;
const TEXT_MAX: usize = 4096;

/// The longest answer of an agent whose machine has so many pages. A set takes most bytes where it
/// has every second page: two for each range, so as many as there are pages. Two sets are in an
/// answer.
pub(super) fn body_max(pages: u64) -> u32 {
    let most = pages.saturating_mul(2).saturating_add(REST_MAX);
    u32::try_from(most).unwrap_or(BODY_MAX).min(BODY_MAX)
}

/// What the host asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Request {
    /// Who is there.
    Hello,
    /// Which memory there is.
    Mapped,
    /// What was used since the last one.
    Window,
    /// The next use of these pages is to be reported.
    Rearm(PageSet),
    /// No use is, until the next window.
    Suspend,
}

/// What the agent answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Hello(Hello),
    Mapped(Memory),
    Window(Used),
    Done,
    /// What went wrong.
    Failed(String),
}

/// An agent and its machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Hello {
    /// Whether accesses are reported, and whether writes are.
    pub(super) accesses: bool,
    pub(super) writes: bool,
    /// Guest-physical memory.
    pub(super) ram: PageSet,
    /// Guest-physical pages of the agent's own, and what they begin with at the moment.
    pub(super) proofs: Vec<(u64, [u8; PROOF_BYTES])>,
}

/// Guest-physical memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Memory {
    /// Pages of processes that are sampled.
    pub(super) sampled: PageSet,
    /// Of the others, pages that are in use: they cannot be sampled, and count as accessed.
    pub(super) in_use: PageSet,
}

/// What was used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Used {
    pub(super) accessed: Option<PageSet>,
    pub(super) written: Option<PageSet>,
}

impl Request {
    pub(super) fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let mut body = Vec::new();
        let kind = match self {
            Self::Hello => 1,
            Self::Mapped => 2,
            Self::Window => 3,
            Self::Rearm(pages) => {
                put_set(&mut body, pages);
                4
            }
            Self::Suspend => 5,
        };
        send(out, kind, &body)
    }

    pub(super) fn read(input: &mut impl Read) -> io::Result<Self> {
        let (kind, body) = receive(input, BODY_MAX)?;
        let mut body = Body(&body);
        let request = match kind {
            1 => Self::Hello,
            2 => Self::Mapped,
            3 => Self::Window,
            4 => Self::Rearm(body.set()?),
            5 => Self::Suspend,
            _ => return Err(wrong()),
        };
        body.end()?;
        Ok(request)
    }
}

impl Answer {
    pub(super) fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let mut body = Vec::new();
        let kind = match self {
            Self::Hello(hello) => {
                body.push(u8::from(hello.accesses) | u8::from(hello.writes) << 1);
                put_set(&mut body, &hello.ram);
                put(&mut body, hello.proofs.len() as u64);
                for (address, proof) in &hello.proofs {
                    put(&mut body, address / PAGE_BYTES);
                    body.extend(proof);
                }
                0x81
            }
            Self::Mapped(memory) => {
                put_set(&mut body, &memory.sampled);
                put_set(&mut body, &memory.in_use);
                0x82
            }
            Self::Window(used) => {
                for set in [&used.accessed, &used.written] {
                    body.push(set.is_some().into());
                    if let Some(set) = set {
                        put_set(&mut body, set);
                    }
                }
                0x83
            }
            Self::Done => 0x84,
            Self::Failed(text) => {
                let short: String = text.chars().take(TEXT_MAX / 4).collect();
                body.extend(short.as_bytes());
                0xff
            }
        };
        send(out, kind, &body)
    }

    /// Reads an answer with a body of so many bytes at most: what a guest sends costs its host
    /// memory.
    pub(super) fn read(input: &mut impl Read, body_max: u32) -> io::Result<Self> {
        let (kind, body) = receive(input, body_max)?;
        let mut body = Body(&body);
        let answer = match kind {
            0x81 => Self::Hello(body.hello()?),
            0x82 => Self::Mapped(Memory {
                sampled: body.set()?,
                in_use: body.set()?,
            }),
            0x83 => Self::Window(Used {
                accessed: body.optional_set()?,
                written: body.optional_set()?,
            }),
            0x84 => Self::Done,
            0xff => {
                let text = String::from_utf8_lossy(body.take(body.0.len().min(TEXT_MAX))?);
                // It is shown on a terminal.
                let text = text.replace(char::is_control, " ");
                Self::Failed(text)
            }
            _ => return Err(wrong()),
        };
        body.end()?;
        Ok(answer)
    }
}

fn wrong() -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        "what came is no message of an agent of this version",
    )
}

fn send(out: &mut impl Write, kind: u8, body: &[u8]) -> io::Result<()> {
    let length = u32::try_from(body.len()).ok();
    let Some(length) = length.filter(|length| *length <= BODY_MAX) else {
        return Err(io::Error::other("too many single pages for a message"));
    };
    let mut message = Vec::with_capacity(body.len() + 9);
    message.extend(MAGIC);
    message.push(kind);
    message.extend(length.to_le_bytes());
    message.extend(body);
    out.write_all(&message)
}

fn receive(input: &mut impl Read, body_max: u32) -> io::Result<(u8, Vec<u8>)> {
    let mut head = [0; 9];
    input.read_exact(&mut head)?;
    let [a, b, c, d, kind, length @ ..] = head;
    let length = u32::from_le_bytes(length);
    if [a, b, c, d] != MAGIC {
        return Err(wrong());
    }
    if length > body_max {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("a message of {length} bytes, where {body_max} are enough"),
        ));
    }
    // Grows with what comes, not with what is announced.
    let mut body = Vec::new();
    let read = input.take(length.into()).read_to_end(&mut body)?;
    match read == length as usize {
        true => Ok((kind, body)),
        false => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

fn put(body: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        body.push(number as u8 | 0x80);
        number >>= 7;
    }
    body.push(number as u8);
}

fn put_set(body: &mut Vec<u8>, set: &PageSet) {
    let ranges = set.ranges();
    put(body, ranges.len() as u64);
    let mut end = 0;
    for range in ranges {
        let (start, stop) = (range.start() / PAGE_BYTES, range.end() / PAGE_BYTES);
        put(body, start - end);
        put(body, stop - start);
        end = stop;
    }
}

/// What is left of a body.
struct Body<'a>(&'a [u8]);

impl<'a> Body<'a> {
    fn take(&mut self, bytes: usize) -> io::Result<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(bytes).ok_or_else(wrong)?;
        self.0 = rest;
        Ok(taken)
    }

    fn byte(&mut self) -> io::Result<u8> {
        Ok(self.take(1)?[0])
    }

    fn number(&mut self) -> io::Result<u64> {
        let mut number = 0;
        for shift in (0..63).step_by(7) {
            let byte = self.byte()?;
            number |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(wrong())
    }

    fn set(&mut self) -> io::Result<PageSet> {
        let count = self.number()?;
        // Each takes two bytes at least.
        if count > self.0.len() as u64 / 2 {
            return Err(wrong());
        }
        let mut ranges = Vec::with_capacity(count as usize);
        let mut end = 0;
        for _ in 0..count {
            let (gap, pages) = (self.number()?, self.number()?);
            let start = gap.checked_add(end).ok_or_else(wrong)?;
            end = pages.checked_add(start).ok_or_else(wrong)?;
            if end > PAGES_MAX {
                return Err(wrong());
            }
            let range = PageRange::new(start * PAGE_BYTES, end * PAGE_BYTES);
            ranges.push(range.ok_or_else(wrong)?);
        }
        Ok(ranges.into_iter().collect())
    }

    fn optional_set(&mut self) -> io::Result<Option<PageSet>> {
        match self.byte()? {
            0 => Ok(None),
            1 => self.set().map(Some),
            _ => Err(wrong()),
        }
    }

    fn hello(&mut self) -> io::Result<Hello> {
        let flags = self.byte()?;
        let ram = self.set()?;
        let count = self.number()?;
        if !matches!(flags, 1..=3) || count > PROOFS_MAX as u64 {
            return Err(wrong());
        }
        let mut proofs = Vec::new();
        for _ in 0..count {
            let page = self.number()?;
            if page >= PAGES_MAX {
                return Err(wrong());
            }
            let proof = self.take(PROOF_BYTES)?;
            let proof = proof.try_into().map_err(|_| wrong())?;
            proofs.push((page * PAGE_BYTES, proof));
        }
        Ok(Hello {
            accesses: flags & 1 != 0,
            writes: flags & 2 != 0,
            ram,
            proofs,
        })
    }

    fn end(&self) -> io::Result<()> {
        match self.0 {
            [] => Ok(()),
            _ => Err(wrong()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn random_set(random: &mut fastrand::Rng) -> PageSet {
        let mut at = 0;
        let ranges = (0..random.usize(0..40)).filter_map(|_| {
            let (gap, pages) = (1 << random.u32(1..20), 1 << random.u32(1..12));
            let start = at + random.u64(1..gap);
            at = start + random.u64(1..pages);
            PageRange::new(start * PAGE_BYTES, at * PAGE_BYTES)
        });
        ranges.collect()
    }

    fn answers(random: &mut fastrand::Rng) -> Vec<Answer> {
        let hello = Hello {
            accesses: true,
            writes: random.bool(),
            ram: random_set(random),
            proofs: vec![(0x7000, [7; PROOF_BYTES]), (0, [0; PROOF_BYTES])],
        };
        vec![
            Answer::Hello(hello),
            Answer::Mapped(Memory {
                sampled: random_set(random),
                in_use: random_set(random),
            }),
            Answer::Window(Used {
                accessed: random.bool().then(|| random_set(random)),
                written: random.bool().then(|| random_set(random)),
            }),
            Answer::Done,
            Answer::Failed("no room".into()),
        ]
    }

    #[test]
    fn what_is_said_is_what_is_heard() {
        let mut random = fastrand::Rng::with_seed(7);
        for _ in 0..200 {
            let requests = [
                Request::Hello,
                Request::Mapped,
                Request::Window,
                Request::Rearm(random_set(&mut random)),
                Request::Suspend,
            ];
            for request in requests {
                let mut bytes = Vec::new();
                request.write(&mut bytes).unwrap();
                assert_eq!(Request::read(&mut &bytes[..]).unwrap(), request);
            }
            for answer in answers(&mut random) {
                let mut bytes = Vec::new();
                answer.write(&mut bytes).unwrap();
                assert_eq!(Answer::read(&mut &bytes[..], BODY_MAX).unwrap(), answer);
            }
        }
    }

    #[test]
    fn nothing_that_a_guest_sends_does_harm() {
        let mut random = fastrand::Rng::with_seed(8);
        let mut refused = 0;
        for _ in 0..4000 {
            let mut answers = answers(&mut random);
            let answer = answers.swap_remove(random.usize(0..answers.len()));
            let mut bytes = Vec::new();
            answer.write(&mut bytes).unwrap();
            for _ in 0..random.usize(1..4) {
                let at = random.usize(0..bytes.len());
                match random.u8(0..3) {
                    0 => bytes[at] = random.u8(..),
                    1 => bytes.truncate(at.max(1)),
                    _ => bytes.insert(at, random.choice([0, 1, 0x7f, 0x80, 0xff]).unwrap_or(0)),
                }
            }
            match Answer::read(&mut &bytes[..], BODY_MAX) {
                Err(_) => refused += 1,
                Ok(Answer::Failed(text)) => assert!(!text.contains(char::is_control)),
                // What is understood has bounds.
                Ok(Answer::Window(used)) => {
                    for set in [used.accessed, used.written].into_iter().flatten() {
                        assert!(set.ranges().iter().all(|range| range.end() <= 1 << 52));
                    }
                }
                Ok(_) => {}
            }
        }
        assert!(refused > 1000, "{refused}");
        // A length that nothing follows takes no memory.
        let mut announced = Vec::from(MAGIC);
        announced.push(0x83);
        announced.extend((64u32 << 20).to_le_bytes());
        assert!(Answer::read(&mut &announced[..], BODY_MAX).is_err());
    }

    #[test]
    fn what_goes_wrong_is_one_line_of_bounded_length() {
        let text = "\u{1b}[31mö\n".repeat(4000);
        let mut bytes = Vec::new();
        Answer::Failed(text).write(&mut bytes).unwrap();
        let Answer::Failed(text) = Answer::read(&mut &bytes[..], BODY_MAX).unwrap() else {
            panic!("another answer");
        };
        assert!(text.len() <= TEXT_MAX && !text.contains(['\n', '\u{1b}']));
    }

    /// Every second one of so many pages, from a page on.
    fn comb(first: u64, pages: u64) -> PageSet {
        let ranges = (first..first + pages).step_by(2);
        ranges
            .filter_map(|page| PageRange::new(page * PAGE_BYTES, (page + 1) * PAGE_BYTES))
            .collect()
    }

    fn window(set: PageSet) -> Vec<u8> {
        let mut bytes = Vec::new();
        let (accessed, written) = (Some(set.clone()), Some(set));
        let used = Used { accessed, written };
        Answer::Window(used).write(&mut bytes).unwrap();
        bytes
    }

    #[test]
    fn an_answer_is_no_longer_than_its_machine_has_pages_for() {
        for pages in [2, 256, 1 << 16] {
            // The worst that is true, also where memory begins late and is in two parts.
            for first in [0, 1 << 18] {
                let mut worst = comb(first, pages / 2);
                worst.union_with(&comb(first + (1 << 24), pages / 2));
                let bytes = window(worst);
                let answer = Answer::read(&mut &bytes[..], body_max(pages));
                assert!(answer.is_ok(), "{pages} pages: {answer:?}");
            }
        }
        let bytes = window(comb(0, 200_000));
        assert!(Answer::read(&mut &bytes[..], BODY_MAX).is_ok());
        let refused = Answer::read(&mut &bytes[..], body_max(256)).unwrap_err();
        assert!(refused.to_string().contains("4608"), "{refused}");
        assert_eq!(body_max(u64::MAX), BODY_MAX);
        // Numbers of the largest size for 64 ranges, and all proofs.
        let ranges = (0..64).map(|at| {
            let start = (1 << 50) + at * (1 << 40);
            PageRange::new(start, start + (1 << 39)).unwrap()
        });
        let hello = Hello {
            accesses: true,
            writes: true,
            ram: ranges.collect(),
            proofs: vec![((1 << 51) - PAGE_BYTES, [0; PROOF_BYTES]); PROOFS_MAX],
        };
        let mut bytes = Vec::new();
        Answer::Hello(hello).write(&mut bytes).unwrap();
        assert!(Answer::read(&mut &bytes[..], HELLO_MAX).is_ok());
    }
}
