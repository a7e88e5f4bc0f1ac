//! The stack of the program's first thread, which grows down as it is used, up to its limit.
//!
//! The kernel lets a process's own stack grow where it is accessed (mm/mmap.c, `expand_stack()`),
//! as far as `RLIMIT_STACK` permits at that moment. Accesses by KVM do not make a mapping grow.
//! Therefore the machine reserves as much address space as the program may ever need. Faults in the
//! guest make it accessible and give it to the program. A system call does so down to the stack
//! pointer, since the kernel would find nothing below.

use std::io;

use pagetrail::PageRange;
use rustix::process::{Resource, getrlimit};

use super::areas::Allowed;
use super::mapping::{PRIVATE, readable, release};
use super::{Memory, PAGE};
use crate::sys::call::call;

/// The most that is reserved, which is also what is reserved without a limit.
const ROOM_MAX: u64 = 64 << 30;
/// The reservation where the limit is lower but may be raised: more than there is natively below a
/// stack in use. It must fit into a limit on all address space that the program sets later.
const ROOM_TO_RAISE: u64 = 1 << 30;
/// The smallest reservation, where the limit is lower than any program and its arguments need.
const ROOM_MIN: u64 = 1 << 20;
/// The step by which the stack grows, in bytes.
const STEP: u64 = 64 << 10;
/// The gap that stays free between the stack and a mapping below (`stack_guard_gap`).
const GUARD_BYTES: u64 = 1 << 20;
/// The fraction of a limit on all address space that the reservation may take.
const PART_OF_ALL: u64 = 8;

impl Memory {
    /// Reserves address space for the first stack, and returns its upper end. Nothing of it is
    /// accessible yet.
    pub(crate) fn reserve_stack(&mut self) -> io::Result<u64> {
        let limit = getrlimit(Resource::Stack);
        let soft = limit.current.unwrap_or(ROOM_MAX);
        let mut room = limit
            .maximum
            .unwrap_or(ROOM_MAX)
            .min(soft.max(ROOM_TO_RAISE));
        if let Some(all) = getrlimit(Resource::As).current {
            room = room.min(soft.max(all / PART_OF_ALL)).min(all / 2);
        }
        room = room.clamp(ROOM_MIN, ROOM_MAX).next_multiple_of(PAGE);
        loop {
            let flags = PRIVATE | (libc::MAP_NORESERVE | libc::MAP_STACK) as u64;
            let start = call(
                libc::SYS_mmap,
                &[0, room + GUARD_BYTES, 0, flags, u64::MAX, 0],
            );
            match u64::try_from(start) {
                Ok(start) => {
                    let top = start + GUARD_BYTES + room;
                    self.stack_reservation = PageRange::new(start + GUARD_BYTES, top);
                    return Ok(top);
                }
                Err(_) if room > ROOM_MIN => room = (room / 2).max(ROOM_MIN) & !(PAGE - 1),
                Err(_) => return Err(io::Error::from_raw_os_error(-start as i32)),
            }
        }
    }

    /// Makes the upper part of a new stack accessible, from `from` to its upper end.
    pub(crate) fn begin_stack(&mut self, from: u64, protection: u64) -> bool {
        let Some(room) = self.stack_reservation else {
            return false;
        };
        let start = (from & !(PAGE - 1)).max(room.start());
        PageRange::new(start, room.end())
            .is_some_and(|first| self.grow_by(first, Allowed::from_protection(protection)))
    }

    /// The stack of the program's first thread, as far as it has grown.
    pub(crate) fn stack(&self) -> Option<PageRange> {
        let room = self.stack_reservation?;
        let (lowest, _) = *self.areas.pieces(room).first()?;
        PageRange::new(lowest.start(), room.end())
    }

    /// Whether an address is within the stack's reservation.
    pub(crate) fn is_in_stack_reservation(&self, address: u64) -> bool {
        self.stack_reservation
            .is_some_and(|room| room.contains(address))
    }

    /// Grows the stack down to an address, if nothing is there and the limit permits it. Returns
    /// whether the address is mapped now.
    pub(crate) fn grow_stack(&mut self, address: u64) -> bool {
        let Some(room) = self.stack_reservation.filter(|room| room.contains(address)) else {
            return false;
        };
        let page = address & !(PAGE - 1);
        let above = PageRange::new(page, room.end());
        let above = above.map_or_else(Vec::new, |range| self.areas.pieces(range));
        let Some((lowest, allowed)) = above.first().copied() else {
            return false;
        };
        if lowest.contains(address) {
            return true;
        }
        let limit = getrlimit(Resource::Stack).current.unwrap_or(u64::MAX);
        if room.end() - page > limit {
            return false;
        }
        // Grow by more than the page, as far as the space is free and the limit permits.
        let below = PageRange::new(room.start(), page);
        let below = below.map_or_else(Vec::new, |range| self.areas.pieces(range));
        let taken = below.last().map_or(room.start(), |(piece, _)| piece.end());
        let permitted = room.end().saturating_sub(limit).next_multiple_of(PAGE);
        let start = (page & !(STEP - 1)).max(taken).max(permitted);
        PageRange::new(start, lowest.start()).is_some_and(|grown| self.grow_by(grown, allowed))
    }

    fn grow_by(&mut self, grown: PageRange, allowed: Allowed) -> bool {
        if allowed.write && self.exceeds_limit(grown.bytes()) {
            return false;
        }
        let protection = readable(allowed.declared.into());
        let made = call(
            libc::SYS_mprotect,
            &[grown.start(), grown.bytes(), protection],
        ) == 0;
        if made {
            self.areas.insert(grown, allowed);
        }
        made
    }

    /// Takes a range out of the stack's reservation for good, before the program maps something
    /// there: the stack no longer grows beyond it.
    pub(super) fn shrink_stack(&mut self, range: PageRange) {
        let Some(room) = self.stack_reservation.filter(|room| meets(*room, range)) else {
            return;
        };
        let end = (range.end().saturating_add(GUARD_BYTES)).min(room.end());
        let left = PageRange::new(room.start() - GUARD_BYTES, end);
        let gaps = left.map_or_else(Vec::new, |left| self.areas.gaps(left));
        gaps.iter().for_each(release);
        self.stack_reservation = PageRange::new(end, room.end());
    }

    /// Reserves again a range of the stack that the program unmaps. Returns `None` if the range is
    /// not within the reservation.
    pub(super) fn keep_reserved(&self, range: PageRange) -> Option<i64> {
        let room = self.stack_reservation?;
        (room.intersection(&range) == Some(range)).then(|| {
            let flags = PRIVATE | (libc::MAP_FIXED | libc::MAP_NORESERVE) as u64;
            let kept = [range.start(), range.bytes(), 0, flags, u64::MAX, 0];
            call(libc::SYS_mmap, &kept).min(0)
        })
    }

    /// The range that `mprotect(2)` changes with `PROT_GROWSDOWN`: down to the start of the
    /// mapping. Returns `None` for a mapping that does not grow.
    pub(super) fn downwards(&self, range: PageRange) -> Option<PageRange> {
        let room = self.stack_reservation?;
        let (first, _) = *self.areas.pieces(range).first()?;
        let (area, _) = self.areas.at(first.start())?;
        let is_stack = room.contains(first.start());
        let start = area.start().max(room.start());
        is_stack.then(|| PageRange::new(start, range.end()))?
    }
}

fn meets(one: PageRange, other: PageRange) -> bool {
    one.intersection(&other).is_some()
}
