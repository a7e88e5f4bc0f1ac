//! [`Contents`]: whether predicted pages have changed, judged by a hash from the last collect.
//!
//! Hashes are kept of unprotected pages only, and only from one collect to the next: a page that
//! was reported in between for another reason has no hash. A write that comes after its page was
//! hashed changes the hash that the next collect computes. A write that leaves a page as it was
//! when last hashed is not reported, as with the technique `compare`: a consumer that copies pages
//! after a collect, while the program runs, may copy contents that are gone again by the next one,
//! and must compare with its copies itself ([`Round::predicted`](crate::Round::predicted)).

use crate::error::{Error, Result};
use crate::page_set::{PageSet, page_size};
use crate::sys::remote_memory;
use rustix::io::Errno;
use std::collections::HashMap;

/// The part of a hash that is kept: 16 bytes make collisions negligible.
type Hash = [u8; 16];

/// The number of bytes that are read at once.
const CHUNK_BYTES: usize = 1 << 18;

/// Hashes, as of the last collect, of all pages that were left unprotected.
#[derive(Debug)]
pub(super) struct Contents {
    pid: u32,
    kept: HashMap<u64, Hash>,
    buffer: Vec<u8>,
}

/// The result of [`Contents::compare`].
#[derive(Debug, Default)]
pub(super) struct Compared {
    /// Pages with the same contents as at the last collect.
    pub(super) unchanged: PageSet,
    pub(super) hashed_bytes: u64,
}

impl Contents {
    pub(super) fn new(pid: u32) -> Self {
        Self {
            pid,
            kept: HashMap::new(),
            buffer: vec![0; CHUNK_BYTES],
        }
    }

    /// Hashes `predicted` and `left`, finds which of `predicted` are unchanged, and keeps the
    /// hashes of `left`, which stays unprotected.
    pub(super) fn compare(&mut self, predicted: &PageSet, left: &PageSet) -> Result<Compared> {
        let before = std::mem::take(&mut self.kept);
        let mut compared = Compared::default();
        let page = page_size();
        for range in predicted.union(left).ranges() {
            let mut start = range.start();
            while start < range.end() {
                let wanted = (range.end() - start).min(CHUNK_BYTES as u64) as usize;
                let read = match remote_memory::read(self.pid, start, &mut self.buffer[..wanted]) {
                    Ok(read) => read,
                    Err(Errno::SRCH) => return Err(Error::Gone { pid: self.pid }),
                    // A page that cannot be read is reported.
                    Err(_) => 0,
                };
                let whole = self.buffer[..read].chunks_exact(page as usize);
                let count = whole.len() as u64;
                for (address, content) in (start..).step_by(page as usize).zip(whole) {
                    let mut hash = Hash::default();
                    hash.copy_from_slice(&blake3::hash(content).as_bytes()[..16]);
                    if before.get(&address) == Some(&hash) && predicted.contains(address) {
                        compared.unchanged.extend_back(address, page);
                    }
                    if left.contains(address) {
                        self.kept.insert(address, hash);
                    }
                }
                compared.hashed_bytes += count * page;
                start += count.max(1) * page;
            }
        }
        Ok(compared)
    }
}
