//! Merges aliases of pages in the guest's page tables, and separates them again.
//!
//! The entry of a merged alias points to the guest-physical page of another alias of the same
//! memory, so that one write protection, and one log entry, serves for both (Lu et al., section 3).
//! Which addresses are aliases is not taken from the request: the kernel's list of mappings says
//! so, at the moment of the merge, while the lock of the memory is held. What changes a mapping
//! later removes its entries first ([`Memory::clear_entries`]), and with them the merges.

use pagetrail::{PageRange, PageSet, Region};

use super::units::Units;
use super::{Memory, PAGE};
use crate::error::{Error, Result};
use crate::memory::areas::Allowed;
use crate::rounds::unit_change::UnitChange;
use crate::sys::kvm::Vm;

/// Files without a file system, whose pages are memory wherever they are mapped: those of
/// `memfd_create(2)`, and of shared anonymous mappings.
const FILES: [&str; 2] = ["/memfd:", "/dev/zero (deleted)"];

impl Memory {
    /// Merges and separates aliases. Changes that are malformed, or concern memory that is not
    /// mapped so, are skipped. Processors may use the earlier entries until
    /// [`flush`](Self::flush).
    pub(crate) fn change_units(&mut self, vm: &Vm, changes: &[UnitChange]) -> Result<()> {
        let regions = Region::of_process(std::process::id());
        let regions = regions.map_err(|error| Error::Stopped(error.to_string()))?;
        for change in changes {
            if !change.is_sound() || !self.are_aliases(&regions, change) {
                tracing::debug!(?change, "these pages are not aliases");
                continue;
            }
            for number in change.first..change.first + change.pages {
                let Some(entries) = self.units.set(change, number) else {
                    break;
                };
                for (page, target) in entries {
                    let physical = self.slot_of(vm, target)?.physical(target);
                    self.table.repoint(page, physical)?;
                }
            }
        }
        Ok(())
    }

    /// Whether a change, or one before it, takes aliases apart: processors must then forget
    /// entries, and the logs must be read before their entries mean less.
    pub(crate) fn separates(&self, changes: &[UnitChange]) -> bool {
        let mut sound = changes.iter().filter(|change| change.is_sound());
        self.units.is_unsettled() || sound.any(|change| self.units.separates(change))
    }

    /// The merged aliases.
    pub(crate) fn units(&mut self) -> &mut Units {
        &mut self.units
    }

    /// Adds to logged pages the aliases for which they may stand.
    pub(crate) fn expand(&self, logged: &mut PageSet) {
        self.units.expand(logged);
    }

    /// Makes all processors forget all translations.
    pub(crate) fn flush(&self) -> Result<()> {
        let root = self.table.root();
        let flushed = self.system().flush_translations(root, PAGE);
        flushed.map_err(Error::system("flush the processors' TLBs"))
    }

    /// Separates the aliases in a range whose entries are gone.
    ///
    /// KVM flushes processors for the guest-physical pages that it has mapped. The own page of an
    /// alias that was used through another alias's page may not be among them.
    pub(super) fn dissolve(&mut self, range: PageRange) -> Result<()> {
        let removed = self.units.dissolve(range);
        if removed.is_empty() {
            return Ok(());
        }
        for page in removed {
            self.table.clear(page, page + PAGE);
        }
        self.flush()
    }

    /// Fills the tables for pages some of which may be merged with others, or protected.
    pub(super) fn fill_merged(
        &mut self,
        vm: &Vm,
        start: u64,
        end: u64,
        allowed: Allowed,
    ) -> Result<()> {
        let mut physical = Vec::with_capacity(((end - start) / PAGE) as usize);
        for page in (start..end).step_by(PAGE as usize) {
            let target = self.units.target(page);
            physical.push(self.slot_of(vm, target)?.physical(target));
        }
        let rights: Vec<Allowed> = (start..end)
            .step_by(PAGE as usize)
            .map(|page| self.rights(page, allowed))
            .collect();
        let target = |page: u64| {
            let number = ((page - start) / PAGE) as usize;
            (physical[number], rights[number])
        };
        self.table.fill_pages(start, end, target)
    }

    /// Whether the aliases to be merged are mappings of the same pages, with the same rights.
    fn are_aliases(&self, regions: &[Region], change: &UnitChange) -> bool {
        let aliases = change.of.among(change.merged);
        let mut mapped = aliases.map(|alias| {
            let start = change.of.page(alias, change.first);
            let range = PageRange::new(start, start + change.pages * PAGE)?;
            self.mapped(regions, range)
        });
        let Some(first) = mapped.next() else {
            // To take apart what is merged. Of other memory nothing is known, or begun to be.
            return self.units.knows(&change.of);
        };
        first.is_some() && mapped.all(|other| other == first)
    }

    /// What memory a range is, with its rights: the device and the number of a file in memory, and
    /// an offset. `None` where that is not one mapping of such a file.
    fn mapped(&self, regions: &[Region], range: PageRange) -> Option<(Allowed, [u64; 4])> {
        let after = regions.partition_point(|region| region.range.start() <= range.start());
        let region = &regions[after.checked_sub(1)?];
        let is_memory = FILES.iter().any(|name| region.name.starts_with(name));
        let offset = range.start() - region.range.start();
        let (major, minor) = region.device;
        let pieces = self.areas.pieces(range);
        match pieces.as_slice() {
            [(all, allowed)]
                if *all == range
                    && range.end() <= region.range.end()
                    && region.permissions.shared
                    && is_memory =>
            {
                let file = [
                    major.into(),
                    minor.into(),
                    region.inode,
                    region.offset + offset,
                ];
                Some((*allowed, file))
            }
            _ => None,
        }
    }
}

#[cfg(all(test, feature = "test-equipment"))]
mod tests;
