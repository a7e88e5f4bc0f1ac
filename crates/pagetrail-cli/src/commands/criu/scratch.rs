//! [`Scratch`]: a directory for its owner alone that is removed again: CRIU's image files hold
//! registers and paths.

use std::fs::{self, DirBuilder};
use std::hash::{BuildHasher, RandomState};
use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// How many names are tried.
const NAMES_TRIED: u32 = 16;

/// A directory that goes when this is dropped.
pub(super) struct Scratch(PathBuf);

impl Scratch {
    /// Makes one where the system keeps temporary files.
    pub(super) fn new() -> Result<Self> {
        let base = std::env::temp_dir();
        for number in 0..NAMES_TRIED {
            let random = RandomState::new().hash_one(number);
            let path = base.join(format!("pagetrail-criu-{random:016x}"));
            match DirBuilder::new().mode(0o700).create(&path) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                outcome => {
                    outcome.with_context(|| format!("cannot make {}", path.display()))?;
                    return Ok(Self(path));
                }
            }
        }
        anyhow::bail!("cannot make a directory in {}", base.display())
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What cannot be removed stays, for its owner alone.
        let _ = fs::remove_dir_all(&self.0);
    }
}
