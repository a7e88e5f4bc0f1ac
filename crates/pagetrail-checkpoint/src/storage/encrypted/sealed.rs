//! The bytes of an encrypted object: a header with a salt, and chunks, each encrypted and
//! authenticated by ChaCha20-Poly1305 (RFC 8439).
//!
//! Each object has a key of its own, which follows from the store's and from its salt, 32 random
//! bytes; so a chunk's nonce needs to be unique in its object only, and is its number. The last
//! chunk's nonce says that it is the last, and the object's name is authenticated with it: what is
//! cut off, put elsewhere or exchanged is found (the construction STREAM of Hoang, Reyhanitabar,
//! Rogaway and Vizár, "Online Authenticated-Encryption and its Nonce-Reuse Misuse-Resistance",
//! 2015).

use super::key::{KEY_BYTES, StoreKeys, random};
use crate::storage::{Draft, Name, Object, Publish};
use chacha20poly1305::aead::{AeadInOut, KeyInit};
use chacha20poly1305::{ChaCha20Poly1305, Nonce, Tag};
use std::io::{self, ErrorKind};
use std::sync::{Mutex, PoisonError};

const MAGIC: &[u8; 8] = b"PTCRYPT\x01";
pub(super) const HEADER_BYTES: usize = MAGIC.len() + KEY_BYTES;
/// Contents of a chunk; the last may have fewer.
const CHUNK: usize = 1 << 16;
const TAG: usize = 16;
const SEALED: usize = CHUNK + TAG;
/// The first byte of the nonce of an object's last chunk.
const LAST: u8 = 1;

fn nonce(chunk: u64, is_last: bool) -> Nonce {
    let mut nonce = [0; 12];
    nonce[0] = if is_last { LAST } else { 0 };
    nonce[4..].copy_from_slice(&chunk.to_be_bytes());
    nonce.into()
}

/// Encrypts an object's bytes as they come.
pub(super) struct Sealer {
    cipher: ChaCha20Poly1305,
    /// How many chunks have been given out.
    chunks: u64,
    /// Contents that are in no chunk yet, after a chunk's worth of which others have come.
    rest: Vec<u8>,
}

impl Sealer {
    /// Begins, and gives the header.
    pub(super) fn new(keys: &StoreKeys) -> io::Result<(Self, Vec<u8>)> {
        let salt = random()?;
        let sealer = Self {
            cipher: ChaCha20Poly1305::new(&keys.of_object(&salt).into()),
            chunks: 0,
            rest: Vec::with_capacity(SEALED),
        };
        Ok((sealer, [&MAGIC[..], &salt].concat()))
    }

    /// Takes contents, and gives out chunks that are complete.
    pub(super) fn push(
        &mut self,
        mut bytes: &[u8],
        mut out: impl FnMut(&[u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        while !bytes.is_empty() {
            if self.rest.len() == CHUNK {
                self.seal(false, b"")?;
                let sealed = out(&self.rest);
                self.rest.clear();
                sealed?;
            }
            let (now, later) = bytes.split_at(bytes.len().min(CHUNK - self.rest.len()));
            self.rest.extend_from_slice(now);
            bytes = later;
        }
        Ok(())
    }

    /// The last chunk, of the object that gets a name.
    pub(super) fn finish(mut self, name: Name) -> io::Result<Vec<u8>> {
        self.seal(true, name.to_string().as_bytes())?;
        Ok(self.rest)
    }

    fn seal(&mut self, is_last: bool, with: &[u8]) -> io::Result<()> {
        let nonce = nonce(self.chunks, is_last);
        let sealed = self
            .cipher
            .encrypt_inout_detached(&nonce, with, (&mut self.rest[..]).into());
        let tag = sealed.map_err(|_| io::Error::other("a chunk cannot be encrypted"))?;
        self.rest.extend_from_slice(&tag);
        self.chunks += 1;
        Ok(())
    }
}

/// The contents of a sealed chunk, which ends with its tag.
fn open_chunk(
    cipher: &ChaCha20Poly1305,
    nonce: Nonce,
    with: &[u8],
    mut sealed: Vec<u8>,
) -> io::Result<Vec<u8>> {
    let length = sealed.len() - TAG;
    let tag = Tag::try_from(&sealed[length..]).map_err(io::Error::other)?;
    sealed.truncate(length);
    let opened = cipher.decrypt_inout_detached(&nonce, with, (&mut sealed[..]).into(), &tag);
    let reason = "it has changed, or is encrypted by another key";
    opened.map_err(|_| io::Error::new(ErrorKind::InvalidData, reason))?;
    Ok(sealed)
}

/// An encrypted object that is being written.
pub(super) struct SealedDraft {
    pub(super) sealer: Sealer,
    pub(super) inner: Box<dyn Draft>,
    pub(super) keys: StoreKeys,
}

impl SealedDraft {
    /// The contents of a chunk that has been given out.
    fn chunk(&self, number: u64) -> io::Result<Vec<u8>> {
        let inner = self.inner.written().ok_or(ErrorKind::Unsupported)?;
        let mut sealed = vec![0; SEALED];
        let offset = HEADER_BYTES as u64 + number * SEALED as u64;
        inner.read_at(offset, &mut sealed)?;
        open_chunk(&self.sealer.cipher, nonce(number, false), b"", sealed)
    }
}

impl Object for SealedDraft {
    fn bytes(&self) -> u64 {
        self.sealer.chunks * CHUNK as u64 + self.sealer.rest.len() as u64
    }

    fn read_at(&self, mut offset: u64, mut buffer: &mut [u8]) -> io::Result<()> {
        let end = offset.checked_add(buffer.len() as u64);
        if end.is_none_or(|end| end > self.bytes()) {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        while !buffer.is_empty() {
            let number = offset / CHUNK as u64;
            let within = (offset % CHUNK as u64) as usize;
            let opened;
            let chunk = match number < self.sealer.chunks {
                true => {
                    opened = self.chunk(number)?;
                    &opened
                }
                false => &self.sealer.rest,
            };
            let count = buffer.len().min(chunk.len() - within);
            let (now, later) = buffer.split_at_mut(count);
            now.copy_from_slice(&chunk[within..within + count]);
            buffer = later;
            offset += count as u64;
        }
        Ok(())
    }
}

impl Draft for SealedDraft {
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let inner = &mut self.inner;
        self.sealer.push(bytes, |chunk| inner.write(chunk))
    }

    fn written(&self) -> Option<&dyn Object> {
        self.inner.written().map(|_| self as &dyn Object)
    }

    fn publish(self: Box<Self>, name: Name, how: Publish) -> io::Result<()> {
        let Self {
            sealer,
            mut inner,
            keys,
        } = *self;
        inner.write(&sealer.finish(name)?)?;
        inner.publish(super::stored_as(&keys, name), how)
    }
}

/// An encrypted object that can be read.
pub(super) struct SealedObject {
    inner: Box<dyn Object>,
    cipher: ChaCha20Poly1305,
    /// Where its header begins.
    from: u64,
    name: Vec<u8>,
    /// Length of its contents, in bytes.
    bytes: u64,
    /// A chunk that was read last, by its number: small reads follow each other.
    recent: Mutex<(u64, Vec<u8>)>,
}

impl SealedObject {
    /// Opens the object that begins at `from`; its last chunk is read, which has its name and says
    /// that nothing was cut off.
    pub(super) fn open(
        inner: Box<dyn Object>,
        from: u64,
        keys: &StoreKeys,
        name: Name,
    ) -> io::Result<Self> {
        let least = from + (HEADER_BYTES + TAG) as u64;
        let stored = inner.bytes();
        let mut header = [0; HEADER_BYTES];
        if stored < least {
            return Err(io::Error::new(ErrorKind::InvalidData, "it ends too early"));
        }
        inner.read_at(from, &mut header)?;
        let Some(salt) = header
            .strip_prefix(MAGIC)
            .and_then(|salt| salt.first_chunk())
        else {
            let reason = "it does not begin as an encrypted object";
            return Err(io::Error::new(ErrorKind::InvalidData, reason));
        };
        let body = stored - from - HEADER_BYTES as u64;
        let chunks = body.div_ceil(SEALED as u64);
        let Some(bytes) = body.checked_sub(chunks * TAG as u64) else {
            return Err(io::Error::new(ErrorKind::InvalidData, "it ends too early"));
        };
        let object = Self {
            inner,
            cipher: ChaCha20Poly1305::new(&keys.of_object(salt).into()),
            from,
            name: name.to_string().into_bytes(),
            bytes,
            recent: Mutex::default(),
        };
        let last = object.chunk(chunks - 1)?;
        *object.lock() = (chunks - 1, last);
        Ok(object)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, (u64, Vec<u8>)> {
        self.recent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn chunk(&self, number: u64) -> io::Result<Vec<u8>> {
        // A last chunk may have no contents, of an object without any.
        let at = number * CHUNK as u64;
        let length = (self.bytes - at).min(CHUNK as u64);
        let is_last = at + length == self.bytes;
        let mut sealed = vec![0; length as usize + TAG];
        let offset = self.from + HEADER_BYTES as u64 + number * SEALED as u64;
        self.inner.read_at(offset, &mut sealed)?;
        let with: &[u8] = if is_last { &self.name } else { b"" };
        open_chunk(&self.cipher, nonce(number, is_last), with, sealed)
    }
}

impl Object for SealedObject {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn read_at(&self, mut offset: u64, mut buffer: &mut [u8]) -> io::Result<()> {
        let end = offset.checked_add(buffer.len() as u64);
        if end.is_none_or(|end| end > self.bytes) {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        while !buffer.is_empty() {
            let number = offset / CHUNK as u64;
            let mut recent = self.lock();
            if recent.0 != number || recent.1.is_empty() {
                // Others may read meanwhile.
                drop(recent);
                let chunk = self.chunk(number)?;
                recent = self.lock();
                *recent = (number, chunk);
            }
            let within = (offset % CHUNK as u64) as usize;
            let count = buffer.len().min(recent.1.len() - within);
            let (now, later) = buffer.split_at_mut(count);
            now.copy_from_slice(&recent.1[within..within + count]);
            buffer = later;
            offset += count as u64;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::Hash;
    use crate::storage::encrypted::Key;

    struct Bytes(Vec<u8>);

    impl Object for Bytes {
        fn bytes(&self) -> u64 {
            self.0.len() as u64
        }

        fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
            let from = usize::try_from(offset).map_err(io::Error::other)?;
            let part = self.0.get(from..from + buffer.len());
            buffer.copy_from_slice(part.ok_or(ErrorKind::UnexpectedEof)?);
            Ok(())
        }
    }

    fn keys() -> StoreKeys {
        Key::new([3; KEY_BYTES]).for_store(&[4; KEY_BYTES])
    }

    fn name() -> Name {
        Name::Pack(Hash::of(b"a pack"))
    }

    fn sealed(contents: &[u8], random: &mut fastrand::Rng) -> Vec<u8> {
        let (mut sealer, mut out) = Sealer::new(&keys()).unwrap();
        let mut rest = contents;
        while !rest.is_empty() {
            let (now, later) = rest.split_at(random.usize(1..=rest.len()));
            let chunk = |chunk: &[u8]| {
                out.extend_from_slice(chunk);
                Ok(())
            };
            sealer.push(now, chunk).unwrap();
            rest = later;
        }
        out.extend(sealer.finish(name()).unwrap());
        out
    }

    fn open(bytes: Vec<u8>, keys: &StoreKeys, name: Name) -> io::Result<Vec<u8>> {
        let object = SealedObject::open(Box::new(Bytes(bytes)), 0, keys, name)?;
        let mut contents = vec![0; object.bytes() as usize];
        object.read_at(0, &mut contents)?;
        Ok(contents)
    }

    #[test]
    fn what_is_sealed_comes_back_and_nothing_else_does() {
        let mut random = fastrand::Rng::with_seed(1);
        for length in [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK, 3 * CHUNK + 17] {
            let contents: Vec<u8> = (0..length).map(|n| (n / 7) as u8).collect();
            let bytes = sealed(&contents, &mut random);
            assert_eq!(
                bytes.len(),
                length + HEADER_BYTES + TAG * length.div_ceil(CHUNK).max(1)
            );
            assert_eq!(
                open(bytes.clone(), &keys(), name()).unwrap(),
                contents,
                "{length}"
            );
            assert_ne!(bytes, sealed(&contents, &mut random), "a salt came twice");

            let object =
                SealedObject::open(Box::new(Bytes(bytes.clone())), 0, &keys(), name()).unwrap();
            for _ in 0..50 {
                let from = random.usize(0..=length);
                let to = random.usize(from..=length);
                let mut part = vec![0; to - from];
                object.read_at(from as u64, &mut part).unwrap();
                assert_eq!(part, contents[from..to]);
            }
            assert!(object.read_at(length as u64, &mut [0]).is_err());

            let other_key = Key::new([5; KEY_BYTES]).for_store(&[4; KEY_BYTES]);
            assert!(open(bytes.clone(), &other_key, name()).is_err());
            assert!(
                open(bytes.clone(), &keys(), Name::Marker).is_err(),
                "another name"
            );
            let ends = [0, 7, HEADER_BYTES, bytes.len() - 1];
            let chunks = (0..=length / CHUNK).map(|chunk| HEADER_BYTES + chunk * SEALED);
            for end in ends
                .into_iter()
                .chain(chunks)
                .filter(|end| *end < bytes.len())
            {
                assert!(
                    open(bytes[..end].to_vec(), &keys(), name()).is_err(),
                    "cut at {end}"
                );
            }
            for _ in 0..20 {
                let mut wrong = bytes.clone();
                wrong[random.usize(0..bytes.len())] ^= 1 << random.u8(0..8);
                assert!(open(wrong, &keys(), name()).is_err());
            }
            let longer = [&bytes[..], &[0; 40]].concat();
            assert!(open(longer, &keys(), name()).is_err());
        }
    }

    #[test]
    fn chunks_cannot_change_places() {
        let mut random = fastrand::Rng::with_seed(2);
        let bytes = sealed(&vec![1; 3 * CHUNK], &mut random);
        let other = sealed(&vec![1; 3 * CHUNK], &mut random);
        let chunk = |n: usize| HEADER_BYTES + n * SEALED..HEADER_BYTES + (n + 1) * SEALED;
        let mut swapped = bytes.clone();
        swapped[chunk(0)].copy_from_slice(&bytes[chunk(1)]);
        swapped[chunk(1)].copy_from_slice(&bytes[chunk(0)]);
        assert!(open(swapped, &keys(), name()).is_err());
        let mut foreign = bytes.clone();
        foreign[chunk(1)].copy_from_slice(&other[chunk(1)]);
        assert!(open(foreign, &keys(), name()).is_err());
        let mut dropped = bytes.clone();
        dropped.drain(chunk(1));
        assert!(open(dropped, &keys(), name()).is_err());
    }
}
