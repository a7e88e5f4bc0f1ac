//! [`Log`]: KVM's bitmap per memslot.

use super::LogProtection;
use crate::error::{Error, Result};
use crate::log::DirtyLog;
use crate::pages::DirtyPages;
use crate::regions::Regions;
use crate::sys::kvm;
use crate::sys::memory::Region;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Clean words between dirty ones that are passed to KVM with them, rather than by another call.
const GAP_WORDS: usize = 64;

/// KVM's dirty log.
///
/// KVM has one log per memslot, and reading empties it: the tracker must be the only one
/// that calls `KVM_GET_DIRTY_LOG`.
#[derive(Debug)]
pub struct Log {
    vm: OwnedFd,
    protection: LogProtection,
    words: Vec<u64>,
}

impl Log {
    /// Takes the log of a virtual machine, whose descriptor is duplicated.
    ///
    /// # Errors
    ///
    /// The descriptor cannot be duplicated.
    pub fn new(vm: BorrowedFd<'_>, protection: LogProtection) -> Result<Self> {
        let vm = vm.try_clone_to_owned();
        Ok(Self {
            vm: vm.map_err(Error::kvm("have its descriptor duplicated"))?,
            protection,
            words: Vec::new(),
        })
    }

    fn drain_region(&mut self, region: &Region, dirty: &mut DirtyPages) -> Result<()> {
        let Some(bitmap) = dirty.of_slot_mut(region.slot()) else {
            return Ok(());
        };
        self.words.clear();
        self.words.resize(bitmap.words().len(), 0);
        let vm = self.vm.as_fd();
        let got = kvm::get_log(vm, region, &mut self.words);
        // Without manual protection what was read is gone from the log, whatever comes after.
        bitmap.insert_words(&self.words);
        got.map_err(|error| refused(region, error))?;
        if self.protection == LogProtection::Manual {
            let pages = bitmap.pages();
            clear(vm, region.slot(), pages, &self.words)?;
        }
        Ok(())
    }
}

impl DirtyLog for Log {
    fn drain(&mut self, regions: &Regions, dirty: &mut DirtyPages) -> Result<()> {
        let mut outcome = Ok(());
        for region in regions {
            outcome = outcome.and(self.drain_region(region, dirty));
        }
        outcome
    }
}

fn refused(region: &Region, error: io::Error) -> Error {
    match error.raw_os_error() {
        Some(libc::ENOENT) => Error::region(
            region.slot(),
            "KVM does not log it; its memslot needs KVM_MEM_LOG_DIRTY_PAGES (`set_logging`)",
        ),
        Some(libc::ENXIO) => Error::region(
            region.slot(),
            "KVM logs it by rings; the log of bitmaps is not there",
        ),
        _ => Error::kvm(format!(
            "return the dirty log of memory slot {}",
            region.slot()
        ))(error),
    }
}

/// Write-protects the pages again that were read.
fn clear(vm: BorrowedFd<'_>, slot: u32, pages: u64, words: &[u64]) -> Result<()> {
    for run in runs(words) {
        let first_page = run.start as u64 * 64;
        let count = (run.len() as u64 * 64).min(pages - first_page);
        let what = format!("clear the dirty log of memory slot {slot}");
        kvm::clear_log(vm, slot, first_page, count as u32, &words[run])
            .map_err(Error::kvm(what))?;
    }
    Ok(())
}

/// The most words in one call: `KVM_CLEAR_DIRTY_LOG` holds KVM's lock for its time, and counts its
/// pages in 32 bits.
const CLEAR_WORDS_MAX: usize = 1 << 14;

/// Runs of words with the dirty ones, and short gaps between them.
fn runs(words: &[u64]) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    for at in (0..words.len()).filter(|at| words[*at] != 0) {
        match runs.last_mut() {
            Some(run) if at - run.end <= GAP_WORDS && at - run.start < CLEAR_WORDS_MAX => {
                run.end = at + 1;
            }
            _ => runs.push(at..at + 1),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_hold_every_dirty_word_once() {
        let mut random = fastrand::Rng::with_seed(3);
        for _ in 0..50 {
            let dense = random.u64(1..300);
            let words: Vec<u64> = (0..40_000)
                .map(|_| u64::from(random.u64(0..dense) == 0))
                .collect();
            let runs = runs(&words);
            assert!(runs.windows(2).all(|pair| pair[0].end <= pair[1].start));
            assert!(runs.iter().all(|run| run.len() <= CLEAR_WORDS_MAX));
            let dirty = words.iter().filter(|word| **word != 0).count();
            let held = runs.into_iter().flatten().filter(|at| words[*at] != 0);
            assert_eq!(held.count(), dirty);
        }
    }
}
