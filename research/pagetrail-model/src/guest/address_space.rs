//! [`AddressSpace`]: the page tables of one process, as its kernel edits them.

use super::frames::GuestFrames;
use crate::Error;
use crate::machine::{Gpa, Gva, HUGE_PAGES, Pte};
use crate::platform::Platform;
use crate::ring::Words;

/// Four levels of tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AddressSpace {
    pub(crate) root: Gpa,
    pub(crate) pcid: u16,
}

/// An entry that maps a page, and where it lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Leaf {
    pub(crate) slot: Gpa,
    pub(crate) entry: Pte,
}

impl AddressSpace {
    pub(crate) fn new(
        platform: &mut Platform<'_>,
        frames: &mut GuestFrames,
        pcid: u16,
    ) -> Result<Self, Error> {
        let root = frames.allocate()?;
        platform.zero(root)?;
        Ok(Self { root, pcid })
    }

    /// The entry that maps `gva`, present ones only.
    pub(crate) fn leaf(
        &self,
        platform: &mut Platform<'_>,
        gva: Gva,
    ) -> Result<Option<Leaf>, Error> {
        let mut table = self.root;
        for level in (1..=4).rev() {
            let slot = table.add(gva.table_index(level) * 8);
            let entry = Pte(platform.read(slot)?);
            if !entry.present() {
                return Ok(None);
            }
            if level == 1 || entry.large() {
                return Ok(Some(Leaf { slot, entry }));
            }
            table = entry.address();
        }
        Ok(None)
    }

    /// The guest-physical address of `gva`.
    pub(crate) fn translate(
        &self,
        platform: &mut Platform<'_>,
        gva: Gva,
    ) -> Result<Option<Gpa>, Error> {
        Ok(self.leaf(platform, gva)?.map(|Leaf { entry, .. }| {
            let within = if entry.large() {
                gva.get() % crate::machine::HUGE_BYTES
            } else {
                0
            };
            entry.address().add(within).page()
        }))
    }

    /// The slot for the entry of `gva`; the tables above it are made where they are missing.
    pub(crate) fn slot(
        &self,
        platform: &mut Platform<'_>,
        frames: &mut GuestFrames,
        gva: Gva,
        large: bool,
    ) -> Result<Gpa, Error> {
        let leaf_level = if large { 2 } else { 1 };
        let mut table = self.root;
        for level in (leaf_level + 1..=4).rev() {
            let slot = table.add(gva.table_index(level) * 8);
            let mut entry = Pte(platform.read(slot)?);
            if !entry.present() {
                let below = frames.allocate()?;
                platform.zero(below)?;
                entry = Pte::to(below).with_writable(true);
                platform.write_entry(slot, entry.0)?;
            }
            table = entry.address();
        }
        Ok(table.add(gva.table_index(leaf_level) * 8))
    }

    /// Visits each present entry of `pages` pages at `start`, in order, and stores what `visit`
    /// returns if that is another. TLBs are left alone.
    pub(crate) fn visit(
        &self,
        platform: &mut Platform<'_>,
        start: Gva,
        pages: u64,
        visit: &mut impl FnMut(Gva, Pte) -> Pte,
    ) -> Result<(), Error> {
        let end = start.add_pages(pages);
        let mut at = start;
        while at < end {
            let next_table = at.huge_page().add_pages(HUGE_PAGES);
            let table = self.last_table(platform, at)?;
            match table {
                None => at = next_table,
                Some((slot, entry)) if entry.large() => {
                    store(platform, slot, entry, visit(at, entry))?;
                    at = next_table;
                }
                Some((_, table)) => {
                    while at < end.min(next_table) {
                        let slot = table.address().add(at.table_index(1) * 8);
                        let entry = Pte(platform.read(slot)?);
                        if entry.present() {
                            store(platform, slot, entry, visit(at, entry))?;
                        }
                        at = at.add_pages(1);
                    }
                }
            }
        }
        Ok(())
    }

    /// The entry of level 2 for `gva`: a large page or the last table.
    fn last_table(
        &self,
        platform: &mut Platform<'_>,
        gva: Gva,
    ) -> Result<Option<(Gpa, Pte)>, Error> {
        let mut table = self.root;
        for level in (2..=4).rev() {
            let slot = table.add(gva.table_index(level) * 8);
            let entry = Pte(platform.read(slot)?);
            if !entry.present() {
                return Ok(None);
            }
            if level == 2 {
                return Ok(Some((slot, entry)));
            }
            table = entry.address();
        }
        Ok(None)
    }

    /// Unmaps `pages` pages at `start` and returns what was mapped there.
    pub(crate) fn unmap(
        &self,
        platform: &mut Platform<'_>,
        start: Gva,
        pages: u64,
    ) -> Result<Vec<Pte>, Error> {
        let mut present = Vec::new();
        self.visit(platform, start, pages, &mut |gva, entry| {
            present.push(gva);
            entry
        })?;
        let mut taken = Vec::with_capacity(present.len());
        for gva in present {
            if let Some(leaf) = self.leaf(platform, gva)? {
                taken.push(Pte(platform.take_entry(leaf.slot)?));
            }
        }
        platform.flush_space(self.pcid);
        Ok(taken)
    }

    /// Gives back the tables themselves. Nothing may be mapped any more.
    pub(crate) fn free(
        self,
        platform: &mut Platform<'_>,
        frames: &mut GuestFrames,
    ) -> Result<(), Error> {
        free_tables(platform, frames, self.root, 4)
    }
}

fn free_tables(
    platform: &mut Platform<'_>,
    frames: &mut GuestFrames,
    table: Gpa,
    level: u32,
) -> Result<(), Error> {
    if level > 1 {
        for i in 0..HUGE_PAGES {
            let slot = table.add(i * 8);
            let entry = Pte(platform.read(slot)?);
            if entry.present() {
                free_tables(platform, frames, entry.address(), level - 1)?;
                platform.write_entry(slot, 0)?;
            }
        }
    }
    frames.release(table);
    Ok(())
}

fn store(platform: &mut Platform<'_>, slot: Gpa, old: Pte, new: Pte) -> Result<(), Error> {
    if new == old {
        Ok(())
    } else {
        platform.write_entry(slot, new.0)
    }
}
