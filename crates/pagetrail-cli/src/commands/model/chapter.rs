//! The folder of `model reproduce --report`: a chapter of Markdown and its pictures.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use pagetrail_model_report::reproduced::{Chapter, Document};

use crate::outfile::{Kind, OutFile};

/// A folder for a chapter and its pictures.
pub(super) struct Folder {
    directory: PathBuf,
    text: OutFile,
}

impl Folder {
    /// Makes the folder and opens the chapter, early: before the work whose result it is to hold.
    pub(super) fn open(directory: &Path, paper: &str) -> Result<Self> {
        std::fs::create_dir_all(directory)
            .with_context(|| format!("cannot make {}", directory.display()))?;
        let text = OutFile::open(&directory.join(format!("{paper}.md")), Kind::Page)?;
        Ok(Self {
            directory: directory.to_owned(),
            text,
        })
    }

    /// Writes the chapter and its pictures.
    pub(super) fn write(self, document: &Document) -> Result<()> {
        let chapter = Chapter::new(document);
        for picture in chapter.pictures() {
            let file = OutFile::open(&self.directory.join(&picture.name), Kind::Page)?;
            file.write(|out| out.write_all(picture.svg.as_bytes()))?;
        }
        self.text.write(|out| chapter.write(out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_chapter_is_not_overwritten() {
        let here = tempfile::tempdir().unwrap();
        let directory = here.path().join("new/chapter");
        drop(Folder::open(&directory, "hmmv").unwrap());
        std::fs::write(directory.join("ooh.md"), "# mine\n").unwrap();
        assert!(Folder::open(&directory, "ooh").is_err());
    }
}
