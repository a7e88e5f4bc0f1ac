//! The rig's cache, outside the repository: `$XDG_CACHE_HOME/pagetrail/vm` or
//! `~/.cache/pagetrail/vm`.
//!
//! A piece is a directory that appears whole or not at all. It is safe to delete the cache between
//! runs.

use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

/// The cache directory.
#[derive(Debug)]
pub(super) struct Cache {
    pub(super) dir: PathBuf,
}

/// Waits until no other run uses a directory; it is ours until the file is dropped.
pub(super) fn lock(dir: &Path) -> Result<File> {
    let file = File::create(dir.join("lock"))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            eprintln!("xtask: waiting for another guest to end");
            file.lock()?;
        }
        Err(TryLockError::Error(error)) => bail!("cannot lock {}: {error}", dir.display()),
    }
    Ok(file)
}

impl Cache {
    /// Makes it if need be.
    pub(super) fn open() -> Result<Self> {
        let dir = pagetrail_steps::repo::cache("vm")?;
        Ok(Self { dir })
    }

    /// Waits until no other run uses the cache or a guest; it is ours until the file is dropped.
    pub(super) fn lock(&self) -> Result<File> {
        lock(&self.dir)
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
