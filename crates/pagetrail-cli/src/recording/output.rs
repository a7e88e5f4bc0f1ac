//! [`Output`]: the file that takes a recording. Nothing in it is touched before the recording begins, and a file that
//! is no recording is refused.

use std::fs::{self, File, OpenOptions};
use std::io::{BufReader, ErrorKind, Seek};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use pagetrail_trail::{ReadError, Reader};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

/// A file that is ours to write to.
#[derive(Debug)]
pub(crate) struct Output {
    path: PathBuf,
    file: File,
    is_new: bool,
}

impl Output {
    /// Opens `path` for a recording; what is in it stays until [`Self::begin`].
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
            // Not every file can be locked; the lock is a help, not a promise.
            _ => output.refuse_other_files()?,
        }
        Ok(output)
    }

    /// Empties the file and hands it out.
    pub(crate) fn begin(&self) -> Result<&File> {
        if self.is_regular() {
            let emptied = self.file.set_len(0).and_then(|()| (&self.file).rewind());
            emptied.with_context(|| format!("cannot empty {}", self.path.display()))?;
        }
        Ok(&self.file)
    }

    /// Gives up before the recording began. Returns whether the file, which was new, is no longer there.
    pub(crate) fn discard(self) -> bool {
        // An empty file that stays is untidy and no more.
        self.is_new && fs::remove_file(&self.path).is_ok()
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether what is written can be read back.
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
                "{} exists and is no recording; remove it or name a different file with --output",
                self.path.display()
            );
        }
        Ok(())
    }
}
