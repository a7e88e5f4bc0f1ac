//! [`Writer`] and [`Draft`]: adding a checkpoint, which is there whole when its manifest has been published, and not at all
//! before.
//!
//! A draft that is dropped, because of a full disk, say, leaves the store as it was. Which pages it was to hold is for the
//! caller to remember.

use super::known::Known;
use super::{Store, flatten};
use crate::error::{Error, Result};
use crate::format::codec::Compression;
use crate::format::manifest::{Cost, Manifest, Mapping, Parent, Process};
use crate::format::pack::Pack;
use crate::format::pack_writer::PackWriter;
use crate::hash::Hash;
use crate::map::{PageMap, Run, Source};
use crate::storage::Name;
use pagetrail::PageSet;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// How a writer writes.
#[derive(Clone, Copy, Debug)]
pub struct WriterOptions {
    /// How page contents are compressed.
    pub compression: Compression,
    /// How many pages are compressed together: more make smaller files, and reading a single page slower.
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
    _lock: Lock,
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
        let place = store.storage().place();
        let failed = || Error::io(format!("cannot write to {place}"));
        if !options.compression.is_available() {
            let reason = "this program was built without Zstandard (feature `zstd`)";
            return Err(Error::Refused(reason.into()));
        }
        let lock = store
            .storage()
            .lock()
            .map_err(failed())?
            .ok_or_else(|| Error::Busy {
                place: place.clone(),
            })?;
        store.storage().sweep().map_err(failed())?;
        let mut writer = Self {
            store: store.clone(),
            options,
            known: Known::default(),
            head: None,
            next: 1,
            _lock: Lock(lock),
        };
        writer.learn()?;
        writer.remove_unused_packs()?;
        Ok(writer)
    }

    /// Learns what the newest checkpoint has, so that it is not stored again.
    pub(super) fn learn(&mut self) -> Result<()> {
        let mut known = Known::default();
        if let Some(newest) = self.store.numbers()?.last().copied() {
            self.next = self.next.max(newest.saturating_add(1));
            let (_, packs) = flatten(&self.store.chain(newest)?);
            for name in packs {
                known.add(Pack::open(self.store.storage(), name)?.index);
            }
        }
        if let Some(head) = &mut self.head {
            let chain = self.store.chain(head.parent.number)?;
            let (map, packs) = flatten(&chain);
            head.map = super::renumbered(&map, &packs, &mut known.packs.clone());
        }
        self.known = known;
        Ok(())
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
        }
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
}

impl Draft<'_> {
    /// Whether all pages must be put, and not only those written since the last checkpoint.
    pub fn is_base(&self) -> bool {
        !self.over
    }

    /// Says that the older checkpoints know nothing about these addresses: another mapping has come there.
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
        let mut stored_bytes = 0;
        let mut cost = description.cost;
        let storage = self.writer.store.storage();
        if let Some(index) = self.pack.publish(storage).map_err(failed())? {
            stored_bytes += index.file_bytes();
            cost.stored_pages = index.page_count() as u64;
            self.writer.known.add(index);
        }
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
            taken_unix_ns: now.map_or(0, |time| time.as_nanos() as u64),
            page_size: self.page_size,
            process: description.process,
            mappings: description.mappings,
            cost,
            packs,
            map,
        };
        let bytes = manifest.seal();
        self.writer.publish_manifest(&manifest, &bytes)?;
        self.writer.next += 1;
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
    pub(super) fn publish_manifest(&self, manifest: &Manifest, bytes: &[u8]) -> Result<()> {
        let name = Name::Manifest(manifest.number);
        let written = || {
            let mut draft = self.store.storage().create()?;
            draft.write(bytes)?;
            draft.publish(name)
        };
        written().map_err(Error::io(format!("cannot write {name}")))
    }
}

impl Drop for Draft<'_> {
    fn drop(&mut self) {
        self.writer.known.forget(&self.pack.gather.pages);
    }
}
