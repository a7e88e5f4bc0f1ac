//! Why a trail could not be written or read: one line each, with the place and the cure.

use std::io;

/// The reason for which a trail could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The file does not begin with the signature of a trail (bad magic).
    #[error("not a trail file (bad magic); `pagetrail record` writes one")]
    NotATrail,
    /// The file ends within the header. A file that is cut off later can be read up to there.
    #[error("the trail ends before its header is whole, so it holds no round; record again")]
    NoHeader,
    /// The file has a major version of the format that this crate does not read.
    #[error(
        "the trail has format version {major}.{minor} and this pagetrail reads version {}; use the pagetrail that recorded it",
        crate::format::MAJOR
    )]
    Version {
        /// Major version of the file.
        major: u16,
        /// Minor version of the file.
        minor: u16,
    },
    /// The file holds bytes that fail their checksum or are not a valid record.
    #[error("the trail is damaged at byte {offset}: {what}; restore the file or record again")]
    Damaged {
        /// Offset in the file of the part that fails its check, in bytes.
        offset: u64,
        /// The check that failed.
        what: &'static str,
    },
    /// Reading from the input failed.
    #[error("cannot read the trail at byte {offset}")]
    Io {
        /// Bytes that were read before the error.
        offset: u64,
        /// The error of the operating system.
        source: io::Error,
    },
}

/// The reason for which a trail could not be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    /// Writing to the output failed. Earlier records are kept and can be read; the writer accepts
    /// no more.
    #[error("cannot write the trail at byte {offset}; the {rounds} rounds before are kept")]
    Io {
        /// Offset of the record that failed from the beginning of the trail, in bytes.
        offset: u64,
        /// Whole rounds that were written before the error.
        rounds: u32,
        /// The error of the operating system.
        source: io::Error,
    },
    /// An earlier write failed, so that a reader could not reach a record after it.
    #[error("nothing more is written to the trail because an earlier write failed")]
    Closed,
    /// The record breaks a rule of the format; nothing was written.
    #[error("cannot put this into a trail: {what}")]
    Invalid {
        /// The rule that it breaks.
        what: &'static str,
    },
}
