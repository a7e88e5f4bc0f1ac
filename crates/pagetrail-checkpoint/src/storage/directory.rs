//! [`Directory`]: a store as a directory of files, readable by its owner alone.
//!
//! An object is written to a file without a name in the store's own subdirectory `drafts`, synced,
//! renamed to its place, and the directory synced: `rename(2)` is atomic, and after the second sync
//! it survives a loss of power.

//!
//! The directory is opened once, and everything in it is reached from there without following a
//! symbolic link: what somebody has put into a store, or exchanged there, leads nowhere else.

use super::{DAMAGED, Draft, Name, Object, Publish, Storage, WorldWritable};
use crate::error::{Error, Result};
use rustix::fs::{
    Advice, AtFlags, Dir, FileType, FlockOperation, Mode, OFlags, RenameFlags, fadvise, flock,
    mkdirat, openat, renameat, renameat_with, statat, unlinkat,
};
use rustix::io::Errno;
use std::fs::{self, DirBuilder, File};
use std::io::{self, ErrorKind, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub(super) const DRAFTS: &str = "drafts";
pub(super) const LOCK: &str = "lock";
/// How much is written before the disk is to begin with it, in bytes.
const WRITE_BACK_BYTES: u64 = 16 << 20;
/// Others may write.
pub(super) const WORLD_WRITABLE: u32 = 0o002;
/// In such a directory, only an entry's owner may replace it.
const STICKY: u32 = 0o1000;

/// A directory on a local file system.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
    opened: Arc<OwnedFd>,
    drafts: AtomicU64,
}

impl Directory {
    /// A directory that is to become a store: created with its drafts when missing, for its owner
    /// alone.
    ///
    /// # Errors
    ///
    /// It cannot be made; it holds other files and is no store; or, with [`WorldWritable::Refuse`],
    /// it lies in a directory in which everybody may write, or is one.
    pub fn create(path: &Path, exposed: WorldWritable) -> Result<Self> {
        let failed = |what: &str| Error::io(format!("cannot {what} {}", path.display()));
        if !path.exists() {
            // What is missing above gets the usual rights.
            if let Some(parent) = path.parent() {
                fs::create_dir_all(parent).map_err(failed("create"))?;
            }
            if exposed == WorldWritable::Refuse {
                refuse_exposed(path)?;
            }
            let made = DirBuilder::new().mode(0o700).create(path);
            made.map_err(failed("create"))?;
        } else if exposed == WorldWritable::Refuse {
            refuse_exposed(path)?;
        }
        Self::at(path).map_err(failed("open"))?.become_store()
    }

    /// This directory, with what a writer needs in it.
    ///
    /// # Errors
    ///
    /// It holds other files and is no store, or cannot be written to.
    pub(crate) fn become_store(self) -> Result<Self> {
        let failed = |what: &str| Error::io(format!("cannot {what} {}", self.path.display()));
        if !self.may_become_store().map_err(failed("read"))? {
            return Err(Error::NotAStore {
                place: format!("{} (it holds other files)", self.path.display()),
            });
        }
        match mkdirat(&self.opened, DRAFTS, Mode::RWXU) {
            Err(error) if error != Errno::EXIST => Err(failed("write to")(error.into())),
            _ => Ok(self),
        }
    }

    /// Whether it is a store, or holds no more than what a writer has left that was killed at its
    /// first step.
    pub(super) fn may_become_store(&self) -> io::Result<bool> {
        Ok(self.has_marker()? || {
            let entries = entries(&self.opened)?;
            entries.iter().all(|name| name == DRAFTS || name == LOCK)
        })
    }

    /// A directory that is a store.
    ///
    /// # Errors
    ///
    /// It is none.
    pub fn open(path: &Path) -> Result<Self> {
        let not_a_store = || Error::NotAStore {
            place: path.display().to_string(),
        };
        let directory = match Self::at(path) {
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                return Err(Error::io(format!("cannot open {}", path.display()))(error));
            }
            outcome => outcome.map_err(|_| not_a_store())?,
        };
        match directory.has_marker() {
            Ok(true) => Ok(directory),
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                Err(Error::io(format!("cannot open {}", path.display()))(error))
            }
            _ => Err(not_a_store()),
        }
    }

    fn at(path: &Path) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = rustix::fs::open(path, flags, Mode::empty())?;
        Ok(Self::of(path.to_owned(), opened))
    }

    /// What was opened at a path.
    pub(super) fn of(path: PathBuf, opened: OwnedFd) -> Self {
        Self {
            path,
            opened: Arc::new(opened),
            drafts: AtomicU64::new(0),
        }
    }

    /// Where it was when it was opened, for messages.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn opened(&self) -> &OwnedFd {
        &self.opened
    }

    fn has_marker(&self) -> io::Result<bool> {
        let name = Name::Marker.to_string();
        match statat(&self.opened, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile),
            Err(Errno::NOENT) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// A directory in this one; a link of this name is none.
    pub(super) fn subdirectory(&self, name: &str) -> io::Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        openat(&self.opened, name, flags, Mode::empty()).map_err(|error| match error {
            Errno::NOTDIR | Errno::LOOP => {
                let place = self.path.join(name);
                io::Error::other(format!(
                    "{} is no directory of the store's own; remove it",
                    place.display()
                ))
            }
            error => error.into(),
        })
    }

    /// Opens a regular file. A FIFO or a device is not waited for.
    fn file(&self, name: &str, flags: OFlags) -> io::Result<File> {
        let flags = flags | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = openat(&self.opened, name, flags, Mode::RUSR | Mode::WUSR);
        let file = File::from(file.map_err(|error| match error {
            Errno::LOOP => io::Error::new(ErrorKind::InvalidData, "a symbolic link"),
            Errno::NXIO => io::Error::new(ErrorKind::InvalidData, "not a regular file"),
            error => error.into(),
        })?);
        if !file.metadata()?.is_file() {
            return Err(io::Error::new(ErrorKind::InvalidData, "not a regular file"));
        }
        Ok(file)
    }
}

/// The names in a directory, without those of itself and the one above.
pub(super) fn entries(directory: &OwnedFd) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if name != "." && name != ".." {
            names.push(name);
        }
    }
    Ok(names)
}

/// Refuses a store that others could replace: in a directory where everybody may write, whether it
/// exists or not; or below one without the sticky bit.
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

/// Whether a file in `drafts` has a name as drafts have: the process, and a number.
pub(super) fn is_draft(name: &str) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    name.split_once('-')
        .is_some_and(|(process, number)| is_number(process) && is_number(number))
}

impl Storage for Directory {
    fn place(&self) -> String {
        self.path.display().to_string()
    }

    fn names(&self) -> io::Result<Vec<Name>> {
        let entries = entries(&self.opened)?;
        let mut names: Vec<Name> = entries
            .iter()
            .filter_map(|name| Name::parse(name))
            .collect();
        names.sort_unstable();
        Ok(names)
    }

    fn open(&self, name: Name) -> io::Result<Box<dyn Object>> {
        let file = self.file(&name.to_string(), OFlags::RDONLY)?;
        let bytes = file.metadata()?.len();
        Ok(Box::new(OpenFile { file, bytes }))
    }

    fn create(&self) -> io::Result<Box<dyn Draft>> {
        let drafts = self.subdirectory(DRAFTS)?;
        loop {
            let number = self.drafts.fetch_add(1, Ordering::Relaxed);
            let name = format!("{}-{number}", std::process::id());
            let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
            let file = match openat(&drafts, name.as_str(), flags, Mode::RUSR | Mode::WUSR) {
                // Somebody's, a directory say, that no writer removes.
                Err(Errno::EXIST) => continue,
                outcome => File::from(outcome?),
            };
            return Ok(Box::new(FileDraft {
                file,
                drafts,
                name: Some(name),
                directory: Arc::clone(&self.opened),
                bytes: 0,
                begun: 0,
            }));
        }
    }

    fn remove(&self, name: Name) -> io::Result<()> {
        match unlinkat(&self.opened, name.to_string(), AtFlags::empty()) {
            Err(Errno::NOENT) => Ok(()),
            outcome => outcome,
        }?;
        sync(&self.opened)
    }

    fn lock(&self) -> io::Result<Option<Box<dyn Send>>> {
        let file = self.file(LOCK, OFlags::RDWR | OFlags::CREATE)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(Box::new(file))),
            Err(Errno::WOULDBLOCK) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    fn set_aside(&self, name: Name) -> io::Result<()> {
        match mkdirat(&self.opened, DAMAGED, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        let damaged = self.subdirectory(DAMAGED)?;
        renameat(&self.opened, name.to_string(), &damaged, name.to_string())?;
        sync(&damaged)?;
        sync(&self.opened)
    }

    fn sweep(&self) -> io::Result<()> {
        let drafts = self.subdirectory(DRAFTS)?;
        let entries = entries(&drafts)?;
        for name in entries.iter().filter(|name| is_draft(name)) {
            match unlinkat(&drafts, name.as_str(), AtFlags::empty()) {
                // A directory is not one of ours, and does no harm.
                Ok(()) | Err(Errno::NOENT | Errno::ISDIR) => {}
                Err(error) => return Err(error.into()),
            }
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
    drafts: OwnedFd,
    /// Among the drafts; `None` once it has another.
    name: Option<String>,
    directory: Arc<OwnedFd>,
    bytes: u64,
    /// Up to here the disk has been asked to begin.
    begun: u64,
}

impl FileDraft {
    /// Lets the disk begin with what is written so far, so that the sync in the end finds less to
    /// do. What is not on the disk yet this advice begins to write (`mm/fadvise.c`), and keeps in
    /// memory.
    fn begin_to_write_back(&mut self) {
        // Without it, all is as slow as it was.
        let length = std::num::NonZeroU64::new(self.bytes - self.begun);
        let _ = fadvise(&self.file, self.begun, length, Advice::DontNeed);
        self.begun = self.bytes;
    }
}

impl Object for FileDraft {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(buffer, offset)
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
        self.file.sync_all()?;
        if let Some(draft) = &self.name {
            let name = name.to_string();
            match how {
                Publish::Replacing => renameat(&self.drafts, draft, &*self.directory, name)?,
                Publish::New => {
                    let flags = RenameFlags::NOREPLACE;
                    match renameat_with(&self.drafts, draft, &*self.directory, &name, flags) {
                        // Not on every file system (rename(2)). The lock keeps other writers out.
                        Err(Errno::INVAL) => {
                            match statat(&*self.directory, &name, AtFlags::SYMLINK_NOFOLLOW) {
                                Err(Errno::NOENT) => {
                                    renameat(&self.drafts, draft, &*self.directory, name)?;
                                }
                                outcome => {
                                    return Err(outcome.err().unwrap_or(Errno::EXIST).into());
                                }
                            }
                        }
                        outcome => outcome?,
                    }
                }
            }
        }
        self.name = None;
        sync(&self.directory)
    }
}

impl Drop for FileDraft {
    fn drop(&mut self) {
        if let Some(name) = &self.name {
            // A file that stays is swept by the next writer.
            let _ = unlinkat(&self.drafts, name.as_str(), AtFlags::empty());
        }
    }
}

pub(super) fn sync(directory: &OwnedFd) -> io::Result<()> {
    Ok(rustix::fs::fsync(directory)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drafts_are_known_by_their_names() {
        assert!(is_draft("12-0") && is_draft("1-33"));
        for other in ["", "-", "12-", "-0", "thesis", "12-0.txt", "a-1"] {
            assert!(!is_draft(other), "{other}");
        }
    }
}
