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

/// Pages of a huge page.
const HUGE_PAGES: usize = 512;
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
    /// Bytes of a page, or of a huge page: what is sampled and moved as one.
    unit_bytes: u64,
    /// Pages of it, in which accesses and fast memory are counted.
    unit_pages: usize,
    fast: Vec<bool>,
    armed: Vec<bool>,
    /// Written since the page was last armed.
    written: Vec<bool>,
    /// Units that fast memory holds.
    fast_units: usize,
    bill: Bill,
}

/// A machine with one program, whose memory is filled from its first page on: fast memory first.
#[derive(Clone, Debug)]
pub struct Machine(Arc<Mutex<State>>);

impl Machine {
    /// A machine whose program has so many pages, of which so many fit into fast memory.
    pub fn new(pages: usize, fast_pages: usize) -> Self {
        Self::of_units(pages, fast_pages, 1)
    }

    /// A machine whose program has huge pages alone; the last one may be used in part.
    pub fn of_huge_pages(pages: usize, fast_pages: usize) -> Self {
        Self::of_units(pages, fast_pages, HUGE_PAGES)
    }

    fn of_units(pages: usize, fast_pages: usize, unit_pages: usize) -> Self {
        let (units, fast_units) = (pages.div_ceil(unit_pages), fast_pages / unit_pages);
        Self(Arc::new(Mutex::new(State {
            unit_bytes: pagetrail::page_size() * unit_pages as u64,
            unit_pages,
            fast: (0..units).map(|unit| unit < fast_units).collect(),
            armed: vec![false; units],
            written: vec![false; units],
            fast_units,
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
            let unit = page / state.unit_pages;
            if std::mem::take(&mut state.armed[unit]) {
                state.bill.faults += 1;
            }
            state.written[unit] |= writes > 0;
            match state.fast[unit] {
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
        let mut state = self.state();
        state.fast_units = pages / state.unit_pages;
    }

    /// How many pages are in fast memory.
    pub fn in_fast(&self) -> usize {
        let state = self.state();
        state.fast.iter().filter(|fast| **fast).count() * state.unit_pages
    }

    /// Which part of some pages is in fast memory.
    pub fn fast_part(&self, pages: &[u32]) -> f64 {
        let state = self.state();
        let unit = |page: &&u32| **page as usize / state.unit_pages;
        let fast = pages.iter().filter(|page| state.fast[unit(page)]);
        fast.count() as f64 / pages.len().max(1) as f64
    }

    /// Puts the program's pages where an oracle would: these into fast memory, and no other. Of
    /// huge pages those of the first, as many as fit.
    pub fn place(&self, fast: &[u32]) {
        let mut state = self.state();
        state.fast.fill(false);
        let mut left = match state.unit_pages {
            1 => fast.len(),
            _ => state.fast_units,
        };
        for page in fast {
            let unit = *page as usize / state.unit_pages;
            if left > 0 && !std::mem::replace(&mut state.fast[unit], true) {
                left -= 1;
            }
        }
    }
}

impl State {
    fn address(&self, unit: usize) -> u64 {
        BASE + unit as u64 * self.unit_bytes
    }

    fn range(&self, unit: usize) -> Option<PageRange> {
        PageRange::new(self.address(unit), self.address(unit + 1))
    }

    fn units_of(&self, set: &PageSet) -> Vec<usize> {
        set.iter_units(self.unit_bytes)
            .map(|address| ((address - BASE) / self.unit_bytes) as usize)
            .filter(|unit| *unit < self.armed.len())
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
        for unit in 0..state.armed.len() {
            if !state.armed[unit] {
                state.range(unit).into_iter().for_each(|range| {
                    accessed.insert(range);
                    if state.written[unit] {
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
        for unit in state.units_of(pages) {
            state.armed[unit] = true;
            state.written[unit] = false;
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
        for unit in state.units_of(&mapped.present) {
            let place = if state.fast[unit] {
                Place::Fast
            } else {
                Place::Slow
            };
            if let Some(range) = state.range(unit) {
                runs.push(range, place, state.unit_pages > 1);
            }
        }
        Ok(runs.finish())
    }

    fn carry_out(&mut self, units: &[Unit], to: Place, _: Duration) -> Outcome {
        let mut state = self.machine.state();
        let mut outcome = Outcome::default();
        let mut in_fast = state.fast.iter().filter(|fast| **fast).count();
        for unit in units {
            let index = ((unit.address - BASE) / state.unit_bytes) as usize;
            if to == Place::Fast && in_fast >= state.fast_units {
                outcome.failed.push((*unit, Reason::NoRoom));
                continue;
            }
            in_fast = if to == Place::Fast {
                in_fast + 1
            } else {
                in_fast - 1
            };
            state.fast[index] = to == Place::Fast;
            state.bill.moved += state.unit_pages as u64;
            outcome.moved.push(*unit);
        }
        outcome
    }
}
