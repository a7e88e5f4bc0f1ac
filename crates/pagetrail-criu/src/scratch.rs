//! [`Scratch`]: a directory for its owner alone that is removed again: CRIU's image files hold
//! registers and paths.
//!
//! A process that is killed leaves its directory behind. Each directory is locked by who uses it,
//! so the next process finds those that nobody uses any more, and removes them.

use std::fs::{self, DirBuilder, File};
use std::hash::{BuildHasher, RandomState};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::process::geteuid;

use crate::error::{Error, Result};

/// How many names are tried.
const NAMES_TRIED: u32 = 16;
/// How the names of these directories begin.
const PREFIX: &str = "pagetrail-criu-";
/// A directory that has changed within this time is left alone: it may not be locked yet, or CRIU
/// may outlive the process that started it.
const IN_USE: Duration = Duration::from_secs(60);

/// A directory that goes when this is dropped.
#[derive(Debug)]
pub(crate) struct Scratch {
    path: PathBuf,
    /// The directory, locked.
    _lock: File,
}

impl Scratch {
    /// Makes one where the system keeps temporary files, and removes those that were left there.
    pub(crate) fn new() -> Result<Self> {
        let base = std::env::temp_dir();
        remove_unused(&base, IN_USE);
        Self::new_in(&base)
    }

    fn new_in(base: &Path) -> Result<Self> {
        for number in 0..NAMES_TRIED {
            let random = RandomState::new().hash_one(number);
            let path = base.join(format!("{PREFIX}{random:016x}"));
            match DirBuilder::new().mode(0o700).create(&path) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                outcome => {
                    let cannot = format!("cannot make {}", path.display());
                    let opened = outcome.and_then(|()| File::open(&path));
                    let lock = opened.map_err(Error::io(cannot))?;
                    let cannot = format!("cannot lock {}", path.display());
                    flock(&lock, FlockOperation::NonBlockingLockExclusive)
                        .map_err(|error| Error::io(cannot)(error.into()))?;
                    return Ok(Self { path, _lock: lock });
                }
            }
        }
        let cannot = format!("cannot make a directory in {}", base.display());
        Err(Error::io(cannot)(ErrorKind::AlreadyExists.into()))
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What cannot be removed stays, for its owner alone.
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Removes our directories in `base` that nobody has locked, and that have not changed for `age`.
fn remove_unused(base: &Path, age: Duration) {
    for entry in fs::read_dir(base).into_iter().flatten().flatten() {
        let is_ours = entry.file_name().to_str().is_some_and(|name| {
            let random = name.strip_prefix(PREFIX);
            random.is_some_and(|random| random.len() == 16)
        });
        if is_ours && is_unused(&entry.path(), age) == Some(true) {
            // One that cannot be removed is no reason not to go on.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// Whether a directory is this user's, and unused; `None` if that cannot be found out.
fn is_unused(path: &Path, age: Duration) -> Option<bool> {
    let metadata = fs::symlink_metadata(path).ok()?;
    if !metadata.is_dir() || metadata.uid() != geteuid().as_raw() {
        return Some(false);
    }
    let changed = metadata.modified().ok()?.elapsed().ok()?;
    let directory = File::open(path).ok()?;
    let is_free = flock(&directory, FlockOperation::NonBlockingLockExclusive).is_ok();
    Some(changed >= age && is_free)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_killed_process_left_goes_and_what_is_in_use_stays() {
        let base = tempfile::tempdir().unwrap();
        let in_use = Scratch::new_in(base.path()).unwrap();
        let left = base.path().join(format!("{PREFIX}{:016x}", 1));
        let foreign = base.path().join("pagetrail-criu-notes");
        for directory in [&left, &foreign] {
            fs::create_dir(directory).unwrap();
            fs::write(directory.join("core-1.img"), "registers").unwrap();
        }
        remove_unused(base.path(), IN_USE);
        assert!(left.exists(), "it may have been made just now");
        remove_unused(base.path(), Duration::ZERO);
        assert!(!left.exists());
        assert!(foreign.exists() && in_use.path().exists());
        let path = in_use.path().to_owned();
        drop(in_use);
        assert!(!path.exists());
    }
}
