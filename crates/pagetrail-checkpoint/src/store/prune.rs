//! Making a chain shorter: what remains is whole at every instant, whatever ends the pruning.
//!
//! The order sees to that: first the oldest checkpoint that stays becomes a base, by one rename;
//! then those before it go, the newest of them first, so that each that is still there has its
//! parents; then packs that nobody needs.

use super::packs::Packs;
use super::places::Places;
use super::retention::Retention;
use super::writer::Writer;
use super::{Store, flatten, renumbered};
use crate::error::{Error, Result};
use crate::format::manifest::Manifest;
use crate::format::pack::Pack;
use crate::format::pack_writer::PackWriter;
use crate::hash::Hash;
use crate::map::{PageMap, Run, Source};
use crate::storage::{Name, Publish};
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
    /// Checkpoints that cannot be read. They do not count, and stay, and so do packs that they may
    /// need.
    pub damaged: u64,
}

impl Writer {
    /// Removes all checkpoints but the newest `keep` (at least one) of those that have all their
    /// packs, and those with a label. The contents of packs are not read:
    /// [`prune_verified`](Self::prune_verified) does.
    ///
    /// # Errors
    ///
    /// The store fails or is damaged. What is left is whole.
    pub fn prune(&mut self, keep: usize) -> Result<Pruned> {
        self.catch_up()?;
        let survey = self.store.survey()?;
        let mut damaged = survey.lost().len() as u64;
        let whole: Vec<&Manifest> = survey.whole().collect();
        let mut going = Vec::new();
        let mut kept = 0;
        for manifest in whole.iter().rev().filter(|m| m.label.is_none()) {
            if kept == keep.max(1) {
                going.push(manifest.number);
                continue;
            }
            match self.store.examine(manifest.number, true) {
                Ok(_) => kept += 1,
                Err(Error::Damaged { .. }) => damaged += 1,
                Err(error) => return Err(error),
            }
        }
        going.reverse();
        let numbers: Vec<u64> = whole.iter().map(|manifest| manifest.number).collect();
        self.remove(&numbers, &going, damaged)
    }

    /// Reads the whole store, and removes the checkpoints without damage that the rule does not
    /// keep. Damaged ones stay and do not count.
    ///
    /// # Errors
    ///
    /// The store fails or is damaged. What is left is whole.
    pub fn prune_verified(&mut self, retention: &Retention) -> Result<Pruned> {
        self.catch_up()?;
        let plan = self.store.plan(retention)?;
        self.remove(&plan.whole, &plan.going, plan.damaged)
    }

    /// Merges a span: of the checkpoints from `first` to `last`, only the last remains, with the
    /// same contents as before, and those with a label. The last is read first: checkpoints give
    /// way to a whole one only.
    ///
    /// # Errors
    ///
    /// `first` is after `last`; there is no checkpoint `last`, or it is damaged; the store fails.
    /// What is left is whole.
    pub fn squash(&mut self, first: u64, last: u64) -> Result<Pruned> {
        if first > last {
            return Err(Error::Refused(format!(
                "checkpoints {first} to {last}: the first is after the last; name the smaller one first"
            )));
        }
        self.catch_up()?;
        self.store.image(last)?.read_all()?;
        let survey = self.store.survey()?;
        let numbers: Vec<u64> = survey.whole().map(|manifest| manifest.number).collect();
        let going: Vec<u64> = survey
            .whole()
            .filter(|m| m.label.is_none() && (first..last).contains(&m.number))
            .map(|manifest| manifest.number)
            .collect();
        self.remove(&numbers, &going, survey.lost().len() as u64)
    }

    /// Removes some of the checkpoints that can be read, ascending, once nobody builds on them.
    fn remove(&mut self, whole: &[u64], going: &[u64], damaged: u64) -> Result<Pruned> {
        let mut pruned = Pruned {
            damaged,
            ..Pruned::default()
        };
        for number in self.store.numbers()? {
            // Others may build on one that lacks a pack, and not need the pack.
            let is_chained = whole.contains(&number) || self.store.chain(number).is_ok();
            if is_chained && !going.contains(&number) {
                self.rebuild(number, going)?;
            }
        }
        for number in going.iter().rev() {
            self.remove_object(Name::Manifest(*number))?;
            pruned.checkpoints += 1;
        }
        self.remove_unused_touches()?;
        pruned.packs = self.remove_unused_packs()?;
        pruned.repacked = self.repack()?;
        if pruned.repacked > 0 {
            // Those that only patches in packs that are gone needed.
            pruned.packs += self.remove_unused_packs()?;
        }
        if !going.is_empty() || pruned.repacked > 0 {
            self.learn()?;
        }
        Ok(pruned)
    }

    /// Makes a checkpoint build on none of those that go: on the nearest before them that stays, or
    /// on nothing.
    pub(super) fn rebuild(&self, number: u64, going: &[u64]) -> Result<()> {
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
                // What the newer one no longer knows must be said, or the older one's would shine
                // through.
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
        self.publish_manifest(&rebuilt, &bytes, Publish::Replacing)
    }

    fn remove_object(&self, name: Name) -> Result<()> {
        self.check_held()?;
        let outcome = self.store.storage().remove(name);
        outcome.map_err(Error::io(format!("cannot remove {name}")))
    }

    /// Removes orders of touches whose checkpoints have gone.
    fn remove_unused_touches(&self) -> Result<()> {
        let names = self.store.names()?;
        for name in &names {
            if let Name::Touches(number) = *name
                && names.binary_search(&Name::Manifest(number)).is_err()
            {
                self.remove_object(*name)?;
            }
        }
        Ok(())
    }

    /// Removes packs that no checkpoint names; says how many. While a checkpoint cannot be read,
    /// nobody knows what it needs.
    pub(super) fn remove_unused_packs(&mut self) -> Result<u64> {
        let needs = self.store.needs()?;
        let mut removed = 0;
        for name in self.store.names()? {
            if let Name::Pack(hash) = name
                && needs.complete
                && !needs.used.contains_key(&hash)
                && !self.spared.contains(&hash)
            {
                self.remove_object(name)?;
                removed += 1;
            }
        }
        Ok(removed)
    }

    /// Writes what is left of packs of which less than half is needed to new ones; says of how
    /// many.
    fn repack(&mut self) -> Result<u64> {
        let mut repacked = 0;
        let mut tried = BTreeSet::new();
        self.store.progress().begin("writing packs anew", 0);
        // Anew each time: what is written may be what another pack has, and add to its use.
        while let Some((pack, pages)) = self.sparse_pack(&tried)? {
            match self.repack_one(pack, &pages, true) {
                Ok(true) => repacked += 1,
                // Pages of it are damaged; it stays as it is.
                Ok(false) | Err(Error::Damaged { .. }) => {}
                Err(error) => return Err(error),
            }
            tried.insert(pack);
        }
        Ok(repacked)
    }

    /// A pack that is to be replaced, and its pages that checkpoints name.
    fn sparse_pack(&self, tried: &BTreeSet<Hash>) -> Result<Option<(Hash, Places)>> {
        let Needs { used, complete } = self.store.needs()?;
        if !complete {
            return Ok(None);
        }
        for (name, pages) in &used {
            let pack = match Pack::open(self.store.storage(), *name) {
                Err(Error::Damaged { .. }) => continue,
                outcome => outcome?,
            };
            if pages.all().count() * 2 < pack.page_count() {
                // Those whose patches need it go first: their pages are stored whole then.
                let mut name = *name;
                while let Some(user) = used.get(&name).and_then(|pages| pages.users.first()) {
                    name = *user;
                }
                if tried.contains(&name) {
                    continue;
                }
                let named = used.get(&name).map(|pages| pages.named.clone());
                return Ok(Some((name, named.unwrap_or_default())));
            }
        }
        Ok(None)
    }

    /// Writes the pages of a pack that are needed to a new one; says whether any are. The old pack
    /// is removed if `remove`.
    pub(super) fn repack_one(&mut self, name: Hash, pages: &Places, remove: bool) -> Result<bool> {
        let failed = || Error::io(format!("cannot write to {}", self.store.storage().place()));
        let mut packs = Packs::open(&self.store, &[name])?;
        let page_size = packs.pack(0).page_size() as usize;
        let options = self.options();
        let storage = self.store.storage();
        let mut out = PackWriter::new(page_size as u32, options.frame_pages, options.compression);
        let mut places = BTreeMap::new();
        let mut contents = vec![0; page_size];
        let bytes = pages.count() * page_size as u64;
        self.store.progress().expect(bytes);
        for page in pages.iter() {
            packs.read(0, page, &mut contents)?;
            let hash = Hash::of(&contents);
            let place = out.push(&contents, hash, storage).map_err(failed())?;
            places.insert(page, place);
        }
        self.check_held()?;
        let Some(index) = out.publish(storage).map_err(failed())? else {
            return Ok(false);
        };
        for number in self.store.numbers()? {
            let mut manifest = self.store.manifest(number)?;
            if manifest.packs.contains(&name) {
                // A manifest from elsewhere may name a pack several times.
                for at in 0..manifest.packs.len() {
                    if manifest.packs[at] == name {
                        moved(&mut manifest, at as u32, index.name, &places);
                    }
                }
                let bytes = manifest.seal();
                self.publish_manifest(&manifest, &bytes, Publish::Replacing)?;
            }
        }
        if remove {
            self.remove_object(Name::Pack(name))?;
        }
        Ok(true)
    }
}

/// Points the runs of a manifest from the pack numbered `from` to where its pages are in the pack
/// `to`.
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

/// What a rule keeps of a store and what it does not.
struct Plan {
    /// All checkpoints that can be read, ascending.
    whole: Vec<u64>,
    /// The numbers of those that go.
    going: Vec<u64>,
    damaged: u64,
}

/// What is needed of a pack. All of it are pages that the pack has.
#[derive(Default)]
pub(super) struct Used {
    /// Pages that checkpoints name.
    pub(super) named: Places,
    /// Pages that are patched by needed pages of other packs, and these packs.
    patched: Places,
    pub(super) users: BTreeSet<Hash>,
}

impl Used {
    /// All pages.
    pub(super) fn all(&self) -> Places {
        self.named.union(&self.patched)
    }
}

/// What the checkpoints need.
pub(super) struct Needs {
    pub(super) used: BTreeMap<Hash, Used>,
    /// Whether all of them, and their packs, could be read.
    pub(super) complete: bool,
}

impl Needs {
    /// The pages of a pack.
    pub(super) fn places(&self, pack: &Hash) -> Places {
        let used = self.used.get(pack);
        used.map_or_else(Places::default, Used::all)
    }
}

impl Store {
    /// Reads the whole store, and says which checkpoints
    /// [`prune_verified`](Writer::prune_verified) would remove now, ascending.
    ///
    /// # Errors
    ///
    /// The storage fails.
    pub fn prunable(&self, retention: &Retention) -> Result<Vec<u64>> {
        Ok(self.plan(retention)?.going)
    }

    fn plan(&self, retention: &Retention) -> Result<Plan> {
        let lost = self.verify()?.lost;
        let survey = self.survey()?;
        let sound = || survey.whole().filter(|m| !lost.contains(&m.number));
        let kept = retention.kept(sound());
        let going = sound().map(|manifest| manifest.number);
        Ok(Plan {
            whole: survey.whole().map(|manifest| manifest.number).collect(),
            going: going.filter(|number| !kept.contains(number)).collect(),
            damaged: lost.len() as u64,
        })
    }

    /// Which pages of which packs the checkpoints need.
    pub(super) fn needs(&self) -> Result<Needs> {
        let mut used: BTreeMap<Hash, Used> = BTreeMap::new();
        let mut complete = true;
        for number in self.numbers()? {
            let manifest = match self.manifest(number) {
                // Another process has removed it meanwhile.
                Err(Error::NoSuchCheckpoint { .. }) => continue,
                Err(_) => {
                    complete = false;
                    continue;
                }
                Ok(manifest) => manifest,
            };
            for run in manifest.map.runs() {
                if let Source::Stored { pack, page } = run.source {
                    let pages = used.entry(manifest.packs[pack as usize]).or_default();
                    pages.named.insert(page, run.pages);
                }
            }
        }
        let mut open: BTreeMap<Hash, Option<Pack>> = BTreeMap::new();
        let mut todo: Vec<(Hash, u32)> = Vec::new();
        for (name, pages) in &mut used {
            let patches = pages.named.patches();
            if patches.is_empty() {
                continue;
            }
            // What a manifest names may be more than there is.
            let Ok(pack) = Pack::open(self.storage(), *name) else {
                complete = false;
                pages.named = Places::default();
                continue;
            };
            let there = Places::of(&pack);
            pages.named = pages.named.intersection(&there);
            todo.extend(
                patches
                    .intersection(&there)
                    .iter()
                    .map(|place| (*name, place)),
            );
            open.insert(*name, Some(pack));
        }
        while let Some((name, place)) = todo.pop() {
            let pack = match open.entry(name) {
                Entry::Occupied(pack) => pack.into_mut(),
                Entry::Vacant(room) => room.insert(Pack::open(self.storage(), name).ok()),
            };
            let Some(pack) = pack else {
                complete = false;
                continue;
            };
            let Some((base, place)) = pack.base_of(place) else {
                continue;
            };
            let pages = used.entry(base).or_default();
            pages.users.insert(name);
            if pages.patched.add(place) && place >= crate::format::patch::FIRST_PATCH {
                todo.push((base, place));
            }
        }
        Ok(Needs { used, complete })
    }
}
