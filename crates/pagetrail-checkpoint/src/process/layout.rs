//! [`Layout`]: which mappings of a process an image has, and what of them it must have read once.
//!
//! A watch reports what was written; what was there before is found here: the contents of mappings
//! that are new, or that have taken another one's place.

use super::build_id::BuildIds;
use crate::error::Result;
use crate::format::manifest::Mapping;
use pagetrail::{Memory, PageSet, Region, owned_pages, pages_with_content};
use std::collections::BTreeSet;

/// The mappings as of the last round.
#[derive(Debug)]
pub(crate) struct Layout {
    pid: u32,
    regions: Vec<Region>,
    /// Addresses of mappings whose contents are in the image, wholly or where they differ from the
    /// file.
    addresses: PageSet,
    /// The part of `addresses` where a page without contents in the image is zero. A mapping that
    /// is saved once stays so when it may no longer be written.
    saved: PageSet,
    /// Pages of private mappings that this has given out since the last publication, on its own
    /// account.
    given_out: PageSet,
    /// The part of `given_out` in anonymous memory that was given out last.
    given_last: PageSet,
    /// Device and inode of the memory of sub-page heaps, which no other process has.
    heaps: BTreeSet<((u32, u32), u64)>,
    build_ids: BuildIds,
}

/// Whether contents of the region belong in an image; of shared memory that may not be written,
/// those that one has already: `saved`.
fn is_wanted(region: &Region, saved: &PageSet) -> bool {
    let trackable = region.is_trackable() || region.name == "[vdso]";
    let written = region.permissions.write || !region.permissions.shared;
    trackable && (written || saved.intersects(region.range))
}

impl Layout {
    pub(crate) fn new(pid: u32) -> Self {
        Self {
            pid,
            regions: Vec::new(),
            addresses: PageSet::new(),
            saved: PageSet::new(),
            given_out: PageSet::new(),
            given_last: PageSet::new(),
            heaps: BTreeSet::new(),
            build_ids: BuildIds::default(),
        }
    }

    /// The present mappings.
    pub(crate) fn regions(&self) -> &[Region] {
        &self.regions
    }

    /// Where contents belong in the image.
    pub(crate) fn addresses(&self) -> &PageSet {
        &self.addresses
    }

    /// Mappings whose contents do not belong in the image, also if it has pages there of something
    /// else.
    pub(crate) fn left_out(&self) -> PageSet {
        let mapped: PageSet = self.regions.iter().map(|region| region.range).collect();
        mapped.difference(&self.addresses)
    }

    /// Takes in the present mappings; gives the pages with contents that no round has reported: of
    /// mappings that are new, `remapped`, or saved from now on.
    ///
    /// `aliases`: what is there is in the image at other addresses.
    pub(crate) fn update(
        &mut self,
        regions: &[Region],
        remapped: &PageSet,
        aliases: &PageSet,
    ) -> Result<PageSet> {
        self.given_last.clear();
        if self.regions == regions && remapped.is_empty() {
            return Ok(PageSet::new());
        }
        let known = self.addresses.difference(remapped);
        let known_saved = self.saved.difference(remapped);
        let (mut addresses, mut saved) = (PageSet::new(), PageSet::new());
        let mut found = PageSet::new();
        let is_alias = |region: &Region| aliases.covers(region.range);
        let wanted = |region: &&Region| is_wanted(region, &known_saved) && !is_alias(region);
        for region in regions.iter().filter(wanted) {
            let is_saved = region.inode == 0
                || region.permissions.write
                || known_saved.intersects(region.range);
            addresses.insert(region.range);
            let reported = if is_saved {
                saved.insert(region.range);
                &known_saved
            } else {
                &known
            };
            let new = PageSet::from_iter([region.range]).difference(reported);
            if new.is_empty() {
                continue;
            }
            let contents = if is_saved && region.inode != 0 && !region.permissions.shared {
                // As the file, but nobody says so of a page of a saved mapping.
                new
            } else {
                pages_with_content(self.pid, region)?.intersection(&new)
            };
            found.union_with(&contents);
            if !region.permissions.shared {
                self.given_out.union_with(&contents);
                if region.inode == 0 {
                    self.given_last.union_with(&contents);
                }
            }
        }
        let heaps = regions.iter().filter(|region| is_alias(region));
        self.heaps = heaps.map(|region| (region.device, region.inode)).collect();
        self.regions = regions.to_vec();
        self.addresses = addresses;
        self.saved = saved;
        Ok(found)
    }

    /// Mappings in the image that others may write to without a trace.
    fn open_to_others(&self) -> impl Iterator<Item = &Region> {
        self.regions.iter().filter(|region| {
            region.permissions.shared
                && self.addresses.intersects(region.range)
                && !self.heaps.contains(&(region.device, region.inode))
        })
    }

    /// Their addresses.
    pub(crate) fn shared(&self) -> PageSet {
        self.open_to_others().map(|region| region.range).collect()
    }

    /// The pages there that hold something at present.
    pub(crate) fn shared_contents(&self) -> Result<PageSet> {
        let mut found = PageSet::new();
        for region in self.open_to_others() {
            found.union_with(&pages_with_content(self.pid, region)?);
        }
        Ok(found)
    }

    /// The pages of saved private file mappings that the process has no copy of: they show what the
    /// file holds at this moment, so that another program's write to the file changes them
    /// (`mmap(2)` leaves it open whether it does; on Linux it does). No watch reports that.
    pub(crate) fn as_in_files(&self) -> Result<PageSet> {
        let mut found = PageSet::new();
        let saved =
            |region: &&Region| !region.permissions.shared && self.saved.intersects(region.range);
        for region in self.regions.iter().filter(saved) {
            let pages = PageSet::from_iter([region.range]);
            if region.name == "[vdso]" {
                // Attaching and holding put code into its padding.
                found.union_with(&pages);
            } else if region.inode != 0 && region.is_trackable() {
                found.union_with(&pages.difference(&owned_pages(self.pid, region)?));
            }
        }
        Ok(found.intersection(&self.addresses))
    }

    /// The pages given out that the process owns no longer, or never did: of anonymous memory, then
    /// of files. What the watch [follows](Self::are_followed) is not looked at.
    ///
    /// A watch begins to follow a page when it sees that it exists. One that came after the watch
    /// was set up, was copied because this found it, and was given back (`madvise(MADV_DONTNEED)`)
    /// before the watch looked again, it never reports. So when the process stands still, what is
    /// no longer there must be asked for once more.
    pub(crate) fn vanished(&self) -> Result<(PageSet, PageSet)> {
        let (mut anonymous, mut of_files) = (PageSet::new(), PageSet::new());
        if self.given_out.is_empty() {
            return Ok((anonymous, of_files));
        }
        let wanted = |region: &&Region| is_wanted(region, &self.saved);
        for region in self.regions.iter().filter(wanted) {
            let given = self
                .given_out
                .intersection(&PageSet::from_iter([region.range]));
            if given.is_empty() || region.permissions.shared || !region.is_trackable() {
                continue;
            }
            let gone = given.difference(&owned_pages(self.pid, region)?);
            if region.inode == 0 {
                anonymous.union_with(&gone);
            } else {
                of_files.union_with(&gone);
            }
        }
        Ok((anonymous, of_files))
    }

    /// Of the pages that the last update gave out, the watch reports those in `followed` when they
    /// go. To be called before the watch looks again, with what it follows since the look before.
    pub(crate) fn are_followed(&mut self, followed: &PageSet) {
        self.given_out = self
            .given_out
            .difference(&self.given_last.intersection(followed));
        self.given_last.clear();
    }

    /// Whether the last update gave out pages of anonymous memory.
    pub(crate) fn has_given(&self) -> bool {
        !self.given_last.is_empty()
    }

    /// A checkpoint that has everything is published.
    pub(crate) fn settle(&mut self) {
        self.given_out.clear();
    }

    /// The mappings for a manifest.
    pub(crate) fn mappings(&mut self, memory: &Memory, trust_shared: bool) -> Vec<Mapping> {
        self.build_ids.update(self.pid, &self.regions, memory);
        let unknown = match trust_shared {
            true => self.shared(),
            false => PageSet::new(),
        };
        let mapping = |region: &Region| Mapping {
            range: region.range,
            permissions: region.permissions,
            offset: region.offset,
            device: region.device,
            inode: region.inode,
            name: region.name.clone(),
            build_id: self.build_ids.of(region),
            saved: self.saved.intersects(region.range),
            own_writes_only: unknown.intersects(region.range),
        };
        self.regions.iter().map(mapping).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagetrail::{PageRange, Permissions};

    #[test]
    fn shared_memory_stays_in_images_while_it_may_not_be_written() {
        // Where nothing is mapped, and no contents are found.
        let range = PageRange::new(0x2000_0000_0000, 0x2000_0001_0000).unwrap();
        let region = |write| {
            let permissions = Permissions {
                read: true,
                write,
                execute: false,
                shared: true,
            };
            let mut region = Region::new(range, permissions);
            region.device = (0, 1);
            region.inode = 77;
            region.name = "/dev/zero (deleted)".into();
            region
        };
        let (here, nothing) = (PageSet::from_iter([range]), PageSet::new());
        let mut layout = Layout::new(std::process::id());
        let mut update = |write, remapped: &PageSet| {
            let update = layout.update(&[region(write)], remapped, &nothing);
            update.unwrap();
            (layout.addresses().clone(), layout.left_out())
        };
        let (inside, outside) = (
            (here.clone(), nothing.clone()),
            (nothing.clone(), here.clone()),
        );
        assert_eq!(update(false, &nothing), outside);
        assert_eq!(update(true, &nothing), inside);
        assert_eq!(update(false, &nothing), inside);
        // Another one, which no image has.
        assert_eq!(update(false, &here), outside);
    }
}
