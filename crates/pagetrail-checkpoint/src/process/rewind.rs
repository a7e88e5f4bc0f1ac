//! Putting a living process back to an earlier instant of its own: memory and registers.
//!
//! What the kernel keeps for it does not go back: positions in files, what was sent and received,
//! timers, children, its mappings. So the threads must be the same, the mappings still there and
//! the same descriptors open, and that is found out before anything is touched. While memory is
//! neither of then nor of now, the process must not run: should the rewinding itself be killed in
//! that time, the kernel kills the process with it.

use super::describe;
use crate::error::{Error, Result};
use crate::format::manifest::{Descriptor, Manifest, Process};
use crate::store::image::Image;
use pagetrail::{
    Held, HeldThread, Hold, IfAbandoned, Memory, PageRange, PageSet, Region, page_size,
    pages_with_content,
};
use std::collections::BTreeMap;
use std::time::Duration;

/// How much is compared at a time, in bytes.
const CHUNK_BYTES: u64 = 4 << 20;

/// Of how many descriptors a refusal says how they differ.
const DIFFERENCES_SAID: usize = 4;

/// What a rewind has done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rewound {
    /// Pages that were put back.
    pub pages: u64,
    /// How long the process stood still.
    pub pause: Duration,
    /// Bytes in mappings that came after the checkpoint; they stay, and the program does not know
    /// them.
    pub later_bytes: u64,
    /// How descriptors differ from what the program believes of them now, a line each: positions in
    /// files, and, if the rewind was forced, others that are open.
    pub descriptors: Vec<String>,
}

impl Image {
    /// Puts the process that this image is of back to its instant.
    ///
    /// # Errors
    ///
    /// The process is another one or has ended; its threads are others than then; a mapping has
    /// gone or changed; a page that had contents cannot be read any more; other descriptors are
    /// open; the store is damaged. The process goes on untouched then. If memory cannot be written,
    /// what was written is undone.
    pub fn rewind(&mut self, pid: u32) -> Result<Rewound> {
        self.rewind_held(pid, false, || hold(pid))
    }

    /// Rewinds also where other descriptors are open than then: a program that finds a connection
    /// of then in another's place, or reads twice what it has read, may do what it never would.
    ///
    /// # Errors
    ///
    /// As [`Self::rewind`], but for descriptors.
    pub fn rewind_whatever_is_open(&mut self, pid: u32) -> Result<Rewound> {
        self.rewind_held(pid, true, || hold(pid))
    }

    /// Rewinds what `hold` holds: a target that is not the program of its process, a guest of KVM
    /// say. Its registers are those that its source [has](pagetrail::Held::threads). With `force`
    /// as [`Self::rewind_whatever_is_open`].
    ///
    /// # Errors
    ///
    /// As [`Self::rewind`], and those of `hold`.
    pub fn rewind_held(
        &mut self,
        pid: u32,
        force: bool,
        hold: impl FnOnce() -> pagetrail::Result<Box<dyn Held>>,
    ) -> Result<Rewound> {
        let manifest = self.manifest().clone();
        let process = manifest.process.as_ref().filter(|process| {
            process.pid == pid && Some(process.start_ticks) == describe::start_ticks(pid)
        });
        let Some(process) = process else {
            return Err(refused(pid, "it is not the process of this checkpoint"));
        };
        if process.threads.is_empty() {
            let reason = "the checkpoint has no registers";
            return Err(refused(pid, reason));
        }
        // Every page is read once before the process is stopped: damage shall be found now.
        let mapped = manifest.process_mappings();
        let mapped: PageSet = mapped.map(|mapping| mapping.range).collect();
        let wanted = self.pages().intersection(&mapped);
        let mut buffer = Vec::new();
        for chunk in chunks(&wanted) {
            buffer.resize(chunk.bytes() as usize, 0);
            self.read(chunk, &mut buffer)?;
        }
        let memory = Memory::of(pid)?;
        let mut hold = hold()?;
        // A process with no auxiliary vector is a guest's.
        if process.auxv.is_empty() != hold.memory().is_some() {
            let reason = match process.auxv.is_empty() {
                true => "the checkpoint is of a guest of KVM, and the process is none now",
                false => "it is a guest of KVM, and the checkpoint is of its process",
            };
            return Err(refused(pid, reason));
        }
        let mut regions = memory.mappings()?;
        if let Some(own) = hold.memory() {
            regions.retain(|region| !own.intersection(&region.range.into()).is_empty());
        }
        let then = same_threads(pid, process, &*hold)?;
        let later_bytes = check_mappings(pid, &manifest, &regions)?;
        let of_target = |mut all: Vec<Descriptor>| {
            all.retain(|one| !hold.other_descriptors().contains(&one.number));
            all
        };
        let (others, mut descriptors) = differences(
            &of_target(process.descriptors.clone()),
            &of_target(describe::descriptors(pid)),
        );
        if !others.is_empty() && !force {
            let reason = format!(
                "other descriptors are open than then: {}",
                some(&others, DIFFERENCES_SAID)
            );
            return Err(refused(pid, &reason));
        }
        descriptors.splice(0..0, others);
        let mut candidates = wanted.clone();
        let mappings = manifest.process_mappings();
        for mapping in mappings.filter(|mapping| mapping.saved) {
            for region in regions
                .iter()
                .filter(|r| r.range.intersection(&mapping.range).is_some())
            {
                // What has contents now and had none then becomes zero.
                let contents = pages_with_content(pid, region)?;
                candidates.union_with(&contents.intersection(&PageSet::from_iter([mapping.range])));
            }
        }
        self.check_is_there(pid, &memory, &wanted)?;
        hold.if_abandoned(IfAbandoned::Kill)?;
        // A system call that has ended for this may have started a thread, which would go on where
        // it is, in memory of another time.
        if let Err(error) = same_threads(pid, process, &*hold) {
            hold.if_abandoned(IfAbandoned::GoOn)?;
            return Err(error);
        }
        let now = hold.threads().to_vec();
        let mut undo = Vec::new();
        let outcome = self
            .put_back(&memory, &mut *hold, &candidates, &regions, &mut undo)
            .and_then(|()| Ok(hold.set_registers(&then)?));
        if let Err(error) = outcome {
            for (address, before) in undo.iter().rev() {
                memory.write(*address, before)?;
            }
            hold.set_registers(&now)?;
            hold.if_abandoned(IfAbandoned::GoOn)?;
            return Err(error);
        }
        hold.if_abandoned(IfAbandoned::GoOn)?;
        Ok(Rewound {
            pages: undo
                .iter()
                .map(|(_, bytes)| bytes.len() as u64)
                .sum::<u64>()
                / u64::from(manifest.page_size),
            pause: hold.release(),
            later_bytes,
            descriptors,
        })
    }

    /// Makes sure that every page with contents then can be read now, and so be written: no line of
    /// the maps tells of a guard page, nor of a file that has become shorter.
    fn check_is_there(&mut self, pid: u32, memory: &Memory, pages: &PageSet) -> Result<()> {
        let (mut then, mut now) = (Vec::new(), Vec::new());
        for chunk in chunks(pages) {
            now.resize(chunk.bytes() as usize, 0);
            let missing = memory.read(&[chunk], &mut now)?;
            if !missing.is_empty() {
                then.resize(chunk.bytes() as usize, 0);
                self.read(chunk, &mut then)?;
                check_is_empty(pid, chunk, &missing, &then)?;
            }
        }
        Ok(())
    }

    /// Writes the pages that differ; `undo` gets what was there.
    ///
    /// Shared memory that is mapped several times (a sub-page heap is) is written at each of its
    /// addresses: who tracks the process tells by the address which part of a page was written.
    fn put_back(
        &mut self,
        memory: &Memory,
        hold: &mut dyn Held,
        pages: &PageSet,
        regions: &[Region],
        undo: &mut Vec<(u64, Vec<u8>)>,
    ) -> Result<()> {
        let page_size = self.manifest().page_size as usize;
        let (mut then, mut now) = (Vec::new(), Vec::new());
        for chunk in chunks(pages) {
            then.resize(chunk.bytes() as usize, 0);
            now.resize(chunk.bytes() as usize, 0);
            self.read(chunk, &mut then)?;
            let missing = memory.read(&[chunk], &mut now)?;
            check_is_empty(hold.pid(), chunk, &missing, &then)?;
            let both = then
                .chunks_exact(page_size)
                .zip(now.chunks_exact(page_size));
            let each = (chunk.start()..).step_by(page_size).zip(both);
            // One that cannot be read now is zeros in both.
            let differing = each.filter(|(_, (then, now))| then != now);
            let differing: Vec<_> = differing.collect();
            let addresses = differing.iter().map(|(address, _)| *address);
            let all = addresses
                .flat_map(|address| std::iter::once(address).chain(aliases(regions, address)));
            let page = |address| PageRange::new(address, address + page_size as u64);
            hold.announce_writes(&all.filter_map(page).collect())?;
            for (address, (then, now)) in differing {
                undo.push((address, now.to_vec()));
                memory.write(address, then)?;
                for alias in aliases(regions, address) {
                    memory.write(alias, then)?;
                }
            }
        }
        Ok(())
    }
}

/// Refuses pages of a chunk that cannot be read now and had contents then. What could not be read
/// then either is zeros in the image.
fn check_is_empty(pid: u32, chunk: PageRange, missing: &PageSet, then: &[u8]) -> Result<()> {
    let missing = missing.ranges().iter().map(|range| {
        let at = |address| (address - chunk.start()) as usize;
        (range.start(), &then[at(range.start())..at(range.end())])
    });
    let byte_of = |bytes: &[u8]| bytes.iter().position(|byte| *byte != 0);
    let lost = missing.filter_map(|(start, then)| Some(start + byte_of(then)? as u64));
    match lost.min() {
        None => Ok(()),
        Some(address) => {
            let page = address - address % page_size();
            let reason = format!(
                "its page at {page:#x} cannot be read any more (a guard page, or its file is shorter)"
            );
            Err(refused(pid, &reason))
        }
    }
}

/// The other addresses at which a page of shared memory is mapped.
fn aliases(regions: &[Region], address: u64) -> impl Iterator<Item = u64> + '_ {
    let shown = |region: &Region, address: u64| address - region.range.start() + region.offset;
    let here = regions.partition_point(|region| region.range.end() <= address);
    let here = regions.get(here).filter(|region| {
        region.permissions.shared && region.inode != 0 && region.range.start() <= address
    });
    here.into_iter().flat_map(move |here| {
        let at = shown(here, address);
        let others = regions.iter().filter(move |other| {
            (other.inode, other.device) == (here.inode, here.device) && other.permissions.write
        });
        others.filter_map(move |other| {
            let alias = other
                .range
                .start()
                .checked_add(at.checked_sub(other.offset)?)?;
            (alias < other.range.end() && alias != address).then_some(alias)
        })
    })
}

/// How the open descriptors differ: which are others, then which are elsewhere in the same file.
fn differences(then: &[Descriptor], now: &[Descriptor]) -> (Vec<String>, Vec<String>) {
    let by_number = |all: &[Descriptor]| -> BTreeMap<u32, Descriptor> {
        all.iter().map(|one| (one.number, one.clone())).collect()
    };
    let (then, now) = (by_number(then), by_number(now));
    let (mut others, mut moved) = (Vec::new(), Vec::new());
    for (number, was) in &then {
        match now.get(number) {
            None => others.push(format!("{number} ({}) is closed", was.target)),
            Some(is) if is.target != was.target => others.push(format!(
                "{number} leads to {} instead of {}",
                is.target, was.target
            )),
            Some(is) if is.position != was.position => moved.push(format!(
                "descriptor {number} ({}) is at byte {}, and was at {}",
                was.target, is.position, was.position
            )),
            Some(_) => {}
        }
    }
    let new = now.iter().filter(|(number, _)| !then.contains_key(number));
    others.extend(new.map(|(number, is)| format!("{number} ({}) is new", is.target)));
    (others, moved)
}

/// The first of some lines, and how many there are besides.
fn some(lines: &[String], most: usize) -> String {
    let said = lines[..lines.len().min(most)].join(", ");
    match lines.len() - lines.len().min(most) {
        0 => said,
        more => format!("{said}, and {more} more"),
    }
}

fn refused(pid: u32, reason: &str) -> Error {
    Error::Refused(format!("process {pid} cannot be rewound: {reason}"))
}

fn hold(pid: u32) -> pagetrail::Result<Box<dyn Held>> {
    Ok(Box::new(Hold::process(pid)?))
}

/// The threads of the image, if they are those that are held.
fn same_threads(pid: u32, process: &Process, hold: &dyn Held) -> Result<Vec<HeldThread>> {
    let tids = |threads: &mut dyn Iterator<Item = u32>| {
        let mut tids: Vec<u32> = threads.collect();
        tids.sort_unstable();
        tids
    };
    let then = tids(&mut process.threads.iter().map(|thread| thread.held.tid));
    let now = tids(&mut hold.threads().iter().map(|thread| thread.tid));
    if then != now {
        let gone = then.iter().filter(|tid| !now.contains(tid)).count();
        let new = now.iter().filter(|tid| !then.contains(tid)).count();
        let reason = format!(
            "of its {} threads then {gone} have ended, and {new} are new",
            then.len()
        );
        return Err(refused(pid, &reason));
    }
    Ok(process
        .threads
        .iter()
        .map(|thread| thread.held.clone())
        .collect())
}

/// Makes sure that all mappings with contents are still what they were; gives the bytes of those
/// that came later.
fn check_mappings(pid: u32, then: &Manifest, now: &[Region]) -> Result<u64> {
    let mapped: PageSet = now.iter().map(|region| region.range).collect();
    for mapping in then.process_mappings() {
        let special = mapping.name.starts_with("[vvar") || mapping.name == "[vsyscall]";
        if special {
            continue;
        }
        let kind = |inode: u64, device: (u32, u32), permissions| (inode, device, permissions);
        let was = kind(mapping.inode, mapping.device, mapping.permissions);
        let same = mapped.covers(mapping.range)
            && now
                .iter()
                .filter(|region| region.range.intersection(&mapping.range).is_some())
                .all(|region| kind(region.inode, region.device, region.permissions) == was);
        if !same {
            let (range, name) = (mapping.range, &mapping.name);
            let reason = format!("its mapping {range} {name} has gone or changed");
            return Err(refused(pid, &reason));
        }
    }
    let before: PageSet = then
        .process_mappings()
        .map(|mapping| mapping.range)
        .collect();
    Ok(mapped.difference(&before).bytes())
}

fn chunks(pages: &PageSet) -> impl Iterator<Item = PageRange> + '_ {
    pages.ranges().iter().flat_map(|range| {
        let starts = (range.start()..range.end()).step_by(CHUNK_BYTES as usize);
        starts.filter_map(|start| PageRange::new(start, range.end().min(start + CHUNK_BYTES)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_differ_by_what_they_lead_to() {
        let open = |number, target: &str, position| Descriptor {
            number,
            target: target.into(),
            position,
            flags: 0,
        };
        let then = [open(0, "/a", 1), open(3, "socket:[1]", 0), open(4, "/b", 0)];
        let now = [open(0, "/a", 2), open(3, "socket:[2]", 0), open(5, "/c", 0)];
        let (others, moved) = differences(&then, &now);
        let expected = [
            "3 leads to socket:[2] instead of socket:[1]",
            "4 (/b) is closed",
            "5 (/c) is new",
        ];
        assert_eq!(others, expected);
        assert_eq!(moved, ["descriptor 0 (/a) is at byte 2, and was at 1"]);
        assert_eq!(some(&others, 1), format!("{}, and 2 more", expected[0]));
        assert_eq!(differences(&then, &then), Default::default());
    }
}
