//! [`Ledger`]: a mover for recordings, which have no process: it remembers where pages would be.

use std::collections::BTreeMap;
use std::time::Duration;

use pagetrail::{Mapped, PageRange, page_size};

use super::{Mover, Outcome, Reason, Runs};
use crate::error::Result;
use crate::policy::plan::Unit;
use crate::policy::table::{Place, Run};

/// The places of the pages of a recording. A page that comes into being is in fast memory while
/// there is room, as the kernel would have it, and stays there until it is moved.
#[derive(Debug)]
pub struct Ledger {
    /// Pages that fast memory holds.
    capacity: u64,
    in_fast: u64,
    places: BTreeMap<u64, Place>,
}

impl Ledger {
    /// Makes a ledger with this many bytes of fast memory.
    pub fn new(fast_bytes: u64) -> Self {
        Self {
            capacity: fast_bytes / page_size(),
            in_fast: 0,
            places: BTreeMap::new(),
        }
    }

    fn place_of(&mut self, address: u64) -> Place {
        let place = self.places.entry(address).or_insert_with(|| {
            if self.in_fast < self.capacity {
                self.in_fast += 1;
                Place::Fast
            } else {
                Place::Slow
            }
        });
        *place
    }

    fn put(&mut self, unit: &Unit, to: Place) -> Result<(), Reason> {
        let place = self.places.get_mut(&unit.address).ok_or(Reason::Absent)?;
        match (*place, to) {
            (Place::Slow, Place::Fast) if self.in_fast >= self.capacity => {
                return Err(Reason::NoRoom);
            }
            (Place::Slow, Place::Fast) => self.in_fast += 1,
            (Place::Fast, Place::Slow) => self.in_fast -= 1,
            _ => {}
        }
        *place = to;
        Ok(())
    }
}

impl Mover for Ledger {
    fn places(&mut self, mapped: &Mapped) -> Result<Vec<Run>> {
        let mut runs = Runs::default();
        for address in mapped.present.iter_units(page_size()) {
            let place = self.place_of(address);
            let page = PageRange::new(address, address + page_size());
            page.into_iter()
                .for_each(|page| runs.push(page, place, false));
        }
        Ok(runs.finish())
    }

    fn carry_out(&mut self, units: &[Unit], to: Place, _: Duration) -> Outcome {
        let mut outcome = Outcome::default();
        for unit in units {
            match self.put(unit, to) {
                Ok(()) => outcome.moved.push(*unit),
                Err(reason) => outcome.failed.push((*unit, reason)),
            }
        }
        outcome
    }
}

#[cfg(test)]
mod tests {
    use pagetrail::PageSet;

    use super::*;

    fn unit(page: u64) -> Unit {
        Unit {
            address: page * page_size(),
            bytes: page_size(),
            rank: 1,
        }
    }

    #[test]
    fn pages_fill_fast_memory_first_and_are_where_they_were_moved() {
        let mut ledger = Ledger::new(2 * page_size());
        let present = PageRange::new(page_size(), 5 * page_size());
        let mapped = Mapped::in_memory(PageSet::from_iter(present));
        let places = |ledger: &mut Ledger| -> Vec<(u64, Place)> {
            let runs = ledger.places(&mapped).unwrap();
            let pages = runs.iter().map(|run| (run.range.page_count(), run.place));
            pages.collect()
        };
        use Place::{Fast, Slow};
        assert_eq!(places(&mut ledger), [(2, Fast), (2, Slow)]);
        let full = ledger.carry_out(&[unit(4)], Fast, Duration::ZERO);
        assert_eq!(full.failed, [(unit(4), Reason::NoRoom)]);
        let out = ledger.carry_out(&[unit(1), unit(9)], Slow, Duration::ZERO);
        assert_eq!(out.moved, [unit(1)]);
        assert_eq!(out.failed, [(unit(9), Reason::Absent)]);
        assert_eq!(
            ledger.carry_out(&[unit(4)], Fast, Duration::ZERO).moved,
            [unit(4)]
        );
        assert_eq!(
            places(&mut ledger),
            [(1, Slow), (1, Fast), (1, Slow), (1, Fast)]
        );
    }
}
