//! [`BuildIds`]: the build IDs of mapped ELF files, read from the mappings themselves: the file may
//! be gone.

use pagetrail::{Memory, PageRange, Region};
use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;

/// The file of a mapping, by device and inode.
type File = ((u32, u32), u64);

/// What else a file has when it is the one that was seen before: an inode number is given anew when
/// its file has gone, but not with the time of a change that is long ago.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    bytes: u64,
    changed: (i64, i64),
}

/// Build IDs of files seen so far.
#[derive(Debug, Default)]
pub(crate) struct BuildIds(HashMap<File, (Option<Stamp>, Vec<u8>)>);

/// Program headers and the note come early in a file; nothing beyond is looked at.
const BYTES_MAX: u64 = 1 << 14;

fn file(region: &Region) -> File {
    (region.device, region.inode)
}

/// What the file of a mapping is, if its name still leads to it, as the process sees names.
fn stamp(pid: u32, region: &Region) -> Option<Stamp> {
    let path = format!("/proc/{pid}/root{}", region.name);
    let found = std::fs::metadata(path).ok()?;
    let device = (
        rustix::fs::major(found.dev()),
        rustix::fs::minor(found.dev()),
    );
    ((device, found.ino()) == file(region)).then(|| Stamp {
        bytes: found.len(),
        changed: (found.ctime(), found.ctime_nsec()),
    })
}

impl BuildIds {
    /// Looks at the files of a process that are new, or may be.
    pub(crate) fn update(&mut self, pid: u32, regions: &[Region], memory: &Memory) {
        for region in regions {
            let start_of_file = region.inode != 0 && region.offset == 0 && region.permissions.read;
            if !start_of_file || !region.is_trackable() {
                continue;
            }
            let stamp = stamp(pid, region);
            let known = self.0.get(&file(region));
            if known.is_some_and(|(before, _)| before.is_some() && *before == stamp) {
                continue;
            }
            let range = region.range;
            let end = range.end().min(range.start() + BYTES_MAX);
            let mut bytes = vec![0; (end - range.start()) as usize];
            let found = PageRange::new(range.start(), end)
                .and_then(|range| memory.read(&[range], &mut bytes).ok())
                .and_then(|_| build_id(&bytes));
            self.0
                .insert(file(region), (stamp, found.unwrap_or_default()));
        }
    }

    /// That of the region's file, empty without one.
    pub(crate) fn of(&self, region: &Region) -> Vec<u8> {
        match region.inode {
            0 => Vec::new(),
            _ => self
                .0
                .get(&file(region))
                .map_or_else(Vec::new, |(_, id)| id.clone()),
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
    fn a_file_that_has_changed_since_is_another() {
        let (directory, child) = (tempfile::tempdir().unwrap(), Sleeper::start());
        let path = directory.path().join("file");
        std::fs::write(&path, b"one").unwrap();
        let metadata = std::fs::metadata(&path).unwrap();
        let page = PageRange::new(4096, 8192).unwrap();
        let permissions = pagetrail::Permissions {
            read: true,
            write: false,
            execute: false,
            shared: false,
        };
        let mut region = Region::new(page, permissions);
        region.inode = metadata.ino();
        region.device = (
            rustix::fs::major(metadata.dev()),
            rustix::fs::minor(metadata.dev()),
        );
        region.name = path.to_str().unwrap().to_owned();
        let pid = child.0.id();
        let memory = Memory::of(pid).unwrap();
        let mut ids = BuildIds::default();
        let seen = stamp(pid, &region);
        assert!(seen.is_some());
        // What is known is believed while the file is what it was.
        ids.0.insert(file(&region), (seen, b"id".to_vec()));
        ids.update(pid, &[region.clone()], &memory);
        assert_eq!(ids.of(&region), b"id");
        std::fs::write(&path, b"other").unwrap();
        ids.update(pid, &[region.clone()], &memory);
        assert_eq!(ids.of(&region), b"");
        // Nor is it where nothing is known of the file.
        region.name.push_str(" (deleted)");
        ids.0.insert(file(&region), (None, b"id".to_vec()));
        ids.update(pid, &[region.clone()], &memory);
        assert_eq!(ids.of(&region), b"");
    }

    /// A process, which ends with this.
    struct Sleeper(std::process::Child);

    impl Sleeper {
        fn start() -> Self {
            let mut command = std::process::Command::new("sleep");
            Self(command.arg("1000").spawn().unwrap())
        }
    }

    impl Drop for Sleeper {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

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
