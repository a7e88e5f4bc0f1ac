//! [`Failure`]: why something could not be done to a target, as a plain value. An [`Error`] has
//! text that must be allocated, which the agent must not do while threads stand still.

use super::target_check;
use crate::error::Error;
use crate::proc::freezer;
use rustix::io::Errno;
use std::time::Duration;

/// Why something could not be done to a process.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Failure {
    NoSuchProcess,
    /// It has ended, or executes another program.
    Gone,
    /// Its seccomp filters do not allow it.
    Seccomp,
    /// A thread of it runs in 32-bit mode.
    ThirtyTwoBit,
    /// No thread has stopped after so long.
    NotStopping(Duration),
    /// What was to be done, and what the kernel said.
    Call(&'static str, Errno),
    /// It handles its own system calls.
    DispatchesCalls,
    /// No executable mapping of it has room for code.
    NoPadding,
    /// `clone(2)` in it failed.
    NotCloned(Errno),
    /// `close_range(2)` in it failed.
    NoTable(Errno),
    /// `userfaultfd(2)` in it failed.
    NotCreated(Errno),
    /// Nothing is held of this thread.
    NotHeld(u32),
}

/// What comes of an attempt on a process.
pub(crate) type Attempt<T> = Result<T, Failure>;

impl Failure {
    /// What to say when `what` has failed.
    pub(crate) fn of(what: &'static str) -> impl Fn(Errno) -> Self {
        move |errno| Self::Call(what, errno)
    }

    /// Whether the kernel has refused what another process of ours might do.
    pub(super) fn is_refusal(self) -> bool {
        matches!(self, Self::Call(_, Errno::PERM | Errno::ACCESS))
    }

    /// The error that names the cause.
    pub(crate) fn explain(self, pid: u32) -> Error {
        let attach = |reason: String| Error::Attach { pid, reason };
        match self {
            Self::NoSuchProcess => Error::NoSuchProcess { pid },
            Self::Gone => Error::Gone { pid },
            Self::Seccomp => Error::Seccomp { pid },
            Self::ThirtyTwoBit => Error::ThirtyTwoBit { pid },
            Self::NotStopping(_) if freezer::is_frozen(pid) => Error::Frozen { pid },
            Self::NotStopping(waited) => Error::NotStopping {
                pid,
                waited_ms: waited.as_millis() as u64,
            },
            Self::Call(what, errno) => target_check::explain(pid, what, errno),
            Self::DispatchesCalls => attach(
                "it handles its system calls itself (syscall user dispatch, as Wine does); \
                    the technique compare needs no call"
                    .into(),
            ),
            Self::NoPadding => attach(
                "no executable mapping of it has padding for a system call; the technique compare \
                    needs none"
                    .into(),
            ),
            Self::NotCloned(errno) => attach(format!(
                "clone(2) in it failed: {errno}{}; the technique compare needs no call",
                cloning_hint(errno)
            )),
            Self::NoTable(errno) => attach(format!("close_range(2) in it failed: {errno}")),
            Self::NotCreated(errno) => not_created(pid, errno),
            Self::NotHeld(tid) => attach(format!("nothing is held of thread {tid}")),
        }
    }
}

/// Why a helper could not be started.
fn cloning_hint(errno: Errno) -> &'static str {
    match errno {
        Errno::AGAIN => {
            " (its limit on processes, ulimit -u, or that of its cgroup, pids.max, is used up)"
        }
        Errno::INVAL => " (its children are to be in another namespace)",
        _ => "",
    }
}

fn not_created(pid: u32, errno: Errno) -> Error {
    let reason = match errno {
        Errno::PERM => {
            return Error::Permission {
                pid,
                what: "create a userfaultfd on behalf",
                cure: "set vm.unprivileged_userfaultfd=1, or choose the technique pagemap-scan or \
                    compare"
                    .into(),
            };
        }
        Errno::NOSYS => "its kernel has no userfaultfd (CONFIG_USERFAULTFD)".into(),
        Errno::MFILE => {
            "its limit on descriptors is 0 (ulimit -n); the technique compare needs none".into()
        }
        errno => format!("userfaultfd(2) in it failed: {errno}"),
    };
    Error::Attach { pid, reason }
}
