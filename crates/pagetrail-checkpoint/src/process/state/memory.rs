//! Shared memory that lies in no file: of `memfd_create(2)`, and anonymous memory of which several
//! mappings show the same, or one that may not be written. It is read through descriptors of this
//! process, so that an image has also what no mapping shows.

use super::{Refused, is_shared_anonymous};
use crate::error::{Error, Result};
use crate::format::manifest::Mapping;
use crate::format::objects::SharedMemory;
use pagetrail::{PageRange, PageSet, Permissions, Region, page_size};
use rustix::fs::{SealFlags, SeekFrom, fcntl_get_seals, fstatfs, major, minor, seek};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};

/// `TMPFS_MAGIC` of `statfs(2)`.
const TMPFS: i64 = 0x0102_1994;

/// Whether a path is of memory of `memfd_create(2)`.
pub(crate) fn is_memfd(path: &str) -> bool {
    path.starts_with("/memfd:") && path.ends_with(" (deleted)")
}

/// Shared memory, and a way to read it.
#[derive(Debug)]
pub(crate) struct Readable {
    pub(crate) memory: SharedMemory,
    file: File,
}

impl Readable {
    pub(super) fn key(&self) -> Key {
        (self.memory.device, self.memory.inode)
    }
}

/// By what shared memory is known: its device and inode.
pub(super) type Key = ((u32, u32), u64);

fn key_of(region: &Region) -> Key {
    (region.device, region.inode)
}

/// Whether a mapping alone brings its shared memory back: it shows all of it, nothing else does,
/// and it may be written.
fn is_alone(pid: u32, region: &Region, regions: &[Region]) -> bool {
    let same = regions
        .iter()
        .filter(|other| key_of(other) == key_of(region));
    let may = is_shared_anonymous(&region.name) && region.permissions.write && region.offset == 0;
    // One that has shrunk shows the rest when it grows again. Who may not look believes it whole.
    let is_longer = || {
        let found = fs::metadata(map_file(pid, region));
        found.is_ok_and(|memory| memory.len() > region.range.bytes())
    };
    may && same.count() == 1 && !is_longer()
}

fn map_file(pid: u32, region: &Region) -> String {
    let (start, end) = (region.range.start(), region.range.end());
    format!("/proc/{pid}/map_files/{start:x}-{end:x}")
}

/// Whether the process stands still, or opens, closes and maps while it is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Motion {
    /// Nothing changes.
    AtRest,
    /// What goes meanwhile is left out.
    Runs,
}

/// All such memory of a process, ascending by inode.
pub(crate) fn of(
    pid: u32,
    regions: &[Region],
    motion: Motion,
) -> std::result::Result<Vec<Readable>, Refused> {
    let mut paths: BTreeMap<Key, (String, String)> = BTreeMap::new();
    for region in regions {
        let is_memory = region.inode != 0
            && (is_memfd(&region.name) || is_shared_anonymous(&region.name))
            && !is_alone(pid, region, regions);
        if is_memory {
            paths.insert(key_of(region), (map_file(pid, region), region.name.clone()));
        }
    }
    let entries = fs::read_dir(format!("/proc/{pid}/fd"));
    let entries = entries.map_err(|error| format!("cannot read its descriptors: {error}"))?;
    for entry in entries.flatten() {
        let path = entry.path();
        let Some(name) = fs::read_link(&path)
            .ok()
            .and_then(|link| link.to_str().map(str::to_owned))
        else {
            continue;
        };
        if is_memfd(&name)
            && let Ok(metadata) = fs::metadata(&path)
        {
            let device = (major(metadata.dev()), minor(metadata.dev()));
            let path = path.to_string_lossy().into_owned();
            paths.insert((device, metadata.ino()), (path, name));
        }
    }
    let mut found = Vec::new();
    let mut by_inode: Vec<_> = paths.into_iter().collect();
    by_inode.sort_by_key(|((device, inode), _)| (*inode, *device));
    for (index, ((device, inode), (path, name))) in by_inode.into_iter().enumerate() {
        let memory = SharedMemory {
            device,
            inode,
            at: SharedMemory::BYTES_MAX
                .saturating_mul(index as u64)
                .saturating_add(SharedMemory::FIRST),
            name,
            ..SharedMemory::default()
        };
        let name = memory.name.clone();
        match opened(&path, memory)? {
            Some(readable) => found.push(readable),
            None if motion == Motion::Runs => {}
            None => return Err(format!("its shared memory {name} is gone from {path}")),
        }
    }
    Ok(found)
}

/// Memory by a path; `None` where that leads to nothing any more, or to other memory.
fn opened(path: &str, mut memory: SharedMemory) -> std::result::Result<Option<Readable>, Refused> {
    let name = memory.name.clone();
    let unreadable = |error: std::io::Error| {
        format!("its shared memory {name} cannot be read through {path}: {error}")
    };
    let at_path = || {
        // Not opened before it is known to be this memory: of a device, that may do something.
        let metadata = fs::metadata(path)?;
        let device = (major(metadata.dev()), minor(metadata.dev()));
        Ok((device, metadata.ino()) == (memory.device, memory.inode))
    };
    match at_path() {
        Ok(true) => {}
        Ok(false) => return Ok(None),
        Err(error) if is_gone(&error) => return Ok(None),
        Err(error) => return Err(unreadable(error)),
    }
    // Another thing may have come to the path in between, a pipe, say, which is not waited for.
    let file = File::options()
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(path);
    let file = match file {
        Err(error) if is_gone(&error) => return Ok(None),
        file => file.map_err(unreadable)?,
    };
    let metadata = file.metadata().map_err(unreadable)?;
    let device = (major(metadata.dev()), minor(metadata.dev()));
    if (device, metadata.ino()) != (memory.device, memory.inode) {
        return Ok(None);
    }
    let system = fstatfs(&file).map_err(|errno| unreadable(errno.into()))?;
    // What hugetlbfs has needs a reservation of huge pages; and another file may have such a name.
    if system.f_type as i64 != TMPFS || metadata.nlink() != 0 {
        return Err(format!(
            "it has shared memory of a kind that is not restored: {name}"
        ));
    }
    let is_too_many = memory.at > SharedMemory::END - SharedMemory::BYTES_MAX;
    if is_too_many || metadata.len() > SharedMemory::BYTES_MAX - page_size() {
        return Err(format!("it has too much shared memory: {name}"));
    }
    memory.bytes = metadata.len();
    memory.mode = metadata.mode() & 0o7777;
    // Of anonymous memory there are none.
    let seals = fcntl_get_seals(&file).unwrap_or(SealFlags::empty());
    memory.seals = seals.bits();
    Ok(Some(Readable { memory, file }))
}

fn is_gone(error: &std::io::Error) -> bool {
    error.kind() == std::io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ESRCH)
}

/// What of such memory no mapping of an image shows, as pages of the image.
#[derive(Debug, Default)]
pub(crate) struct Apart(Vec<Readable>);

impl Apart {
    pub(crate) fn new(all: Vec<Readable>) -> Self {
        Self(all)
    }

    /// The name of one, if there is any.
    pub(crate) fn name(&self) -> Option<&str> {
        Some(&self.0.first()?.memory.name)
    }

    /// The pages that hold something and that none of the mappings in `shown`, whose contents the
    /// image has, shows.
    pub(crate) fn pages(&self, regions: &[Region], shown: &PageSet) -> Result<PageSet> {
        let mut found = PageSet::new();
        for readable in &self.0 {
            let mut pages = PageSet::new();
            add_data(readable, &mut pages).map_err(|errno| {
                Error::io(format!(
                    "cannot read shared memory {}",
                    readable.memory.name
                ))(errno.into())
            })?;
            for region in regions {
                let shows = key_of(region) == readable.key()
                    && region.permissions.shared
                    && shown.covers(region.range);
                let start = readable.memory.at.checked_add(region.offset);
                if shows
                    && let Some(start) = start
                    && let Some(range) = PageRange::new(start, start + region.range.bytes())
                {
                    pages = pages.difference(&PageSet::from_iter([range]));
                }
            }
            found.union_with(&pages);
        }
        Ok(found)
    }

    /// Reads pages; what is after the end of the memory is zeros. There are none that cannot be
    /// read.
    pub(crate) fn read(&self, ranges: &[PageRange], buffer: &mut [u8]) -> Result<PageSet> {
        let mut rest = buffer;
        for range in ranges {
            let (bytes, after) = rest.split_at_mut(range.bytes() as usize);
            rest = after;
            bytes.fill(0);
            let of = |readable: &&Readable| {
                range.start() >= readable.memory.at
                    && range.start() - readable.memory.at < SharedMemory::BYTES_MAX
            };
            let Some(readable) = self.0.iter().find(of) else {
                continue;
            };
            let mut offset = range.start() - readable.memory.at;
            let mut left = bytes;
            while !left.is_empty() {
                let count = readable.file.read_at(left, offset);
                let count = count.map_err(Error::io(format!(
                    "cannot read shared memory {}",
                    readable.memory.name
                )))?;
                if count == 0 {
                    break;
                }
                offset += count as u64;
                left = &mut left[count..];
            }
        }
        Ok(PageSet::new())
    }

    /// The mappings of an image that have these pages.
    pub(crate) fn mappings(&self) -> impl Iterator<Item = Mapping> + '_ {
        self.0.iter().filter_map(|readable| {
            let memory = &readable.memory;
            Some(Mapping {
                range: memory.range(page_size())?,
                permissions: Permissions {
                    read: true,
                    write: true,
                    execute: false,
                    shared: true,
                },
                offset: 0,
                device: memory.device,
                inode: memory.inode,
                name: memory.name.clone(),
                build_id: Vec::new(),
                saved: true,
                own_writes_only: false,
            })
        })
    }
}

/// The pages for which there is data.
fn add_data(readable: &Readable, into: &mut PageSet) -> std::result::Result<(), Errno> {
    let size = page_size();
    let mut at = 0;
    loop {
        let start = match seek(&readable.file, SeekFrom::Data(at)) {
            Ok(start) => start,
            Err(Errno::NXIO) => return Ok(()),
            Err(errno) => return Err(errno),
        };
        let end = seek(&readable.file, SeekFrom::Hole(start))?;
        let base = readable.memory.at;
        let range = PageRange::new(
            base + start / size * size,
            base + end.next_multiple_of(size),
        );
        into.extend(range);
        at = end;
    }
}
