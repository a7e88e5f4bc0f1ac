//! [`Error`]: what can go wrong, in one line each.

use std::io;

/// The result of this crate's calls.
pub type Result<T> = std::result::Result<T, Error>;

/// What went wrong.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A memory region cannot be tracked as it was described.
    #[error("memory slot {slot}: {reason}")]
    Region {
        /// The number of the memslot.
        slot: u32,
        /// What is wrong with it.
        reason: String,
    },
    /// KVM has refused a call.
    #[error("KVM refused to {what}: {source}")]
    Kvm {
        /// What was asked of it.
        what: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// A call on a userfaultfd or on the page map has failed.
    #[error("userfaultfd: cannot {what}: {source}")]
    Userfault {
        /// What was tried.
        what: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// An argument makes no sense.
    #[error("{0}")]
    Refused(String),
    /// The store has failed.
    #[cfg(feature = "store")]
    #[error(transparent)]
    Store(#[from] pagetrail_checkpoint::Error),
}

impl Error {
    pub(crate) fn region(slot: u32, reason: impl Into<String>) -> Self {
        Self::Region {
            slot,
            reason: reason.into(),
        }
    }

    pub(crate) fn kvm(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Kvm {
            what: what.into(),
            source,
        }
    }

    pub(crate) fn userfault<E: Into<io::Error>>(what: impl Into<String>) -> impl FnOnce(E) -> Self {
        move |source| Self::Userfault {
            what: what.into(),
            source: source.into(),
        }
    }
}
