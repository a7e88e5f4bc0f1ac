//! ELF files: their build IDs, where offsets of a file are in its own addresses, and the sections
//! by which stacks are unwound.
//!
//! Paths come from a tracked process or a recording and may name anything: only regular files are
//! opened, and nothing of a file is taken into memory before it is asked for.

use crate::timeout::{TIMEOUT, within};
use std::fs::{File, OpenOptions};
use std::ops::Range;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;

use object::read::{Object, ObjectSection, ObjectSegment, ReadCache};
use pagetrail_trail::BUILD_ID_BYTES_MAX;

/// Sections longer than this are left out: no compiler makes one.
const SECTION_BYTES_MAX: u64 = 512 << 20;

/// What is known of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Elf {
    /// The build ID; empty if there is none.
    pub(crate) build_id: Vec<u8>,
    /// Length of the file.
    pub(crate) file_bytes: u64,
    /// Loadable segments: offsets in the file, and the address of the first.
    segments: Vec<(Range<u64>, u64)>,
    /// Bytes in memory of each segment.
    memory_bytes: Vec<u64>,
}

/// The sections by which stacks are unwound.
#[derive(Clone, Debug)]
pub(crate) struct UnwindSections {
    pub(crate) eh_frame: (Range<u64>, Arc<[u8]>),
    pub(crate) eh_frame_header: Option<(Range<u64>, Arc<[u8]>)>,
}

impl Elf {
    /// Reads a file's headers. A file that is not ELF has a length only; `None` for what is not a
    /// regular file, and for one that does not answer in time.
    pub(crate) fn read(path: &Path) -> Option<Self> {
        let own = path.to_owned();
        within(path, TIMEOUT, move || Self::read_now(&own))
    }

    fn read_now(path: &Path) -> Option<Self> {
        let (file, file_bytes) = open(path)?;
        let cache = ReadCache::new(file);
        let mut elf = Self {
            file_bytes,
            ..Self::default()
        };
        if let Ok(object) = object::File::parse(&cache) {
            if let Ok(Some(id)) = object.build_id() {
                elf.build_id = id[..id.len().min(BUILD_ID_BYTES_MAX)].to_vec();
            }
            (elf.segments, elf.memory_bytes) = object
                .segments()
                .filter_map(|segment| {
                    let (offset, bytes) = segment.file_range();
                    let range = offset..offset.checked_add(bytes)?;
                    Some(((range, segment.address()), segment.size()))
                })
                .unzip();
        }
        Some(elf)
    }

    /// The address, as the file has it, of an offset in the file.
    pub(crate) fn address(&self, offset: u64) -> Option<u64> {
        let (range, address) = self
            .segments
            .iter()
            .find(|(range, _)| range.contains(&offset))?;
        address.checked_add(offset - range.start)
    }

    /// Where the segment that is mapped from `offset` on ends in memory, in bytes from there;
    /// `None` if all of it comes from the file.
    pub(crate) fn zeroed_after(&self, offset: u64) -> Option<u64> {
        let page = pagetrail::page_size();
        let segments = self.segments.iter().zip(&self.memory_bytes);
        let mut writable = segments.filter(|((range, _), bytes)| {
            // A mapping may begin after the part that is read-only once it is relocated.
            (range.start & !(page - 1)..range.end).contains(&offset)
                && **bytes > range.end - range.start
        });
        let ((range, _), bytes) = writable.next()?;
        range.start.checked_add(*bytes)?.checked_sub(offset)
    }
}

impl UnwindSections {
    /// Reads the sections of a file; `None` if it has none, or does not answer in time.
    pub(crate) fn read(path: &Path) -> Option<Self> {
        let own = path.to_owned();
        within(path, TIMEOUT, move || Self::read_now(&own))
    }

    fn read_now(path: &Path) -> Option<Self> {
        let cache = ReadCache::new(open(path)?.0);
        let object = object::File::parse(&cache).ok()?;
        let section = |name: &str| {
            let section = object.section_by_name(name)?;
            if section.size() > SECTION_BYTES_MAX {
                return None;
            }
            let end = section.address().checked_add(section.size())?;
            Some((section.address()..end, Arc::from(section.data().ok()?)))
        };
        Some(Self {
            eh_frame: section(".eh_frame")?,
            eh_frame_header: section(".eh_frame_hdr"),
        })
    }
}

/// Whether a file has a section of that name.
pub(crate) fn has_section(path: &Path, name: &'static str) -> bool {
    let own = path.to_owned();
    let has = within(path, TIMEOUT, move || {
        let cache = ReadCache::new(open(&own)?.0);
        let object = object::File::parse(&cache).ok()?;
        Some(object.section_by_name(name).is_some())
    });
    has == Some(true)
}

/// Opens a regular file; its length.
pub(crate) fn open(path: &Path) -> Option<(File, u64)> {
    // Without O_NONBLOCK a pipe of that name would never open.
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(path)
        .ok()?;
    let meta = file.metadata().ok()?;
    meta.is_file().then_some((file, meta.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_test_itself_is_read() {
        let own = std::env::current_exe().unwrap();
        let elf = Elf::read(&own).unwrap();
        assert_eq!(elf.file_bytes, std::fs::metadata(&own).unwrap().len());
        let sections = UnwindSections::read(&own).unwrap();
        let (addresses, data) = &sections.eh_frame;
        assert_eq!(addresses.end - addresses.start, data.len() as u64);
        assert_eq!(elf.address(0), Some(0));
        assert_eq!(elf.address(u64::MAX), None);
    }

    #[test]
    fn what_is_no_elf_file_does_no_harm() {
        assert_eq!(Elf::read(Path::new("/dev/zero")), None);
        assert_eq!(Elf::read(Path::new("/nonexistent")), None);
        assert_eq!(Elf::read(Path::new("/")), None);
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x");
        let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let mut random = fastrand::Rng::with_seed(5);
        for _ in 0..200 {
            let mut bytes = own[..4096].to_vec();
            for _ in 0..random.usize(1..9) {
                let at = random.usize(16..512);
                bytes[at] = random.u8(..);
            }
            std::fs::write(&path, &bytes).unwrap();
            let elf = Elf::read(&path).unwrap();
            elf.address(random.u64(..) >> random.u32(0..64));
            UnwindSections::read(&path);
        }
    }
}
