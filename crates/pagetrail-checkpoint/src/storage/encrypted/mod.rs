//! [`Encrypted`]: a storage whose objects are encrypted before they reach another one, a directory
//! or an object store. Who has that and not the key learns how many objects there are, how long
//! they are, and when they came; nothing of what they hold, and no name that follows from it.
//!
//! What the store does above it, it does as ever: equal pages are stored once within a store, and a
//! checkpoint is there whole or not at all.

mod key;
mod sealed;

use super::{Draft, Name, Object, Publish, Storage};
use crate::error::{Error, Result};
use crate::format::{ENCRYPTED_MARKER, MARKER};
use key::{KEY_BYTES, StoreKeys};
use sealed::{HEADER_BYTES, SealedDraft, SealedObject, Sealer};
use std::io::{self, ErrorKind};

pub use key::Key;

/// Another storage, in which everything is encrypted.
#[derive(Debug)]
pub struct Encrypted<S> {
    inner: S,
    keys: StoreKeys,
}

/// Under which name an object is stored.
fn stored_as(keys: &StoreKeys, name: Name) -> Name {
    match name {
        Name::Pack(hash) => Name::Pack(keys.hidden(hash)),
        other => other,
    }
}

impl<S: Storage> Encrypted<S> {
    /// An encrypted store that is there.
    ///
    /// # Errors
    ///
    /// There is no store; it is not encrypted, or by another key; the storage fails.
    pub fn open(inner: S, key: &Key) -> Result<Self> {
        let place = inner.place();
        let failed = || Error::io(format!("cannot read {}", Name::Marker));
        let marker = match inner.open(Name::Marker) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return Err(Error::NotAStore { place });
            }
            Err(error) => return Err(Error::reading(Name::Marker, error)),
            Ok(marker) => marker,
        };
        let salt_at = ENCRYPTED_MARKER.len() as u64;
        let mut start = vec![0; marker.bytes().min(salt_at) as usize];
        marker.read_at(0, &mut start).map_err(failed())?;
        if start != ENCRYPTED_MARKER {
            let reason = match MARKER.starts_with(&start) {
                true => format!("{place} is not encrypted; it is used without a key"),
                false => format!("{} is of another format, or has changed", Name::Marker),
            };
            return Err(Error::Refused(reason));
        }
        let object_at = salt_at + KEY_BYTES as u64;
        let mut salt = [0; KEY_BYTES];
        let expected = object_at + (HEADER_BYTES + MARKER.len()) as u64;
        if marker.bytes() <= expected {
            return Err(Error::Damaged {
                object: Name::Marker.to_string(),
                reason: "it ends too early".into(),
            });
        }
        marker.read_at(salt_at, &mut salt).map_err(failed())?;
        let keys = key.for_store(&salt);
        match SealedObject::open(marker, object_at, &keys, Name::Marker) {
            Err(error) if error.kind() == ErrorKind::InvalidData => Err(Error::Refused(format!(
                "the key is not the one of {place}, or {} has changed",
                Name::Marker
            ))),
            outcome => {
                outcome.map_err(failed())?;
                Ok(Self { inner, keys })
            }
        }
    }

    /// An encrypted store, made where there is none.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open).
    pub fn create(inner: S, key: &Key) -> Result<Self> {
        let failed = || Error::io(format!("cannot write to {}", inner.place()));
        match inner.open(Name::Marker) {
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            // What it is, the other one says.
            _ => return Self::open(inner, key),
        }
        let salt = key::random().map_err(failed())?;
        let (mut sealer, header) = Sealer::new(&key.for_store(&salt)).map_err(failed())?;
        let mut bytes = [ENCRYPTED_MARKER, &salt, &header].concat();
        sealer
            .push(MARKER, |_| unreachable!("it is shorter than a chunk"))
            .map_err(failed())?;
        bytes.extend(sealer.finish(Name::Marker).map_err(failed())?);
        let mut draft = inner.create().map_err(failed())?;
        draft.write(&bytes).map_err(failed())?;
        match draft.publish(Name::Marker, Publish::New) {
            // Another process was faster, with a salt of its own.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            outcome => outcome.map_err(failed())?,
        }
        Self::open(inner, key)
    }
}

impl<S: Storage> Storage for Encrypted<S> {
    fn place(&self) -> String {
        self.inner.place()
    }

    fn names(&self) -> io::Result<Vec<Name>> {
        let names = self.inner.names()?.into_iter().map(|name| match name {
            Name::Pack(hash) => Name::Pack(self.keys.shown(hash)),
            other => other,
        });
        let mut names: Vec<Name> = names.collect();
        names.sort_unstable();
        Ok(names)
    }

    fn open(&self, name: Name) -> io::Result<Box<dyn Object>> {
        let object = self.inner.open(stored_as(&self.keys, name))?;
        let from = match name {
            Name::Marker => (ENCRYPTED_MARKER.len() + KEY_BYTES) as u64,
            _ => 0,
        };
        Ok(Box::new(SealedObject::open(
            object, from, &self.keys, name,
        )?))
    }

    fn create(&self) -> io::Result<Box<dyn Draft>> {
        let mut inner = self.inner.create()?;
        let (sealer, header) = Sealer::new(&self.keys)?;
        inner.write(&header)?;
        Ok(Box::new(SealedDraft {
            sealer,
            inner,
            keys: self.keys.clone(),
        }))
    }

    fn remove(&self, name: Name) -> io::Result<()> {
        self.inner.remove(stored_as(&self.keys, name))
    }

    fn lock(&self) -> io::Result<Option<Box<dyn Send>>> {
        self.inner.lock()
    }

    fn is_held(&self) -> bool {
        self.inner.is_held()
    }

    fn may_have_late_writes(&self) -> bool {
        self.inner.may_have_late_writes()
    }

    fn is_near(&self) -> bool {
        self.inner.is_near()
    }

    fn set_aside(&self, name: Name) -> io::Result<()> {
        self.inner.set_aside(stored_as(&self.keys, name))
    }

    fn sweep(&self) -> io::Result<()> {
        self.inner.sweep()
    }
}
