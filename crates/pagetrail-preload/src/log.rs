//! [`Log`]: the own bits from a log of dirty pages that a processor or a hypervisor keeps
//! (`/dev/ooh`), without a fault.
//!
//! For collectors alone, as every read of entries ends a round of the log: what a round had is
//! remembered until the next clear.

use pagetrail::{
    PageRange, PageSet, Target, Technique, UntrackedPolicy, Unwritable, Watch, page_size,
};

/// Bit 55 of an entry of `pagemap`.
const SOFT_DIRTY: u64 = 1 << 55;
const ENTRY: usize = size_of::<u64>();

pub(crate) struct Log {
    watch: Watch,
    /// What was written since the last clear, up to the last read.
    written: PageSet,
    /// Whether `written` has all of it; before the first clear, and after a failure, it has not.
    is_known: bool,
}

impl Log {
    /// Starts to log the own process.
    pub(crate) fn start(technique: Technique) -> pagetrail::Result<Self> {
        let watch = Watch::builder()
            .target(Target::own())
            .technique(technique)
            .unwritable(Unwritable::Always)
            .untracked(UntrackedPolicy::Report)
            .start()?;
        Ok(Self {
            watch,
            written: PageSet::new(),
            is_known: false,
        })
    }

    /// Clears all bits.
    pub(crate) fn clear(&mut self) -> pagetrail::Result<()> {
        self.is_known = false;
        self.watch.collect()?.commit();
        self.written = PageSet::new();
        self.is_known = true;
        Ok(())
    }

    /// Makes everything count as written until the next clear.
    pub(crate) fn give_up(&mut self) {
        self.is_known = false;
    }

    /// Fills in entries, from that of address `first` on, with nothing in them but bit 55. False
    /// where all of it counts as written.
    pub(crate) fn bare(&mut self, first: u64, entries: &mut [u8]) -> bool {
        if !self.is_known || self.read().is_err() {
            self.is_known = false;
            return false;
        }
        let bytes = (entries.len() / ENTRY) as u64 * page_size();
        let asked = first
            .checked_add(bytes)
            .and_then(|end| PageRange::new(first, end));
        let Some(asked) = asked else {
            return false;
        };
        fill(asked, &self.written, entries);
        true
    }

    fn read(&mut self) -> pagetrail::Result<()> {
        let round = self.watch.collect()?;
        self.written.union_with(round.dirty());
        round.commit();
        Ok(())
    }
}

/// Sets bit 55, and nothing else, in the entries of `asked` whose pages are in `written`.
fn fill(asked: PageRange, written: &PageSet, entries: &mut [u8]) {
    entries.fill(0);
    for range in written.intersection(&PageSet::from_iter([asked])).ranges() {
        let from = ((range.start() - asked.start()) / page_size()) as usize * ENTRY;
        let to = ((range.end() - asked.start()) / page_size()) as usize * ENTRY;
        for entry in entries[from..to].chunks_exact_mut(ENTRY) {
            entry.copy_from_slice(&SOFT_DIRTY.to_ne_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::set;

    #[test]
    fn entries_are_bare_but_for_what_was_written() {
        let page = page_size();
        let asked = PageRange::new(10 * page, 14 * page).unwrap();
        let mut entries = [0xff; 4 * ENTRY];
        fill(asked, &set(&[(1, 3), (9, 11), (13, 20)]), &mut entries);
        let found: Vec<u64> = entries
            .chunks_exact(ENTRY)
            .map(|entry| u64::from_ne_bytes(entry.try_into().unwrap()))
            .collect();
        assert_eq!(found, [SOFT_DIRTY, 0, 0, SOFT_DIRTY]);
    }
}
