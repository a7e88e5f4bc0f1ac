//! [`SwapMover`]: fast memory is memory, slow memory is swap (or zram), and pages are sent there
//! and fetched back by `process_madvise(2)`. For machines with one node.
//!
//! `MADV_WILLNEED` reads pages into the swap cache only, so the program would still fault for each.
//! The mover therefore reads a byte of each page afterwards, which maps it.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use pagetrail::{Mapped, PageRange, PageSet, page_size};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::pace::Pace;
use super::{Mover, Outcome, Reason, Runs};
use crate::error::{Error, Result};
use crate::policy::plan::Unit;
use crate::policy::table::{Place, Run};
use crate::sys::advise::{self, Advice};

/// Number of ranges that one call takes.
const BATCH: usize = 256;

/// Moves the pages of one process to swap and back.
pub struct SwapMover {
    pid: u32,
    pidfd: OwnedFd,
    pace: Pace,
}

impl SwapMover {
    /// A mover for a process.
    ///
    /// # Errors
    ///
    /// There is no such process, or no swap on this machine.
    pub fn new(pid: u32, bytes_per_second: Option<u64>) -> Result<Self> {
        let swaps = std::fs::read_to_string("/proc/swaps").unwrap_or_default();
        if swaps.lines().count() < 2 {
            return Err(Error::NotHere(
                "no swap is on here: there is no slow memory to use".into(),
            ));
        }
        let gone = pagetrail::Error::NoSuchProcess { pid };
        let number = Pid::from_raw(pid as i32).ok_or(gone)?;
        let pidfd = pidfd_open(number, PidfdFlags::empty()).map_err(|errno| Error::Move {
            pid,
            source: errno.into(),
        })?;
        Ok(Self {
            pid,
            pidfd,
            pace: Pace::new(bytes_per_second),
        })
    }

    fn advise(&self, batch: &[Unit], advice: Advice) -> Result<(), Reason> {
        // Neighbours in one range; the order is that of the plan otherwise.
        let ranges: PageSet = batch
            .iter()
            .filter_map(|unit| PageRange::new(unit.address, unit.address + unit.bytes))
            .collect();
        match advise::advise(&self.pidfd, ranges.ranges(), advice) {
            Ok(_) => Ok(()),
            Err(Errno::SRCH) => Err(Reason::Ended),
            Err(Errno::NOMEM) => Err(Reason::Absent),
            Err(Errno::AGAIN | Errno::BUSY) => Err(Reason::Busy),
            Err(_) => Err(Reason::Refused),
        }
    }

    /// Maps pages that were read ahead. [`Self::check`] finds those that cannot be read.
    fn fetch(&self, batch: &[Unit]) {
        let Ok(memory) = File::open(format!("/proc/{}/mem", self.pid)) else {
            return;
        };
        for unit in batch {
            for address in (unit.address..unit.address + unit.bytes).step_by(page_size() as usize) {
                let _ = memory.read_at(&mut [0], address);
            }
        }
    }

    /// Which of some units are where they should be.
    fn check(&self, units: &[Unit], to: Place) -> io::Result<Vec<bool>> {
        let addresses = units
            .iter()
            .filter_map(|unit| PageRange::new(unit.address, unit.address + unit.bytes))
            .collect();
        let mapped = pagetrail::mapped_pages(self.pid, &addresses)
            .map_err(|error| io::Error::other(error.to_string()))?;
        let there = match to {
            Place::Fast => &mapped.present,
            _ => &mapped.swapped,
        };
        Ok(units
            .iter()
            .map(|unit| there.contains(unit.address))
            .collect())
    }
}

impl Mover for SwapMover {
    fn places(&mut self, mapped: &Mapped) -> Result<Vec<Run>> {
        let all = mapped.present.union(&mapped.swapped);
        let mut runs = Runs::default();
        let small = all.difference(&mapped.huge);
        let parts = [
            (small.intersection(&mapped.present), Place::Fast, false),
            (mapped.swapped.clone(), Place::Slow, false),
            (mapped.huge.clone(), Place::Fast, true),
        ];
        let mut ranges: Vec<_> = parts
            .iter()
            .flat_map(|(set, place, huge)| set.ranges().iter().map(move |r| (*r, *place, *huge)))
            .collect();
        ranges.sort_unstable_by_key(|(range, ..)| *range);
        for (range, place, huge) in ranges {
            runs.push(range, place, huge);
        }
        Ok(runs.finish())
    }

    fn carry_out(&mut self, units: &[Unit], to: Place, timeout: Duration) -> Outcome {
        let began = Instant::now();
        let advice = match to {
            Place::Fast => Advice::WillNeed,
            _ => Advice::PageOut,
        };
        let mut outcome = Outcome::default();
        let mut over = false;
        for batch in units.chunks(BATCH) {
            let bytes = batch.iter().map(|unit| unit.bytes).sum();
            let turn = (!over)
                .then(|| self.pace.wait_for(bytes, Instant::now(), began + timeout))
                .flatten();
            let Some(wait) = turn else {
                over = true;
                outcome
                    .failed
                    .extend(batch.iter().map(|unit| (*unit, Reason::NotTried)));
                continue;
            };
            std::thread::sleep(wait);
            if let Err(reason) = self.advise(batch, advice) {
                over = reason == Reason::Ended;
                outcome
                    .failed
                    .extend(batch.iter().map(|unit| (*unit, reason)));
                continue;
            }
            if to == Place::Fast {
                self.fetch(batch);
            }
            // The kernel follows the advice where it can; the page tables show the result.
            let there = self
                .check(batch, to)
                .unwrap_or_else(|_| vec![false; batch.len()]);
            for (unit, there) in batch.iter().zip(there) {
                match there {
                    true => outcome.moved.push(*unit),
                    false => outcome.failed.push((*unit, Reason::Busy)),
                }
            }
        }
        outcome.took = began.elapsed();
        outcome
    }
}
