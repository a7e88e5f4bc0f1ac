//! [`Error`]: why a process could not be started anew, each one line.

#[cfg(target_arch = "x86_64")]
use rustix::io::Errno;

/// Why a process could not be started anew. Nothing of it is left then.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// This checkpoint cannot be restored, or not here, for the reason given.
    #[error("{0}")]
    Refused(String),
    /// A descriptor cannot be opened, for the reason given; with [`Missing::Null`] it becomes
    /// `/dev/null`.
    ///
    /// [`Missing::Null`]: crate::Missing::Null
    #[error("{0}")]
    Missing(String),
    /// A file has changed since the checkpoint, as said; with
    /// [`allow_changed_files`](crate::RestoreOptions::allow_changed_files) that is no obstacle.
    #[error("{0}")]
    Changed(String),
    /// Another process has the PID.
    #[error("another process has PID {pid}")]
    PidTaken {
        /// The PID.
        pid: u32,
    },
    /// It takes a capability to choose a PID.
    #[error("it takes the capability CAP_CHECKPOINT_RESTORE to give the process PID {pid}")]
    NoPrivilege {
        /// The PID.
        pid: u32,
    },
    /// This machine does not let a process get its pages as it touches them, for the reason given.
    #[error("a process cannot get its pages as it touches them: {0}")]
    NotLazily(String),
    /// Pages could not be given to a process that ran already; it has ended.
    #[error("the process lacked pages, and was ended: {0}")]
    LacksPages(pagetrail_checkpoint::Error),
    /// The kernel refused a step.
    #[error("cannot {what}: {cause}")]
    Step {
        /// What was to be done.
        what: String,
        /// What the kernel said.
        cause: std::io::Error,
    },
    /// The store failed, or is damaged.
    #[error(transparent)]
    Store(#[from] pagetrail_checkpoint::Error),
    /// The new process could not be looked at.
    #[error(transparent)]
    Process(#[from] pagetrail::Error),
}

#[cfg(target_arch = "x86_64")]
impl Error {
    pub(crate) fn step(what: impl Into<String>) -> impl FnOnce(Errno) -> Self {
        let what = what.into();
        move |errno| Self::Step {
            what,
            cause: errno.into(),
        }
    }

    pub(crate) fn refused(reason: impl Into<String>) -> Self {
        Self::Refused(reason.into())
    }
}

/// Shorthand for results of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;
