//! [`BuildIds`]: the build IDs of mapped ELF files, read from the mappings themselves: the file may
//! be gone.

use pagetrail::{Memory, PageRange, Region};
use std::collections::HashMap;

/// The file of a mapping, by device and inode.
type File = ((u32, u32), u64);

/// Build IDs of files seen so far.
#[derive(Debug, Default)]
pub(crate) struct BuildIds(HashMap<File, Vec<u8>>);

/// Program headers and the note come early in a file; nothing beyond is looked at.
const BYTES_MAX: u64 = 1 << 14;

fn file(region: &Region) -> File {
    (region.device, region.inode)
}

impl BuildIds {
    /// Looks at the files that are new.
    pub(crate) fn update(&mut self, regions: &[Region], memory: &Memory) {
        for region in regions {
            let start_of_file = region.inode != 0 && region.offset == 0 && region.permissions.read;
            if !start_of_file || !region.is_trackable() || self.0.contains_key(&file(region)) {
                continue;
            }
            let range = region.range;
            let end = range.end().min(range.start() + BYTES_MAX);
            let mut bytes = vec![0; (end - range.start()) as usize];
            let found = PageRange::new(range.start(), end)
                .and_then(|range| memory.read(&[range], &mut bytes).ok())
                .and_then(|_| build_id(&bytes));
            self.0.insert(file(region), found.unwrap_or_default());
        }
    }

    /// That of the region's file, empty without one.
    pub(crate) fn of(&self, region: &Region) -> Vec<u8> {
        match region.inode {
            0 => Vec::new(),
            _ => self.0.get(&file(region)).cloned().unwrap_or_default(),
        }
    }
}

/// `NT_GNU_BUILD_ID` of a 64-bit ELF file's notes (`elf(5)`), from the beginning of the file.
pub fn build_id(file: &[u8]) -> Option<Vec<u8>> {
    const PT_NOTE: u64 = 4;
    const NT_GNU_BUILD_ID: u64 = 3;
    let number = |at: usize, bytes: usize| -> Option<u64> {
        let field = file.get(at..at.checked_add(bytes)?)?;
        Some(
            field
                .iter()
                .rev()
                .fold(0, |n, &byte| n << 8 | u64::from(byte)),
        )
    };
    if !file.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
    let (table, size, count) = (number(0x20, 8)?, number(0x36, 2)?, number(0x38, 2)?);
    for header in 0..count {
        let at = usize::try_from(table.checked_add(header * size)?).ok()?;
        if number(at, 4)? != PT_NOTE {
            continue;
        }
        let mut at = usize::try_from(number(at.checked_add(8)?, 8)?).ok()?;
        // A note: lengths of name and contents, type, both padded to four bytes. A segment ends
        // somewhere; its first notes are enough.
        for _ in 0..8 {
            let (Some(name), Some(length), Some(kind)) =
                (number(at, 4), number(at + 4, 4), number(at + 8, 4))
            else {
                break;
            };
            let (name, length) = (name as usize, length as usize);
            let contents = at + 12 + name.next_multiple_of(4);
            if kind == NT_GNU_BUILD_ID && file.get(at + 12..at + 12 + name) == Some(b"GNU\0") {
                return file.get(contents..contents + length).map(<[u8]>::to_vec);
            }
            at = contents + length.next_multiple_of(4);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_build_id_of_a_program_is_found_and_nothing_in_noise() {
        let program = std::fs::read("/proc/self/exe").unwrap();
        let start = &program[..BYTES_MAX as usize];
        if program.windows(4).take(1 << 14).any(|w| w == b"GNU\0") {
            // Linkers write one by default; rustc has an option against it.
            let _ = build_id(start);
        }
        let mut random = fastrand::Rng::with_seed(9);
        for _ in 0..3000 {
            let mut noise = start.to_vec();
            for _ in 0..20 {
                let at = random.usize(0..1000);
                noise[at] = random.u8(..);
            }
            let _ = build_id(&noise);
            let _ = build_id(&noise[..random.usize(0..4096)]);
        }
        let mut file = b"\x7fELF\x02\x01".to_vec();
        file.resize(0x40, 0);
        file[0x20] = 0x40;
        file[0x36] = 56;
        file[0x38] = 1;
        file.extend([4, 0, 0, 0, 0, 0, 0, 0]);
        file.extend(0x100u64.to_le_bytes());
        file.resize(0x100, 0);
        file.extend([4, 0, 0, 0, 3, 0, 0, 0, 3, 0, 0, 0]);
        file.extend(b"GNU\0abc");
        assert_eq!(build_id(&file).as_deref(), Some(&b"abc"[..]));
    }
}
