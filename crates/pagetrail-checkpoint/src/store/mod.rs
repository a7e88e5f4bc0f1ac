//! [`Store`]: a chain of checkpoints in a [`Storage`]; what there is, and reading it. [`Writer`]
//! adds to it.
//!
//! Readers need no lock: objects appear whole, and are only replaced by what says the same. One
//! that reads while a writer prunes may find that an object has gone; it looks again before it
//! calls that damage.

pub(crate) mod changed;
pub(crate) mod diff;
pub(crate) mod image;
pub(crate) mod intake;
pub(crate) mod known;
pub(crate) mod packs;
pub(crate) mod places;
pub(crate) mod prune;
pub(crate) mod repair;
pub(crate) mod retention;
mod superseded;
pub(crate) mod survey;
pub(crate) mod touches;
pub(crate) mod verify;
pub(crate) mod writer;

use crate::error::{Error, Result};
use crate::format::manifest::Manifest;
use crate::format::wire::Malformed;
use crate::format::{ENCRYPTED_MARKER, MARKER};
use crate::hash::Hash;
use crate::label::Label;
use crate::limits;
use crate::map::{PageMap, Source};
use crate::progress::Progress;
use crate::storage::{self, Name, Publish, Storage, WorldWritable};
use image::Image;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;
use writer::{Writer, WriterOptions};

/// How often a reader looks again while a writer changes what it reads.
const LOOKS_MAX: u32 = 1000;

/// Checkpoints in a storage.
#[derive(Clone, Debug)]
pub struct Store {
    storage: Arc<dyn Storage>,
    progress: Arc<Progress>,
}

impl Store {
    /// Opens the store in a directory, or at the URL of an object store ([`storage::open`]), to
    /// read.
    ///
    /// # Errors
    ///
    /// There is none, or of a later format.
    pub fn open(place: &Path) -> Result<Self> {
        Self::on(storage::open(place)?)
    }

    /// Opens the store in a directory, or at the URL of an object store, to write; makes one where
    /// there is none.
    ///
    /// # Errors
    ///
    /// As [`storage::create`].
    pub fn create(place: &Path, exposed: WorldWritable) -> Result<Self> {
        Self::create_on(storage::create(place, exposed)?)
    }

    /// Opens the store in a storage.
    ///
    /// # Errors
    ///
    /// There is none, or of a later format.
    pub fn on(storage: Arc<dyn Storage>) -> Result<Self> {
        let store = Self::of(storage);
        match store.read(Name::Marker)? {
            Some(marker) if marker == MARKER => Ok(store),
            Some(marker) if marker.starts_with(ENCRYPTED_MARKER) => Err(Error::Encrypted {
                place: store.storage.place(),
            }),
            Some(_) => Err(store.damaged(Name::Marker, "it is of another format, or has changed")),
            None => Err(Error::NotAStore {
                place: store.storage.place(),
            }),
        }
    }

    /// Opens the store in a storage, or makes one there.
    ///
    /// # Errors
    ///
    /// The storage fails, or holds a store of a later format.
    pub fn create_on(storage: Arc<dyn Storage>) -> Result<Self> {
        let store = Self::of(storage);
        if store.read(Name::Marker)?.is_none() {
            let failed = || Error::io(format!("cannot write to {}", store.storage.place()));
            let mut draft = store.storage.create().map_err(failed())?;
            draft.write(MARKER).map_err(failed())?;
            match draft.publish(Name::Marker, Publish::New) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                outcome => outcome.map_err(failed())?,
            }
        }
        Self::on(store.storage)
    }

    /// A second way to the store, whose reading is not shown as progress.
    fn aside(&self) -> Self {
        Self::of(Arc::clone(&self.storage))
    }

    fn of(storage: Arc<dyn Storage>) -> Self {
        let progress = Arc::default();
        Self { storage, progress }
    }

    /// How far long work on this store is, also of its writer and its images.
    pub fn progress(&self) -> &Arc<Progress> {
        &self.progress
    }

    /// The numbers of the checkpoints, ascending.
    ///
    /// # Errors
    ///
    /// The storage fails.
    pub fn numbers(&self) -> Result<Vec<u64>> {
        let numbers = self.names()?.into_iter().filter_map(|name| match name {
            Name::Manifest(number) => Some(number),
            _ => None,
        });
        Ok(numbers.collect())
    }

    /// The number of the newest checkpoint.
    ///
    /// # Errors
    ///
    /// There is none, or the storage fails.
    pub fn newest(&self) -> Result<u64> {
        self.numbers()?.last().copied().ok_or(Error::Empty)
    }

    /// The number of the newest checkpoint that has a label.
    ///
    /// # Errors
    ///
    /// None has it; a newer one cannot be read, and may have it; the storage fails.
    pub fn labelled(&self, label: &Label) -> Result<u64> {
        for number in self.numbers()?.into_iter().rev() {
            match self.manifest(number) {
                // A writer has removed it meanwhile.
                Err(Error::NoSuchCheckpoint { .. }) => {}
                Err(error) => return Err(error),
                Ok(manifest) if manifest.label.as_ref() == Some(label) => return Ok(number),
                Ok(_) => {}
            }
        }
        Err(Error::NoSuchLabel(label.to_string()))
    }

    /// A checkpoint's description.
    ///
    /// # Errors
    ///
    /// There is no such checkpoint, or it is damaged.
    pub fn manifest(&self, number: u64) -> Result<Manifest> {
        let name = Name::Manifest(number);
        let Some(bytes) = self.read(name)? else {
            let numbers = self.numbers()?;
            let there = match (numbers.first(), numbers.last()) {
                (Some(first), Some(last)) => format!("{} from {first} to {last}", numbers.len()),
                _ => "none".into(),
            };
            return Err(Error::NoSuchCheckpoint { number, there });
        };
        let manifest =
            Manifest::decode(&bytes).map_err(|Malformed(reason)| self.damaged(name, reason))?;
        if manifest.number != number {
            return Err(self.damaged(name, "it is another checkpoint's"));
        }
        Ok(manifest)
    }

    /// A checkpoint with its contents.
    ///
    /// # Errors
    ///
    /// There is no such checkpoint; it, one that it builds on, or a pack that it needs is damaged
    /// or missing.
    pub fn image(&self, number: u64) -> Result<Image> {
        self.settled(number, || Image::new(self, self.chain(number)?))
    }

    /// Tries to read a checkpoint until it succeeds, or fails although no manifest has changed
    /// since it failed before: what a writer replaces or removes meanwhile is no damage.
    pub(crate) fn settled<T>(&self, number: u64, attempt: impl Fn() -> Result<T>) -> Result<T> {
        let mut before = None;
        for _ in 0..LOOKS_MAX {
            let error = match attempt() {
                Err(error @ (Error::Damaged { .. } | Error::Io { .. })) => error,
                outcome => return outcome,
            };
            let state = self.state(number);
            if before.as_ref() == Some(&state) {
                return Err(error);
            }
            before = Some(state);
        }
        attempt()
    }

    /// What the manifests are that a checkpoint needs, as far as they can be read.
    fn state(&self, number: u64) -> Vec<(u64, Option<Hash>)> {
        let mut state = Vec::new();
        let mut next = Some(number);
        while let Some(number) = next {
            let bytes = self.read(Name::Manifest(number)).ok().flatten();
            state.push((number, bytes.as_deref().map(Hash::of)));
            let manifest = bytes.and_then(|bytes| Manifest::decode(&bytes).ok());
            // Numbers of parents fall.
            let parent = manifest.and_then(|manifest| manifest.parent);
            next = parent
                .map(|parent| parent.number)
                .filter(|parent| *parent < number);
        }
        state
    }

    /// The newest checkpoint with its contents; also while a writer adds and removes some.
    ///
    /// # Errors
    ///
    /// There is none; or it, one that it builds on, or a pack that it needs is damaged or missing.
    pub fn newest_image(&self) -> Result<Image> {
        for _ in 0..LOOKS_MAX {
            match self.image(self.newest()?) {
                Err(Error::NoSuchCheckpoint { .. }) => {}
                outcome => return outcome,
            }
        }
        self.image(self.newest()?)
    }

    /// Begins to write; there is one writer at a time.
    ///
    /// # Errors
    ///
    /// Another writer is at work, or the storage fails.
    pub fn writer(&self, options: WriterOptions) -> Result<Writer> {
        Writer::new(self, options)
    }

    /// The checkpoint and all that it builds on, the base first.
    pub(crate) fn chain(&self, number: u64) -> Result<Vec<Manifest>> {
        let mut chain = vec![self.manifest(number)?];
        while let Some(parent) = chain.last().and_then(|manifest| manifest.parent) {
            let child = Name::Manifest(chain.last().map_or(0, |manifest| manifest.number));
            let manifest = match self.manifest(parent.number) {
                Err(Error::NoSuchCheckpoint { number, .. }) => {
                    let reason = format!("checkpoint {number}, on which it builds, is missing");
                    return Err(self.damaged(child, &reason));
                }
                outcome => outcome?,
            };
            if manifest.id != parent.id {
                let reason = format!("checkpoint {} is not the one it builds on", parent.number);
                return Err(self.damaged(child, &reason));
            }
            chain.push(manifest);
        }
        chain.reverse();
        Ok(chain)
    }

    pub(crate) fn storage(&self) -> &dyn Storage {
        &*self.storage
    }

    pub(crate) fn names(&self) -> Result<Vec<Name>> {
        let place = self.storage.place();
        self.storage
            .names()
            .map_err(Error::io(format!("cannot list {place}")))
    }

    pub(crate) fn damaged(&self, name: Name, reason: &str) -> Error {
        Error::Damaged {
            object: name.to_string(),
            reason: reason.into(),
        }
    }

    /// All of an object; `None` where there is none.
    fn read(&self, name: Name) -> Result<Option<Vec<u8>>> {
        let failed = |cause| Error::reading(name, cause);
        let object = match self.storage.open(name) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            outcome => outcome.map_err(failed)?,
        };
        if object.bytes() > limits::bytes_at_once() {
            return Err(self.damaged(name, "it is impossibly long"));
        }
        // Where the beginning is not what it should be, the rest is not worth its memory.
        let mut start = [0; 8];
        if matches!(name, Name::Manifest(_)) && object.bytes() >= start.len() as u64 {
            match object.read_at(0, &mut start) {
                Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
                outcome => outcome.map_err(failed)?,
            }
            if !crate::format::manifest::is_beginning(&start) {
                return Err(self.damaged(name, "it does not begin as a manifest"));
            }
        }
        let mut bytes = vec![0; object.bytes() as usize];
        match object.read_at(0, &mut bytes) {
            // In an object store it may go after it was opened.
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            outcome => outcome.map_err(failed).map(|()| Some(bytes)),
        }
    }
}

/// Where every page of the last of a chain lies, and the packs that the map numbers.
pub(crate) fn flatten(chain: &[Manifest]) -> (PageMap, Vec<Hash>) {
    let page_size = chain.last().map_or(4096, |manifest| manifest.page_size);
    let mut map = PageMap::new(page_size.into());
    let mut packs = Vec::new();
    for manifest in chain {
        let own = renumbered(&manifest.map, &manifest.packs, &mut packs);
        map = map.restricted(&manifest.addresses()).overlaid(&own);
    }
    // Packs that only overwritten pages needed are not worth opening.
    let mut needed = Vec::new();
    let map = renumbered(&map.without_absent(), &packs, &mut needed);
    (map, needed)
}

/// A map whose packs are numbered by `from`, numbered by `to`, to which those that it lacks are
/// added.
pub(crate) fn renumbered(map: &PageMap, from: &[Hash], to: &mut Vec<Hash>) -> PageMap {
    let mut numbers = vec![None; from.len()];
    let mut map = map.clone();
    for run in map.runs_mut() {
        if let Source::Stored { pack, .. } = &mut run.source {
            let at = *pack as usize;
            *pack = *numbers[at].get_or_insert_with(|| {
                let known = to.iter().position(|name| *name == from[at]);
                known.unwrap_or_else(|| {
                    to.push(from[at]);
                    to.len() - 1
                }) as u32
            });
        }
    }
    map
}
