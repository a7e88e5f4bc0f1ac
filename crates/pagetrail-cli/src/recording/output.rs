//! [`Output`]: the file that receives a recording. Its contents stay until the recording begins,
//! and an existing file that is not a recording is refused.

use std::fs::{self, File, OpenOptions};
use std::io::{BufReader, ErrorKind, Seek};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use pagetrail_trail::{ReadError, Reader};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

/// A file that is opened and locked for a recording.
#[derive(Debug)]
pub(crate) struct Output {
    path: PathBuf,
    file: File,
    is_new: bool,
}

impl Output {
    /// Opens `path` for a recording; its contents stay until [`Self::begin`].
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let mut options = OpenOptions::new();
        options.read(true).write(true);
        let (opened, is_new) = match options.clone().create_new(true).open(path) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => (options.open(path), false),
            created => (created, true),
        };
        let file = opened.with_context(|| format!("cannot write {}", path.display()))?;
        let output = Self {
            path: path.into(),
            file,
            is_new,
        };
        match flock(&output.file, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => bail!(
                "another recording is being written to {}; name a different file with --output",
                path.display()
            ),
            // Some files cannot be locked; the lock is only a precaution.
            _ => output.refuse_other_files()?,
        }
        Ok(output)
    }

    /// Truncates the file and returns it.
    pub(crate) fn begin(&self) -> Result<&File> {
        if self.is_regular() {
            let emptied = self.file.set_len(0).and_then(|()| (&self.file).rewind());
            emptied.with_context(|| format!("cannot empty {}", self.path.display()))?;
        }
        Ok(&self.file)
    }

    /// Removes the file if it is new and the recording did not begin; returns whether it was
    /// removed.
    pub(crate) fn discard(self) -> bool {
        // If it cannot be removed, an empty file is left, which does no harm.
        self.is_new && fs::remove_file(&self.path).is_ok()
    }

    /// Path of the file.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the file is a regular file, so that it can be read back.
    pub(crate) fn is_regular(&self) -> bool {
        self.file.metadata().is_ok_and(|meta| meta.is_file())
    }

    fn refuse_other_files(&self) -> Result<()> {
        let length = self.file.metadata().map_or(0, |meta| meta.len());
        if self.is_regular()
            && length > 0
            && let Err(ReadError::NotATrail) = Reader::open(BufReader::new(&self.file))
        {
            bail!(
                "{} exists and is not a recording; remove it or name a different file with --output",
                self.path.display()
            );
        }
        Ok(())
    }
}
