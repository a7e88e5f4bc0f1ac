//! Which memory belongs to a heap: from an address to its entry, in two steps, without a lock.
//!
//! A table of the address space in steps of 2 MiB, in leaves of 1 GiB that are made when they are
//! needed and kept. What is entered begins at a multiple of the step and has it for itself.

use super::lock::Locked;
use super::map;
use crate::geometry::SubpageBits;
use rustix::io::Errno;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering};

/// Bytes of address space in one entry.
pub(crate) const STEP: usize = 1 << STEP_SHIFT;
const STEP_SHIFT: u32 = 21;
const LEAF_ENTRIES: usize = 512;
const LEAF_SHIFT: u32 = 30;
/// User addresses are below 2^47, unless a program asks for more.
const LEAVES: usize = 1 << (47 - LEAF_SHIFT);

/// What is in a step of addresses; of a power of two of bytes, so that finding it takes a shift.
#[repr(C, align(32))]
struct Entry {
    /// A pointer to the description, and its [`Kind`].
    description: AtomicUsize,
    /// The two fields of a [`Hint`].
    slabs: AtomicUsize,
    subpage: AtomicU32,
}

/// All that `free` of a small object needs, where a step is in one alias of a superblock.
#[derive(Clone, Copy)]
pub(crate) struct Hint {
    /// The metadata of the step's first slab, which that of the others follows; 0 where the step
    /// has no hint.
    pub(crate) slabs: usize,
    /// The bits that an address at which an object is handed out has in this alias.
    pub(crate) subpage: SubpageBits,
}

impl Hint {
    pub(crate) const NONE: Self = Self {
        slabs: 0,
        subpage: SubpageBits(0),
    };
}

type Leaf = [Entry; LEAF_ENTRIES];

static LEAVES_TABLE: [AtomicPtr<Leaf>; LEAVES] = [const { AtomicPtr::new(null_mut()) }; LEAVES];

/// Taken by a thread that adds or removes an entry.
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
}

const NOTHING: Found = Found {
    kind: Kind::None,
    description: 0,
};

#[inline(always)]
fn entry(address: usize) -> Option<&'static Entry> {
    let leaf = LEAVES_TABLE
        .get(address >> LEAF_SHIFT)?
        .load(Ordering::Acquire);
    // SAFETY: leaves are never freed, and all their words are atomic.
    let leaf = unsafe { leaf.as_ref()? };
    Some(&leaf[address >> STEP_SHIFT & (LEAF_ENTRIES - 1)])
}

/// The hint of an address, if there is one.
#[inline(always)]
pub(crate) fn hint(address: usize) -> Option<Hint> {
    let entry = entry(address)?;
    let slabs = entry.slabs.load(Ordering::Acquire);
    let subpage = SubpageBits(entry.subpage.load(Ordering::Relaxed));
    (slabs != 0).then_some(Hint { slabs, subpage })
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
    }
}

/// Enters `bytes` from `start` on, all or nothing; `hint` gives that of each step.
pub(crate) fn enter(
    start: usize,
    bytes: usize,
    kind: Kind,
    description: usize,
    hint: impl Fn(usize) -> Hint,
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
        set(step, 0, Hint::NONE);
    }
}

fn set(step: usize, description: usize, hint: Hint) {
    let leaf = LEAVES_TABLE[step / LEAF_ENTRIES].load(Ordering::Relaxed);
    // SAFETY: the leaves of what is entered exist, for good.
    let entry = unsafe { &(*leaf)[step % LEAF_ENTRIES] };
    entry.subpage.store(hint.subpage.0, Ordering::Relaxed);
    entry.slabs.store(hint.slabs, Ordering::Release);
    entry.description.store(description, Ordering::Release);
}
