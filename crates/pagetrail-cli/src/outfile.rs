//! Files that a command writes for its user: pages and pictures. None takes the place of a file of
//! another kind, a recording above all, and each is named on standard error once it is there.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{BufWriter, ErrorKind, Read, Seek, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::exit;

/// What a file is to hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A web page.
    Page,
    /// A picture.
    Picture,
    /// A drawing: SVG.
    Drawing,
    /// Call stacks, a line each.
    Folded,
    /// A profile for pprof.
    Profile,
    /// A table: Apache Parquet.
    Parquet,
    /// A trace in Chrome's format.
    ChromeTrace,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Page => "web page",
            Self::Picture => "PNG picture",
            Self::Drawing => "SVG picture",
            Self::Folded => "file of folded stacks",
            Self::Profile => "profile",
            Self::Parquet => "Parquet file",
            Self::ChromeTrace => "trace in Chrome's format",
        }
    }

    /// Whether a file that begins so is one of them.
    fn begins_with(self, first: &[u8]) -> bool {
        match self {
            Self::Page => first.trim_ascii_start().starts_with(b"<"),
            Self::Picture => first.starts_with(b"\x89PNG"),
            Self::Drawing => first.starts_with(b"<svg "),
            // The type of the samples comes first: two numbers of strings.
            Self::Profile => first.starts_with(&[0x0a, 4, 0x08, 1, 0x10, 2]),
            Self::Parquet => first.starts_with(b"PAR1"),
            Self::ChromeTrace => first.starts_with(b"{\"displayTimeUnit\""),
            // The thread's name, and at least one function.
            Self::Folded => first
                .iter()
                .find(|byte| byte.is_ascii_control() || **byte == b';')
                .is_some_and(|byte| *byte == b';'),
        }
    }
}

/// A file that may be written. What is in it stays until [`OutFile::write`].
#[derive(Debug)]
pub(crate) struct OutFile {
    path: PathBuf,
    file: File,
    is_new: bool,
}

impl OutFile {
    /// Opens a file for a page or a picture, early: before the work whose result it is to hold.
    pub(crate) fn open(path: &Path, kind: Kind) -> Result<Self> {
        let cannot = || format!("cannot write {}", path.display());
        let mut options = OpenOptions::new();
        options.read(true).write(true);
        let (opened, is_new) = match options.clone().create_new(true).open(path) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                // What cannot be read, a FIFO or a device, say, holds nothing to be lost.
                let opened = options.open(path);
                (opened.or_else(|_| File::create(path)), false)
            }
            created => (created, true),
        };
        let out = Self {
            path: path.into(),
            file: opened.with_context(cannot)?,
            is_new,
        };
        if !is_new && out.is_regular() {
            let mut first = Vec::new();
            let read = (&out.file).take(64).read_to_end(&mut first);
            read.with_context(cannot)?;
            if !first.is_empty() && !kind.begins_with(&first) {
                let what = match pagetrail_trail::is_trail(&first) {
                    true => "is a recording and".to_owned(),
                    false => "exists and".to_owned(),
                };
                bail!(
                    "{} {what} is no {}, so it is not overwritten; name another file",
                    path.display(),
                    kind.name()
                );
            }
        }
        Ok(out)
    }

    /// Replaces what is in it, and says so.
    pub(crate) fn write<E: Into<anyhow::Error>>(
        self,
        content: impl FnOnce(&mut dyn Write) -> Result<(), E>,
    ) -> Result<()> {
        let cannot = || format!("cannot write {}", self.path.display());
        if self.is_regular() {
            let emptied = self.file.set_len(0).and_then(|()| (&self.file).rewind());
            emptied.with_context(cannot)?;
        }
        let mut out = BufWriter::new(&self.file);
        content(&mut out).map_err(Into::into).with_context(cannot)?;
        out.flush().with_context(cannot)?;
        drop(out);
        exit::message(&format!("wrote {}", self.path.display()));
        Ok(())
    }

    /// Refuses to write where `other` is, a file that is read or written as well.
    pub(crate) fn refuse_same(&self, other: &Metadata, what: &str) -> Result<()> {
        let own = self.file.metadata();
        let is_same = own
            .is_ok_and(|own| own.is_file() && (own.dev(), own.ino()) == (other.dev(), other.ino()));
        if is_same {
            bail!("{} is {what}; name another file", self.path.display());
        }
        Ok(())
    }

    /// What the file system knows of it.
    pub(crate) fn metadata(&self) -> Result<Metadata> {
        let cannot = || format!("cannot write {}", self.path.display());
        self.file.metadata().with_context(cannot)
    }

    /// Leaves everything as it was.
    pub(crate) fn discard(self) {
        if self.is_new {
            // An empty file that stays is untidy and no more.
            let _ = fs::remove_file(&self.path);
        }
    }

    fn is_regular(&self) -> bool {
        self.file.metadata().is_ok_and(|meta| meta.is_file())
    }
}
