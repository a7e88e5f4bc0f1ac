//! [`Error`]: what can go wrong between a target, its source and its mover.

use std::io;

use crate::policy::settings::SettingsError;

/// Why a loop cannot begin or go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Tracking the target failed.
    #[error(transparent)]
    Watch(#[from] pagetrail::Error),
    /// A recording cannot be read.
    #[error("the recording cannot be read: {0}")]
    Trail(#[from] pagetrail_trail::ReadError),
    /// A setting is out of its range.
    #[error("setting {0}")]
    Settings(#[from] SettingsError),
    /// The recording has no more rounds.
    #[error("the recording is over")]
    Over,
    /// This machine lacks a feature that was requested.
    #[error("{0}")]
    NotHere(String),
    /// The target is not what it was named as.
    #[error("{0}")]
    Target(String),
    /// The kernel refuses to move pages of the target.
    #[error("cannot move pages of process {pid}: {source}")]
    Move {
        /// The process whose pages could not be moved.
        pid: u32,
        /// The error of the kernel.
        source: io::Error,
    },
    /// A file of the kernel cannot be read or written.
    #[error("{what}: {source}")]
    Io {
        /// The operation and its file.
        what: String,
        /// The error of the operating system.
        source: io::Error,
    },
}

/// Shorthand for results of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// Whether the target, or the recording of it, has come to its end.
    pub fn means_end(&self) -> bool {
        match self {
            Self::Over => true,
            Self::Watch(error) => {
                use pagetrail::Error::{Gone, NoSuchProcess};
                matches!(error, Gone { .. } | NoSuchProcess { .. })
            }
            Self::Move { source, .. } => source.raw_os_error() == Some(libc::ESRCH),
            _ => false,
        }
    }

    /// Whether the reason is this machine rather than the request or the target.
    pub fn is_machine_limit(&self) -> bool {
        match self {
            Self::NotHere(_) => true,
            Self::Watch(error) => error.is_machine_limit(),
            _ => false,
        }
    }
}
