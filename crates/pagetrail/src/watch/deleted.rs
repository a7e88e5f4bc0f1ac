//! [`Deleted`]: mappings of deleted files that no technique has armed.
//!
//! A file that has no name any more ends with its last mapping, and the next file may get the
//! number of its inode. Mapped to the same addresses, it looks like the one before: the text of
//! `maps` is the same, and where no page is the process's own nothing is armed that would show it.
//! So each round looks at which files they are. A file that is removed, and replaced by one of the
//! same name and number, between two rounds is not found out: to look at all that a program has
//! mapped would take longer than the rest of a round.

use crate::page_set::{PageRange, PageSet};
use crate::proc::map_files;
use crate::region::Region;
use crate::sys::file_handle::FileHandle;

/// The mappings of deleted files of one address space, and which files they have.
#[derive(Default)]
pub(super) struct Deleted {
    pid: Option<u32>,
    files: Vec<(PageRange, FileHandle)>,
}

impl Deleted {
    pub(super) fn new(pid: Option<u32>) -> Self {
        Self {
            pid,
            files: Vec::new(),
        }
    }

    /// Looks from now on at those of these mappings whose files are deleted, and returns where one
    /// that was looked at with other borders had another file. It has to be permitted
    /// (`proc_pid_map_files(5)`).
    pub(super) fn follow<'a>(&mut self, regions: impl Iterator<Item = &'a Region>) -> PageSet {
        let known = std::mem::take(&mut self.files);
        let deleted = regions.filter(|region| region.name.ends_with(" (deleted)"));
        let mut replaced = PageSet::new();
        for region in deleted {
            let range = region.range;
            // Both are in ascending order.
            let first = known.partition_point(|(known, _)| known.end() <= range.start());
            let here = known[first..].iter();
            let here = here.take_while(|(known, _)| known.start() < range.end());
            let before = here.clone().find(|(known, _)| *known == range);
            let handle = match before {
                // Whether it is that still, the round will see.
                Some((_, handle)) => Some(handle.clone()),
                None => self.file(range),
            };
            let Some(handle) = handle else {
                continue;
            };
            let others = here.filter(|(_, known)| *known != handle);
            replaced.extend(others.filter_map(|(known, _)| known.intersection(&range)));
            self.files.push((range, handle));
        }
        replaced
    }

    /// The mappings that have another file now.
    pub(super) fn replaced(&mut self) -> PageSet {
        let mut files = std::mem::take(&mut self.files);
        let mut replaced = PageSet::new();
        for (range, before) in &mut files {
            // One with other borders is found when the mappings are read again.
            if let Some(now) = self.file(*range).filter(|now| now != before) {
                replaced.insert(*range);
                *before = now;
            }
        }
        self.files = files;
        replaced
    }

    fn file(&self, range: PageRange) -> Option<FileHandle> {
        FileHandle::of(&map_files::link(self.pid, range)).ok()
    }
}
