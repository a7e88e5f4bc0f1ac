//! [`Storage`]: where the objects of a store lie. A store needs little: write-once objects that
//! appear whole or not at all, reading at an offset, a list, and a lock against a second writer.
//!
//! Objects are named by what they are, never by a path, so nothing read from a store can lead out
//! of it.

#[cfg(feature = "object-store")]
mod bucket;
#[cfg(feature = "object-store")]
mod bucket_lease;
mod directory;
#[cfg(feature = "encryption")]
mod encrypted;
mod memory;
mod nested;

use crate::error::Result;
use crate::hash::Hash;
use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;

#[cfg(feature = "object-store")]
pub use bucket::Bucket;
pub use directory::Directory;
#[cfg(feature = "encryption")]
pub use encrypted::{Encrypted, Key};
pub use memory::InMemory;

/// An object of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Name {
    /// Says that this is a store, and of which format.
    Marker,
    /// A checkpoint: its description and where its pages are, by its number.
    Manifest(u64),
    /// Contents of pages, by the hash of its root.
    Pack(Hash),
    /// In which order a process of a checkpoint needed its pages, by the checkpoint's number.
    Touches(u64),
}

impl Name {
    /// The name under which [`fmt::Display`] shows it; `None` for what is none.
    pub fn parse(text: &str) -> Option<Self> {
        if text == MARKER {
            return Some(Self::Marker);
        }
        let name = match text.rsplit_once('.')? {
            (digits, "manifest") => Self::Manifest(digits.parse().ok()?),
            (digits, "touches") => Self::Touches(digits.parse().ok()?),
            (digits, "pack") => Self::Pack(Hash::parse(digits)?),
            _ => return None,
        };
        (name.to_string() == text).then_some(name)
    }
}

const MARKER: &str = "pagetrail.store";

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Marker => f.write_str(MARKER),
            // Twenty digits are enough for any u64, so that names sort as numbers.
            Self::Manifest(number) => write!(f, "{number:020}.manifest"),
            Self::Pack(hash) => write!(f, "{hash}.pack"),
            Self::Touches(number) => write!(f, "{number:020}.touches"),
        }
    }
}

/// The storage at a place that is a store: a directory or, with the feature `object-store`, a URL
/// of an object store, `s3://bucket/prefix` say.
///
/// # Errors
///
/// As [`Directory::open`] and `Bucket::open`.
pub fn open(place: &Path) -> Result<Arc<dyn Storage>> {
    match url(place) {
        Some(url) => bucket(url),
        None => Ok(Arc::new(Directory::open(place)?)),
    }
}

/// Whether a store may lie in a directory in which everybody may write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WorldWritable {
    /// It may not: others could put something else in its place.
    #[default]
    Refuse,
    /// It may.
    Allow,
}

/// The storage at a place that is to become a store, or is one.
///
/// # Errors
///
/// As [`Directory::create`] and `Bucket::open`.
pub fn create(place: &Path, exposed: WorldWritable) -> Result<Arc<dyn Storage>> {
    match url(place) {
        Some(url) => bucket(url),
        None => Ok(Arc::new(Directory::create(place, exposed)?)),
    }
}

fn url(place: &Path) -> Option<&str> {
    place.to_str().filter(|text| text.contains("://"))
}

#[cfg(feature = "object-store")]
fn bucket(url: &str) -> Result<Arc<dyn Storage>> {
    Ok(Arc::new(Bucket::open(url)?))
}

#[cfg(not(feature = "object-store"))]
fn bucket(url: &str) -> Result<Arc<dyn Storage>> {
    let reason = "this program was built without object stores (feature `object-store`)";
    Err(crate::Error::Refused(format!("{url}: {reason}")))
}

/// A place for objects.
pub trait Storage: Send + Sync + fmt::Debug {
    /// The place, for messages.
    fn place(&self) -> String;

    /// All objects, in ascending order. What is not one of ours is left out.
    fn names(&self) -> io::Result<Vec<Name>>;

    /// Opens an object for reading.
    fn open(&self, name: Name) -> io::Result<Box<dyn Object>>;

    /// Begins a new object, which has no name yet. Dropped, it is as if it had never been.
    fn create(&self) -> io::Result<Box<dyn Draft>>;

    /// Removes an object; one that is not there is fine.
    fn remove(&self, name: Name) -> io::Result<()>;

    /// Keeps other writers out until the guard is dropped; `None` when there is one.
    fn lock(&self) -> io::Result<Option<Box<dyn Send>>>;

    /// Whether the lock that was taken still keeps other writers out.
    fn is_held(&self) -> bool {
        true
    }

    /// Whether something that a writer before this one has written may still arrive, and need
    /// objects that nothing names.
    fn may_have_late_writes(&self) -> bool {
        false
    }

    /// Whether objects are read as fast as from a disk of this machine, so that a writer may look
    /// at what is stored to store less.
    fn is_near(&self) -> bool {
        true
    }

    /// Moves an object to where no list has it, for people to look at.
    fn set_aside(&self, name: Name) -> io::Result<()>;

    /// Removes what drafts of killed writers left. Called under the lock.
    fn sweep(&self) -> io::Result<()>;
}

/// Below this name lies what was set aside.
const DAMAGED: &str = "damaged";

impl<T: Storage + ?Sized> Storage for Arc<T> {
    fn place(&self) -> String {
        (**self).place()
    }

    fn names(&self) -> io::Result<Vec<Name>> {
        (**self).names()
    }

    fn open(&self, name: Name) -> io::Result<Box<dyn Object>> {
        (**self).open(name)
    }

    fn create(&self) -> io::Result<Box<dyn Draft>> {
        (**self).create()
    }

    fn remove(&self, name: Name) -> io::Result<()> {
        (**self).remove(name)
    }

    fn lock(&self) -> io::Result<Option<Box<dyn Send>>> {
        (**self).lock()
    }

    fn is_held(&self) -> bool {
        (**self).is_held()
    }

    fn may_have_late_writes(&self) -> bool {
        (**self).may_have_late_writes()
    }

    fn is_near(&self) -> bool {
        (**self).is_near()
    }

    fn set_aside(&self, name: Name) -> io::Result<()> {
        (**self).set_aside(name)
    }

    fn sweep(&self) -> io::Result<()> {
        (**self).sweep()
    }
}

/// An object that can be read.
pub trait Object: Send + Sync {
    /// Its length in bytes.
    fn bytes(&self) -> u64;

    /// Fills `buffer` from `offset` on, or fails.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()>;
}

/// An object that is being written.
pub trait Draft: Send + Sync {
    /// Appends.
    fn write(&mut self, bytes: &[u8]) -> io::Result<()>;

    /// Whether [`Self::rewrite`] works: bytes that are encrypted, say, cannot be replaced.
    fn can_rewrite(&self) -> bool {
        false
    }

    /// Replaces bytes that were written before.
    ///
    /// # Errors
    ///
    /// It cannot be done, or the storage fails; the draft is of no more use then.
    fn rewrite(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let _ = (offset, bytes);
        Err(io::ErrorKind::Unsupported.into())
    }

    /// What was written so far, where that can be read before it is published.
    fn written(&self) -> Option<&dyn Object> {
        None
    }

    /// Gives it its name. When this returns it survives a loss of power.
    fn publish(self: Box<Self>, name: Name, how: Publish) -> io::Result<()>;
}

/// What becomes of an object that has the name already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Publish {
    /// It stays, and publishing fails with [`io::ErrorKind::AlreadyExists`].
    New,
    /// It is replaced at once.
    Replacing,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_parsed_back_and_nothing_else_is() {
        for name in [
            Name::Marker,
            Name::Manifest(0),
            Name::Manifest(u64::MAX),
            Name::Pack(Hash::of(b"x")),
            Name::Touches(7),
        ] {
            assert_eq!(Name::parse(&name.to_string()), Some(name));
        }
        for wrong in [
            "",
            "lock",
            "1.manifest",
            "+0000000000000000001.manifest",
            "7.touches",
            "../00000000000000000001.manifest",
            "x.pack",
            "00000000000000000001.manifest.tmp",
        ] {
            assert_eq!(Name::parse(wrong), None, "{wrong}");
        }
    }
}
