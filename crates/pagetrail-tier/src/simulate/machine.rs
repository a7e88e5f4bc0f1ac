//! [`Machine`]: pages that are armed or not, fast or slow, and a program that touches them.
//!
//! It behaves as `access-scan` does: an armed page costs a fault when it is touched and is not
//! armed any longer, and every page that is not armed is reported.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use pagetrail::{Mapped, PageRange, PageSet};

use super::price::Bill;
use super::program::Accesses;
use crate::error::Result;
use crate::mover::{Mover, Outcome, Reason, Runs};
use crate::policy::plan::Unit;
use crate::policy::table::{Place, Run};
use crate::policy::{Sample, SourceCaps};
use crate::source::{Source, SourceInfo};

/// The first address of the program's memory.
const BASE: u64 = 1 << 32;

/// Accesses that the source of a machine reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Report {
    /// What was touched, as `access-scan` does.
    #[default]
    Accesses,
    /// What was touched, and what of it was written, as accessed and dirty bits do.
    AccessesAndWrites,
}

#[derive(Debug)]
struct State {
    page_bytes: u64,
    fast: Vec<bool>,
    armed: Vec<bool>,
    /// Written since the page was last armed.
    written: Vec<bool>,
    /// Pages that fast memory holds.
    fast_pages: usize,
    bill: Bill,
}

/// A machine with one program, whose memory is filled from its first page on: fast memory first.
#[derive(Clone, Debug)]
pub struct Machine(Arc<Mutex<State>>);

impl Machine {
    /// A machine whose program has so many pages, of which so many fit into fast memory.
    pub fn new(pages: usize, fast_pages: usize) -> Self {
        Self(Arc::new(Mutex::new(State {
            page_bytes: pagetrail::page_size(),
            fast: (0..pages).map(|page| page < fast_pages).collect(),
            armed: vec![false; pages],
            written: vec![false; pages],
            fast_pages,
            bill: Bill::default(),
        })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(|broken| broken.into_inner())
    }

    /// What the loop watches this machine through.
    pub fn source(&self, report: Report) -> SimulatedSource {
        SimulatedSource {
            machine: self.clone(),
            report,
        }
    }

    /// What the loop moves this machine's pages with.
    pub fn mover(&self) -> SimulatedMover {
        SimulatedMover {
            machine: self.clone(),
        }
    }

    /// Has the program make the accesses of a window.
    pub fn touch(&self, accesses: &Accesses) {
        let mut state = self.state();
        for (page, (reads, writes)) in accesses.reads.iter().zip(&accesses.writes).enumerate() {
            let (reads, writes) = (u64::from(*reads), u64::from(*writes));
            if reads + writes == 0 {
                continue;
            }
            if std::mem::take(&mut state.armed[page]) {
                state.bill.faults += 1;
            }
            state.written[page] |= writes > 0;
            match state.fast[page] {
                true => {
                    state.bill.reads_fast += reads;
                    state.bill.writes_fast += writes;
                }
                false => {
                    state.bill.reads_slow += reads;
                    state.bill.writes_slow += writes;
                }
            }
        }
    }

    /// What was counted so far.
    pub fn bill(&self) -> Bill {
        self.state().bill
    }

    /// How many pages fast memory is to hold from now on; what is there stays until it is moved.
    pub fn set_fast_pages(&self, pages: usize) {
        self.state().fast_pages = pages;
    }

    /// How many pages are in fast memory.
    pub fn in_fast(&self) -> usize {
        self.state().fast.iter().filter(|fast| **fast).count()
    }

    /// Which part of some pages is in fast memory.
    pub fn fast_part(&self, pages: &[u32]) -> f64 {
        let state = self.state();
        let fast = pages.iter().filter(|page| state.fast[**page as usize]);
        fast.count() as f64 / pages.len().max(1) as f64
    }

    /// Puts the program's pages where an oracle would: these into fast memory, and no other.
    pub fn place(&self, fast: &[u32]) {
        let mut state = self.state();
        state.fast.fill(false);
        for page in fast {
            state.fast[*page as usize] = true;
        }
    }
}

impl State {
    fn address(&self, page: usize) -> u64 {
        BASE + page as u64 * self.page_bytes
    }

    fn range(&self, page: usize) -> Option<PageRange> {
        PageRange::new(self.address(page), self.address(page + 1))
    }

    fn pages_of(&self, set: &PageSet) -> Vec<usize> {
        set.iter_units(self.page_bytes)
            .map(|address| ((address - BASE) / self.page_bytes) as usize)
            .filter(|page| *page < self.armed.len())
            .collect()
    }
}

/// The pages of a [`Machine`] that were touched.
pub struct SimulatedSource {
    machine: Machine,
    report: Report,
}

impl Source for SimulatedSource {
    fn info(&self) -> SourceInfo {
        SourceInfo {
            name: "simulation",
            caps: SourceCaps {
                accesses: true,
                writes: self.report == Report::AccessesAndWrites,
                in_turns: false,
            },
            pages: true,
            saves_faults: true,
        }
    }

    fn window(&mut self) -> Result<Sample> {
        let mut state = self.machine.state();
        let (mut accessed, mut written) = (PageSet::new(), PageSet::new());
        for page in 0..state.armed.len() {
            if !state.armed[page] {
                state.range(page).into_iter().for_each(|range| {
                    accessed.insert(range);
                    if state.written[page] {
                        written.insert(range);
                    }
                });
            }
        }
        state.bill.scanned += state.armed.len() as u64;
        Ok(Sample {
            accessed: Some(accessed),
            written: (self.report == Report::AccessesAndWrites).then_some(written),
        })
    }

    fn rearm(&mut self, pages: &PageSet) -> Result<()> {
        let mut state = self.machine.state();
        for page in state.pages_of(pages) {
            state.armed[page] = true;
            state.written[page] = false;
        }
        Ok(())
    }

    fn suspend(&mut self) -> Result<()> {
        self.machine.state().armed.fill(false);
        Ok(())
    }

    fn mapped(&mut self) -> Result<Mapped> {
        let state = self.machine.state();
        let all = PageRange::new(state.address(0), state.address(state.armed.len()));
        Ok(Mapped::in_memory(all.into_iter().collect()))
    }

    fn mapped_within(&mut self, addresses: &PageSet) -> Result<Mapped> {
        let mut mapped = self.mapped()?;
        mapped.present = mapped.present.intersection(addresses);
        Ok(mapped)
    }
}

/// Moves the pages of a [`Machine`].
pub struct SimulatedMover {
    machine: Machine,
}

impl Mover for SimulatedMover {
    fn places(&mut self, mapped: &Mapped) -> Result<Vec<Run>> {
        let state = self.machine.state();
        let mut runs = Runs::default();
        for page in state.pages_of(&mapped.present) {
            let place = if state.fast[page] {
                Place::Fast
            } else {
                Place::Slow
            };
            if let Some(range) = state.range(page) {
                runs.push(range, place, false);
            }
        }
        Ok(runs.finish())
    }

    fn carry_out(&mut self, units: &[Unit], to: Place, _: Duration) -> Outcome {
        let mut state = self.machine.state();
        let mut outcome = Outcome::default();
        let mut in_fast = state.fast.iter().filter(|fast| **fast).count();
        for unit in units {
            let page = ((unit.address - BASE) / state.page_bytes) as usize;
            if to == Place::Fast && in_fast >= state.fast_pages {
                outcome.failed.push((*unit, Reason::NoRoom));
                continue;
            }
            in_fast = if to == Place::Fast {
                in_fast + 1
            } else {
                in_fast - 1
            };
            state.fast[page] = to == Place::Fast;
            state.bill.moved += 1;
            outcome.moved.push(*unit);
        }
        outcome
    }
}
