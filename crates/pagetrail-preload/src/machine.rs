//! [`Machine`]: the own bits where the program is a guest of `pagetrail vm`, read from the page
//! tables of the machine, without a system call and without a fault; a clear is one call.
//!
//! For collectors alone. The machine does not see what other processes write to this memory, and a
//! mapping that is new is clean until it is written to.
//!
//! A system call of a guest is a VM exit, which costs as much as some ten calls natively; a lock
//! that no signal handler may find taken costs two. So reads and clears find the machine by [`of`],
//! and take none: the page tables are words that are read atomically, and a clear is one call of
//! the machine's. Whether a descriptor is still what it was is read from such words, too
//! ([`descriptor_changes`]).

use std::sync::atomic::{AtomicBool, Ordering};

use crate::sys::guard;
use crate::sys::published::Published;
use pagetrail_guest::{Error, Guest, Kinds, Range};

/// The end of the addresses that page tables of four levels have for programs.
const USER_END: u64 = 1 << 47;
const PAGE: u64 = 4096;
/// Bit 55 of an entry of `pagemap`.
const SOFT_DIRTY: u64 = 1 << 55;
const ENTRY: usize = size_of::<u64>();

/// The machine of this process, or of the one whose fork it is.
static MACHINE: Published<Machine> = Published::none();

/// The machine, and whether all bits have been cleared: until then everything counts as written.
#[derive(Debug)]
pub(crate) struct Machine {
    guest: Guest,
    /// The process.
    pid: u32,
    is_cleared: AtomicBool,
}

/// The machine of a process, if that is this one, and a collector with a machine. Safe at any
/// moment, as long as the call is the program's own.
#[inline]
pub(crate) fn of(pid: u32) -> Option<&'static Machine> {
    of_own_state().filter(|machine| machine.pid == pid)
}

/// A number that stays the same as long as this process closes no descriptor and puts none in
/// another's place, where the machine says so ([`Guest::descriptor_changes`]).
#[inline]
pub(crate) fn descriptor_changes() -> Option<u64> {
    of_own_state()?.guest.descriptor_changes()
}

/// The machine, if the state is this process's.
#[inline]
fn of_own_state() -> Option<&'static Machine> {
    if_own(guard::has_own_state, || MACHINE.get())
}

/// What is published, if the state is this process's. In this order: who sees that the state is of
/// a forked child sees as well that what its parent has published is forgotten.
#[inline]
fn if_own<T>(
    has_own_state: impl FnOnce() -> bool,
    published: impl FnOnce() -> Option<T>,
) -> Option<T> {
    has_own_state().then(published).flatten()
}

/// Forgets the machine: in a forked child, whose parent's it is.
pub(crate) fn forget() {
    MACHINE.set(None);
}

impl Machine {
    /// Starts to keep the own bits, if there is a machine that can.
    pub(crate) fn start(pid: u32) -> Result<&'static Self, Error> {
        let machine: &'static Self = Box::leak(Box::new(Self {
            guest: Guest::open()?,
            pid,
            is_cleared: AtomicBool::new(false),
        }));
        MACHINE.set(Some(machine));
        Ok(machine)
    }

    /// Clears all bits.
    pub(crate) fn clear(&self) -> Result<(), Error> {
        let all = Range {
            start: PAGE,
            end: USER_END - PAGE,
        };
        self.guest.forget(all, Kinds::DIRTY)?;
        self.is_cleared.store(true, Ordering::Release);
        Ok(())
    }

    /// Makes everything count as written until the next clear.
    pub(crate) fn give_up(&self) {
        self.is_cleared.store(false, Ordering::Release);
    }

    /// Whether so many bytes can be written where the program says, without a fault.
    pub(crate) fn can_write(&self, address: u64, bytes: u64) -> bool {
        let end = address.checked_add(bytes);
        end.filter(|end| *end < USER_END).is_some_and(|end| {
            let start = address & !(PAGE - 1);
            self.guest.is_writable(Range { start, end })
        })
    }

    /// Fills in entries, from that of address `first` on, with nothing in them but bit 55. False
    /// where all of it counts as written, or is no program's memory.
    pub(crate) fn bare(&self, first: u64, entries: &mut [u8]) -> bool {
        let bytes = (entries.len() / ENTRY) as u64 * PAGE;
        let Some(end) = first.checked_add(bytes).filter(|end| *end < USER_END) else {
            return false;
        };
        if !self.is_cleared.load(Ordering::Acquire) {
            return false;
        }
        entries.fill(0);
        self.guest
            .look(Range { start: first, end }, Kinds::DIRTY, |page| {
                let at = ((page - first) / PAGE) as usize * ENTRY;
                if let Some(entry) = entries.get_mut(at..at + ENTRY) {
                    entry.copy_from_slice(&SOFT_DIRTY.to_ne_bytes());
                }
            });
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn a_forked_childs_thread_does_not_get_what_another_has_just_forgotten() {
        let published = Cell::new(Some(1));
        // Another thread makes the state the child's own just when this one asks.
        let reset = || {
            published.set(None);
            true
        };
        assert_eq!(if_own(reset, || published.get()), None);
        published.set(Some(2));
        assert_eq!(if_own(|| false, || published.get()), None);
        assert_eq!(if_own(|| true, || published.get()), Some(2));
    }
}
