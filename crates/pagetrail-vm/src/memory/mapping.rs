//! The system calls that change mappings: `mmap(2)`, `munmap(2)`, `mprotect(2)`,
//! `madvise(2)`, `brk(2)`; [`super::mremap`] has `mremap(2)`.
//!
//! Each is the kernel's own call on this process, restricted to the program's addresses, with areas
//! and page tables updated accordingly. Results are as the kernel returns them: a negative number
//! is an error.
//!
//! Page-table entries of what is unmapped or protected are removed *before* the kernel's call. That
//! call takes the pages from KVM through its MMU notifiers, since guest-physical memory is this
//! address space, and KVM makes every vCPU flush its TLB before the call returns. A vCPU that
//! accesses the pages again finds no entry, and its fault waits until the call is done. When one of
//! these calls returns, no thread still uses what was there, as natively; and no thread sees the
//! machine's own memory if the kernel maps some there at once.

use std::os::fd::RawFd;

use pagetrail::{PageRange, PageSet, Region};

use super::areas::Allowed;
use super::{Memory, PAGE, USER_END};
use crate::error::{Error, Result};
use crate::sys::call::call;
use crate::sys::descriptors;

const EINVAL: i64 = -(libc::EINVAL as i64);
const ENOMEM: i64 = -(libc::ENOMEM as i64);
/// The flags of private anonymous memory.
pub(crate) const PRIVATE: u64 = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as u64;
/// Guard pages without mappings (not in the crate `libc` yet), of which the areas would not know.
const MADV_GUARD_INSTALL: u64 = 102;
const MADV_GUARD_REMOVE: u64 = 103;

/// All protections: read, write, execute, and `PROT_SEM`, which x86 accepts and ignores.
const PROTECTIONS: u64 = 0xf;

/// The arguments of `mmap(2)`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mmap {
    pub(crate) address: u64,
    pub(crate) bytes: u64,
    pub(crate) protection: u64,
    pub(crate) flags: u64,
    pub(crate) descriptor: u64,
    pub(crate) offset: u64,
}

impl Mmap {
    /// Private anonymous memory at any address.
    pub(crate) fn anonymous(bytes: u64, protection: libc::c_int) -> Self {
        Self {
            address: 0,
            bytes,
            protection: protection as u64,
            flags: PRIVATE,
            descriptor: u64::MAX,
            offset: 0,
        }
    }
}

pub(super) fn has(flags: u64, flag: libc::c_int) -> bool {
    flags & flag as u64 != 0
}

/// The whole pages of a range that starts at a page.
pub(super) fn pages(address: u64, bytes: u64) -> Option<PageRange> {
    let end = address.checked_add(bytes.checked_next_multiple_of(PAGE)?)?;
    let range = PageRange::new(address, end)?;
    (address.is_multiple_of(PAGE) && end <= USER_END).then_some(range)
}

/// The protection for the kernel's call. KVM reads memory that the program may only execute, so
/// that it must be readable.
pub(super) fn readable(protection: u64) -> u64 {
    match Allowed::from_protection(protection).read {
        true => protection | libc::PROT_READ as u64,
        false => protection,
    }
}

impl Memory {
    /// `mmap(2)`.
    pub(crate) fn mmap(&mut self, mut wanted: Mmap) -> Result<i64> {
        if has(wanted.flags, libc::MAP_GROWSDOWN) {
            // The area would not grow. Programs do without it.
            return Ok(EINVAL);
        }
        if self.reads_execute(wanted.protection, Some(wanted)) {
            wanted.protection |= libc::PROT_EXEC as u64;
        }
        let fixed =
            has(wanted.flags, libc::MAP_FIXED) && !has(wanted.flags, libc::MAP_FIXED_NOREPLACE);
        let mut address = wanted.address;
        let mut reserved = Vec::new();
        if Allowed::from_protection(wanted.protection).write {
            let replaced = pages(address, wanted.bytes).filter(|_| fixed);
            let replaced = replaced.map_or(0, |range| self.areas.writable_bytes_in(range));
            if self.exceeds_limit(wanted.bytes.saturating_sub(replaced)) {
                return Ok(ENOMEM);
            }
        }
        if has(wanted.flags, libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE)
            && let Some(range) = pages(address, wanted.bytes)
        {
            self.shrink_stack(range);
        }
        if fixed {
            match pages(address, wanted.bytes) {
                Some(range) => {
                    reserved = self.reserve_gaps(range)?;
                    self.clear_entries(range)?;
                }
                None if wanted.bytes == 0 || !address.is_multiple_of(PAGE) => return Ok(EINVAL),
                None => return Ok(ENOMEM),
            }
        } else if address >= USER_END {
            // The hint is an address that four levels of tables do not reach.
            address = 0;
        }
        let result = call(
            libc::SYS_mmap,
            &[
                address,
                wanted.bytes,
                readable(wanted.protection),
                wanted.flags,
                wanted.descriptor,
                wanted.offset,
            ],
        );
        match u64::try_from(result)
            .ok()
            .and_then(|start| pages(start, wanted.bytes))
        {
            Some(range) => {
                self.note_replaced(range)?;
                self.areas
                    .insert(range, Allowed::from_protection(wanted.protection));
            }
            None => reserved.iter().for_each(release),
        }
        Ok(result)
    }

    /// `munmap(2)`, for the program's part of the range.
    pub(crate) fn munmap(&mut self, address: u64, bytes: u64) -> Result<i64> {
        let Some(range) = pages(address, bytes) else {
            return Ok(EINVAL);
        };
        for (piece, _) in self.areas.pieces(range) {
            self.clear_entries(piece)?;
            let result = match self.keep_reserved(piece) {
                Some(result) => result,
                None => {
                    self.shrink_stack(piece);
                    call(libc::SYS_munmap, &[piece.start(), piece.bytes()])
                }
            };
            if result < 0 {
                return Ok(result);
            }
            self.note_replaced(piece)?;
            self.areas.remove(piece);
        }
        Ok(0)
    }

    /// `mprotect(2)`, which does its work up to the first gap.
    pub(crate) fn mprotect(&mut self, address: u64, bytes: u64, protection: u64) -> Result<i64> {
        let grows = (libc::PROT_GROWSDOWN | libc::PROT_GROWSUP) as u64;
        let (grows, mut protection) = (protection & grows, protection & !grows);
        let Some(mut range) = pages(address, bytes) else {
            return Ok(match bytes {
                0 if address.is_multiple_of(PAGE) => 0,
                _ if address.is_multiple_of(PAGE) => ENOMEM,
                _ => EINVAL,
            });
        };
        if protection & !PROTECTIONS != 0 {
            return Ok(EINVAL);
        }
        if self.reads_execute(protection, None) {
            protection |= libc::PROT_EXEC as u64;
        }
        if grows == libc::PROT_GROWSDOWN as u64 {
            match self.downwards(range) {
                Some(more) => range = more,
                None if self.areas.pieces(range).is_empty() => return Ok(ENOMEM),
                None => return Ok(EINVAL),
            }
        } else if grows != 0 {
            // Nothing grows upwards on x86.
            let is_mapped = self.areas.at(address).is_some();
            return Ok(if is_mapped { EINVAL } else { ENOMEM });
        }
        let Some(reached) = self.areas.before_gap(range) else {
            return Ok(ENOMEM);
        };
        if Allowed::from_protection(protection).write
            && self.exceeds_limit(reached.bytes() - self.areas.writable_bytes_in(reached))
        {
            return Ok(ENOMEM);
        }
        // Piece by piece, since the kernel also keeps what it has done when it fails at a later
        // mapping.
        for (piece, _) in self.areas.pieces(reached) {
            self.clear_entries(piece)?;
            let result = call(
                libc::SYS_mprotect,
                &[piece.start(), piece.bytes(), readable(protection)],
            );
            if result < 0 {
                return Ok(result);
            }
            self.areas
                .protect(piece, Allowed::from_protection(protection));
        }
        Ok(if reached == range { 0 } else { ENOMEM })
    }

    /// `madvise(2)`.
    pub(crate) fn madvise(&mut self, address: u64, bytes: u64, advice: u64) -> Result<i64> {
        // Programs do without guards, which an older kernel lacks.
        if matches!(advice, MADV_GUARD_INSTALL | MADV_GUARD_REMOVE) {
            return Ok(EINVAL);
        }
        // The kernel checks the advice and the address before it looks for mappings.
        let known = call(libc::SYS_madvise, &[address, 0, advice]);
        if known < 0 || bytes == 0 {
            return Ok(known);
        }
        let Some(range) = pages(address, bytes) else {
            return Ok(EINVAL);
        };
        let populates = [libc::MADV_POPULATE_READ, libc::MADV_POPULATE_WRITE];
        let populates = populates.iter().any(|known| *known as u64 == advice);
        let reached = match self.areas.before_gap(range) {
            reached if populates => reached,
            _ => Some(range),
        };
        let discards = [
            libc::MADV_DONTNEED,
            libc::MADV_FREE,
            libc::MADV_REMOVE,
            libc::MADV_DONTNEED_LOCKED,
        ];
        let discards = discards.iter().any(|known| *known as u64 == advice);
        for (piece, allowed) in reached.map_or_else(Vec::new, |reached| self.areas.pieces(reached))
        {
            if advice == libc::MADV_POPULATE_READ as u64 && !allowed.declares_reading() {
                return Ok(EINVAL);
            }
            let result = call(libc::SYS_madvise, &[piece.start(), piece.bytes(), advice]);
            if result < 0 {
                return Ok(result);
            }
            if discards {
                self.note_changed(piece)?;
            }
            self.has_uninherited |= advice == libc::MADV_DONTFORK as u64;
            self.has_wiped |= advice == libc::MADV_WIPEONFORK as u64;
        }
        Ok(if self.areas.cover(range) { 0 } else { ENOMEM })
    }

    /// Removes what a forked child has not inherited because the program requested that
    /// (`MADV_DONTFORK`).
    pub(super) fn keep_inherited(&mut self) -> Result<()> {
        if !self.has_uninherited {
            return Ok(());
        }
        let all = self.areas.all();
        self.drop_unmapped_of(&all)
    }

    /// Marks what a forked child may have as zeros because the program requested that: all memory,
    /// since such a mapping may have been moved.
    pub(super) fn mark_wiped(&mut self) -> Result<()> {
        if !self.has_wiped {
            return Ok(());
        }
        let all = self.areas.all();
        let mut ranges = all.ranges().iter();
        ranges.try_for_each(|range| self.note_changed(*range))
    }

    /// Removes what the kernel has unmapped in a range.
    pub(super) fn drop_unmapped(&mut self, range: PageRange) -> Result<()> {
        let pieces = self.areas.pieces(range).into_iter();
        let pieces = pieces.map(|(piece, _)| piece).collect();
        self.drop_unmapped_of(&pieces)
    }

    fn drop_unmapped_of(&mut self, pages: &PageSet) -> Result<()> {
        let regions = Region::of_process(std::process::id());
        let regions = regions.map_err(|error| Error::Stopped(error.to_string()))?;
        let mapped: PageSet = regions.iter().map(|region| region.range).collect();
        for lost in pages.difference(&mapped).ranges() {
            self.clear_entries(*lost)?;
            self.note_replaced(*lost)?;
            self.areas.remove(*lost);
        }
        Ok(())
    }

    /// Sets where the heap starts: after a program that has just been loaded.
    pub(crate) fn set_break(&mut self, address: u64) {
        let start = address.next_multiple_of(PAGE);
        self.heap = start..start;
    }

    /// `brk(2)`. Where the break cannot move, it stays, as with the kernel.
    pub(crate) fn brk(&mut self, address: u64) -> Result<i64> {
        let (now, wanted) = (
            self.heap.end.next_multiple_of(PAGE),
            address.next_multiple_of(PAGE),
        );
        if address < self.heap.start || address >= USER_END {
            return Ok(self.heap.end as i64);
        }
        // The kernel leaves a page free after the heap (mm/mmap.c).
        let close = PageRange::new(now, wanted.saturating_add(PAGE));
        let close = close.map_or_else(Vec::new, |range| self.areas.pieces(range));
        let moved = match PageRange::new(now, wanted) {
            Some(_) if !close.is_empty() => false,
            Some(grown) => {
                let added = Mmap {
                    address: now,
                    flags: PRIVATE | libc::MAP_FIXED_NOREPLACE as u64,
                    ..Mmap::anonymous(grown.bytes(), libc::PROT_READ | libc::PROT_WRITE)
                };
                self.mmap(added)? >= 0
            }
            None if wanted < now => self.munmap(wanted, now - wanted)? == 0,
            None => true,
        };
        if moved {
            self.heap.end = address;
        }
        Ok(self.heap.end as i64)
    }

    /// Whether readable memory becomes executable although the program did not request it, since
    /// `personality(2)` says so. A file on a file system without execution is excepted.
    fn reads_execute(&self, protection: u64, mapping: Option<Mmap>) -> bool {
        if !self.reading_executes || !has(protection, libc::PROT_READ) {
            return false;
        }
        let file = mapping.filter(|mapping| !has(mapping.flags, libc::MAP_ANONYMOUS));
        !file.is_some_and(|mapping| descriptors::is_never_executed(mapping.descriptor as RawFd))
    }

    /// Whether `added` more bytes of writable memory would exceed the program's limit.
    pub(super) fn exceeds_limit(&self, added: u64) -> bool {
        let bytes = self.areas.writable_bytes().saturating_add(added);
        added > 0 && self.bytes_max.is_some_and(|max| bytes > max)
    }

    /// Reserves the free parts of a range, before the program maps something over it.
    pub(super) fn reserve_gaps(&self, range: PageRange) -> Result<Vec<PageRange>> {
        let mut reserved = Vec::new();
        for gap in self.areas.gaps(range) {
            let flags = PRIVATE | (libc::MAP_FIXED_NOREPLACE | libc::MAP_NORESERVE) as u64;
            let wanted = [gap.start(), gap.bytes(), 0, flags, u64::MAX, 0];
            match -call(libc::SYS_mmap, &wanted) {
                error if error == i64::from(libc::EEXIST) => {
                    reserved.iter().for_each(release);
                    return Err(Error::Unsupported(format!(
                        "a mapping at {gap}, over the machine's own memory"
                    )));
                }
                // An address too low for mmap(2), for example: the program's own call reports that.
                error if error > 0 => {}
                _ => reserved.push(gap),
            }
        }
        Ok(reserved)
    }

    /// Notes that the program's memory here is gone, or replaced.
    pub(super) fn note_replaced(&mut self, range: PageRange) -> Result<()> {
        self.open_replaced(range);
        let before = self.areas.pieces(range).into_iter();
        before
            .map(|(piece, _)| piece)
            .try_for_each(|piece| self.note_changed(piece))
    }
}

pub(super) fn release(range: &PageRange) {
    call(libc::SYS_munmap, &[range.start(), range.bytes()]);
}
