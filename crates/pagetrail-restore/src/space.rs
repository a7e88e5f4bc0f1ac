//! The address space: what the kernel made for the executable goes, the mappings of the image come,
//! with their contents, at their addresses.

use crate::error::{Error, Result};
use crate::holes;
use crate::objects::{self, Shared};
use crate::options::RestoreOptions;
use crate::remote::{List, Remote};
use crate::sys::memory;
use pagetrail::{Memory, PageRange, PageSet, Region};
use pagetrail_checkpoint::{Image, Manifest, Mapping, ProcessState, is_shared_anonymous};
use std::sync::atomic::{AtomicU64, Ordering};

/// How much is copied at a time, in bytes.
const CHUNK_BYTES: u64 = 1 << 20;
/// The one that is at the same address in all processes.
const VSYSCALL: &str = "[vsyscall]";

/// Whether a mapping is the kernel's own: it is moved, not mapped.
pub(crate) fn is_kernels(name: &str) -> bool {
    name == "[vdso]" || name.starts_with("[vvar")
}

/// The kernel's mappings in the new process, and where they have to go.
#[derive(Debug)]
pub(crate) struct Kernels(Vec<(PageRange, PageRange)>);

impl Kernels {
    /// Finds them, and compares them with those of the image.
    pub(crate) fn find(regions: &[Region], manifest: &Manifest) -> Result<Self> {
        let now: Vec<&Region> = regions.iter().filter(|r| is_kernels(&r.name)).collect();
        let mappings = manifest.mappings.iter();
        let then: Vec<&Mapping> = mappings.filter(|m| is_kernels(&m.name)).collect();
        let kind = |name: &str, range: PageRange| (name.to_owned(), range.bytes());
        let same = now.len() == then.len()
            && now
                .iter()
                .zip(&then)
                .all(|(now, then)| kind(&now.name, now.range) == kind(&then.name, then.range));
        if !same {
            return Err(Error::refused(
                "the checkpoint was taken on another kernel: its vDSO has other mappings",
            ));
        }
        let pairs = now.iter().zip(&then);
        Ok(Self(
            pairs.map(|(now, then)| (now.range, then.range)).collect(),
        ))
    }

    /// Their places, now and then.
    pub(crate) fn places(&self) -> PageSet {
        self.0.iter().flat_map(|&(now, then)| [now, then]).collect()
    }

    /// Compares the code with that of the image: a thread may be within it.
    pub(crate) fn check(&self, pid: u32, image: &mut Image) -> Result<()> {
        let code = image.manifest().mappings.iter();
        let code = code.filter(|mapping| mapping.name == "[vdso]");
        for range in code.map(|mapping| mapping.range).collect::<Vec<_>>() {
            let Some((now, _)) = self.0.iter().find(|(_, then)| *then == range) else {
                continue;
            };
            let mut fresh = vec![0; range.bytes() as usize];
            let mut saved = fresh.clone();
            memory::read(pid, now.start(), &mut fresh).map_err(Error::step("read the vDSO"))?;
            image.read(range, &mut saved)?;
            // Trackers put code into the padding after it.
            let length = fresh.iter().rposition(|&byte| byte != 0).unwrap_or(0) + 1;
            if fresh[..length] != saved[..length] {
                return Err(Error::refused(
                    "the checkpoint was taken on another kernel: its vDSO has other code",
                ));
            }
        }
        Ok(())
    }
}

/// Moves each of some mappings.
fn move_all(list: &mut List<'_>, moves: &[(PageRange, PageRange)]) -> Result<()> {
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    for (from, to) in moves.iter().filter(|(from, to)| from != to) {
        let (start, bytes) = (from.start(), from.bytes());
        list.call(
            "move the vDSO",
            libc::SYS_mremap,
            &[
                start.into(),
                bytes.into(),
                bytes.into(),
                flags.into(),
                to.start().into(),
            ],
        )?;
    }
    Ok(())
}

/// Takes away all mappings but the stub and the kernel's, which go to a place of their own; gives
/// where each of them is, and where it has to go.
pub(crate) fn clear(
    remote: &Remote,
    kernels: &Kernels,
    taken: &PageSet,
) -> Result<Vec<(PageRange, PageRange)>> {
    let mut kept = PageSet::from_iter([remote.room()]);
    let mut taken = taken.union(&kept);
    let (mut there, mut moves) = (Vec::new(), Vec::new());
    let span: PageSet = kernels.0.iter().map(|(now, _)| *now).collect();
    if let (Some(first), Some(last)) = (span.ranges().first(), span.ranges().last()) {
        let bytes = last.end() - first.start();
        let aside = holes::find(&taken, bytes)
            .ok_or_else(|| Error::refused("there are no free addresses for the vDSO"))?;
        taken.insert(aside);
        for &(now, then) in &kernels.0 {
            let start = aside.start() + (now.start() - first.start());
            let place = PageRange::new(start, start + now.bytes());
            let place = place.ok_or_else(|| Error::refused("impossible mappings"))?;
            kept.insert(place);
            moves.push((now, place));
            there.push((place, then));
        }
    }
    let mut list = remote.list(remote.main);
    move_all(&mut list, &moves)?;
    for range in holes::outside(&kept).ranges() {
        list.call(
            "unmap what is not of the program",
            libc::SYS_munmap,
            &[range.start().into(), range.bytes().into()],
        )?;
    }
    list.run()?;
    Ok(there)
}

/// Puts the kernel's mappings where they were in the image.
pub(crate) fn settle(remote: &Remote, places: &[(PageRange, PageRange)]) -> Result<()> {
    let mut list = remote.list(remote.main);
    move_all(&mut list, places)?;
    list.run()
}

/// The protection of a mapping, for `mmap(2)`.
fn protection(mapping: &Mapping) -> i32 {
    let rights = mapping.permissions;
    let flag = |set: bool, flag: i32| if set { flag } else { libc::PROT_NONE };
    flag(rights.read, libc::PROT_READ)
        | flag(rights.write, libc::PROT_WRITE)
        | flag(rights.execute, libc::PROT_EXEC)
}

/// Whether a mapping is of a file that has a name.
pub(crate) fn is_file(mapping: &Mapping) -> bool {
    mapping.inode != 0 && !is_shared_anonymous(&mapping.name)
}

/// What is mapped for a mapping of the image.
struct Wanted {
    mapping: Mapping,
    /// Pages that the image has; of a mapping of a file that it has whole, all.
    pages: PageSet,
    /// Whether the program may make it writable.
    may_become_writable: bool,
    /// Shared memory that lies in no file, by its place among all of it.
    object: Option<usize>,
}

impl Wanted {
    /// Whether it is opened before it is mapped.
    fn is_file(&self) -> bool {
        self.object.is_some() || is_file(&self.mapping)
    }

    /// The path by which it is opened, of a file or of shared memory that lies in none.
    fn path(&self, shared: &Shared) -> Option<String> {
        match self.object {
            Some(index) => shared.path(index),
            None => is_file(&self.mapping).then(|| self.mapping.name.clone()),
        }
    }

    /// Whether processes that have it share what they write, or see what others write to it.
    fn is_shared_memory(&self) -> bool {
        self.object.is_some() || (self.mapping.permissions.shared && !is_file(&self.mapping))
    }

    /// Whether its pages can come later: the kernel waits for those of private memory alone.
    fn can_wait(&self) -> bool {
        !self.is_file() && !self.mapping.permissions.shared
    }

    /// Whether it has to be writable to be filled, and is not in the end.
    fn is_opened_up(&self) -> bool {
        let rights = self.mapping.permissions;
        let is_open = rights.shared || (rights.read && rights.write);
        !is_open && !self.pages.is_empty()
    }

    fn map(&self, list: &mut List<'_>, file: Option<u64>) -> Result<()> {
        let mapping = &self.mapping;
        let mut rights = protection(mapping);
        if self.is_opened_up() {
            rights |= libc::PROT_READ | libc::PROT_WRITE;
        }
        let kind = match mapping.permissions.shared {
            true => libc::MAP_SHARED,
            false => libc::MAP_PRIVATE,
        };
        let mut flags = kind | libc::MAP_FIXED_NOREPLACE;
        if file.is_none() {
            flags |= libc::MAP_ANONYMOUS;
        }
        if mapping.name == "[stack]" {
            flags |= libc::MAP_GROWSDOWN | libc::MAP_STACK;
        }
        if mapping.range.bytes() > physical_bytes() {
            flags |= libc::MAP_NORESERVE;
        }
        list.call(
            &format!("map {} {}", mapping.range, mapping.name),
            libc::SYS_mmap,
            &[
                mapping.range.start().into(),
                mapping.range.bytes().into(),
                rights.into(),
                flags.into(),
                file.unwrap_or(u64::MAX).into(),
                file.map_or(0, |_| mapping.offset).into(),
            ],
        )
    }
}

/// How much memory the machine has: larger mappings are reservations.
fn physical_bytes() -> u64 {
    let info = rustix::system::sysinfo();
    info.totalram as u64 * u64::from(info.mem_unit.max(1))
}

/// Which mappings are meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// All.
    All,
    /// Mappings that a copy has by `fork(2)` as well: all but [`Part::OfEach`].
    Inherited,
    /// Shared memory without a file, which a copy must have for itself.
    OfEach,
}

/// What is to be mapped, and with which contents.
pub(crate) struct Plan {
    wanted: Vec<Wanted>,
    /// Pages that come later.
    pub(crate) lacking: PageSet,
    /// The mappings that these are in.
    pub(crate) incomplete: Vec<PageRange>,
}

impl Plan {
    /// Everything that the image has; of private memory only the pages that are wanted `first`,
    /// where these are named.
    pub(crate) fn of(image: &Image, state: &ProcessState, first: Option<&PageSet>) -> Self {
        let known = image.pages();
        let mappings = image.manifest().process_mappings();
        let mappings =
            mappings.filter(|mapping| !is_kernels(&mapping.name) && mapping.name != VSYSCALL);
        let wanted = mappings.map(|mapping| {
            let range = PageSet::from_iter([mapping.range]);
            let object = objects::of_mapping(&state.objects.memory, mapping);
            let object = object.map(|(index, _)| index);
            // It has its contents before it is mapped.
            let is_filled = object.is_some() && mapping.permissions.shared;
            Wanted {
                object,
                pages: match (object.is_some() || is_file(mapping)) && mapping.saved {
                    _ if is_filled => PageSet::new(),
                    true => range,
                    false => known.intersection(&range),
                },
                may_become_writable: state.may_become_writable.contains(&mapping.range.start()),
                mapping: mapping.clone(),
            }
        });
        let mut plan = Self {
            wanted: wanted.collect(),
            lacking: PageSet::new(),
            incomplete: Vec::new(),
        };
        if let Some(first) = first {
            for wanted in plan.wanted.iter_mut().filter(|wanted| wanted.can_wait()) {
                let later = wanted.pages.difference(first);
                if !later.is_empty() {
                    plan.incomplete.push(wanted.mapping.range);
                    plan.lacking.union_with(&later);
                    wanted.pages = wanted.pages.intersection(first);
                }
            }
        }
        plan
    }

    /// Maps and fills a part; gives how many pages were written. `shared` is there of
    /// [`Part::All`] and [`Part::OfEach`].
    pub(crate) fn fill(
        &self,
        remote: &Remote,
        image: &mut Image,
        shared: &Shared,
        options: &RestoreOptions,
        part: Part,
    ) -> Result<u64> {
        let wanted = self.wanted.iter();
        let wanted = wanted.filter(|wanted| match part {
            Part::All => true,
            Part::Inherited => !wanted.is_shared_memory(),
            Part::OfEach => wanted.is_shared_memory(),
        });
        let wanted: Vec<&Wanted> = wanted.collect();
        map_all(remote, &wanted, shared)?;
        let mut written = 0;
        for wanted in &wanted {
            written += copy(remote.pid, image, wanted, options.allow_changed_files)?;
        }
        let mut list = remote.list(remote.main);
        for wanted in wanted.iter().filter(|wanted| wanted.is_opened_up()) {
            let range = wanted.mapping.range;
            list.call(
                "set the access rights of a mapping",
                libc::SYS_mprotect,
                &[
                    range.start().into(),
                    range.bytes().into(),
                    protection(&wanted.mapping).into(),
                ],
            )?;
        }
        list.run()?;
        Ok(written)
    }
}

fn map_all(remote: &Remote, wanted: &[&Wanted], shared: &Shared) -> Result<()> {
    let mut at = 0;
    while at < wanted.len() {
        // Neighbours of one file, or without any, in one go.
        let file = |wanted: &Wanted| (wanted.path(shared), access(wanted));
        let first = file(wanted[at]);
        let count = wanted[at..]
            .iter()
            .take_while(|next| file(next) == first)
            .count();
        let run = &wanted[at..at + count];
        at += count;
        let opened = match &first.0 {
            None => None,
            Some(path) => Some(open(remote, path, first.1)?),
        };
        let mut list = remote.list(remote.main);
        for wanted in run {
            wanted.map(&mut list, opened)?;
        }
        if let Some(opened) = opened {
            list.call("close a file", libc::SYS_close, &[opened.into()])?;
        }
        list.run()?;
    }
    Ok(())
}

/// How the file of a mapping must be opened.
fn access(wanted: &Wanted) -> i32 {
    let rights = wanted.mapping.permissions;
    match rights.shared && (rights.write || wanted.may_become_writable) {
        true => libc::O_RDWR,
        false => libc::O_RDONLY,
    }
}

fn open(remote: &Remote, path: &str, access: i32) -> Result<u64> {
    let mut name = path.as_bytes().to_vec();
    name.push(0);
    remote.call(
        remote.main,
        &format!("open {path}"),
        libc::SYS_openat,
        &[
            libc::AT_FDCWD.into(),
            name.as_slice().into(),
            (access | libc::O_CLOEXEC | libc::O_NOCTTY | libc::O_NONBLOCK).into(),
            0u64.into(),
        ],
    )
}

/// Writes what differs; gives how many pages. A shared file is written to only if `may_write`.
fn copy(pid: u32, image: &Image, wanted: &Wanted, may_write: bool) -> Result<u64> {
    let written = AtomicU64::new(0);
    let chunks = chunks(&wanted.pages, CHUNK_BYTES).collect();
    image.read_each(chunks, |chunk, then| -> Result<()> {
        let pages = copy_chunk(pid, wanted, may_write, (chunk.start(), then))?;
        written.fetch_add(pages, Ordering::Relaxed);
        Ok(())
    })?;
    Ok(written.into_inner())
}

fn copy_chunk(
    pid: u32,
    wanted: &Wanted,
    may_write: bool,
    (start, then): (u64, &[u8]),
) -> Result<u64> {
    let page = pagetrail::page_size() as usize;
    let mut now = Vec::new();
    if wanted.is_file() {
        now.resize(then.len(), 0);
        look(pid, start, &mut now, page);
    }
    let differ = |index: usize| {
        let place = index * page..(index + 1) * page;
        match wanted.is_file() {
            true => then[place.clone()] != now[place],
            false => then[place].iter().any(|byte| *byte != 0),
        }
    };
    let mut written = 0;
    let mut index = 0;
    let count = then.len() / page;
    while index < count {
        let run = (index..count).take_while(|&index| differ(index)).count();
        if run == 0 {
            index += 1;
            continue;
        }
        let rights = wanted.mapping.permissions;
        if rights.shared && wanted.is_file() && !(may_write && rights.write) {
            return Err(Error::refused(format!(
                "{}, which the program has mapped shared, has changed since the checkpoint",
                wanted.mapping.name
            )));
        }
        let address = start + (index * page) as u64;
        let bytes = &then[index * page..(index + run) * page];
        memory::write(pid, address, bytes).map_err(Error::step(format!(
            "write the memory of {} {}",
            wanted.mapping.range, wanted.mapping.name
        )))?;
        written += run as u64;
        index += run;
    }
    Ok(written)
}

/// Reads memory; what cannot be read, after the end of a file, stays zero.
fn look(pid: u32, start: u64, buffer: &mut [u8], page: usize) {
    if memory::read(pid, start, buffer).is_ok() {
        return;
    }
    for (address, bytes) in (start..).step_by(page).zip(buffer.chunks_exact_mut(page)) {
        if memory::read(pid, address, bytes).is_err() {
            bytes.fill(0);
        }
    }
}

/// Pages in parts of so many bytes at most.
pub(crate) fn chunks(pages: &PageSet, bytes: u64) -> impl Iterator<Item = PageRange> + '_ {
    pages.ranges().iter().flat_map(move |range| {
        let starts = (range.start()..range.end()).step_by(bytes as usize);
        starts.filter_map(move |start| PageRange::new(start, range.end().min(start + bytes)))
    })
}

/// The mappings of the new process.
pub(crate) fn regions(pid: u32) -> Result<Vec<Region>> {
    Ok(Memory::of(pid)?.mappings()?)
}
