//! [`Error`]: what can go wrong, each variant one line that names the cause and the cure.

use std::io;

/// Why CRIU could not be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// This machine lacks something that CRIU needs, or CRIU.
    #[error("{0}")]
    Lacking(String),
    /// The system failed.
    #[error("{what}: {cause}")]
    Io {
        /// What was attempted.
        what: String,
        /// The system's answer.
        cause: io::Error,
    },
    /// CRIU failed, for the reason in its log.
    #[error("{what}: {reason}")]
    Failed {
        /// What was attempted.
        what: String,
        /// The first error in CRIU's log.
        reason: String,
    },
    /// Pages could not be given to a process that was restored already.
    #[error("the process lacks pages, and ends when it touches them: {0}")]
    LacksPages(pagetrail_checkpoint::Error),
    /// A connection is not from somebody who may have the pages.
    #[error("refused {peer}: {reason}")]
    Stranger {
        /// The other end.
        peer: std::net::SocketAddr,
        /// Whose it is.
        reason: String,
    },
}

impl Error {
    /// Whether this machine is the reason, so that another call fails as well.
    pub fn is_machine_limit(&self) -> bool {
        matches!(self, Self::Lacking(_))
    }

    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |cause| Self::Io { what, cause }
    }
}

/// Shorthand for results of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;
