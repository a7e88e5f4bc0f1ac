//! [`Error`]: what can go wrong; the text of each variant is one line that names the cause and the
//! cure.

use crate::types::Technique;
use rustix::io::Errno;
use std::io;

/// Why a watch could not start, or a round could not be collected.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The technique does not work on this machine or was switched off; `Capabilities` gives the
    /// same reason.
    #[error("technique {technique} is not available here: {reason}")]
    Unavailable {
        /// The requested technique.
        technique: Technique,
        /// Why it is not available.
        reason: String,
    },
    /// None of the techniques that fit this target works on this machine.
    #[error("no technique works for this target: {reasons}")]
    NothingWorks {
        /// The reason for each technique.
        reasons: String,
    },
    /// The technique works here, but not for this kind of target.
    #[error("technique {technique} cannot track {target}; {cure}")]
    WrongTarget {
        /// The requested technique.
        technique: Technique,
        /// The kind of target.
        target: &'static str,
        /// What to do instead.
        cure: &'static str,
    },
    /// No process has this PID, or it is a zombie.
    #[error("no process {pid}: it does not exist or has ended")]
    NoSuchProcess {
        /// The requested PID.
        pid: u32,
    },
    /// The PID is the tracker's own, where another process is needed.
    #[error("process {pid} is this process itself; track it with Target::own()")]
    OwnProcess {
        /// The requested PID.
        pid: u32,
    },
    /// The PID is a kernel thread's, which has no memory of its own.
    #[error("process {pid} is a kernel thread: it has no memory of its own to track")]
    KernelThread {
        /// The requested PID.
        pid: u32,
    },
    /// The target runs 32-bit code; attaching injects 64-bit code.
    #[error("process {pid} runs 32-bit code; only 64-bit x86 processes can be attached to")]
    ThirtyTwoBit {
        /// The requested PID.
        pid: u32,
    },
    /// Another process already traces the target; `ptrace(2)` allows only one tracer.
    #[error(
        "process {pid} is already traced by process {tracer}; end that debugger, strace or pagetrail first"
    )]
    Traced {
        /// The requested PID.
        pid: u32,
        /// The PID of the process that traces it.
        tracer: u32,
    },
    /// The kernel refused; `cure` names the capability or the sysctl.
    #[error("not allowed to {what} of process {pid}: {cure}")]
    Permission {
        /// The requested PID.
        pid: u32,
        /// The operation that was refused.
        what: &'static str,
        /// The capability or setting that would allow it.
        cure: String,
    },
    /// Seccomp might kill the target for a system call that the tracker makes in it: no thread of
    /// the target may make these calls, or its filters cannot be read.
    #[error(
        "process {pid} runs under seccomp, which forbids the system calls that attaching needs, or does not let its \
         filters be read (which needs CAP_SYS_ADMIN); the technique compare needs none"
    )]
    Seccomp {
        /// The requested PID.
        pid: u32,
    },
    /// No thread of the target stopped in time.
    #[error(
        "process {pid} did not stop within {waited_ms} ms: all of its threads are in uninterruptible \
         waits; try again, or use the technique compare, which stops nothing"
    )]
    NotStopping {
        /// The requested PID.
        pid: u32,
        /// The time after which the attempt ended, in milliseconds.
        waited_ms: u64,
    },
    /// The target's control group is frozen, so that none of its threads stops for a tracer.
    #[error(
        "process {pid} is frozen by its control group; thaw it first (cgroup.freeze, or freezer.state of version 1)"
    )]
    Frozen {
        /// The requested PID.
        pid: u32,
    },
    /// The target cannot be attached to for another reason.
    #[error("cannot attach to process {pid}: {reason}")]
    Attach {
        /// The requested PID.
        pid: u32,
        /// The reason, in one line.
        reason: String,
    },
    /// Other processes cannot be attached to at all.
    #[error("cannot attach to other processes: {reason}")]
    NoAttach {
        /// The reason, in one line.
        reason: &'static str,
    },
    /// Pages of the target cannot be kept as they are while it runs
    /// ([`DirtySource::freeze`](crate::DirtySource::freeze)).
    #[error("pages of process {pid} cannot be kept while it writes to them: {reason}")]
    NoFreeze {
        /// The target's PID.
        pid: u32,
        /// The reason, in one line.
        reason: String,
    },
    /// The tracked process has ended; there is nothing more to collect.
    #[error("process {pid} has ended")]
    Gone {
        /// The target's PID.
        pid: u32,
    },
    /// The command of [`Target::command`](crate::Target::command) could not be started.
    #[error("cannot run {command}: {source}")]
    Spawn {
        /// The program's name.
        command: String,
        /// `NotFound` when there is no such program.
        source: io::Error,
    },
    /// The command of [`Target::command`](crate::Target::command) would run with fewer privileges
    /// than without a tracer; it was not started.
    #[error(
        "{command} gets privileges when it is executed (set-user-ID or similar), which the kernel \
         withholds under a tracer that lacks them; run pagetrail as root"
    )]
    Privileged {
        /// The program's name.
        command: String,
    },
    /// The target is no tree of processes, or is one where a single target is needed.
    #[error("this is no target of this kind: {reason}")]
    WrongTree {
        /// The reason, in one line.
        reason: String,
    },
    /// What tracking may cost, or an interval, makes no sense
    /// ([`WatchBuilder::max_overhead`](crate::WatchBuilder::max_overhead)).
    #[error("the budget of the watch makes no sense: {reason}")]
    WrongBudget {
        /// The reason, in one line.
        reason: &'static str,
    },
    /// A range is not mapped, not writable, or not made of whole pages.
    #[error("range {start:#x}..{end:#x} cannot be tracked: {reason}")]
    Range {
        /// First address of the range.
        start: u64,
        /// First address after the range.
        end: u64,
        /// What is wrong with the range.
        reason: &'static str,
    },
    /// A system call failed in a way that has no better name.
    #[error("{what} failed: {source}")]
    Io {
        /// The call and its purpose.
        what: String,
        /// The error that the kernel returned.
        source: io::Error,
    },
}

/// The kinds of [`Error`], for programs that react to them alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// This machine or build does not offer the technique, or any that fits the target.
    Unavailable,
    /// The target is of a kind that cannot be tracked, or not by this technique.
    InvalidTarget,
    /// There is no such process or program.
    NotFound,
    /// The process does not allow to be attached to now; it may later.
    Busy,
    /// A permission or privilege is missing.
    Permission,
    /// The target has ended.
    Gone,
    /// A setting makes no sense, whatever the target and the machine.
    InvalidSetting,
    /// A system call failed for another reason.
    System,
}

impl Error {
    // These take closures so that the text is allocated only on failure: a successful collect must
    // not allocate.

    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io {
            what: what.into(),
            source,
        }
    }

    pub(crate) fn os(what: impl Into<String>) -> impl FnOnce(Errno) -> Self {
        move |errno| Self::Io {
            what: what.into(),
            source: errno.into(),
        }
    }

    /// Whether the error says that the target's address space has ended, as its files in `/proc`
    /// report it.
    pub(crate) fn means_gone(&self) -> bool {
        match self {
            Self::Gone { .. } => true,
            // While a thread other than the leader executes, /proc has no entry of the process for
            // a moment.
            Self::Io { source, .. } => {
                matches!(source.raw_os_error(), Some(libc::ESRCH | libc::ENOENT))
            }
            _ => false,
        }
    }

    /// The kind of the error.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Unavailable { .. }
            | Self::NothingWorks { .. }
            | Self::NoAttach { .. }
            | Self::NoFreeze { .. } => ErrorKind::Unavailable,
            Self::WrongTarget { .. }
            | Self::OwnProcess { .. }
            | Self::KernelThread { .. }
            | Self::ThirtyTwoBit { .. }
            | Self::Attach { .. }
            | Self::WrongTree { .. }
            | Self::Range { .. } => ErrorKind::InvalidTarget,
            Self::WrongBudget { .. } => ErrorKind::InvalidSetting,
            Self::NoSuchProcess { .. } => ErrorKind::NotFound,
            Self::Traced { .. } | Self::NotStopping { .. } | Self::Frozen { .. } => ErrorKind::Busy,
            Self::Permission { .. } | Self::Seccomp { .. } | Self::Privileged { .. } => {
                ErrorKind::Permission
            }
            Self::Gone { .. } => ErrorKind::Gone,
            Self::Spawn { source, .. } => match source.kind() {
                io::ErrorKind::NotFound => ErrorKind::NotFound,
                io::ErrorKind::PermissionDenied => ErrorKind::Permission,
                _ => ErrorKind::System,
            },
            Self::Io { .. } => ErrorKind::System,
        }
    }

    /// The number of the error that the kernel returned (`errno(3)`), if a system call failed.
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::Spawn { source, .. } | Self::Io { source, .. } => source.raw_os_error(),
            _ => None,
        }
    }

    /// Whether the reason is this machine rather than the request or the target.
    pub fn is_machine_limit(&self) -> bool {
        self.kind() == ErrorKind::Unavailable
    }
}

/// The result type of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;
