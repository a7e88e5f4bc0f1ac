//! [`ProcessState`]: what it takes, besides memory and registers, to start a process anew.

use super::mapped_file::MappedFile;
use super::objects::Objects;
use super::open_file::{OpenFile, decode_file, file};
use super::wire::{Decoded, Decoder, Encoder, Malformed};
use pagetrail::{KernelState, PendingSignal, RseqArea, SignalAction, ThreadState};

/// What a process is besides its memory and registers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessState {
    /// What the kernel tells the process alone.
    pub kernel: KernelState,
    /// Where the kernel says that the parts of its memory are.
    pub parts: MemoryParts,
    /// Its working directory.
    pub directory: String,
    /// Its umask.
    pub umask: u32,
    /// Its `personality(2)`.
    pub personality: u32,
    /// Whether it leads a session.
    pub leads_session: bool,
    /// Whether it leads a process group.
    pub leads_group: bool,
    /// Its limits (`getrlimit(2)`), in the order of their numbers: soft, then hard;
    /// `u64::MAX` is none.
    pub limits: Vec<(u64, u64)>,
    /// Who it is for the kernel.
    pub credentials: Credentials,
    /// Whether others of its user may look into it (`PR_SET_DUMPABLE`).
    pub dumpable: bool,
    /// The files of its private mappings.
    pub mapped: Vec<MappedFile>,
    /// Addresses of shared mappings of files that it may not write, but may make writable.
    pub may_become_writable: Vec<u64>,
    /// Its open descriptors, ascending.
    pub files: Vec<OpenFile>,
    /// What lies in the kernel and has contents; in a manifest a field of its own.
    pub objects: Objects,
}

/// Fields of `proc_pid_stat(5)` that `PR_SET_MM_MAP` of `prctl(2)` sets: addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryParts {
    /// Beginning and end of the code.
    pub code: (u64, u64),
    /// Beginning and end of the data.
    pub data: (u64, u64),
    /// Beginning of the heap.
    pub heap_start: u64,
    /// Beginning of the stack.
    pub stack_start: u64,
    /// Beginning and end of the command line.
    pub arguments: (u64, u64),
    /// Beginning and end of the environment.
    pub environment: (u64, u64),
}

/// Who a process is for the kernel, as `/proc/PID/status` says it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Credentials {
    /// Real, effective, saved and file-system user.
    pub users: [u32; 4],
    /// Real, effective, saved and file-system group.
    pub groups: [u32; 4],
    /// Supplementary groups.
    pub supplementary: Vec<u32>,
    /// Inheritable, permitted, effective, bounding and ambient capabilities, a bit each.
    pub capabilities: [u64; 5],
    /// Whether no program that it executes gives it more rights.
    pub no_new_privileges: bool,
}

impl ProcessState {
    pub(super) fn encode(&self, out: &mut Encoder) {
        kernel(out, &self.kernel);
        let parts = &self.parts;
        for address in [
            parts.code.0,
            parts.code.1,
            parts.data.0,
            parts.data.1,
            parts.heap_start,
            parts.stack_start,
            parts.arguments.0,
            parts.arguments.1,
            parts.environment.0,
            parts.environment.1,
        ] {
            out.number(address);
        }
        out.text(&self.directory);
        out.u32(self.umask);
        out.u32(self.personality);
        out.u8(u8::from(self.leads_session) | u8::from(self.leads_group) << 1);
        out.list(&self.limits, |out, &(soft, hard)| {
            out.u64(soft);
            out.u64(hard);
        });
        let who = &self.credentials;
        for id in who.users.into_iter().chain(who.groups) {
            out.u32(id);
        }
        out.list(&who.supplementary, |out, &id| out.u32(id));
        who.capabilities.iter().for_each(|&set| out.u64(set));
        out.u8(who.no_new_privileges.into());
        out.u8(self.dumpable.into());
        out.list(&self.mapped, |out, file| file.encode(out));
        out.list(&self.may_become_writable, |out, &start| out.number(start));
        out.list(&self.files, file);
    }

    pub(super) fn decode(input: &mut Decoder<'_>) -> Decoded<Self> {
        let kernel = decode_kernel(input)?;
        let parts = MemoryParts {
            code: (input.number()?, input.number()?),
            data: (input.number()?, input.number()?),
            heap_start: input.number()?,
            stack_start: input.number()?,
            arguments: (input.number()?, input.number()?),
            environment: (input.number()?, input.number()?),
        };
        let directory = input.text()?;
        let (umask, personality) = (input.u32()?, input.u32()?);
        let leads = input.u8()?;
        if leads > 3 {
            return Err(Malformed("an impossible process"));
        }
        Ok(Self {
            kernel,
            parts,
            directory,
            umask,
            personality,
            leads_session: leads & 1 != 0,
            leads_group: leads & 2 != 0,
            limits: input.list(|input| Ok((input.u64()?, input.u64()?)))?,
            credentials: Credentials {
                users: array(input, Decoder::u32)?,
                groups: array(input, Decoder::u32)?,
                supplementary: input.list(Decoder::u32)?,
                capabilities: array(input, Decoder::u64)?,
                no_new_privileges: truth(input)?,
            },
            dumpable: truth(input)?,
            mapped: input.list(MappedFile::decode)?,
            may_become_writable: input.list(Decoder::number)?,
            files: input.list(decode_file)?,
            objects: Objects::default(),
        })
    }
}

/// As many values as the type has.
fn array<'a, T: Copy + Default, const N: usize>(
    input: &mut Decoder<'a>,
    each: impl Fn(&mut Decoder<'a>) -> Decoded<T>,
) -> Decoded<[T; N]> {
    let mut values = [T::default(); N];
    for value in &mut values {
        *value = each(input)?;
    }
    Ok(values)
}

pub(super) fn truth(input: &mut Decoder<'_>) -> Decoded<bool> {
    match input.u8()? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(Malformed("neither yes nor no")),
    }
}

fn kernel(out: &mut Encoder, kernel: &KernelState) {
    out.list(&kernel.actions, |out, action| {
        out.u32(action.signal);
        for field in [
            action.handler,
            action.flags,
            action.restorer,
            action.blocked,
        ] {
            out.number(field);
        }
    });
    kernel
        .timers
        .as_flattened()
        .iter()
        .for_each(|&field| out.number(field));
    out.number(kernel.heap_end);
    out.list(&kernel.pending, |out, signal| out.bytes(signal));
    out.list(&kernel.threads, |out, thread| {
        out.u32(thread.tid);
        thread
            .alternate_stack
            .iter()
            .for_each(|&field| out.number(field));
        out.number(thread.clear_tid);
        thread
            .robust_list
            .iter()
            .for_each(|&field| out.number(field));
        out.option(thread.rseq.as_ref(), |out, rseq| {
            out.number(rseq.address);
            out.u32(rseq.bytes);
            out.u32(rseq.signature);
        });
        out.list(&thread.pending, |out, signal| out.bytes(signal));
    });
}

fn signal(input: &mut Decoder<'_>) -> Decoded<PendingSignal> {
    let bytes = input.bytes()?.try_into();
    bytes.map_err(|_| Malformed("a signal of another length"))
}

fn decode_kernel(input: &mut Decoder<'_>) -> Decoded<KernelState> {
    let actions = input.list(|input| {
        Ok(SignalAction {
            signal: input.u32()?,
            handler: input.number()?,
            flags: input.number()?,
            restorer: input.number()?,
            blocked: input.number()?,
        })
    })?;
    let mut timers = [[0; 4]; 3];
    for field in timers.as_flattened_mut() {
        *field = input.number()?;
    }
    let heap_end = input.number()?;
    let pending = input.list(signal)?;
    let threads = input.list(|input| {
        Ok(ThreadState {
            tid: input.u32()?,
            alternate_stack: array(input, Decoder::number)?,
            clear_tid: input.number()?,
            robust_list: array(input, Decoder::number)?,
            rseq: input.option(|input| {
                Ok(RseqArea {
                    address: input.number()?,
                    bytes: input.u32()?,
                    signature: input.u32()?,
                })
            })?,
            pending: input.list(signal)?,
        })
    })?;
    Ok(KernelState {
        actions,
        timers,
        heap_end,
        threads,
        pending,
    })
}

#[cfg(test)]
mod tests {
    use super::super::listener::{Listener, ListenerAddress};
    use super::super::open_file::FileKind;
    use super::*;

    fn example() -> ProcessState {
        let open = |number, kind| OpenFile {
            number,
            flags: 0o2000002,
            position: 77,
            same_as: (number > 3).then_some(3),
            kind,
        };
        let path = || "/some/file".to_owned();
        ProcessState {
            kernel: KernelState {
                actions: vec![SignalAction {
                    signal: 10,
                    handler: 0x1234,
                    flags: 4,
                    restorer: 0x99,
                    blocked: u64::MAX,
                }],
                timers: [[1, 2, 3, 4]; 3],
                heap_end: 0x5555_0000_1234,
                threads: vec![ThreadState {
                    tid: 7,
                    alternate_stack: [0x1000, 2, 0x2000],
                    clear_tid: 0x3000,
                    robust_list: [0x4000, 24],
                    rseq: Some(RseqArea {
                        address: 0x5000,
                        bytes: 32,
                        signature: 0x5305_3053,
                    }),
                    pending: vec![[3; 128]],
                }],
                pending: vec![[4; 128]; 2],
            },
            parts: MemoryParts {
                code: (1, 2),
                data: (3, 4),
                heap_start: 5,
                stack_start: 6,
                arguments: (7, 8),
                environment: (9, 10),
            },
            directory: "/somewhere".into(),
            umask: 0o27,
            personality: 0x40000,
            leads_session: true,
            leads_group: false,
            limits: vec![(1, u64::MAX); 16],
            credentials: Credentials {
                users: [1, 2, 3, 4],
                groups: [5, 6, 7, 8],
                supplementary: vec![9, 10],
                capabilities: [1, 2, 3, 4, 5],
                no_new_privileges: true,
            },
            dumpable: true,
            mapped: vec![MappedFile {
                path: path(),
                inode: 1,
                bytes: 2,
                modified: (-3, 4),
            }],
            may_become_writable: vec![0x7000, 0x9000],
            files: vec![
                open(
                    0,
                    FileKind::Regular {
                        path: path(),
                        bytes: 5,
                    },
                ),
                open(1, FileKind::Stateless { path: path() }),
                open(2, FileKind::Terminal { path: path() }),
                open(3, FileKind::Pipe { inode: 1 << 40 }),
                open(
                    4,
                    FileKind::Counter {
                        value: u64::MAX,
                        semaphore: true,
                    },
                ),
                open(
                    5,
                    FileKind::Timer {
                        clock: 1,
                        set_flags: 1,
                        ticks: 2,
                        value: (3, 4),
                        interval: (5, 6),
                    },
                ),
                open(6, FileKind::Signals { mask: 0x4800 }),
                open(
                    7,
                    FileKind::Epoll {
                        targets: vec![(4, 1, u64::MAX)],
                    },
                ),
                open(8, FileKind::Memory { index: 2 }),
                open(9, FileKind::Socket { inode: 1 << 33 }),
                open(
                    10,
                    FileKind::Listener(Listener {
                        address: ListenerAddress::Abstract(b"name".to_vec()),
                        kind: 1,
                        backlog: 5,
                        reuse_address: false,
                        reuse_port: true,
                    }),
                ),
            ],
            objects: Objects::default(),
        }
    }

    #[test]
    fn a_state_comes_back_whole_and_damage_is_no_panic() {
        let state = example();
        let mut out = Encoder(Vec::new());
        state.encode(&mut out);
        let mut input = Decoder(&out.0);
        assert_eq!(ProcessState::decode(&mut input).ok(), Some(state));
        assert!(input.end().is_ok());
        for length in 0..out.0.len() {
            assert!(ProcessState::decode(&mut Decoder(&out.0[..length])).is_err());
        }
        let mut random = fastrand::Rng::with_seed(4);
        for _ in 0..3000 {
            let mut noise = out.0.clone();
            for _ in 0..random.usize(1..9) {
                let at = random.usize(0..noise.len());
                noise[at] = random.u8(..);
            }
            // Whatever it is taken for.
            let _ = ProcessState::decode(&mut Decoder(&noise));
        }
    }
}
