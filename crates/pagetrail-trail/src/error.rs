//! Why a trail could not be written or read: one line each, with the place and the cure.

use std::io;

/// Why a trail could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The first bytes are those of something else.
    #[error("not a trail file: its first bytes are others; `pagetrail record` writes one")]
    NotATrail,
    /// The file ends before the first record is whole. Later cuts are no error.
    #[error("the trail ends before its header is whole, so it holds no round; record again")]
    NoHeader,
    /// A later major version of the format.
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
    /// Bytes that no writer wrote.
    #[error("the trail is damaged at byte {offset}: {what}; restore the file or record again")]
    Damaged {
        /// Where the part that fails its check begins, in bytes from the beginning of the file.
        offset: u64,
        /// What is wrong there.
        what: &'static str,
    },
    /// The input failed.
    #[error("cannot read the trail at byte {offset}")]
    Io {
        /// How far it was read, in bytes.
        offset: u64,
        /// What the operating system said.
        source: io::Error,
    },
}

/// Why a trail could not be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    /// The output failed. What was written before is kept and readable; the writer takes nothing more.
    #[error("cannot write the trail at byte {offset}; the {rounds} rounds before are kept")]
    Io {
        /// Where the record that failed begins, in bytes from the beginning of the trail.
        offset: u64,
        /// Whole rounds written before.
        rounds: u32,
        /// What the operating system said.
        source: io::Error,
    },
    /// A write failed earlier, so that a record behind it could not be read back.
    #[error("nothing more is written to the trail because an earlier write failed")]
    Closed,
    /// The caller's record cannot be part of a trail; nothing was written.
    #[error("cannot put this into a trail: {what}")]
    Invalid {
        /// What is wrong with it.
        what: &'static str,
    },
}
