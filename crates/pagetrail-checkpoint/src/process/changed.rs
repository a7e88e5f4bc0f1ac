//! Whether a living process holds something else than a checkpoint of it: one scan of its memory.
//!
//! Nothing is left in a process to remember what it writes while nobody watches it. So its memory
//! is read and hashed, and compared with the hashes that the store has; the contents in the store
//! are not read.

use super::describe;
use super::recheck::Read;
use super::state::memory::{self, Apart, Motion};
use super::state::refusal;
use crate::error::{Error, Result};
use crate::format::manifest::Mapping;
use crate::format::objects::SharedMemory;
use crate::hash::Hash;
use crate::map::Source;
use crate::store::Store;
use crate::store::image::Image;
use crate::store::intake::chunks;
use pagetrail::{Memory, PageRange, PageSet, Region, owned_pages, page_size, pages_with_content};
use std::collections::BTreeMap;

/// What differs first between a process and a checkpoint of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Change {
    /// A mapping that has come, gone or changed its rights, by its addresses.
    Mapping(PageRange),
    /// A page that holds something else.
    Page(PageRange),
}

impl Store {
    /// The number of the newest checkpoint of a living process; `None` where there is none.
    ///
    /// # Errors
    ///
    /// The process has ended; a newer checkpoint cannot be read, and may be the one; the storage
    /// fails.
    pub fn newest_of_process(&self, pid: u32) -> Result<Option<u64>> {
        let Some(start_ticks) = describe::start_ticks(pid) else {
            return Err(pagetrail::Error::Gone { pid }.into());
        };
        for number in self.numbers()?.into_iter().rev() {
            let process = match self.manifest(number) {
                // A writer has removed it meanwhile.
                Err(Error::NoSuchCheckpoint { .. }) => continue,
                manifest => manifest?.process,
            };
            let is_it = |process: &crate::format::manifest::Process| {
                process.pid == pid && process.start_ticks == start_ticks
            };
            if process.as_ref().is_some_and(is_it) {
                return Ok(Some(number));
            }
        }
        Ok(None)
    }
}

impl Image {
    /// Looks for something that the process holds otherwise than this checkpoint of it; `None`
    /// means that every page held, at one moment of the scan, what the checkpoint has.
    ///
    /// Compared are mappings and what they hold, not registers, nor what the kernel keeps for the
    /// process. A page that was written and holds again what it held is as it was. Left out is the
    /// vDSO, and shared memory of which the checkpoint has the process's own writes only.
    ///
    /// # Errors
    ///
    /// The process is another one, or has ended; its memory may not be read; the checkpoint is of a
    /// guest of KVM.
    pub fn change_since(&self, pid: u32) -> Result<Option<Change>> {
        let is_it = self.manifest().process.as_ref().is_some_and(|process| {
            process.pid == pid
                && Some(process.start_ticks) == describe::start_ticks(pid)
                // A guest of KVM has none, and its process has memory of the machine's, too.
                && !process.auxv.is_empty()
        });
        if !is_it {
            let reason = format!("process {pid} is not the one of this checkpoint");
            return Err(Error::Refused(reason));
        }
        let memory = Memory::of(pid)?;
        let regions = memory.mappings()?;
        let then: Vec<&Mapping> = self.manifest().process_mappings().collect();
        if let Some(range) = other_mapping(&then, &regions) {
            return Ok(Some(Change::Mapping(range)));
        }
        for (mapping, region) in then.iter().zip(&regions) {
            // The kernel's own pages ([vvar] and the like) are in no image.
            if mapping.own_writes_only || mapping.name == "[vdso]" || !region.is_trackable() {
                continue;
            }
            if let Some(page) = self.other_page(pid, &memory, mapping, region)? {
                return Ok(Some(Change::Page(page)));
            }
        }
        self.change_apart(pid, &regions)
    }

    /// What differs first of shared memory that no mapping shows, where the image has it.
    fn change_apart(&self, pid: u32, regions: &[Region]) -> Result<Option<Change>> {
        let Some(state) = self.manifest().state() else {
            return Ok(None);
        };
        let now =
            memory::of(pid, regions, Motion::AtRest).map_err(|reason| refusal(pid, &reason))?;
        let then = &state.objects.memory;
        let same = |then: &SharedMemory, now: &SharedMemory| {
            (then.device, then.inode, then.bytes) == (now.device, now.inode, now.bytes)
        };
        let differing = then
            .iter()
            .zip(&now)
            .find(|(then, now)| !same(then, &now.memory));
        let longer = (then.len() != now.len()).then(|| {
            let shorter = then.len().min(now.len());
            let now = now.get(shorter).map(|readable| &readable.memory);
            then.get(shorter).or(now)
        });
        if let Some(other) = differing.map(|(then, _)| then).or(longer.flatten()) {
            let page = PageRange::new(other.at, other.at + page_size());
            return Ok(page.map(Change::Mapping));
        }
        let mappings = self.manifest().process_mappings();
        let shown = mappings.filter(|mapping| mapping.saved && mapping.permissions.shared);
        let shown: PageSet = shown.map(|mapping| mapping.range).collect();
        let apart = Apart::new(now);
        let pages = apart.pages(regions, &shown)?;
        for memory in then {
            let Some(range) = memory.range(page_size()) else {
                continue;
            };
            let pages = pages.intersection(&PageSet::from_iter([range]));
            let read = |ranges: &[PageRange], buffer: &mut [u8]| apart.read(ranges, buffer);
            if let Some(page) = self.other_contents(&read, range, &pages)? {
                return Ok(Some(Change::Page(page)));
            }
        }
        Ok(None)
    }

    /// A page of a mapping that holds something else than in the image.
    fn other_page(
        &self,
        pid: u32,
        memory: &Memory,
        mapping: &Mapping,
        region: &Region,
    ) -> Result<Option<PageRange>> {
        let size = page_size();
        let range = PageSet::from_iter([mapping.range]);
        let runs = self.map.within(mapping.range);
        let known: PageSet = runs
            .filter_map(|run| PageRange::new(run.start, run.start + run.pages * size))
            .collect();
        let now = match mapping.saved {
            true => pages_with_content(pid, region)?,
            // The rest is as the file, of which there is no image.
            false if known.is_empty() && mapping.permissions.shared => return Ok(None),
            false => owned_pages(pid, region)?,
        };
        let now = now.intersection(&range);
        if !mapping.saved
            && let Some(owned) = now.difference(&known).ranges().first()
        {
            return Ok(PageRange::new(owned.start(), owned.start() + size));
        }
        // What cannot be read was not read for the checkpoint either, and is zeros in both.
        let read = |ranges: &[PageRange], buffer: &mut [u8]| Ok(memory.read(ranges, buffer)?);
        self.other_contents(&read, mapping.range, &now)
    }

    /// The first page of a range that holds something else than in the image, by `read`: of those
    /// that hold something `now`, and of those that the image says something about.
    fn other_contents(
        &self,
        read: &Read<'_>,
        range: PageRange,
        now: &PageSet,
    ) -> Result<Option<PageRange>> {
        let size = page_size();
        let mut then = BTreeMap::new();
        for run in self.map.within(range) {
            for n in 0..run.pages {
                let source = match run.source {
                    Source::Stored { pack, page } => Source::Stored {
                        pack,
                        page: page + n as u32,
                    },
                    other => other,
                };
                then.insert(run.start + n * size, self.hash_at(source)?);
            }
        }
        let known: PageSet = then
            .keys()
            .filter_map(|page| PageRange::new(*page, page + size))
            .collect();
        let zeros = Hash::of(&vec![0; size as usize]);
        let mut buffer = Vec::new();
        for ranges in chunks(now.union(&known).ranges(), size) {
            let bytes: u64 = ranges.iter().map(PageRange::bytes).sum();
            buffer.resize(bytes as usize, 0);
            read(&ranges, &mut buffer)?;
            let contents: Vec<&[u8]> = buffer.chunks_exact(size as usize).collect();
            let pages = ranges
                .iter()
                .flat_map(|range| (range.start()..range.end()).step_by(size as usize));
            for (page, hash) in pages.zip(Hash::of_pages(&contents)) {
                let expected = then.get(&page).copied().flatten().unwrap_or(zeros);
                if hash != expected {
                    return Ok(PageRange::new(page, page + size));
                }
            }
        }
        Ok(None)
    }
}

/// A mapping that is not the same then and now. Both lists ascend.
fn other_mapping(then: &[&Mapping], now: &[Region]) -> Option<PageRange> {
    let differ = |(then, now): &(&&Mapping, &Region)| {
        (
            then.range,
            then.permissions,
            then.offset,
            then.device,
            then.inode,
        ) != (
            now.range,
            now.permissions,
            now.offset,
            now.device,
            now.inode,
        )
    };
    if let Some((mapping, region)) = then.iter().zip(now).find(differ) {
        return Some(std::cmp::min(mapping.range, region.range));
    }
    let rest_then = then.iter().map(|mapping| mapping.range).nth(now.len());
    let rest_now = now.iter().map(|region| region.range).nth(then.len());
    rest_then.or(rest_now)
}
