//! The rig's cache, outside the repository: `$XDG_CACHE_HOME/pagetrail/vm` or
//! `~/.cache/pagetrail/vm`.
//!
//! A piece is a directory that appears whole or not at all. It is safe to delete the cache between
//! runs.
//!
//! Of each kind of machine, one runs at a time on this machine: emulators take processors and
//! memory, and tests in them have time-outs.

use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

/// The cache directory.
#[derive(Debug)]
pub(super) struct Cache {
    pub(super) dir: PathBuf,
}

/// Emulated machines of which one runs at a time.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    /// Several processors, on which the host's programs run.
    Guest,
    /// One processor, of a model or an architecture that guests do not have.
    OtherProcessor,
}

/// Waits until no other run uses a directory; it is ours until the file is dropped.
pub(super) fn lock(dir: &Path) -> Result<File> {
    lock_file(&dir.join("lock"))
}

fn lock_file(path: &Path) -> Result<File> {
    let file = File::create(path)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            eprintln!("xtask: waiting for another guest to end");
            file.lock()?;
        }
        Err(TryLockError::Error(error)) => bail!("cannot lock {}: {error}", path.display()),
    }
    Ok(file)
}

impl Cache {
    /// Makes it if need be.
    pub(super) fn open() -> Result<Self> {
        let dir = pagetrail_steps::repo::cache("vm")?;
        Ok(Self { dir })
    }

    /// Waits until no other run fetches anything; the cache is ours to change until the file is
    /// dropped.
    pub(super) fn lock(&self) -> Result<File> {
        lock(&self.dir)
    }

    /// Waits until no machine of a kind runs; ours may, until the file is dropped.
    pub(super) fn turn(&self, kind: Kind) -> Result<File> {
        lock_file(&self.dir.join(match kind {
            Kind::Guest => "guest.lock",
            Kind::OtherProcessor => "other-processor.lock",
        }))
    }

    /// The piece `name`, if it is there.
    pub(super) fn existing(&self, name: &str) -> Option<PathBuf> {
        Some(self.dir.join(name)).filter(|piece| piece.is_dir())
    }

    /// The piece `name`, which `make` fills when it is not there yet.
    pub(super) fn piece(
        &self,
        name: &str,
        make: impl FnOnce(&Path) -> Result<()>,
    ) -> Result<PathBuf> {
        if let Some(piece) = self.existing(name) {
            return Ok(piece);
        }
        let fresh = self.dir.join("unfinished");
        if fresh.exists() {
            fs::remove_dir_all(&fresh)?;
        }
        fs::create_dir(&fresh)?;
        make(&fresh)?;
        let piece = self.dir.join(name);
        fs::rename(&fresh, &piece)?;
        Ok(piece)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_piece_is_made_once_and_whole() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache {
            dir: dir.path().to_owned(),
        };
        let broken = cache.piece("kernel", |fresh| {
            fs::write(fresh.join("half"), "")?;
            bail!("no network")
        });
        assert!(broken.is_err());
        assert_eq!(cache.existing("kernel"), None);
        let piece = cache.piece("kernel", |fresh| Ok(fs::write(fresh.join("all"), "")?));
        let piece = piece.unwrap();
        assert!(piece.join("all").exists() && !piece.join("half").exists());
        let again = cache.piece("kernel", |_| bail!("made twice"));
        assert_eq!(again.unwrap(), piece);
    }
}
