//! [`InMemory`]: a store that ends with the process, for tests and for checkpoints of the moment.

use super::{Draft, Name, Object, Publish, Storage};
use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

type Objects = BTreeMap<Name, Arc<Vec<u8>>>;

/// Objects in memory. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct InMemory {
    objects: Arc<Mutex<Objects>>,
    lock: Arc<Mutex<bool>>,
}

impl InMemory {
    /// An empty store-to-be.
    pub fn new() -> Self {
        Self::default()
    }

    /// The bytes of an object.
    pub fn get(&self, name: Name) -> Option<Vec<u8>> {
        locked(&self.objects).get(&name).map(|bytes| bytes.to_vec())
    }

    /// Replaces an object: how tests damage a store.
    pub fn put(&self, name: Name, bytes: Vec<u8>) {
        locked(&self.objects).insert(name, Arc::new(bytes));
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Storage for InMemory {
    fn place(&self) -> String {
        "the store in memory".into()
    }

    fn names(&self) -> io::Result<Vec<Name>> {
        Ok(locked(&self.objects).keys().copied().collect())
    }

    fn open(&self, name: Name) -> io::Result<Box<dyn Object>> {
        match locked(&self.objects).get(&name) {
            Some(bytes) => Ok(Box::new(Bytes(Arc::clone(bytes)))),
            None => Err(ErrorKind::NotFound.into()),
        }
    }

    fn create(&self) -> io::Result<Box<dyn Draft>> {
        Ok(Box::new(MemoryDraft {
            bytes: Vec::new(),
            objects: Arc::clone(&self.objects),
        }))
    }

    fn remove(&self, name: Name) -> io::Result<()> {
        locked(&self.objects).remove(&name);
        Ok(())
    }

    fn lock(&self) -> io::Result<Option<Box<dyn Send>>> {
        let taken = std::mem::replace(&mut *locked(&self.lock), true);
        Ok((!taken).then(|| Box::new(Guard(Arc::clone(&self.lock))) as Box<dyn Send>))
    }

    fn set_aside(&self, name: Name) -> io::Result<()> {
        self.remove(name)
    }

    fn sweep(&self) -> io::Result<()> {
        Ok(())
    }
}

struct Guard(Arc<Mutex<bool>>);

impl Drop for Guard {
    fn drop(&mut self) {
        *locked(&self.0) = false;
    }
}

struct Bytes(Arc<Vec<u8>>);

impl Object for Bytes {
    fn bytes(&self) -> u64 {
        self.0.len() as u64
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        read(&self.0, offset, buffer)
    }
}

fn read(bytes: &[u8], offset: u64, buffer: &mut [u8]) -> io::Result<()> {
    let from = usize::try_from(offset).unwrap_or(usize::MAX);
    let to = from.checked_add(buffer.len());
    let part = to.and_then(|to| bytes.get(from..to));
    buffer.copy_from_slice(part.ok_or(ErrorKind::UnexpectedEof)?);
    Ok(())
}

struct MemoryDraft {
    bytes: Vec<u8>,
    objects: Arc<Mutex<Objects>>,
}

impl Object for MemoryDraft {
    fn bytes(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        read(&self.bytes, offset, buffer)
    }
}

impl Draft for MemoryDraft {
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }

    fn can_rewrite(&self) -> bool {
        true
    }

    fn rewrite(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let from = usize::try_from(offset).unwrap_or(usize::MAX);
        let part = from
            .checked_add(bytes.len())
            .and_then(|to| self.bytes.get_mut(from..to));
        part.ok_or(ErrorKind::InvalidInput)?.copy_from_slice(bytes);
        Ok(())
    }

    fn written(&self) -> Option<&dyn Object> {
        Some(self)
    }

    fn publish(self: Box<Self>, name: Name, how: Publish) -> io::Result<()> {
        let mut objects = locked(&self.objects);
        if how == Publish::New && objects.contains_key(&name) {
            return Err(ErrorKind::AlreadyExists.into());
        }
        objects.insert(name, Arc::new(self.bytes));
        Ok(())
    }
}
