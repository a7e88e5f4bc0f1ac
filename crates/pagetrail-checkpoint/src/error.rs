//! [`Error`]: what can go wrong, each variant one line that names the cause and the cure.

use crate::storage::Name;
use std::io;

/// Why a store could not be used, or a checkpoint not be taken.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The storage failed: a full disk, a missing permission.
    #[error("{what}: {cause}")]
    Io {
        /// What was attempted.
        what: String,
        /// The system's answer.
        cause: io::Error,
    },
    /// A part of the store is not what was written.
    #[error("{object} is damaged: {reason}")]
    Damaged {
        /// The file, by its name in the store.
        object: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The directory holds something else, or nothing.
    #[error("{place} is not a checkpoint store")]
    NotAStore {
        /// Where.
        place: String,
    },
    /// The store is encrypted, and no key was given.
    #[error("{place} is encrypted, and needs its key")]
    Encrypted {
        /// Where.
        place: String,
    },
    /// Another writer is at work; there can be one.
    #[error("{place} is in use by another process that writes to it")]
    Busy {
        /// Where.
        place: String,
    },
    /// Others could replace the files of a store there.
    #[error("{place} is writable by everybody; checkpoints hold all secrets of a program")]
    WorldWritable {
        /// The directory.
        place: String,
    },
    /// There is no such checkpoint.
    #[error("no checkpoint {number} in the store; it has {there}")]
    NoSuchCheckpoint {
        /// The number asked for.
        number: u64,
        /// Which there are, in words.
        there: String,
    },
    /// No checkpoint has this label.
    #[error("no checkpoint in the store has the label {0}")]
    NoSuchLabel(String),
    /// A store without any checkpoint.
    #[error("the store has no checkpoint yet")]
    Empty,
    /// What is asked for cannot be done with this process or this image, for the reason given.
    #[error("{0}")]
    Refused(String),
    /// What is asked for cannot be done at this instant, for the reason given; at another it can.
    #[error("{0}")]
    NotNow(String),
    /// The other side of a connection does not keep to the page-server protocol, or image files are
    /// not as CRIU writes them.
    #[error("what came is not as CRIU sends it: {0}")]
    Peer(String),
    /// Watching or stopping the process failed.
    #[error(transparent)]
    Process(#[from] pagetrail::Error),
}

impl Error {
    /// What reading an object has come to. That it is not what was written is damage.
    pub(crate) fn reading(object: Name, cause: io::Error) -> Self {
        match cause.kind() {
            io::ErrorKind::InvalidData => Self::Damaged {
                object: object.to_string(),
                reason: cause.to_string(),
            },
            _ => Self::Io {
                what: format!("cannot read {object}"),
                cause,
            },
        }
    }

    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |cause| Self::Io { what, cause }
    }
}

/// Shorthand for results of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;
