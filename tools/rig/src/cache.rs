//! The rig's cache, outside the repository: `$XDG_CACHE_HOME/pagetrail/vm` or
//! `~/.cache/pagetrail/vm`.
//!
//! A piece is a directory that appears whole or not at all. It is safe to delete the cache between
//! runs.
//!
//! Of each kind of machine, few run at a time on this machine: emulators take processors and
//! memory, and tests in them have time-outs.

use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use anyhow::{Result, bail};

/// The cache directory.
#[derive(Debug)]
pub(super) struct Cache {
    pub(super) dir: PathBuf,
}

/// Emulated machines of which few run at a time.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    /// Several processors, on which the host's programs run. They have work for one of them for
    /// most of their time.
    Guest,
    /// One processor, of a model or an architecture that guests do not have.
    OtherProcessor,
}

impl Kind {
    /// Locks in the cache, of which a machine holds one while it runs.
    fn turns(self) -> &'static [&'static str] {
        match self {
            Self::Guest => &["guest.lock", "guest-2.lock"][..guests_at_a_time()],
            Self::OtherProcessor => &["other-processor.lock"],
        }
    }
}

/// Memory for a second guest, with what it runs and with compilers beside it.
const MEMORY_FOR_TWO: u64 = 8 << 30;

/// Two, where there are processors and memory for them.
fn guests_at_a_time() -> usize {
    let system = rustix::system::sysinfo();
    let memory = u64::from(system.mem_unit).saturating_mul(system.totalram);
    let processors = thread::available_parallelism().map_or(1, usize::from);
    match processors > 1 && memory >= MEMORY_FOR_TWO {
        true => 2,
        false => 1,
    }
}

/// Between two looks at locks that others hold.
const LOOK_AGAIN: Duration = Duration::from_millis(200);

/// Waits until no other run uses a directory; it is ours until the file is dropped.
pub(super) fn lock(dir: &Path) -> Result<File> {
    lock_one_of(&[dir.join("lock")]).map(|(_, file)| file)
}

/// The first of these directories that no other run uses, made if need be; it is ours until the
/// file is dropped.
pub(super) fn free_directory(dirs: &[PathBuf]) -> Result<(&Path, File)> {
    for dir in dirs {
        fs::create_dir_all(dir)?;
    }
    let locks: Vec<PathBuf> = dirs.iter().map(|dir| dir.join("lock")).collect();
    let (number, file) = lock_one_of(&locks)?;
    Ok((&dirs[number], file))
}

/// Waits until one of these files is locked by nobody else, and locks it. Which one it is, too.
fn lock_one_of(paths: &[PathBuf]) -> Result<(usize, File)> {
    let mut waits = false;
    loop {
        for (number, path) in paths.iter().enumerate() {
            let file = File::create(path)?;
            match file.try_lock() {
                Ok(()) => return Ok((number, file)),
                Err(TryLockError::WouldBlock) => {}
                Err(TryLockError::Error(error)) => bail!("cannot lock {}: {error}", path.display()),
            }
        }
        if !std::mem::replace(&mut waits, true) {
            eprintln!("xtask: waiting for another guest to end");
        }
        thread::sleep(LOOK_AGAIN);
    }
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

    /// Waits until another machine of a kind may run; ours may, until the file is dropped.
    pub(super) fn turn(&self, kind: Kind) -> Result<File> {
        let turns = kind.turns().iter();
        let turns: Vec<PathBuf> = turns.map(|name| self.dir.join(name)).collect();
        lock_one_of(&turns).map(|(_, file)| file)
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
    fn a_directory_that_another_run_uses_is_left_to_it() {
        let dir = tempfile::tempdir().unwrap();
        let dirs = ["1", "2"].map(|name| dir.path().join(name));
        let (first, lock) = free_directory(&dirs).unwrap();
        assert_eq!(first, dirs[0]);
        let (second, other) = free_directory(&dirs).unwrap();
        assert_eq!(second, dirs[1]);
        drop(lock);
        assert_eq!(free_directory(&dirs).unwrap().0, dirs[0]);
        // A third run waits until one of them has ended.
        let lock = free_directory(&dirs).unwrap();
        thread::scope(|scope| {
            let waiting = scope.spawn(|| free_directory(&dirs).unwrap().0.to_owned());
            drop(other);
            assert_eq!(waiting.join().unwrap(), dirs[1]);
        });
        drop(lock);
    }

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
