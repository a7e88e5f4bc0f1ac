//! What a process's files say of its memory. Data that begins as zeros (`.bss`) lies right after
//! the file's last mapping, up to where the file's headers say.

use std::collections::HashMap;
use std::path::Path;

use pagetrail::Region;

use crate::elf::{Elf, has_section};

/// Files kept; beyond this all are read again.
const FILES_MAX: usize = 4096;

/// The files of a process, each read once.
#[derive(Debug, Default)]
pub(super) struct Files {
    elves: HashMap<(String, u64), Elf>,
}

impl Files {
    /// The name of a mapping that is a file's zeroed data. `before` are the mappings below it.
    pub(super) fn zeroed_data(
        &mut self,
        pid: u32,
        before: &[Region],
        region: &Region,
    ) -> Option<String> {
        let file = before.last()?;
        let start = region.range.start();
        if !file.name.starts_with('/') || file.range.end() != start || !file.permissions.write {
            return None;
        }
        let bytes = self.elf(pid, file).zeroed_after(file.offset)?;
        let end = file.range.start().checked_add(bytes)?;
        let is_data = end > start && end <= region.range.end();
        // Neighbours that the kernel merged with it make it larger.
        let is_alone = region.range.end() - end < 2 * pagetrail::page_size();
        let name = file.name.rsplit('/').next().unwrap_or_default();
        (is_data && is_alone).then(|| format!("[bss: {name}]"))
    }

    fn elf(&mut self, pid: u32, file: &Region) -> &Elf {
        if self.elves.len() >= FILES_MAX {
            self.elves.clear();
        }
        self.elves
            .entry((file.name.clone(), file.inode))
            .or_insert_with(|| {
                let inside = format!("/proc/{pid}/root{}", file.name);
                let elf = Elf::read(Path::new(&inside));
                elf.or_else(|| Elf::read(Path::new(&file.name)))
                    .unwrap_or_default()
            })
    }
}

/// Whether the program of a process was made by the Go compiler.
pub(super) fn is_go(pid: u32) -> bool {
    has_section(Path::new(&format!("/proc/{pid}/exe")), ".go.buildinfo")
}
