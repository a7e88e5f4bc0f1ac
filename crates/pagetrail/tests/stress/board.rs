//! The board on which writers publish what they have written; it is shared between processes, and
//! never tracked.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// One slot per page of the memory under test.
pub(crate) const SLOTS: usize = 8192;

/// After the stamps, as many words count the touches that have begun.
const BEGUN: usize = SLOTS;
/// Two words: the number of writes, and whether to stop.
const TOTAL: usize = 2 * SLOTS;
const STOP: usize = TOTAL + 1;
/// The starts of the pieces of memory, written by a puppet: one word per piece, 0 until known.
const PIECES: usize = TOTAL + 2;
const WORDS: usize = TOTAL + 64;

/// A file mapped shared.
pub(crate) struct Board {
    words: &'static [AtomicU64],
    /// The path, which is removed with the board by the side that made it.
    path: Option<PathBuf>,
}

impl Board {
    /// Makes a board in a new file.
    pub(crate) fn create() -> Self {
        let name = format!(
            "pagetrail-board-{}-{}",
            std::process::id(),
            fastrand::u64(..)
        );
        let path = std::env::temp_dir().join(name);
        let file = File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .open(&path)
            .expect("a file");
        file.set_len((WORDS * 8) as u64).expect("room for a file");
        Self {
            words: Self::map(&file),
            path: Some(path),
        }
    }

    /// Opens a board that another process made.
    pub(crate) fn open(path: &Path) -> Self {
        let file = File::options()
            .read(true)
            .write(true)
            .open(path)
            .expect("the board");
        Self {
            words: Self::map(&file),
            path: None,
        }
    }

    fn map(file: &File) -> &'static [AtomicU64] {
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping of WORDS words, never unmapped; both sides use them only as
        // atomics.
        unsafe {
            let base = libc::mmap(
                std::ptr::null_mut(),
                WORDS * 8,
                rights,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            );
            assert!(base != libc::MAP_FAILED, "the board cannot be mapped");
            std::slice::from_raw_parts(base.cast(), WORDS)
        }
    }

    pub(crate) fn path(&self) -> &Path {
        self.path.as_deref().expect("made here")
    }

    /// Publishes that the page of `slot` has `stamp`: after the write, hence the release ordering.
    pub(crate) fn publish(&self, slot: usize, stamp: u64) {
        self.words[slot].store(stamp, Ordering::Release);
        self.words[TOTAL].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn stamp(&self, slot: usize) -> u64 {
        self.words[slot].load(Ordering::Acquire)
    }

    /// Publishes that the page of `slot` is about to be touched for the `count`th time: before the
    /// touch, hence the strongest ordering.
    pub(crate) fn begin(&self, slot: usize, count: u64) {
        self.words[BEGUN + slot].store(count, Ordering::SeqCst);
    }

    /// The counts of touches that have begun.
    pub(crate) fn copy_begun(&self) -> Vec<u64> {
        let begun = &self.words[BEGUN..BEGUN + super::writers::PAGES as usize];
        begun
            .iter()
            .map(|word| word.load(Ordering::SeqCst))
            .collect()
    }

    /// All stamps that are published so far.
    pub(crate) fn copy(&self) -> Vec<u64> {
        (0..super::writers::PAGES as usize)
            .map(|slot| self.stamp(slot))
            .collect()
    }

    pub(crate) fn total(&self) -> u64 {
        self.words[TOTAL].load(Ordering::Relaxed)
    }

    pub(crate) fn stop(&self) {
        self.words[STOP].store(1, Ordering::Release);
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.words[STOP].load(Ordering::Acquire) != 0
    }

    pub(crate) fn set_piece(&self, piece: usize, start: u64) {
        self.words[PIECES + piece].store(start, Ordering::Release);
    }

    pub(crate) fn piece(&self, piece: usize) -> u64 {
        self.words[PIECES + piece].load(Ordering::Acquire)
    }
}

impl Drop for Board {
    fn drop(&mut self) {
        if let Some(path) = &self.path {
            let _ = std::fs::remove_file(path);
        }
    }
}
