//! [`TreeStore`]: checkpoints of a tree of processes, in a directory: a [`Store`] for each process,
//! and for each instant an object that names one checkpoint of each.
//!
//! The object of an instant is published last, so that an instant is there whole or not at all.
//! What a killed writer leaves in the stores of the processes nothing names, and pruning removes
//! it.

use super::instant::TreeInstant;
use crate::error::{Error, Result};
use crate::limits;
use crate::storage::{Directory, Name, Publish, Storage, WorldWritable};
use crate::store::Store;
use crate::store::writer::{Writer, WriterOptions};
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What the marker of such a directory says.
const MARKER: &[u8] = b"pagetrail checkpoints of trees 1\n";
/// Where the stores of the processes lie.
const PROCESSES: &str = "processes";

/// Checkpoints of a tree of processes, in a directory.
#[derive(Clone, Debug)]
pub struct TreeStore {
    storage: Arc<Directory>,
    path: PathBuf,
    exposed: WorldWritable,
}

impl TreeStore {
    /// Whether a directory holds checkpoints of trees.
    pub fn is_at(path: &Path) -> bool {
        Self::open(path).is_ok()
    }

    /// Opens what is in a directory, to read.
    ///
    /// # Errors
    ///
    /// The directory holds no checkpoints of trees.
    pub fn open(path: &Path) -> Result<Self> {
        let storage = Arc::new(Directory::open(path)?);
        Self::at(storage, path, WorldWritable::Refuse)?.ok_or_else(|| not_trees(path))
    }

    /// Opens a directory to write; makes one where there is none.
    ///
    /// # Errors
    ///
    /// As [`Directory::create`]; it holds checkpoints of single processes.
    pub fn create(path: &Path, exposed: WorldWritable) -> Result<Self> {
        let storage = Arc::new(Directory::create(path, exposed)?);
        if read(&*storage, Name::Marker)?.is_none() {
            publish(&*storage, Name::Marker, MARKER)?;
        }
        Self::at(storage, path, exposed)?.ok_or_else(|| not_trees(path))
    }

    fn at(storage: Arc<Directory>, path: &Path, exposed: WorldWritable) -> Result<Option<Self>> {
        let is_one = read(&*storage, Name::Marker)?.is_some_and(|marker| marker == MARKER);
        Ok(is_one.then(|| Self {
            storage,
            path: path.to_owned(),
            exposed,
        }))
    }

    /// The numbers of the instants, ascending.
    ///
    /// # Errors
    ///
    /// The directory cannot be read.
    pub fn numbers(&self) -> Result<Vec<u64>> {
        let place = self.storage.place();
        let names = self.storage.names();
        let names = names.map_err(Error::io(format!("cannot list {place}")))?;
        let numbers = names.into_iter().filter_map(|name| match name {
            Name::Manifest(number) => Some(number),
            _ => None,
        });
        Ok(numbers.collect())
    }

    /// The number of the newest instant.
    ///
    /// # Errors
    ///
    /// There is none, or the directory cannot be read.
    pub fn newest(&self) -> Result<u64> {
        self.numbers()?.last().copied().ok_or(Error::Empty)
    }

    /// An instant.
    ///
    /// # Errors
    ///
    /// There is none with this number, or its object is damaged.
    pub fn instant(&self, number: u64) -> Result<TreeInstant> {
        let name = Name::Manifest(number);
        let damaged = |reason: &str| Error::Damaged {
            object: name.to_string(),
            reason: reason.into(),
        };
        let Some(bytes) = read(&*self.storage, name)? else {
            let numbers = self.numbers()?;
            let there = match (numbers.first(), numbers.last()) {
                (Some(first), Some(last)) => format!("{} from {first} to {last}", numbers.len()),
                _ => "none".into(),
            };
            return Err(Error::NoSuchCheckpoint { number, there });
        };
        let instant = TreeInstant::decode(&bytes).map_err(damaged)?;
        match instant.number == number {
            true => Ok(instant),
            false => Err(damaged("it is another instant's")),
        }
    }

    /// Where the checkpoints of a process lie.
    pub fn process_path(&self, process: u64) -> PathBuf {
        self.path.join(PROCESSES).join(process.to_string())
    }

    /// The checkpoints of a process, by its number.
    ///
    /// # Errors
    ///
    /// As [`Store::open`].
    pub fn process(&self, process: u64) -> Result<Store> {
        let not_a_store = || Error::NotAStore {
            place: self.process_path(process).display().to_string(),
        };
        let nested = match self.storage.nested(PROCESSES)? {
            Some(processes) => processes.nested(&process.to_string())?,
            None => None,
        };
        Store::on(Arc::new(nested.ok_or_else(not_a_store)?))
    }

    /// Reads everything, and returns what is wrong, a line each.
    ///
    /// # Errors
    ///
    /// The directory cannot be read.
    pub fn verify(&self) -> Result<Vec<String>> {
        let mut problems = Vec::new();
        let mut stores = BTreeMap::new();
        for process in self.processes()? {
            let verified = self.process(process).and_then(|store| {
                let verified = store.verify()?;
                Ok((store, verified))
            });
            match verified {
                Ok((store, verified)) => {
                    let damages = verified.damages.iter();
                    problems.extend(damages.map(|damage| format!("process {process}: {damage}")));
                    stores.insert(process, (store, verified.lost));
                }
                Err(error) => problems.push(format!("process {process}: {error}")),
            }
        }
        for number in self.numbers()? {
            let instant = match self.instant(number) {
                Ok(instant) => instant,
                Err(error) => {
                    problems.push(error.to_string());
                    continue;
                }
            };
            for part in &instant.processes {
                let is_there = stores.get(&part.process).is_some_and(|(store, lost)| {
                    let manifest = store.manifest(part.checkpoint);
                    manifest.is_ok_and(|manifest| manifest.taken_unix_ns == part.taken_unix_ns)
                        && !lost.contains(&part.checkpoint)
                });
                if !is_there {
                    problems.push(format!(
                        "instant {number} lacks process {}: its checkpoint {} is missing or damaged",
                        part.process, part.checkpoint
                    ));
                }
            }
        }
        Ok(problems)
    }

    /// The numbers of the processes that have a store.
    fn processes(&self) -> Result<Vec<u64>> {
        let Some(processes) = self.storage.nested(PROCESSES)? else {
            return Ok(Vec::new());
        };
        let place = processes.place();
        let names = processes.directories();
        let names = names.map_err(Error::io(format!("cannot list {place}")))?;
        let numbers = names.iter().filter_map(|name| {
            let number: u64 = name.parse().ok()?;
            (number.to_string() == *name).then_some(number)
        });
        let mut numbers: Vec<u64> = numbers.collect();
        numbers.sort_unstable();
        Ok(numbers)
    }

    /// Keeps other writers out until the guard is dropped.
    pub(super) fn lock(&self) -> Result<Box<dyn Send>> {
        let place = self.storage.place();
        let lock = self.storage.lock();
        let lock = lock.map_err(Error::io(format!("cannot write to {place}")))?;
        let lock = lock.ok_or(Error::Busy { place })?;
        let swept = self.storage.sweep();
        swept.map_err(Error::io(format!(
            "cannot write to {}",
            self.storage.place()
        )))?;
        Ok(lock)
    }

    /// The first number that no process has.
    pub(super) fn next_process(&self) -> Result<u64> {
        let newest = self.processes()?.last().copied().unwrap_or(0);
        newest.checked_add(1).ok_or_else(|| {
            let path = self.process_path(newest);
            Error::Refused(format!(
                "no number is left after {}; remove it",
                path.display()
            ))
        })
    }

    /// Makes a store for a process.
    pub(super) fn writer(&self, process: u64, options: WriterOptions) -> Result<Writer> {
        let processes = self.storage.make_nested(PROCESSES, self.exposed)?;
        let store = processes.make_nested(&process.to_string(), self.exposed)?;
        Store::create_on(Arc::new(store.become_store()?))?.writer(options)
    }

    /// Removes the store of a process.
    pub(super) fn remove(&self, process: u64) -> Result<()> {
        match self.storage.nested(PROCESSES)? {
            Some(processes) => processes.remove_nested(&process.to_string()),
            None => Ok(()),
        }
    }

    pub(super) fn publish(&self, instant: &TreeInstant) -> Result<()> {
        publish(
            &*self.storage,
            Name::Manifest(instant.number),
            &instant.encode(),
        )
    }

    /// Removes all but the newest instants, then what no instant names; `writers` are those at
    /// work, by the number of their process.
    pub(super) fn prune(
        &self,
        keep: usize,
        writers: &mut BTreeMap<u64, &mut Writer>,
    ) -> Result<()> {
        let numbers = self.numbers()?;
        let (old, kept) = numbers.split_at(numbers.len().saturating_sub(keep.max(1)));
        let mut oldest = BTreeMap::<u64, u64>::new();
        for number in kept {
            // What a damaged one names is not known, so nothing is removed.
            for part in self.instant(*number)?.processes {
                let first = oldest.entry(part.process).or_insert(part.checkpoint);
                *first = part.checkpoint.min(*first);
            }
        }
        for number in old {
            let removed = self.storage.remove(Name::Manifest(*number));
            removed.map_err(Error::io(format!("cannot remove instant {number}")))?;
        }
        for process in self.processes()? {
            let Some(oldest) = oldest.get(&process) else {
                if !writers.contains_key(&process) {
                    self.remove(process)?;
                }
                continue;
            };
            let is_kept = |number: &&u64| *number >= oldest;
            match writers.get_mut(&process) {
                Some(writer) => {
                    let kept = writer.store().numbers()?.iter().filter(is_kept).count();
                    writer.prune(kept.max(1))?;
                }
                None => {
                    let store = self.process(process)?;
                    let numbers = store.numbers()?;
                    let kept = numbers.iter().filter(is_kept).count();
                    if kept < numbers.len() {
                        store.writer(WriterOptions::default())?.prune(kept.max(1))?;
                    }
                }
            }
        }
        Ok(())
    }
}

fn not_trees(path: &Path) -> Error {
    Error::NotAStore {
        place: format!("{} (it holds no checkpoints of trees)", path.display()),
    }
}

/// All of an object; `None` where there is none.
fn read(storage: &dyn Storage, name: Name) -> Result<Option<Vec<u8>>> {
    let object = match storage.open(name) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        object => object.map_err(|cause| Error::reading(name, cause))?,
    };
    if object.bytes() > limits::bytes_at_once() {
        return Err(Error::Damaged {
            object: name.to_string(),
            reason: "it is impossibly long".into(),
        });
    }
    let mut bytes = vec![0; object.bytes() as usize];
    let read = object.read_at(0, &mut bytes);
    read.map_err(|cause| Error::reading(name, cause))?;
    Ok(Some(bytes))
}

fn publish(storage: &dyn Storage, name: Name, bytes: &[u8]) -> Result<()> {
    let written = || {
        let mut draft = storage.create()?;
        draft.write(bytes)?;
        draft.publish(name, Publish::New)
    };
    written().map_err(Error::io(format!("cannot write {name}")))
}
