//! Making a chain shorter: what remains is whole at every instant, whatever ends the pruning.
//!
//! The order sees to that: first the oldest checkpoint that stays becomes a base, by one rename; then those before it go,
//! the newest of them first, so that each that is still there has its parents; then packs that nobody needs.

use super::packs::Packs;
use super::writer::Writer;
use super::{Store, flatten, renumbered};
use crate::error::{Error, Result};
use crate::format::manifest::Manifest;
use crate::format::pack::Pack;
use crate::format::pack_writer::PackWriter;
use crate::format::patch::FIRST_PATCH;
use crate::hash::Hash;
use crate::map::{PageMap, Run, Source};
use crate::storage::Name;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

/// What pruning has removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pruned {
    /// Checkpoints.
    pub checkpoints: u64,
    /// Packs that nobody needs any more.
    pub packs: u64,
    /// Packs most of which nobody needed, and whose rest was written to a new one.
    pub repacked: u64,
}

impl Writer {
    /// Removes all checkpoints but the newest `keep` (at least one).
    ///
    /// # Errors
    ///
    /// The store fails or is damaged. What is left is whole.
    pub fn prune(&mut self, keep: usize) -> Result<Pruned> {
        let numbers = self.store.numbers()?;
        let split = numbers.len().saturating_sub(keep.max(1));
        self.remove(&numbers[..split])
    }

    /// Merges a span: of the checkpoints from `first` to `last`, only the last remains, with the same contents as before.
    ///
    /// # Errors
    ///
    /// There is no checkpoint `last`; the store fails or is damaged. What is left is whole.
    pub fn squash(&mut self, first: u64, last: u64) -> Result<Pruned> {
        self.store.manifest(last)?;
        let mut numbers = self.store.numbers()?;
        numbers.retain(|number| (first..last).contains(number));
        self.remove(&numbers)
    }

    /// Removes checkpoints, ascending, once nobody builds on them.
    fn remove(&mut self, numbers: &[u64]) -> Result<Pruned> {
        let mut pruned = Pruned::default();
        let staying = self.store.numbers()?;
        for number in staying.iter().filter(|number| !numbers.contains(number)) {
            self.rebuild(*number, numbers)?;
        }
        for number in numbers.iter().rev() {
            self.remove_object(Name::Manifest(*number))?;
            pruned.checkpoints += 1;
        }
        pruned.packs = self.remove_unused_packs()?;
        pruned.repacked = self.repack()?;
        if pruned.repacked > 0 {
            // Those that only patches in packs that are gone needed.
            pruned.packs += self.remove_unused_packs()?;
        }
        if !numbers.is_empty() || pruned.repacked > 0 {
            self.learn()?;
        }
        Ok(pruned)
    }

    /// Makes a checkpoint build on none of those that go: on the nearest before them that stays, or on nothing.
    fn rebuild(&self, number: u64, going: &[u64]) -> Result<()> {
        let manifest = self.store.manifest(number)?;
        if manifest
            .parent
            .is_none_or(|parent| !going.contains(&parent.number))
        {
            return Ok(());
        }
        let chain = self.store.chain(number)?;
        let stays =
            |ancestor: &Manifest| ancestor.number != number && !going.contains(&ancestor.number);
        let (map, mut packs) = flatten(&chain);
        let mut rebuilt = manifest;
        match chain.iter().rposition(stays) {
            None => {
                rebuilt.parent = None;
                rebuilt.map = map;
                rebuilt.packs = packs;
            }
            Some(at) => {
                let base = &chain[at];
                let (under, under_packs) = flatten(&chain[..=at]);
                let under = renumbered(&under, &under_packs, &mut packs);
                let under = under.restricted(&rebuilt.addresses());
                // What the newer one no longer knows must be said, or the older one's would shine through.
                let gone = under.addresses().difference(&map.addresses());
                let mut whole = PageMap::new(map.page_size());
                for range in gone.ranges() {
                    whole.push(Run {
                        start: range.start(),
                        pages: range.bytes() / map.page_size(),
                        source: Source::Absent,
                    });
                }
                let changes = map.overlaid(&whole).changes_from(&under);
                rebuilt.parent = Some(crate::format::manifest::Parent {
                    number: base.number,
                    id: base.id,
                });
                rebuilt.packs = Vec::new();
                rebuilt.map = renumbered(&changes, &packs, &mut rebuilt.packs);
            }
        }
        let bytes = rebuilt.seal();
        self.publish_manifest(&rebuilt, &bytes)
    }

    fn remove_object(&self, name: Name) -> Result<()> {
        let outcome = self.store.storage().remove(name);
        outcome.map_err(Error::io(format!("cannot remove {name}")))
    }

    /// Removes packs that no checkpoint names; says how many.
    pub(super) fn remove_unused_packs(&mut self) -> Result<u64> {
        let used = self.store.used_pages()?;
        let mut removed = 0;
        for name in self.store.names()? {
            if let Name::Pack(hash) = name
                && !used.contains_key(&hash)
            {
                self.remove_object(name)?;
                removed += 1;
            }
        }
        Ok(removed)
    }

    /// Writes what is left of packs of which less than half is needed to new ones; says of how many.
    fn repack(&mut self) -> Result<u64> {
        let mut repacked = 0;
        // Anew each time: what is written may be what another pack has, and add to its use.
        while let Some((pack, pages)) = self.sparse_pack()? {
            self.repack_one(pack, &pages)?;
            repacked += 1;
        }
        Ok(repacked)
    }

    /// A pack that is to be replaced, and its pages that checkpoints name.
    fn sparse_pack(&self) -> Result<Option<(Hash, BTreeSet<u32>)>> {
        let used = self.store.used_pages()?;
        for (name, pages) in &used {
            let pack = Pack::open(self.store.storage(), *name)?;
            if pages.all().count() * 2 < pack.index.page_count() {
                // Those whose patches need it go first: their pages are stored whole then.
                let mut name = *name;
                while let Some(user) = used.get(&name).and_then(|pages| pages.users.first()) {
                    name = *user;
                }
                let named = used.get(&name).map(|pages| pages.named.clone());
                return Ok(Some((name, named.unwrap_or_default())));
            }
        }
        Ok(None)
    }

    fn repack_one(&mut self, name: Hash, pages: &BTreeSet<u32>) -> Result<()> {
        let failed = || Error::io(format!("cannot write to {}", self.store.storage().place()));
        let mut packs = Packs::open(&self.store, &[name])?;
        let page_size = packs.index(0).page_size as usize;
        let options = self.options();
        let storage = self.store.storage();
        let mut out = PackWriter::new(page_size as u32, options.frame_pages, options.compression);
        let mut places = BTreeMap::new();
        let mut contents = vec![0; page_size];
        for page in pages {
            packs.read(0, *page, &mut contents)?;
            let hash = Hash::of(&contents);
            let place = out.push(&contents, hash, storage).map_err(failed())?;
            places.insert(*page, place);
        }
        let Some(index) = out.publish(storage).map_err(failed())? else {
            return Ok(());
        };
        for number in self.store.numbers()? {
            let mut manifest = self.store.manifest(number)?;
            if let Some(at) = manifest.packs.iter().position(|n| *n == name) {
                moved(&mut manifest, at as u32, index.name, &places);
                let bytes = manifest.seal();
                self.publish_manifest(&manifest, &bytes)?;
            }
        }
        self.remove_object(Name::Pack(name))
    }
}

/// Points the runs of a manifest from the pack numbered `from` to where its pages are in the pack `to`.
fn moved(manifest: &mut Manifest, from: u32, to: Hash, places: &BTreeMap<u32, u32>) {
    let mut map = PageMap::new(manifest.page_size.into());
    manifest.packs[from as usize] = to;
    for run in manifest.map.runs() {
        match run.source {
            Source::Stored { pack, page } if pack == from => {
                for n in 0..run.pages {
                    let page = places.get(&(page + n as u32)).copied().unwrap_or(u32::MAX);
                    map.push(Run {
                        start: run.start + n * u64::from(manifest.page_size),
                        pages: 1,
                        source: Source::Stored { pack, page },
                    });
                }
            }
            _ => map.push(*run),
        }
    }
    manifest.map = map;
}

/// What is needed of a pack.
#[derive(Default)]
pub(super) struct Used {
    /// Pages that checkpoints name.
    named: BTreeSet<u32>,
    /// Pages that are patched by needed pages of other packs, and these packs.
    patched: BTreeSet<u32>,
    users: BTreeSet<Hash>,
}

impl Used {
    /// All pages.
    pub(super) fn all(&self) -> impl Iterator<Item = u32> + '_ {
        self.named.union(&self.patched).copied()
    }
}

impl Store {
    /// Which pages of which packs the checkpoints need.
    pub(super) fn used_pages(&self) -> Result<BTreeMap<Hash, Used>> {
        let mut used: BTreeMap<Hash, Used> = BTreeMap::new();
        for number in self.numbers()? {
            let manifest = self.manifest(number)?;
            for run in manifest.map.runs() {
                if let Source::Stored { pack, page } = run.source {
                    let pages = used.entry(manifest.packs[pack as usize]).or_default();
                    pages.named.extend(page..page + run.pages as u32);
                }
            }
        }
        let patches = |name: &Hash, pages: &BTreeSet<u32>| -> Vec<(Hash, u32)> {
            let patches = pages.range(FIRST_PATCH..);
            patches.map(|place| (*name, *place)).collect()
        };
        let mut open: BTreeMap<Hash, Pack> = BTreeMap::new();
        let named = used.iter();
        let mut todo: Vec<(Hash, u32)> = named
            .flat_map(|(name, pages)| patches(name, &pages.named))
            .collect();
        while let Some((name, place)) = todo.pop() {
            let pack = match open.entry(name) {
                Entry::Occupied(pack) => pack.into_mut(),
                Entry::Vacant(room) => room.insert(Pack::open(self.storage(), name)?),
            };
            let Some((base, place)) = pack.index.base_of(place) else {
                continue;
            };
            let pages = used.entry(base).or_default();
            pages.users.insert(name);
            if pages.patched.insert(place) && place >= FIRST_PATCH {
                todo.push((base, place));
            }
        }
        Ok(used)
    }
}
