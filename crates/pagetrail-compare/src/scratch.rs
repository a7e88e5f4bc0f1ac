//! [`Scratch`]: a directory for files of tests.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

/// A directory of our own, which goes with all that is in it when this is dropped.
#[derive(Debug)]
pub struct Scratch(PathBuf);

impl Scratch {
    /// Makes one in a directory.
    ///
    /// # Errors
    ///
    /// None can be made there.
    pub fn new_in(parent: &Path) -> Result<Self> {
        let own = std::process::id();
        let names = (0..1000).map(|n| parent.join(format!("pagetrail-compare-{own}-{n}")));
        for path in names {
            match fs::create_dir(&path) {
                Ok(()) => return Ok(Self(path)),
                // Of a process before that had this PID, and was killed.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => {
                    let cannot = format!("cannot make a directory in {}", parent.display());
                    return Err(error).context(cannot);
                }
            }
        }
        bail!("{} is full of directories of ours", parent.display())
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What is left is untidy and no more.
        let _ = fs::remove_dir_all(&self.0);
    }
}
