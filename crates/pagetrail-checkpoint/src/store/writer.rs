//! [`Writer`] and [`Draft`]: adding a checkpoint, which is there whole when its manifest has been
//! published, and not at all before.
//!
//! A draft that is dropped, because of a full disk, say, leaves the store as it was. Which pages it
//! was to hold is for the caller to remember.

use super::changed::Stored;
use super::known::Known;
use super::{Store, flatten};
use crate::error::{Error, Result};
use crate::format::codec::Compression;
use crate::format::manifest::{Cost, Manifest, Mapping, Parent, Process};
use crate::format::pack::Pack;
use crate::format::pack_writer::PackWriter;
use crate::hash::Hash;
use crate::label::Label;
use crate::map::{PageMap, Run, Source};
use crate::progress::Progress;
use crate::storage::{Name, Publish};
use pagetrail::PageSet;
use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// How often another number is tried where one is taken.
const NUMBERS_TRIED: u32 = 16;

/// How a writer writes.
#[derive(Clone, Copy, Debug)]
pub struct WriterOptions {
    /// How page contents are compressed.
    pub compression: Compression,
    /// How many pages are compressed together: more make smaller files, and reading a single page
    /// slower.
    pub frame_pages: u32,
}

impl Default for WriterOptions {
    fn default() -> Self {
        Self {
            compression: Compression::default(),
            frame_pages: 16,
        }
    }
}

/// The one who may write to a store.
#[derive(Debug)]
pub struct Writer {
    pub(super) store: Store,
    options: WriterOptions,
    pub(super) known: Known,
    /// The checkpoint that the next one builds on.
    pub(super) head: Option<Head>,
    next: u64,
    /// The label of the next checkpoint.
    label: Option<Label>,
    /// What was damaged when this was found out last, a line each.
    damages: Vec<String>,
    /// Packs that a late write of the writer before this one may name yet.
    pub(super) spared: BTreeSet<Hash>,
    /// `None` once it was lost, until it is had again.
    lock: Option<Lock>,
}

/// Keeps other writers out.
struct Lock(#[expect(dead_code, reason = "held, not used")] Box<dyn Send>);

impl std::fmt::Debug for Lock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Lock")
    }
}

#[derive(Debug)]
pub(super) struct Head {
    parent: Parent,
    /// By the packs that are known.
    pub(super) map: PageMap,
}

/// What a checkpoint says besides its pages.
#[derive(Clone, Debug, Default)]
pub struct Description {
    /// The process, unless the regions are a program's own.
    pub process: Option<Process>,
    /// The mappings, ascending.
    pub mappings: Vec<Mapping>,
    /// What it took so far; the store adds its own part.
    pub cost: Cost,
    /// How long it has been going on.
    pub elapsed: Duration,
}

impl Writer {
    pub(super) fn new(store: &Store, options: WriterOptions) -> Result<Self> {
        if !options.compression.is_available() {
            let reason = "this program was built without Zstandard (feature `zstd`)";
            return Err(Error::Refused(reason.into()));
        }
        let mut writer = Self {
            store: store.clone(),
            options,
            known: Known::default(),
            head: None,
            next: 1,
            label: None,
            damages: Vec::new(),
            spared: BTreeSet::new(),
            lock: None,
        };
        writer.begin()?;
        Ok(writer)
    }

    /// Takes the lock, and finds out what there is.
    fn begin(&mut self) -> Result<()> {
        let place = self.store.storage().place();
        let failed = || Error::io(format!("cannot write to {place}"));
        let storage = self.store.storage();
        let lock = storage.lock().map_err(failed())?;
        let lock = lock.ok_or_else(|| Error::Busy {
            place: place.clone(),
        })?;
        storage.sweep().map_err(failed())?;
        self.lock = Some(Lock(lock));
        self.head = None;
        self.learn()?;
        if self.store.storage().may_have_late_writes() {
            let used = self.store.needs()?.used;
            let packs = self
                .store
                .names()?
                .into_iter()
                .filter_map(|name| match name {
                    Name::Pack(hash) if !used.contains_key(&hash) => Some(hash),
                    _ => None,
                });
            self.spared = packs.collect();
        }
        self.remove_unused_packs().map(drop)
    }

    /// Takes the lock again where it was lost, in an object store that could not be reached for a
    /// while, say: the next checkpoint is a base then. Taking checkpoints of a process, pruning and
    /// squashing begin with this.
    ///
    /// # Errors
    ///
    /// Another writer has it, or the storage fails.
    pub fn catch_up(&mut self) -> Result<()> {
        if self.lock.is_some() && self.store.storage().is_held() {
            return Ok(());
        }
        // It is given back before it is asked for.
        self.lock = None;
        self.begin()
    }

    /// Fails when the lock was lost.
    pub(super) fn check_held(&self) -> Result<()> {
        if self.lock.is_some() && self.store.storage().is_held() {
            return Ok(());
        }
        let cause = "the lock on it was lost, and may be another writer's by now";
        let what = format!("cannot write to {}", self.store.storage().place());
        Err(Error::io(what)(std::io::Error::other(cause)))
    }

    /// What in the store is damaged, a line each, as far as a writer finds out. New checkpoints do
    /// not build on it.
    pub fn damages(&self) -> &[String] {
        &self.damages
    }

    /// Learns what the newest checkpoint that can be read has, so that it is not stored again.
    pub(super) fn learn(&mut self) -> Result<()> {
        let survey = self.store.survey()?;
        self.damages = survey.damages();
        if let Some(newest) = self.store.numbers()?.last() {
            let next = newest.checked_add(1).ok_or_else(|| {
                let name = Name::Manifest(*newest);
                Error::Refused(format!(
                    "no number is left after that of {name}, which no pagetrail wrote; remove it"
                ))
            })?;
            self.next = self.next.max(next);
        }
        let mut known = Known::default();
        for manifest in survey.whole().rev() {
            match self.contents_of(manifest.number) {
                Ok(found) => {
                    known = found;
                    break;
                }
                Err(Error::Damaged { object, reason }) => self.damages.push(format!(
                    "{object} is damaged: {reason} (checkpoint {})",
                    manifest.number
                )),
                Err(error) => return Err(error),
            }
        }
        self.head = match self.head.take() {
            None => None,
            Some(head) => match self.store.chain(head.parent.number) {
                Ok(chain) => {
                    let (map, packs) = flatten(&chain);
                    // Packs that it needs and that are not known are damaged.
                    let mut numbers = known.packs.clone();
                    let map = super::renumbered(&map, &packs, &mut numbers);
                    let is_known = numbers.len() == known.packs.len();
                    is_known.then_some(Head { map, ..head })
                }
                Err(Error::Damaged { .. } | Error::NoSuchCheckpoint { .. }) => None,
                Err(error) => return Err(error),
            },
        };
        self.known = known;
        Ok(())
    }

    fn contents_of(&self, number: u64) -> Result<Known> {
        let mut known = Known::default();
        let (_, packs) = flatten(&self.store.chain(number)?);
        for name in packs {
            known.add(Pack::open(self.store.storage(), name)?.into_index()?);
        }
        Ok(known)
    }

    pub(super) fn options(&self) -> WriterOptions {
        self.options
    }

    /// The store.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Begins a checkpoint: an increment over the last that this writer published, or else a base.
    pub fn draft(&mut self, page_size: u32) -> Draft<'_> {
        let fits = |head: &mut Head| head.map.page_size() == u64::from(page_size);
        let over = self.head.take_if(|head| !fits(head)).is_none() && self.head.is_some();
        let WriterOptions {
            compression,
            frame_pages,
        } = self.options;
        Draft {
            writer: self,
            page_size,
            over,
            pack: PackWriter::new(page_size, frame_pages, compression),
            staged: PageMap::new(page_size.into()),
            stored: None,
        }
    }

    /// Makes the next checkpoint an increment over the one numbered.
    ///
    /// # Errors
    ///
    /// There is no such checkpoint; it, one that it builds on, or a pack that it needs is damaged
    /// or missing.
    pub(crate) fn build_on(&mut self, number: u64) -> Result<()> {
        let chain = self.store.chain(number)?;
        let (map, packs) = flatten(&chain);
        for name in &packs {
            if !self.known.packs.contains(name) {
                self.known
                    .add(Pack::open(self.store.storage(), *name)?.into_index()?);
            }
        }
        let mut numbers = self.known.packs.clone();
        let map = super::renumbered(&map, &packs, &mut numbers);
        self.head = chain.last().map(|manifest| Head {
            parent: Parent {
                number,
                id: manifest.id,
            },
            map,
        });
        Ok(())
    }

    /// Gives the next checkpoint that is published a label.
    pub fn label_next(&mut self, label: Label) {
        self.label = Some(label);
    }

    /// Forgets what the last checkpoint was: the next one is a base.
    pub fn begin_anew(&mut self) {
        self.head = None;
    }
}

/// A checkpoint that is being written.
pub struct Draft<'writer> {
    pub(super) writer: &'writer mut Writer,
    pub(super) page_size: u32,
    /// Whether it builds on the head.
    pub(super) over: bool,
    pub(super) pack: PackWriter,
    pub(super) staged: PageMap,
    /// What the store has, for pages of which the changes are put.
    pub(super) stored: Option<Stored>,
}

impl Draft<'_> {
    /// How far work on the store is.
    pub(crate) fn progress(&self) -> &Progress {
        self.writer.store.progress()
    }

    /// Whether all pages must be put, and not only those written since the last checkpoint.
    pub fn is_base(&self) -> bool {
        !self.over
    }

    /// The id of the checkpoint that it builds on.
    pub(crate) fn parent_id(&self) -> Option<Hash> {
        let head = self.writer.head.as_ref().filter(|_| self.over);
        head.map(|head| head.parent.id)
    }

    /// Says that the older checkpoints know nothing about these addresses: another mapping has come
    /// there.
    pub fn forget(&mut self, ranges: &PageSet) {
        let mut void = PageMap::new(self.page_size.into());
        for range in ranges.ranges() {
            void.push(Run {
                start: range.start(),
                pages: range.bytes() / u64::from(self.page_size),
                source: Source::Absent,
            });
        }
        self.staged.overlay(&void);
    }

    /// Makes it a checkpoint of the store. When this returns it survives a loss of power.
    ///
    /// # Errors
    ///
    /// The storage fails; then the store is as it was.
    pub fn publish(mut self, description: Description) -> Result<Manifest> {
        let place = self.writer.store.storage().place();
        let failed = || Error::io(format!("cannot write to {place}"));
        let saved: PageSet = description
            .mappings
            .iter()
            .filter(|mapping| mapping.saved)
            .map(|mapping| mapping.range)
            .collect();
        let mapped: PageSet = description.mappings.iter().map(|m| m.range).collect();
        let staged = std::mem::replace(&mut self.staged, PageMap::new(self.page_size.into()));
        let staged = staged.restricted(&mapped).with_zero_as_absent(&saved);
        let head = self.writer.head.as_ref().filter(|_| self.over);
        let (old, parent) = match head {
            Some(head) => (head.map.restricted(&mapped), Some(head.parent)),
            None => (PageMap::new(self.page_size.into()), None),
        };
        let changes = staged.changes_from(&old);
        let changes = self.compact(changes).map_err(failed())?;
        let mut stored_bytes = 0;
        let mut cost = description.cost;
        let storage = self.writer.store.storage();
        if let Some(index) = self.pack.publish(storage).map_err(failed())? {
            stored_bytes += index.file_bytes();
            cost.stored_pages = index.page_count() as u64;
            self.writer.known.add(index);
        }
        let whole = old.overlaid(&changes).without_absent();
        let mut packs = Vec::new();
        let map = super::renumbered(&changes, &self.writer.known.packs, &mut packs);
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        cost.total_ns = description.elapsed.as_nanos() as u64;
        cost.stored_bytes = stored_bytes;
        let mut manifest = Manifest {
            number: self.writer.next,
            id: Hash::default(),
            parent,
            label: self.writer.label.clone(),
            taken_unix_ns: now.map_or(0, |time| time.as_nanos() as u64),
            page_size: self.page_size,
            process: description.process,
            mappings: description.mappings,
            cost,
            manifest_bytes: 0,
            packs,
            map,
        };
        self.writer.publish_new(&mut manifest)?;
        self.writer.label = None;
        self.writer.head = Some(Head {
            parent: Parent {
                number: manifest.number,
                id: manifest.id,
            },
            map: whole,
        });
        Ok(manifest)
    }
}

impl Writer {
    /// Publishes a manifest under the next number that nobody has.
    fn publish_new(&mut self, manifest: &mut Manifest) -> Result<()> {
        for _ in 0..NUMBERS_TRIED {
            manifest.number = self.next;
            manifest.id = Hash::default();
            let bytes = manifest.seal();
            match self.publish_manifest(manifest, &bytes, Publish::New) {
                // What the writer before this one had sent, or a write of this one that failed in
                // its last step.
                Err(Error::Io { cause, .. }) if cause.kind() == ErrorKind::AlreadyExists => {
                    let newest = self.store.newest()?;
                    self.next = self.next.max(newest).saturating_add(1);
                }
                outcome => {
                    outcome?;
                    self.next = self.next.saturating_add(1);
                    return Ok(());
                }
            }
        }
        let name = Name::Manifest(manifest.number);
        Err(Error::io(format!("cannot write {name}"))(
            ErrorKind::AlreadyExists.into(),
        ))
    }

    pub(super) fn publish_manifest(
        &self,
        manifest: &Manifest,
        bytes: &[u8],
        how: Publish,
    ) -> Result<()> {
        self.check_held()?;
        let name = Name::Manifest(manifest.number);
        let written = || {
            let mut draft = self.store.storage().create()?;
            draft.write(bytes)?;
            draft.publish(name, how)
        };
        written().map_err(Error::io(format!("cannot write {name}")))
    }
}

impl Drop for Draft<'_> {
    fn drop(&mut self) {
        self.writer.known.forget(&self.pack.gather.pages);
    }
}
