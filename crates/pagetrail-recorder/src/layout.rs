//! [`Layout`]: the mappings that a trail lists, updated with each round.
//!
//! A trail lists writable mappings and others that have dirty pages. A mapping is the same one as
//! long as its addresses and name stay. A mapping that the technique cannot track is listed with
//! the reason. Memory that the kernel does not name has the name that its contents give it, once
//! they do: until then it is another mapping, which vanishes.

use std::collections::BTreeMap;
use std::mem;

use pagetrail::{PageSet, Region, UntrackedRegion};
use pagetrail_stacks::MemoryNames;
use pagetrail_trail::{Mapping, SharedMemory};

/// A mapping and its number in the order of appearance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Numbered {
    /// Number of the mapping, counted from 0.
    pub index: usize,
    /// The mapping itself.
    pub mapping: Mapping,
}

/// Changes of the mappings in one round.
#[derive(Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Changes {
    /// Mappings that vanished, with their last round.
    pub gone: Vec<Numbered>,
    /// Mappings that are new, in the order of their numbers.
    pub appeared: Vec<Numbered>,
    /// Lines for the report about new mappings that another technique tracks.
    pub(crate) notes: Vec<String>,
}

/// The mappings that exist at present.
#[derive(Debug, Default)]
pub(crate) struct Layout {
    /// Existing mappings in ascending order of addresses.
    present: Vec<Numbered>,
    /// Number of mappings so far, including those that vanished.
    count: usize,
    /// Names memory that has none.
    names: Option<MemoryNames>,
}

impl Layout {
    /// A layout that names the memory of a process.
    pub(crate) fn naming(pid: u32) -> Self {
        Self {
            names: Some(MemoryNames::new(pid)),
            ..Self::default()
        }
    }

    /// Mappings that existed in the last round, in ascending order of addresses.
    pub(crate) fn present(&self) -> &[Numbered] {
        &self.present
    }

    /// Updates the layout with the ascending mappings of a round and its dirty pages.
    pub(crate) fn update(
        &mut self,
        round: u32,
        regions: &[Region],
        untracked: &[UntrackedRegion],
        written: &PageSet,
    ) -> Changes {
        let mut changes = Changes::default();
        if let Some(names) = &mut self.names {
            names.examine(regions);
        }
        let mut compared = BTreeMap::<&str, Vec<&Region>>::new();
        let mut before = mem::take(&mut self.present).into_iter().peekable();
        for region in regions {
            let is_gone = |known: &Numbered| known.mapping.range.start() < region.range.start();
            while let Some(gone) = before.next_if(is_gone) {
                changes.gone.push(gone);
            }
            let name = match &self.names {
                Some(names) => names.name(region),
                None => &region.name,
            };
            let same = before.next_if(|known| is_same(&known.mapping, region, name));
            if let Some(same) = same {
                self.present.push(same);
                continue;
            }
            if !region.permissions.write && !written.intersects(region.range) {
                continue;
            }
            let refused = untracked
                .iter()
                .find(|untracked| untracked.region.range.intersection(&region.range).is_some());
            if let Some(refused) = refused.filter(|refused| refused.compared) {
                compared.entry(&refused.reason).or_default().push(region);
            }
            let mapping = Mapping {
                range: region.range,
                name: name.into(),
                permissions: region.permissions.to_string(),
                untracked: refused
                    .filter(|refused| !refused.compared)
                    .map(|refused| refused.reason.clone()),
                shared: shared(region),
                first_round: round,
                last_round: None,
            };
            let index = self.count;
            self.count += 1;
            self.present.push(Numbered { index, mapping });
            changes.appeared.extend(self.present.last().cloned());
        }
        changes.gone.extend(before);
        for gone in &mut changes.gone {
            gone.mapping.last_round = Some(round.saturating_sub(1));
        }
        changes.notes = compared
            .into_iter()
            .map(|(reason, regions)| note(reason, &regions))
            .collect();
        changes
    }
}

/// Whether a mapping is still that region: one of the same name may have taken its place.
fn is_same(mapping: &Mapping, region: &Region, name: &str) -> bool {
    mapping.range == region.range && mapping.name == name && mapping.shared == shared(region)
}

/// What memory a shared mapping shows.
fn shared(region: &Region) -> Option<SharedMemory> {
    (region.permissions.shared && region.inode != 0).then_some(SharedMemory {
        device: region.device,
        inode: region.inode,
        offset: region.offset,
    })
}

/// One line for all mappings that are tracked by `compare` for the same reason.
fn note(reason: &str, regions: &[&Region]) -> String {
    let first = match regions.first() {
        Some(region) if region.name.is_empty() => format!("{}", region.range),
        Some(region) => region.name.clone(),
        None => String::new(),
    };
    let more = match regions.len() {
        0 | 1 => String::new(),
        n => format!(" and {} more", n - 1),
    };
    format!("tracked by compare: {first}{more}: {reason}")
}

#[cfg(test)]
mod tests {
    use pagetrail::{PageRange, Permissions};
    use pagetrail_report::testing;

    use super::*;

    fn region(first: u64, pages: u64, name: &str, write: bool) -> Region {
        let permissions = Permissions {
            read: true,
            write,
            execute: false,
            shared: false,
        };
        let mut region = Region::new(testing::pages(0x1000_0000, first, pages), permissions);
        region.name = name.into();
        region
    }

    fn names(mappings: &[Numbered]) -> Vec<(usize, &str)> {
        let named = mappings.iter();
        named.map(|m| (m.index, m.mapping.name.as_str())).collect()
    }

    #[test]
    fn mappings_come_and_go() {
        let nothing = PageSet::new();
        let mut layout = Layout::default();
        let (a, b, c) = (
            region(0, 4, "a", true),
            region(8, 4, "b", true),
            region(4, 4, "c", true),
        );
        let text = region(20, 4, "text", false);
        let changes = layout.update(0, &[a.clone(), b.clone(), text.clone()], &[], &nothing);
        assert_eq!(names(&changes.appeared), [(0, "a"), (1, "b")]);
        let same = layout.update(1, &[a.clone(), b.clone(), text.clone()], &[], &nothing);
        assert_eq!(same, Changes::default());
        let shorter = region(0, 3, "a", true);
        let changes = layout.update(2, &[shorter, c, text], &[], &nothing);
        assert_eq!(names(&changes.gone), [(0, "a"), (1, "b")]);
        assert_eq!(names(&changes.appeared), [(2, "a"), (3, "c")]);
        assert!(changes.gone.iter().all(|m| m.mapping.last_round == Some(1)));
        assert!(changes.appeared.iter().all(|m| m.mapping.first_round == 2));
        assert_eq!(names(layout.present()), [(2, "a"), (3, "c")]);
    }

    #[test]
    fn a_read_only_mapping_is_listed_once_it_has_dirty_pages() {
        let mut layout = Layout::default();
        let sealed = [region(0, 4, "sealed", false)];
        let written: PageSet = [PageRange::new(0x1000_1000, 0x1000_2000).expect("not empty")]
            .into_iter()
            .collect();
        assert_eq!(layout.update(0, &sealed, &[], &written).appeared.len(), 1);
        let later = layout.update(1, &sealed, &[], &PageSet::new());
        assert_eq!(later, Changes::default());
    }

    #[test]
    fn mappings_tracked_by_compare_get_a_note() {
        let mut layout = Layout::default();
        let regions = [
            region(0, 4, "theirs", true),
            region(8, 4, "", true),
            region(16, 4, "ring", true),
        ];
        let untracked: Vec<_> = regions
            .iter()
            .map(|region| UntrackedRegion::new(region.clone(), "busy", region.name != "ring"))
            .collect();
        let changes = layout.update(0, &regions, &untracked, &PageSet::new());
        assert_eq!(
            changes.notes,
            ["tracked by compare: theirs and 1 more: busy"]
        );
        let untracked = changes.appeared.iter();
        let untracked: Vec<_> = untracked.map(|m| m.mapping.untracked.as_deref()).collect();
        assert_eq!(untracked, [None, None, Some("busy")]);
    }
}
