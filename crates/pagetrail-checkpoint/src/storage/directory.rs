//! [`Directory`]: a store as a directory of files, readable by its owner alone.
//!
//! An object is written to a file without a name in the store's own subdirectory `drafts`, synced, renamed to its
//! place, and the directory synced: `rename(2)` is atomic, and after the second sync it survives a loss of power.

use super::{Draft, Name, Object, Storage};
use crate::error::{Error, Result};
use rustix::fs::{Advice, FlockOperation, OFlags, fadvise, flock};
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

const DRAFTS: &str = "drafts";
const LOCK: &str = "lock";
/// How much is written before the disk is to begin with it, in bytes.
const WRITE_BACK_BYTES: u64 = 16 << 20;
/// Others may write.
const WORLD_WRITABLE: u32 = 0o002;
/// In such a directory, only an entry's owner may replace it.
const STICKY: u32 = 0o1000;

/// A directory on a local file system.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
    drafts: AtomicU64,
}

impl Directory {
    /// A directory that is to become a store: created with its drafts when missing, for its owner alone.
    ///
    /// # Errors
    ///
    /// It cannot be made; it holds other files and is no store; or, unless `allow_world_writable`, it lies in a
    /// directory in which everybody may write, or is one.
    pub fn create(path: &Path, allow_world_writable: bool) -> Result<Self> {
        let failed = |what: &str| Error::io(format!("cannot {what} {}", path.display()));
        if !path.exists() {
            // What is missing above gets the usual rights.
            if let Some(parent) = path.parent() {
                fs::create_dir_all(parent).map_err(failed("create"))?;
            }
            if !allow_world_writable {
                refuse_exposed(path)?;
            }
            let made = DirBuilder::new().mode(0o700).create(path);
            made.map_err(failed("create"))?;
        } else if !allow_world_writable {
            refuse_exposed(path)?;
        }
        let directory = Self::at(path);
        let is_store = directory.file(Name::Marker).exists();
        if !is_store {
            let mut entries = fs::read_dir(path).map_err(failed("read"))?;
            // A writer that was killed at its first step left no more than these.
            let other = entries.any(|entry| {
                entry.is_ok_and(|entry| entry.file_name() != DRAFTS && entry.file_name() != LOCK)
            });
            if other {
                return Err(Error::NotAStore {
                    place: format!("{} (it holds other files)", path.display()),
                });
            }
        }
        match DirBuilder::new().mode(0o700).create(path.join(DRAFTS)) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => {
                Err(failed("write to")(error))
            }
            _ => Ok(directory),
        }
    }

    /// A directory that is a store.
    ///
    /// # Errors
    ///
    /// It is none.
    pub fn open(path: &Path) -> Result<Self> {
        let directory = Self::at(path);
        match fs::symlink_metadata(directory.file(Name::Marker)) {
            Ok(metadata) if metadata.is_file() => Ok(directory),
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                Err(Error::io(format!("cannot open {}", path.display()))(error))
            }
            _ => Err(Error::NotAStore {
                place: path.display().to_string(),
            }),
        }
    }

    fn at(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            drafts: AtomicU64::new(0),
        }
    }

    fn file(&self, name: Name) -> PathBuf {
        self.path.join(name.to_string())
    }
}

/// Refuses a store that others could replace: in a directory where everybody may write, whether it exists or not; or below
/// one without the sticky bit.
fn refuse_exposed(path: &Path) -> Result<()> {
    let failed = || Error::io(format!("cannot examine {}", path.display()));
    let absolute = std::path::absolute(path).map_err(failed())?;
    let parent = absolute.parent().unwrap_or(&absolute);
    let parent = fs::canonicalize(parent).map_err(failed())?;
    let own = fs::metadata(path).ok().map(|_| path.to_owned());
    for (above, directory) in own.iter().map(|own| (0, own.as_path())).chain(
        parent
            .ancestors()
            .enumerate()
            .map(|(above, directory)| (above + 1, directory)),
    ) {
        let mode = fs::metadata(directory).map_err(failed())?.mode();
        let safe = above > 1 && mode & STICKY != 0;
        if mode & WORLD_WRITABLE != 0 && !safe {
            return Err(Error::WorldWritable {
                place: directory.display().to_string(),
            });
        }
    }
    Ok(())
}

/// Never through a symbolic link that somebody put there.
fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.custom_flags(OFlags::NOFOLLOW.bits() as i32);
    options
}

impl Storage for Directory {
    fn place(&self) -> String {
        self.path.display().to_string()
    }

    fn names(&self) -> io::Result<Vec<Name>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.path)? {
            names.extend(entry?.file_name().to_str().and_then(Name::parse));
        }
        names.sort_unstable();
        Ok(names)
    }

    fn open(&self, name: Name) -> io::Result<Box<dyn Object>> {
        let file = options().read(true).open(self.file(name))?;
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(io::Error::new(ErrorKind::InvalidData, "not a regular file"));
        }
        Ok(Box::new(OpenFile {
            file,
            bytes: metadata.len(),
        }))
    }

    fn create(&self) -> io::Result<Box<dyn Draft>> {
        let number = self.drafts.fetch_add(1, Ordering::Relaxed);
        let own = format!("{}-{number}", std::process::id());
        let path = self.path.join(DRAFTS).join(own);
        let file = options()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)?;
        Ok(Box::new(FileDraft {
            file,
            path: Some(path),
            directory: self.path.clone(),
            bytes: 0,
            begun: 0,
        }))
    }

    fn remove(&self, name: Name) -> io::Result<()> {
        match fs::remove_file(self.file(name)) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            outcome => outcome,
        }?;
        sync(&self.path)
    }

    fn lock(&self) -> io::Result<Option<Box<dyn Send>>> {
        let file = options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(self.path.join(LOCK))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(Box::new(file))),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    fn sweep(&self) -> io::Result<()> {
        for entry in fs::read_dir(self.path.join(DRAFTS))? {
            fs::remove_file(entry?.path())?;
        }
        Ok(())
    }
}

struct OpenFile {
    file: File,
    bytes: u64,
}

impl Object for OpenFile {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(buffer, offset)
    }
}

struct FileDraft {
    file: File,
    /// `None` once it has its name.
    path: Option<PathBuf>,
    directory: PathBuf,
    bytes: u64,
    /// Up to here the disk has been asked to begin.
    begun: u64,
}

impl FileDraft {
    /// Lets the disk begin with what is written so far, so that the sync in the end finds less to do. What is not on the disk
    /// yet this advice begins to write (`mm/fadvise.c`), and keeps in memory.
    fn begin_to_write_back(&mut self) {
        // Without it, all is as slow as it was.
        let length = std::num::NonZeroU64::new(self.bytes - self.begun);
        let _ = fadvise(&self.file, self.begun, length, Advice::DontNeed);
        self.begun = self.bytes;
    }
}

impl Draft for FileDraft {
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)?;
        self.bytes += bytes.len() as u64;
        if self.bytes - self.begun >= WRITE_BACK_BYTES {
            self.begin_to_write_back();
        }
        Ok(())
    }

    fn publish(mut self: Box<Self>, name: Name) -> io::Result<()> {
        self.file.sync_all()?;
        if let Some(path) = &self.path {
            fs::rename(path, self.directory.join(name.to_string()))?;
        }
        self.path = None;
        sync(&self.directory)
    }
}

impl Drop for FileDraft {
    fn drop(&mut self) {
        if let Some(path) = &self.path {
            // A file that stays is swept by the next writer.
            let _ = fs::remove_file(path);
        }
    }
}

fn sync(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}
