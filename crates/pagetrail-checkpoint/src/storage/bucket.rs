//! [`Bucket`]: a store in an object store: S3 and what speaks its language, Google Cloud Storage,
//! Azure, and whatever else the crate `object_store` knows.
//!
//! An object there appears whole when its upload is finished, and is named from the start; a pack
//! has its name only in the end. So a draft grows in a file without a name on this machine, and is
//! uploaded when it is published.
//!
//! A request may arrive long after it was sent, when another writer has taken over; so a manifest
//! is written on the condition that none of its number is there, and replaced on the condition that
//! it is still the one that was read. A pack's name says what is in it, and needs no condition.
//!
//! Objects are read in blocks, the last of which are kept: a request for each frame would take
//! longer than what it brings.

use super::bucket_lease::{Lease, Timing};
use super::{DAMAGED, Draft, Name, Object, Publish, Storage};
use crate::error::{Error, Result};
use object_store::path::Path;
use object_store::{
    GetOptions, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload, UpdateVersion,
    WriteMultipart,
};
use rustls::crypto::{CryptoProvider, ring};
use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::future::Future;
use std::io::{self, ErrorKind, Read, Seek, Write};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
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
    /// The lease was taken from a writer that had left it behind.
    taken_over: Arc<AtomicBool>,
    /// The manifests as they were when they were read or written last.
    versions: Arc<Mutex<BTreeMap<Name, UpdateVersion>>>,
}

/// What it takes to speak with an object store.
#[derive(Clone, Debug)]
pub(super) struct Remote {
    pub(super) objects: Arc<dyn ObjectStore>,
    prefix: Path,
    runtime: Arc<Runtime>,
}

impl Bucket {
    /// The place that a URL names, `s3://bucket/prefix` say. What else must be known comes from the
    /// environment, in the variables of the provider's own tools: `AWS_ACCESS_KEY_ID`,
    /// `AWS_REGION`, `AWS_ENDPOINT`, `GOOGLE_SERVICE_ACCOUNT`, `AZURE_STORAGE_ACCOUNT_NAME` and so
    /// on.
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
        let variables: Vec<(String, String)> = variables.collect();
        if let Some(endpoint) = plain_endpoint(&variables) {
            let reason = format!(
                "the endpoint {endpoint} is not encrypted; AWS_ALLOW_HTTP=true lets it be used"
            );
            return Err(refused(&reason));
        }
        choose_cryptography();
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
            taken_over: Arc::default(),
            versions: Arc::default(),
        })
    }

    /// Opens it with another time after which a lock that is not renewed counts as abandoned.
    #[must_use]
    pub fn stale_after(mut self, time: std::time::Duration) -> Self {
        self.timing = Timing::stale_after(time);
        self
    }

    fn versions(&self) -> MutexGuard<'_, BTreeMap<Name, UpdateVersion>> {
        self.versions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes a manifest, or the marker, by one request that takes effect only if nobody else has
    /// written there.
    fn put_whole(&self, name: Name, contents: Vec<u8>, how: Publish) -> io::Result<()> {
        let mode = match how {
            Publish::New => PutMode::Create,
            Publish::Replacing => {
                let version = self.versions().get(&name).cloned();
                version.map_or(PutMode::Create, PutMode::Update)
            }
        };
        let object = name.to_string();
        match self
            .remote
            .put_on_condition(&object, contents.clone(), mode)
        {
            Ok(version) => {
                self.versions().insert(name, version);
                Ok(())
            }
            // A request whose answer was lost is sent again, and finds what it has written.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                let there = async {
                    let found = self.remote.objects.get(&self.remote.path(&object)).await?;
                    let version = UpdateVersion {
                        e_tag: found.meta.e_tag.clone(),
                        version: found.meta.version.clone(),
                    };
                    Ok((version, found.bytes().await?))
                };
                match self.remote.wait(there) {
                    Ok((version, bytes)) if bytes[..] == contents[..] => {
                        self.versions().insert(name, version);
                        Ok(())
                    }
                    _ => {
                        let reason = "another writer has written it meanwhile";
                        Err(io::Error::new(ErrorKind::AlreadyExists, reason))
                    }
                }
            }
            Err(error) => Err(error),
        }
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

    /// Writes an object; [`ErrorKind::AlreadyExists`] says that the condition fails.
    pub(super) fn put_on_condition(
        &self,
        name: &str,
        contents: Vec<u8>,
        mode: PutMode,
    ) -> io::Result<UpdateVersion> {
        let path = self.path(name);
        let options = PutOptions::from(mode);
        let conditional = async {
            let payload = PutPayload::from(contents);
            match self.objects.put_opts(&path, payload, options).await {
                Err(object_store::Error::Precondition { path, source }) => {
                    Err(object_store::Error::AlreadyExists { path, source })
                }
                outcome => outcome,
            }
        };
        let written = self.wait(conditional).map_err(|error| {
            match error.get_ref().and_then(|inner| inner.downcast_ref()) {
                Some(object_store::Error::NotImplemented { .. }) => io::Error::new(
                    ErrorKind::Unsupported,
                    "this object store has no conditional writes, by which writers are kept apart",
                ),
                _ => error,
            }
        })?;
        Ok(UpdateVersion {
            e_tag: written.e_tag,
            version: written.version,
        })
    }

    /// Waits for what the object store answers.
    pub(super) fn wait<T>(
        &self,
        answer: impl Future<Output = object_store::Result<T>>,
    ) -> io::Result<T> {
        self.runtime.block_on(answer).map_err(to_io)
    }
}

/// An endpoint without encryption that nobody has allowed: the request's own error names neither.
fn plain_endpoint(variables: &[(String, String)]) -> Option<&str> {
    let value = |names: [&str; 2]| {
        let found = variables
            .iter()
            .find(|(name, _)| names.contains(&&name[..]));
        found.map(|(_, value)| &value[..])
    };
    let allowed = value(["aws_allow_http", "allow_http"]).is_some_and(|value| {
        ["1", "true", "yes", "y", "on"].contains(&&*value.to_ascii_lowercase())
    });
    let endpoint = value(["aws_endpoint", "aws_endpoint_url"]);
    endpoint.filter(|endpoint| endpoint.starts_with("http://") && !allowed)
}

/// Has TLS done by `ring`, unless the program has decided on something else for all that it does.
fn choose_cryptography() {
    if CryptoProvider::get_default().is_none() {
        // An error says that another thread was first, which is as good.
        let _ = ring::default_provider().install_default();
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
        let e_tag = found.e_tag.clone();
        if matches!(name, Name::Manifest(_) | Name::Touches(_)) {
            let version = UpdateVersion {
                e_tag: found.e_tag,
                version: found.version,
            };
            self.versions().insert(name, version);
        }
        Ok(Box::new(RemoteObject {
            remote: self.remote.clone(),
            path,
            e_tag,
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
        let Some((lease, left_behind)) = taken else {
            return Ok(None);
        };
        self.taken_over.store(left_behind, Ordering::Release);
        self.versions().clear();
        *self.lease.lock().unwrap_or_else(PoisonError::into_inner) = Some(lease);
        Ok(Some(Box::new(Release(Arc::clone(&self.lease)))))
    }

    fn is_held(&self) -> bool {
        let lease = self.lease.lock().unwrap_or_else(PoisonError::into_inner);
        lease.as_ref().is_some_and(|lease| lease.check().is_ok())
    }

    fn may_have_late_writes(&self) -> bool {
        self.taken_over.load(Ordering::Acquire)
    }

    fn is_near(&self) -> bool {
        false
    }

    fn set_aside(&self, name: Name) -> io::Result<()> {
        self.check_lease()?;
        let from = self.remote.path(&name.to_string());
        let to = self.remote.path(DAMAGED).join(name.to_string());
        self.remote.wait(self.remote.objects.copy(&from, &to))?;
        self.remove(name)
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
    /// Of the object that was opened: one that has replaced it is not read.
    e_tag: Option<String>,
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
                let options = GetOptions::new()
                    .with_range(Some(range))
                    .with_if_match(self.e_tag.clone());
                let got = async {
                    let found = self.remote.objects.get_opts(&self.path, options).await?;
                    found.bytes().await
                };
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

impl Object for SpooledDraft {
    fn bytes(&self) -> u64 {
        self.file.metadata().map_or(0, |metadata| metadata.len())
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(buffer, offset)
    }
}

impl Draft for SpooledDraft {
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)
    }

    fn can_rewrite(&self) -> bool {
        true
    }

    fn rewrite(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all_at(bytes, offset)
    }

    fn written(&self) -> Option<&dyn Object> {
        Some(self)
    }

    fn publish(mut self: Box<Self>, name: Name, how: Publish) -> io::Result<()> {
        self.bucket.check_lease()?;
        let remote = &self.bucket.remote;
        let bytes = self.file.stream_position()?;
        self.file.rewind()?;
        let path = remote.path(&name.to_string());
        let is_named_by_its_contents = matches!(name, Name::Pack(_));
        if bytes <= PART_BYTES || !is_named_by_its_contents {
            let mut contents = Vec::with_capacity(bytes as usize);
            self.file.read_to_end(&mut contents)?;
            if !is_named_by_its_contents {
                return self.bucket.put_whole(name, contents, how);
            }
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
                // What has been sent is of no use; the first error is reported, not this one.
                let _ = remote.wait(upload.abort());
                Err(error)
            }
        }
    }
}
