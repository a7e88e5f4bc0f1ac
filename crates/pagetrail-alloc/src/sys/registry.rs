//! Which memory is a heap's: from an address to what is there, in two steps, without a lock.
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

/// What is in a step of addresses.
struct Entry {
    /// A pointer to the description, and its [`Kind`].
    description: AtomicUsize,
    /// Of a superblock: where the books of its slabs are; else 0. All that `free` of a small object asks for.
    hint: AtomicUsize,
}

type Leaf = [Entry; LEAF_ENTRIES];

static LEAVES_TABLE: [AtomicPtr<Leaf>; LEAVES] = [const { AtomicPtr::new(null_mut()) }; LEAVES];

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

/// What the registry says of an address.
#[derive(Clone, Copy)]
pub(crate) struct Found {
    pub(crate) kind: Kind,
    pub(crate) description: usize,
    pub(crate) hint: usize,
}

const NOTHING: Found = Found {
    kind: Kind::None,
    description: 0,
    hint: 0,
};

#[inline(always)]
fn entry(address: usize) -> Option<&'static Entry> {
    let leaf = LEAVES_TABLE
        .get(address >> LEAF_SHIFT)?
        .load(Ordering::Acquire);
    // SAFETY: leaves are never given back, and all their words may be read by anybody.
    let leaf = unsafe { leaf.as_ref()? };
    Some(&leaf[address >> STEP_SHIFT & (LEAF_ENTRIES - 1)])
}

/// The hint of an address, 0 where no superblock is.
#[inline(always)]
pub(crate) fn hint(address: usize) -> usize {
    entry(address).map_or(0, |entry| entry.hint.load(Ordering::Acquire))
}

/// The entry of an address.
#[inline(always)]
pub(crate) fn find(address: usize) -> Found {
    let Some(entry) = entry(address) else {
        return NOTHING;
    };
    let description = entry.description.load(Ordering::Acquire);
    let kind = match description & 3 {
        1 => Kind::Superblock,
        2 => Kind::Arena,
        3 => Kind::Huge,
        _ => Kind::None,
    };
    Found {
        kind,
        description: description & !3,
        hint: entry.hint.load(Ordering::Relaxed),
    }
}

/// Enters `bytes` from `start` on, all or nothing; `hint` gives that of each step.
pub(crate) fn enter(
    start: usize,
    bytes: usize,
    kind: Kind,
    description: usize,
    hint: impl Fn(usize) -> usize,
) -> Result<(), Errno> {
    let _writing = WRITING.lock();
    let steps = start >> STEP_SHIFT..(start + bytes).div_ceil(STEP);
    if steps.end > LEAVES * LEAF_ENTRIES {
        return Err(Errno::NOMEM);
    }
    let leaves = steps.start / LEAF_ENTRIES..steps.end.div_ceil(LEAF_ENTRIES);
    for leaf in &LEAVES_TABLE[leaves] {
        if leaf.load(Ordering::Relaxed).is_null() {
            // Zeros are entries without anything.
            let fresh = map::private(size_of::<Leaf>(), align_of::<Leaf>(), false)?;
            leaf.store(fresh.cast(), Ordering::Release);
        }
    }
    for step in steps {
        set(step, description | kind as usize, hint(step * STEP));
    }
    Ok(())
}

/// Takes an entry back.
pub(crate) fn leave(start: usize, bytes: usize) {
    let _writing = WRITING.lock();
    for step in start >> STEP_SHIFT..(start + bytes).div_ceil(STEP) {
        set(step, 0, 0);
    }
}

fn set(step: usize, description: usize, hint: usize) {
    let leaf = LEAVES_TABLE[step / LEAF_ENTRIES].load(Ordering::Relaxed);
    // SAFETY: the leaves of what is entered exist, for good.
    let entry = unsafe { &(*leaf)[step % LEAF_ENTRIES] };
    entry.hint.store(hint, Ordering::Release);
    entry.description.store(description, Ordering::Release);
}
