//! Writing a checkpoint as the image files of CRIU, for `criu restore` as it is.

use super::contents::Contents;
use super::pagemap::Pagemap;
use super::space::{FIRST_SLOT, SpaceId, base_of, slot_of};
use crate::error::{Error, Result};
use crate::export::{create, write_contents};
use crate::limits;
use crate::store::image::Image;
use pagetrail::PageRange;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Where pages go that may be restored when they are first touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LazyPages {
    /// To the image files, as all others.
    Written,
    /// To nowhere: `criu lazy-pages` asks a page server for them.
    LeftToServer,
}

/// What was written of a checkpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Written {
    /// Files, those of pages and their maps included.
    pub files: u64,
    /// Pages of processes and of shared memory.
    pub pages: u64,
    /// Pages that were left for `criu lazy-pages` to ask for.
    pub lazy_pages: u64,
}

impl Image {
    /// The names of CRIU's other image files in it; `None` if CRIU did not make it.
    ///
    /// # Errors
    ///
    /// The store is damaged, or fails.
    pub fn criu_files(&mut self) -> Result<Option<Vec<String>>> {
        let contents = Contents::of(self)?;
        let names = |contents: Contents| contents.files.into_iter().map(|file| file.name);
        Ok(contents.map(|contents| names(contents).collect()))
    }

    /// The contents of one of CRIU's other image files; `None` if it has none of this name.
    ///
    /// # Errors
    ///
    /// The store is damaged, or fails.
    pub fn criu_file(&mut self, name: &str) -> Result<Option<Vec<u8>>> {
        let contents = Contents::of(self)?;
        let files = contents.map(|contents| contents.files);
        let file = files
            .into_iter()
            .flatten()
            .find(|file| file.name == name && file.bytes <= limits::bytes_at_once());
        let Some(file) = file else {
            return Ok(None);
        };
        let page_size = u64::from(self.manifest().page_size);
        let end = file.start + file.bytes.next_multiple_of(page_size);
        let mut bytes = Vec::new();
        if let Some(range) = PageRange::new(file.start, end) {
            bytes.resize(range.bytes() as usize, 0);
            self.read(range, &mut bytes)?;
        }
        bytes.truncate(file.bytes as usize);
        Ok(Some(bytes))
    }

    /// The PIDs of the processes in it that have memory, if CRIU made it.
    pub fn criu_processes(&self) -> Vec<u32> {
        let mappings = &self.manifest().mappings;
        let is_memory = |range: &PageRange| slot_of(range.start()) >= FIRST_SLOT;
        let names = mappings.iter().filter(|mapping| is_memory(&mapping.range));
        let mut pids: Vec<u32> = names
            .filter_map(|mapping| SpaceId::parse_process(&mapping.name))
            .collect();
        pids.dedup();
        pids
    }

    /// Writes a checkpoint that CRIU made to a directory, as CRIU's image files: `pagemap-*.img`
    /// and `pages-*.img`, and the other files where the checkpoint has them.
    ///
    /// # Errors
    ///
    /// CRIU did not make it; a file is there already, or cannot be written; the store is damaged.
    pub fn export_criu(&mut self, directory: &Path, lazy: LazyPages) -> Result<Written> {
        let Some(contents) = Contents::of(self)? else {
            let number = self.manifest().number;
            return Err(Error::Refused(format!(
                "checkpoint {number} was not made by CRIU, which cannot restore it"
            )));
        };
        let page_size = u64::from(self.manifest().page_size);
        let mut written = Written::default();
        for (space, pages_id) in contents.spaces.iter().zip(1..) {
            let name = match space.id {
                SpaceId::Process(pid) => format!("pagemap-{pid}.img"),
                SpaceId::Shared(id) => format!("pagemap-shmem-{id}.img"),
            };
            let pagemap = Pagemap::new(
                pages_id,
                (&space.pages, &space.lazy),
                base_of(space.slot),
                page_size,
                lazy,
            );
            write(&directory.join(name), &pagemap.image)?;
            let path = directory.join(format!("pages-{pages_id}.img"));
            let file = create(&path)?;
            let known = self.pages();
            let mut offset = 0;
            for range in pagemap.present.ranges() {
                write_contents(self, &known, *range, &file, offset)?;
                offset += range.bytes();
            }
            file.set_len(offset)
                .map_err(Error::io(format!("cannot write {}", path.display())))?;
            written.files += 2;
            written.pages += offset / page_size;
            written.lazy_pages += (space.pages.bytes() - offset) / page_size;
        }
        for file in &contents.files {
            let path = directory.join(&file.name);
            let out = create(&path)?;
            let end = file.start + file.bytes.next_multiple_of(page_size);
            if let Some(range) = PageRange::new(file.start, end) {
                let known = self.pages();
                write_contents(self, &known, range, &out, 0)?;
            }
            out.set_len(file.bytes)
                .map_err(Error::io(format!("cannot write {}", path.display())))?;
            written.files += 1;
        }
        Ok(written)
    }
}

fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    let file = create(path)?;
    let written = file.write_all_at(bytes, 0);
    written.map_err(Error::io(format!("cannot write {}", path.display())))
}
