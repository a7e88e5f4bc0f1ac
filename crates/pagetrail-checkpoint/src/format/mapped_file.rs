//! [`MappedFile`]: by what a file is known again that a process had mapped.

use super::wire::{Decoded, Decoder, Encoder};
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;

/// A file as it was when a process had mapped it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MappedFile {
    /// Its path.
    pub path: String,
    /// Its inode. Its device is not kept: many have another number after the machine has started
    /// anew.
    pub inode: u64,
    /// How long it was, in bytes.
    pub bytes: u64,
    /// When its contents were changed last: seconds since 1970, and nanoseconds.
    pub modified: (i64, i64),
}

impl MappedFile {
    /// What the file system says of a file.
    pub fn of(path: &str, metadata: &Metadata) -> Self {
        Self {
            path: path.into(),
            inode: metadata.ino(),
            bytes: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
        }
    }
    pub(super) fn encode(&self, out: &mut Encoder) {
        out.text(&self.path);
        out.number(self.inode);
        out.number(self.bytes);
        out.u64(self.modified.0 as u64);
        out.u64(self.modified.1 as u64);
    }

    pub(super) fn decode(input: &mut Decoder<'_>) -> Decoded<Self> {
        Ok(Self {
            path: input.text()?,
            inode: input.number()?,
            bytes: input.number()?,
            modified: (input.u64()? as i64, input.u64()? as i64),
        })
    }
}
