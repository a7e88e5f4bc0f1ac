//! [`Bucket`]: a store in an object store: S3 and what speaks its language, Google Cloud Storage, Azure, and whatever else the
//! crate `object_store` knows.
//!
//! An object there appears whole when its upload is finished, and is named from the start; a pack has its name only in the
//! end. So a draft grows in a file without a name on this machine, and is uploaded when it is published.
//!
//! Objects are read in blocks, the last of which are kept: a request for each frame would take longer than what it brings.

use super::bucket_lease::{Lease, Timing};
use super::{Draft, Name, Object, Storage};
use crate::error::{Error, Result};
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt, WriteMultipart};
use std::collections::VecDeque;
use std::fs::File;
use std::future::Future;
use std::io::{self, ErrorKind, Read, Seek, Write};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::runtime::{Builder, Runtime};

/// Objects up to this length are uploaded by one request, longer ones in parts.
const PART_BYTES: u64 = 8 << 20;
/// S3 takes no more parts of an object.
const PARTS_MAX: u64 = 10_000;
/// Parts on their way at a time.
const PARTS_IN_FLIGHT: usize = 4;
/// How much is read at a time.
const BLOCK_BYTES: u64 = 1 << 20;
/// Blocks that are kept of an object.
const BLOCKS: usize = 8;

/// A place in an object store. One writer at a time is let in by a [lease](super::bucket_lease).
#[derive(Clone, Debug)]
pub struct Bucket {
    remote: Remote,
    place: String,
    timing: Timing,
    lease: Arc<Mutex<Option<Lease>>>,
}

/// What it takes to speak with an object store.
#[derive(Clone, Debug)]
pub(super) struct Remote {
    pub(super) objects: Arc<dyn ObjectStore>,
    prefix: Path,
    runtime: Arc<Runtime>,
}

impl Bucket {
    /// The place that a URL names, `s3://bucket/prefix` say. What else must be known comes from the environment, in the
    /// variables of the provider's own tools: `AWS_ACCESS_KEY_ID`, `AWS_REGION`, `AWS_ENDPOINT`,
    /// `GOOGLE_SERVICE_ACCOUNT`, `AZURE_STORAGE_ACCOUNT_NAME` and so on.
    ///
    /// # Errors
    ///
    /// The URL is none, or of a kind that is not known, or something is missing in the environment.
    pub fn open(url: &str) -> Result<Self> {
        let refused = |reason: &dyn std::fmt::Display| Error::Refused(format!("{url}: {reason}"));
        let parsed = url::Url::parse(url).map_err(|error| refused(&error))?;
        let variables = std::env::vars_os().filter_map(|(name, value)| {
            let name = name.into_string().ok()?.to_ascii_lowercase();
            Some((name, value.into_string().ok()?))
        });
        let (objects, prefix) =
            object_store::parse_url_opts(&parsed, variables).map_err(|error| refused(&error))?;
        Self::on(Arc::from(objects), prefix, url)
    }

    /// A place in an object store that is open already; `place` names it in messages.
    ///
    /// # Errors
    ///
    /// No thread can be started.
    pub fn on(objects: Arc<dyn ObjectStore>, prefix: Path, place: &str) -> Result<Self> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name("pagetrail-bucket")
            .enable_all()
            .build()
            .map_err(Error::io("cannot start a thread"))?;
        Ok(Self {
            remote: Remote {
                objects,
                prefix,
                runtime: Arc::new(runtime),
            },
            place: place.to_owned(),
            timing: Timing::default(),
            lease: Arc::default(),
        })
    }

    /// The same with another time after which a lock that is not renewed counts as left behind.
    #[must_use]
    pub fn stale_after(mut self, time: std::time::Duration) -> Self {
        self.timing = Timing::stale_after(time);
        self
    }

    /// Fails when this was the writer, and is not any more.
    fn check_lease(&self) -> io::Result<()> {
        let lease = self.lease.lock().unwrap_or_else(PoisonError::into_inner);
        lease.as_ref().map_or(Ok(()), Lease::check)
    }
}

impl Remote {
    pub(super) fn path(&self, name: &str) -> Path {
        self.prefix.clone().join(name)
    }

    /// Waits for what the object store answers.
    pub(super) fn wait<T>(
        &self,
        answer: impl Future<Output = object_store::Result<T>>,
    ) -> io::Result<T> {
        self.runtime.block_on(answer).map_err(to_io)
    }
}

fn to_io(error: object_store::Error) -> io::Error {
    let kind = match &error {
        object_store::Error::NotFound { .. } => ErrorKind::NotFound,
        object_store::Error::AlreadyExists { .. } => ErrorKind::AlreadyExists,
        object_store::Error::Unauthenticated { .. }
        | object_store::Error::PermissionDenied { .. } => ErrorKind::PermissionDenied,
        _ => ErrorKind::Other,
    };
    io::Error::new(kind, error)
}

impl Storage for Bucket {
    fn place(&self) -> String {
        self.place.clone()
    }

    fn names(&self) -> io::Result<Vec<Name>> {
        let prefix = &self.remote.prefix;
        let listed = self.remote.objects.list_with_delimiter(Some(prefix));
        let mut names: Vec<Name> = self
            .remote
            .wait(listed)?
            .objects
            .iter()
            .filter_map(|object| Name::parse(object.location.filename()?))
            .collect();
        names.sort_unstable();
        Ok(names)
    }

    fn open(&self, name: Name) -> io::Result<Box<dyn Object>> {
        let path = self.remote.path(&name.to_string());
        let found = self.remote.wait(self.remote.objects.head(&path))?;
        Ok(Box::new(RemoteObject {
            remote: self.remote.clone(),
            path,
            bytes: found.size,
            blocks: Mutex::default(),
        }))
    }

    fn create(&self) -> io::Result<Box<dyn Draft>> {
        self.check_lease()?;
        Ok(Box::new(SpooledDraft {
            file: tempfile::tempfile()?,
            bucket: self.clone(),
        }))
    }

    fn remove(&self, name: Name) -> io::Result<()> {
        self.check_lease()?;
        let path = self.remote.path(&name.to_string());
        match self.remote.wait(self.remote.objects.delete(&path)) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            outcome => outcome,
        }
    }

    fn lock(&self) -> io::Result<Option<Box<dyn Send>>> {
        let taken = Lease::take(&self.remote, self.timing)?;
        let Some(lease) = taken else {
            return Ok(None);
        };
        *self.lease.lock().unwrap_or_else(PoisonError::into_inner) = Some(lease);
        Ok(Some(Box::new(Release(Arc::clone(&self.lease)))))
    }

    fn sweep(&self) -> io::Result<()> {
        // A draft is a file without a name, which went with its writer.
        Ok(())
    }
}

/// Gives the lease back.
struct Release(Arc<Mutex<Option<Lease>>>);

impl Drop for Release {
    fn drop(&mut self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

struct RemoteObject {
    remote: Remote,
    path: Path,
    bytes: u64,
    /// Blocks by number, the one used last in front.
    blocks: Mutex<VecDeque<(u64, Arc<[u8]>)>>,
}

impl RemoteObject {
    fn block(&self, number: u64) -> io::Result<Arc<[u8]>> {
        let blocks = || self.blocks.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = {
            let mut blocks = blocks();
            let at = blocks.iter().position(|(kept, _)| *kept == number);
            at.and_then(|at| blocks.remove(at))
        };
        let block = match kept {
            Some((_, block)) => block,
            None => {
                let from = number * BLOCK_BYTES;
                let range = from..self.bytes.min(from + BLOCK_BYTES);
                let got = self.remote.objects.get_range(&self.path, range);
                Arc::from(&self.remote.wait(got)?[..])
            }
        };
        let mut blocks = blocks();
        blocks.push_front((number, Arc::clone(&block)));
        blocks.truncate(BLOCKS);
        Ok(block)
    }
}

impl Object for RemoteObject {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let end = offset.checked_add(buffer.len() as u64);
        if end.is_none_or(|end| end > self.bytes) {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        let (mut at, mut rest) = (offset, buffer);
        while !rest.is_empty() {
            let block = self.block(at / BLOCK_BYTES)?;
            let from = (at % BLOCK_BYTES) as usize;
            let part = block.get(from..).filter(|part| !part.is_empty());
            let part = part.ok_or(ErrorKind::UnexpectedEof)?;
            let count = part.len().min(rest.len());
            let (now, behind) = rest.split_at_mut(count);
            now.copy_from_slice(&part[..count]);
            rest = behind;
            at += count as u64;
        }
        Ok(())
    }
}

struct SpooledDraft {
    file: File,
    bucket: Bucket,
}

impl Draft for SpooledDraft {
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)
    }

    fn publish(mut self: Box<Self>, name: Name) -> io::Result<()> {
        self.bucket.check_lease()?;
        let remote = &self.bucket.remote;
        let bytes = self.file.stream_position()?;
        self.file.rewind()?;
        let path = remote.path(&name.to_string());
        if bytes <= PART_BYTES {
            let mut contents = Vec::with_capacity(bytes as usize);
            self.file.read_to_end(&mut contents)?;
            return remote
                .wait(remote.objects.put(&path, contents.into()))
                .map(drop);
        }
        let part_bytes = PART_BYTES.max(bytes.div_ceil(PARTS_MAX)) as usize;
        let upload = remote.wait(remote.objects.put_multipart(&path))?;
        let mut upload = WriteMultipart::new_with_chunk_size(upload, part_bytes);
        let mut part = vec![0; part_bytes];
        let sent = loop {
            let count = match self.file.read(&mut part) {
                Ok(0) => break Ok(()),
                Ok(count) => count,
                Err(error) => break Err(error),
            };
            // Parts are sent by tasks, which have to be started inside the runtime.
            let send = async {
                upload.wait_for_capacity(PARTS_IN_FLIGHT).await?;
                upload.write(&part[..count]);
                Ok(())
            };
            if let Err(error) = remote.wait(send) {
                break Err(error);
            }
        };
        match sent.and_then(|()| self.bucket.check_lease()) {
            Ok(()) => remote.wait(upload.finish()).map(drop),
            Err(error) => {
                // What has been sent is of no use; the error is told, not that of this.
                let _ = remote.wait(upload.abort());
                Err(error)
            }
        }
    }
}
