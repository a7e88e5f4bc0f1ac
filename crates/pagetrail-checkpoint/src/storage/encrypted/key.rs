//! [`Key`], and what is derived from it for one store: a key for the objects, and a permutation of
//! the names of packs.

use crate::error::{Error, Result};
use crate::hash::Hash;
use rustix::fs::{Mode, OFlags};
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

pub(super) const KEY_BYTES: usize = 32;
/// What keys are derived for; BLAKE3 wants such a text to be of no other use anywhere.
const OBJECTS: &str = "pagetrail 2026-11-24 checkpoint store: keys of objects";
const NAMES: &str = "pagetrail 2026-11-24 checkpoint store: names of packs";
/// Rounds of the permutation: four make it one that nobody tells from a random one, also who may
/// ask for its inverse (Luby and Rackoff, "How to Construct Pseudorandom Permutations from
/// Pseudorandom Functions", 1988).
const ROUNDS: u8 = 4;
const HALF: usize = Hash::BYTES / 2;
/// Group and others.
const NOT_OWNER: u32 = 0o077;

/// The key of an encrypted store: 32 random bytes.
#[derive(Clone, PartialEq, Eq)]
pub struct Key([u8; KEY_BYTES]);

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

impl Key {
    /// A key of these bytes, which must be random: nothing makes a guess at them expensive.
    pub fn new(bytes: [u8; KEY_BYTES]) -> Self {
        Self(bytes)
    }

    /// A new key.
    ///
    /// # Errors
    ///
    /// The kernel has no random bytes to give.
    pub fn random() -> Result<Self> {
        let bytes = random();
        Ok(Self(bytes.map_err(Error::io("cannot make a key"))?))
    }

    /// Reads a key file: 32 bytes, or 64 hexadecimal digits, with or without a newline.
    ///
    /// # Errors
    ///
    /// It cannot be read, is no such file, or others than its owner may read or write it.
    pub fn from_file(path: &Path) -> Result<Self> {
        let failed = || Error::io(format!("cannot read the key file {}", path.display()));
        // A FIFO is not waited for.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let opened = rustix::fs::open(path, flags, Mode::empty());
        let file = File::from(opened.map_err(|errno| failed()(errno.into()))?);
        let metadata = file.metadata().map_err(failed())?;
        let refused =
            |reason: &str| Error::Refused(format!("the key file {} {reason}", path.display()));
        if !metadata.is_file() {
            return Err(refused("is no regular file"));
        }
        if metadata.mode() & NOT_OWNER != 0 {
            return Err(refused(
                "may be read or written by others than its owner; chmod 600 ends that",
            ));
        }
        let mut bytes = Vec::new();
        let most = 2 * KEY_BYTES as u64 + 2;
        file.take(most).read_to_end(&mut bytes).map_err(failed())?;
        Self::parse(&bytes).ok_or_else(|| {
            refused("does not hold a key: 32 random bytes, or 64 hexadecimal digits")
        })
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        if let Ok(bytes) = bytes.try_into() {
            return Some(Self(bytes));
        }
        let digits = bytes.strip_suffix(b"\n").unwrap_or(bytes);
        Hash::parse(std::str::from_utf8(digits).ok()?).map(|hash| Self(hash.0))
    }

    /// The key as a key file has it: 64 hexadecimal digits and a newline.
    pub fn to_text(&self) -> String {
        format!("{}\n", Hash(self.0))
    }

    /// What is used in the store that has this salt.
    pub(super) fn for_store(&self, salt: &[u8; KEY_BYTES]) -> StoreKeys {
        let derived = |of: &str| {
            let mut hasher = blake3::Hasher::new_derive_key(of);
            hasher.update(&self.0).update(salt);
            *hasher.finalize().as_bytes()
        };
        StoreKeys {
            objects: derived(OBJECTS),
            names: derived(NAMES),
        }
    }
}

/// Random bytes of the kernel's.
pub(super) fn random() -> std::io::Result<[u8; KEY_BYTES]> {
    let mut bytes = [0; KEY_BYTES];
    // So few are never given in part (getrandom(2)).
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(bytes)
}

/// The keys of one store.
#[derive(Clone)]
pub(super) struct StoreKeys {
    objects: [u8; KEY_BYTES],
    names: [u8; KEY_BYTES],
}

impl fmt::Debug for StoreKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StoreKeys(..)")
    }
}

impl StoreKeys {
    /// The key of the object that has this salt.
    pub(super) fn of_object(&self, salt: &[u8; KEY_BYTES]) -> [u8; KEY_BYTES] {
        *blake3::keyed_hash(&self.objects, salt).as_bytes()
    }

    /// Under which name a pack is stored: a pack's own name follows from what it holds, and would
    /// tell who knows that.
    pub(super) fn hidden(&self, name: Hash) -> Hash {
        let (mut left, mut right) = halves(name);
        for round in 0..ROUNDS {
            self.mix(round, &mut left, &right);
            std::mem::swap(&mut left, &mut right);
        }
        joined(left, right)
    }

    /// The pack that is stored under a name.
    pub(super) fn shown(&self, name: Hash) -> Hash {
        let (mut left, mut right) = halves(name);
        for round in (0..ROUNDS).rev() {
            std::mem::swap(&mut left, &mut right);
            self.mix(round, &mut left, &right);
        }
        joined(left, right)
    }

    fn mix(&self, round: u8, left: &mut [u8; HALF], right: &[u8; HALF]) {
        let mut hasher = blake3::Hasher::new_keyed(&self.names);
        hasher.update(&[round]).update(right);
        let mask = hasher.finalize();
        let mask = mask.as_bytes().iter();
        left.iter_mut()
            .zip(mask)
            .for_each(|(byte, mask)| *byte ^= mask);
    }
}

fn halves(hash: Hash) -> ([u8; HALF], [u8; HALF]) {
    let half = |at: usize| std::array::from_fn(|n| hash.0[at + n]);
    (half(0), half(HALF))
}

fn joined(left: [u8; HALF], right: [u8; HALF]) -> Hash {
    Hash(std::array::from_fn(|n| match n.checked_sub(HALF) {
        None => left[n],
        Some(n) => right[n],
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn names_are_hidden_and_shown_again() {
        let keys = |n: u8| Key::new([n; KEY_BYTES]).for_store(&[7; KEY_BYTES]);
        let names: Vec<Hash> = (0..50u8).map(|n| Hash::of(&[n])).collect();
        for name in &names {
            let hidden = keys(1).hidden(*name);
            assert_ne!(hidden, *name);
            assert_eq!(keys(1).shown(hidden), *name);
            assert_ne!(keys(2).hidden(*name), hidden);
        }
        let elsewhere = Key::new([1; KEY_BYTES]).for_store(&[8; KEY_BYTES]);
        assert_ne!(elsewhere.hidden(names[0]), keys(1).hidden(names[0]));
    }

    #[test]
    fn key_files_hold_bytes_or_digits_and_are_their_owners() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("key");
        let write = |contents: &[u8], mode: u32| {
            std::fs::write(&path, contents).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            Key::from_file(&path)
        };
        let key = Key::new([0xab; KEY_BYTES]);
        assert_eq!(write(&[0xab; KEY_BYTES], 0o600).unwrap(), key);
        assert_eq!(write(key.to_text().as_bytes(), 0o400).unwrap(), key);
        assert_eq!(write(key.to_text().trim().as_bytes(), 0o600).unwrap(), key);
        for wrong in [
            &b""[..],
            b"secret",
            &[0; 31],
            &[0; 33],
            &[b'g'; 64],
            &[b'a'; 66],
        ] {
            assert!(write(wrong, 0o600).is_err(), "{wrong:?}");
        }
        for mode in [0o644, 0o640, 0o602] {
            assert!(write(&[0xab; KEY_BYTES], mode).is_err(), "{mode:o}");
        }
        assert!(Key::from_file(directory.path()).is_err());
        let fifo = directory.path().join("fifo");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &fifo,
            rustix::fs::FileType::Fifo,
            Mode::RUSR | Mode::WUSR,
            0,
        )
        .unwrap();
        assert!(Key::from_file(&fifo).is_err());
    }

    #[test]
    fn keys_are_not_shown() {
        let key = Key::random().unwrap();
        assert_ne!(key, Key::random().unwrap());
        assert_eq!(
            format!("{key:?} {:?}", key.for_store(&[0; 32])),
            "Key(..) StoreKeys(..)"
        );
    }
}
