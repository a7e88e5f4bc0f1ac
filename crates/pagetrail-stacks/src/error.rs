//! Why page faults cannot be sampled: one line each, with the cure.

use rustix::io::Errno;

/// The reason for which page faults are not sampled.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The kernel does not let this user observe the process.
    #[error(
        "perf_event_open(2) is not permitted ({errno}; kernel.perf_event_paranoid is {paranoid}); it needs a value of at most 2, CAP_PERFMON, or a container that allows the call"
    )]
    NotPermitted {
        /// The error of the system call.
        errno: Errno,
        /// The contents of `/proc/sys/kernel/perf_event_paranoid`.
        paranoid: String,
    },
    /// The process has ended.
    #[error("process {pid} has ended")]
    Gone {
        /// The process.
        pid: u32,
    },
    /// Each thread takes two descriptors per processor, and the limit does not suffice.
    #[error(
        "{threads} threads on {processors} processors take more descriptors than the limit allows; raise it (ulimit -n)"
    )]
    TooManyThreads {
        /// Threads of the process.
        threads: usize,
        /// Processors that are online.
        processors: usize,
    },
    /// This processor's stacks cannot be unwound with DWARF.
    #[error("unwinding with DWARF works on x86-64 only; choose frame pointers")]
    NoDwarf,
    /// A system call failed.
    #[error("cannot sample page faults: {call}: {errno}")]
    Kernel {
        /// The name of the call.
        call: &'static str,
        /// Its error.
        errno: Errno,
    },
}

impl Error {
    pub(crate) fn kernel(call: &'static str) -> impl FnOnce(Errno) -> Self {
        move |errno| Self::Kernel { call, errno }
    }
}

/// A result with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;
