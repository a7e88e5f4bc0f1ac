//! Which memory is a heap's: from an address to what is there, in two loads, without a lock.
//!
//! A table of the address space in steps of 2 MiB, in leaves of 1 GiB that are made when they are needed and kept. What is
//! entered begins at a multiple of the step and has it for itself.

use super::lock::Locked;
use super::map;
use rustix::io::Errno;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

/// Bytes of address space in one entry.
pub(crate) const STEP: usize = 1 << STEP_SHIFT;
const STEP_SHIFT: u32 = 21;
const LEAF_ENTRIES: usize = 512;
const LEAF_SHIFT: u32 = 30;
/// User addresses are below 2^47, unless a program asks for more.
const LEAVES: usize = 1 << (47 - LEAF_SHIFT);

type Leaf = [AtomicUsize; LEAF_ENTRIES];

static LEAVES_TABLE: [AtomicPtr<Leaf>; LEAVES] =
    [const { AtomicPtr::new(null_mut()) }; LEAVES];

/// Taken by whoever enters something.
pub(crate) static WRITING: Locked<()> = Locked::new(());

/// What kind of memory an entry is, in the low bits of a pointer to its description.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    None = 0,
    Superblock = 1,
    Arena = 2,
    Huge = 3,
}

/// The entry of an address: what is there, and where its description is.
#[inline]
pub(crate) fn find(address: usize) -> (Kind, usize) {
    let Some(leaf) = LEAVES_TABLE.get(address >> LEAF_SHIFT) else {
        return (Kind::None, 0);
    };
    let leaf = leaf.load(Ordering::Acquire);
    if leaf.is_null() {
        return (Kind::None, 0);
    }
    // SAFETY: leaves are never given back, and all their words may be read by anybody.
    let entry = unsafe { &(*leaf)[address >> STEP_SHIFT & (LEAF_ENTRIES - 1)] };
    let entry = entry.load(Ordering::Acquire);
    let kind = match entry & 3 {
        1 => Kind::Superblock,
        2 => Kind::Arena,
        3 => Kind::Huge,
        _ => Kind::None,
    };
    (kind, entry & !3)
}

/// Enters `bytes` from `start` on, all or nothing.
pub(crate) fn enter(
    start: usize,
    bytes: usize,
    kind: Kind,
    description: usize,
) -> Result<(), Errno> {
    let _writing = WRITING.lock();
    let steps = start >> STEP_SHIFT..(start + bytes).div_ceil(STEP);
    if steps.end > LEAVES * LEAF_ENTRIES {
        return Err(Errno::NOMEM);
    }
    for leaf in steps.start / LEAF_ENTRIES..steps.end.div_ceil(LEAF_ENTRIES) {
        if LEAVES_TABLE[leaf].load(Ordering::Relaxed).is_null() {
            // Zeros are entries without anything.
            let fresh = map::private(size_of::<Leaf>(), align_of::<Leaf>(), false)?;
            LEAVES_TABLE[leaf].store(fresh.cast(), Ordering::Release);
        }
    }
    set(steps, description | kind as usize);
    Ok(())
}

/// Takes an entry back.
pub(crate) fn leave(start: usize, bytes: usize) {
    let _writing = WRITING.lock();
    set(start >> STEP_SHIFT..(start + bytes).div_ceil(STEP), 0);
}

fn set(steps: std::ops::Range<usize>, entry: usize) {
    for step in steps {
        let leaf = LEAVES_TABLE[step / LEAF_ENTRIES].load(Ordering::Relaxed);
        // SAFETY: the leaves of what is entered exist, for good.
        unsafe { (&(*leaf))[step % LEAF_ENTRIES].store(entry, Ordering::Release) };
    }
}
