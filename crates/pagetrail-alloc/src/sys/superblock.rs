//! [`Superblock`]: memory with slabs, and where it is mapped. [`Superblocks`]: all of a heap, of
//! one kind.

use super::descriptor::Descriptor;
use super::lasting::Lasting;
use super::lookup::{At, at};
use super::map;
use super::pool::Pool;
use super::registry::{self, Hint, Kind, STEP};
use super::slab::{Key, Slab, SlabGuard};
use crate::geometry::{self, Aliases, PAGE, SLAB};
use crate::shape;
use crate::subpage_count::SubpageCount;
use rustix::io::Errno;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

/// The first superblock of a heap, in bytes; each further one is as large as all before it.
const BYTES_MIN: usize = 16 << 20;
const BYTES_MAX: usize = 1 << 30;

/// The smallest, where the program may have no more addresses (`RLIMIT_AS`).
const BYTES_LEAST: usize = SLAB;

/// A class with fewer slabs takes memory in small steps, so many pages of a slab at a time.
const FEW_SLABS: u32 = 16;
const FEW_PAGES: u32 = 4;
const SLAB_PAGES: u32 = (SLAB / PAGE) as u32;

/// What a superblock is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Backing {
    /// Shared memory that is mapped once per sub-page, and listed in the descriptor for trackers.
    Aliased,
    /// Private memory that is mapped once, for objects of a page and more.
    Plain,
}

impl Backing {
    /// Slabs that are not used are kept while they are no more than this, or an eighth of those
    /// that are.
    fn kept_slabs(self) -> usize {
        match self {
            Self::Aliased => 64,
            Self::Plain => 32,
        }
    }
}

/// What every superblock of a heap has in common.
pub(crate) struct Common {
    pub(crate) subpages: SubpageCount,
    /// The heap of the superblocks, as an address that is only compared.
    pub(crate) owner: usize,
    pub(crate) descriptor: Descriptor,
}

/// Memory with slabs.
pub(crate) struct Superblock {
    pub(crate) aliases: Aliases,
    pub(crate) backing: Backing,
    pub(crate) owner: usize,
    subpages: usize,
    slabs: *mut Slab,
    count: usize,
    /// What the shared table says of each slab.
    table: *mut AtomicU64,
    next: Option<Lasting<Superblock>>,
    /// Where its contents are copied for a child that is about to be forked.
    copy: AtomicPtr<u8>,
}

// SAFETY: its pointers are to slabs, which are `Sync`, and to a table of atomic words; its other
// fields are atomic or never change.
unsafe impl Sync for Superblock {}

/// The superblocks of a heap.
pub(crate) struct Superblocks {
    backing: Backing,
    /// Opens the slabs that have no class.
    key: Key,
    newest: Option<Lasting<Superblock>>,
    /// Slabs of the newest that were used at some time.
    begun: usize,
    /// Slabs that were used and have no class: those whose pages are still there, and the others.
    kept: Option<Lasting<Slab>>,
    kept_count: usize,
    free: Option<Lasting<Slab>>,
    /// Slabs with a class.
    used: usize,
    bytes: usize,
    count: usize,
}

impl Superblocks {
    pub(crate) const fn new(backing: Backing, key: Key) -> Self {
        Self {
            backing,
            key,
            newest: None,
            begun: 0,
            kept: None,
            kept_count: 0,
            free: None,
            used: 0,
            bytes: 0,
            count: 0,
        }
    }

    /// How many there are, and how many bytes of objects they have room for.
    pub(crate) fn size(&self) -> (usize, usize) {
        (self.count, self.bytes)
    }

    /// A slab for objects of a class, by the class's key.
    pub(crate) fn take(
        &mut self,
        key: &mut Key,
        common: &Common,
        pool: &mut Pool,
    ) -> Result<Lasting<Slab>, Errno> {
        let class = key.class().ok_or(Errno::INVAL)?;
        let marks = pool.take(shape::marks_bytes(class))?;
        let slab = match self.unused(common, pool) {
            Ok(slab) => slab,
            Err(errno) => {
                // SAFETY: taken a moment ago.
                unsafe { pool.give(marks, shape::marks_bytes(class)) };
                return Err(errno);
            }
        };
        let merged = self.backing == Backing::Aliased && common.descriptor.merges(class);
        // SAFETY: the marks are fresh, and have the length for the class of the key.
        let guard = unsafe { SlabGuard::begin(slab, &mut self.key, key, marks, merged) };
        guard.superblock().publish(&guard);
        self.used += 1;
        Ok(slab)
    }

    fn unused(&mut self, common: &Common, pool: &mut Pool) -> Result<Lasting<Slab>, Errno> {
        for list in [&mut self.kept, &mut self.free] {
            if let Some(slab) = *list {
                self.kept_count = self.kept_count.saturating_sub(1);
                *list = SlabGuard::open(slab, &mut self.key).next.take();
                return Ok(slab);
            }
        }
        let newest = match self.newest {
            Some(newest) if self.begun < newest.count => newest,
            _ => self.grow(common, pool)?,
        };
        // SAFETY: the superblock has a slab that was never used, so nobody has a reference to it
        // but to its zeros, which say that it has no objects.
        unsafe {
            let slab = newest.slabs.add(self.begun);
            slab.write(Slab::empty(newest, &self.key));
            self.begun += 1;
            Ok(Lasting::new(slab))
        }
    }

    /// Adds a superblock, a smaller one where a large one cannot be had.
    fn grow(&mut self, common: &Common, pool: &mut Pool) -> Result<Lasting<Superblock>, Errno> {
        let mut bytes = self.bytes.clamp(BYTES_MIN, BYTES_MAX).next_power_of_two();
        let made = loop {
            match Superblock::make(self.backing, bytes, self.newest, common, pool) {
                Err(Errno::NOMEM) if bytes > BYTES_LEAST => bytes /= 2,
                made => break made?,
            }
        };
        self.newest = Some(made);
        self.begun = 0;
        self.bytes += bytes;
        self.count += 1;
        Ok(made)
    }

    /// Takes back a slab that has no owner and is in no list, and all of whose objects are in;
    /// gives memory to the system if enough is kept.
    ///
    /// # Safety
    ///
    /// The slab is from [`Self::take`] with this pool.
    pub(crate) unsafe fn give(&mut self, guard: SlabGuard<'_>, pool: &mut Pool) {
        let slab = guard.slab();
        let (mut guard, marks, bytes) = guard.end(&mut self.key);
        // SAFETY: the marks are from this pool, and the slab does not use them any more.
        unsafe { pool.give(marks, bytes) };
        self.used -= 1;
        guard.superblock().publish(&guard);
        guard.previous = None;
        guard.next = self.kept.replace(slab);
        self.kept_count += 1;
        while self.kept_count > self.backing.kept_slabs().max(self.used / 8)
            && let Some(slab) = self.kept
        {
            self.kept_count -= 1;
            let mut guard = SlabGuard::open(slab, &mut self.key);
            self.kept = std::mem::replace(&mut guard.next, self.free.replace(slab));
            guard.superblock().remove(&mut guard);
        }
    }

    /// Calls `each` with all superblocks and the number of their slabs that were used, until it
    /// fails.
    pub(crate) fn try_for_each(
        &self,
        mut each: impl FnMut(&Superblock, usize) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let mut at = self.newest;
        let mut begun = Some(self.begun);
        while let Some(superblock) = at {
            at = superblock.next;
            each(superblock.get(), begun.take().unwrap_or(superblock.count))?;
        }
        Ok(())
    }

    /// Gives everything back to the kernel.
    ///
    /// # Safety
    ///
    /// No object or slab is used any more.
    pub(crate) unsafe fn drop_all(&mut self) {
        let _ = self.try_for_each(|superblock, _| {
            let base = superblock.aliases.base();
            registry::leave(base, superblock.span());
            // SAFETY: no object or slab is used any more, and both mappings have these lengths
            // since `make`.
            unsafe {
                map::unmap(base as *mut u8, superblock.span());
                map::unmap(superblock.slabs.cast(), metadata_bytes(superblock.count));
            }
            Ok(())
        });
        (self.newest, self.kept, self.free) = (None, None, None);
    }
}

/// The length of the slabs' metadata and of the shared table, which follows it.
fn metadata_bytes(slabs: usize) -> usize {
    slabs * (size_of::<Slab>() + size_of::<AtomicU64>())
}

impl Superblock {
    fn make(
        backing: Backing,
        bytes: usize,
        next: Option<Lasting<Self>>,
        common: &Common,
        pool: &mut Pool,
    ) -> Result<Lasting<Self>, Errno> {
        let divided = match backing {
            Backing::Aliased => common.subpages,
            Backing::Plain => SubpageCount::ONE,
        };
        let subpages = divided.count() as usize;
        let count = bytes / SLAB;
        let place = pool.take(size_of::<Self>())?.cast::<Self>();
        let metadata = map::private(metadata_bytes(count), 64, true);
        let span = (bytes * subpages).next_multiple_of(STEP);
        let base = metadata.and_then(|_| match backing {
            Backing::Aliased => map::addresses(span, STEP),
            Backing::Plain => map::private(span, STEP, true),
        });
        let made = base.and_then(|base| {
            // SAFETY: no other thread has these addresses; `metadata` and `place` are fresh,
            // aligned and large enough.
            unsafe {
                if backing == Backing::Aliased {
                    map::map_aliases(base, bytes, subpages)?;
                }
                let slabs = metadata?.cast::<Slab>();
                place.write(Self {
                    aliases: Aliases::new(base as usize, bytes, divided),
                    backing,
                    owner: common.owner,
                    subpages,
                    slabs,
                    count,
                    table: slabs.add(count).cast(),
                    next,
                    copy: AtomicPtr::new(null_mut()),
                });
                let superblock = &*place;
                let hint = |step| superblock.hint(step);
                registry::enter(base as usize, span, Kind::Superblock, place as usize, hint)?;
                if backing == Backing::Aliased {
                    let table = superblock.table as usize;
                    common.descriptor.add(&superblock.aliases, table, count);
                }
            }
            // SAFETY: it was written above, into memory that the pool keeps.
            Ok(unsafe { Lasting::new(place) })
        });
        if made.is_err() {
            // SAFETY: the mappings and the block were made here, and no pointer to them has left
            // this function.
            unsafe {
                if let Ok(base) = base {
                    map::unmap(base, span);
                }
                if let Ok(metadata) = metadata {
                    map::unmap(metadata, metadata_bytes(count));
                }
                pool.give(place.cast(), size_of::<Self>());
            }
        }
        made
    }

    /// The length of all aliases together, in bytes.
    fn span(&self) -> usize {
        (self.aliases.bytes() * self.subpages).next_multiple_of(STEP)
    }

    /// The hint for the registry. Small aliases have none; they are made where the program may have
    /// few addresses.
    fn hint(&self, step: usize) -> Hint {
        if self.aliases.bytes() < STEP {
            return Hint::NONE;
        }
        let (offset, _) = self.aliases.offset(step);
        Hint {
            slabs: self.slabs as usize + offset / SLAB * size_of::<Slab>(),
            subpage: self.aliases.subpage_bits(self.aliases.alias(step)),
        }
    }

    /// The slab of an address, by the hint of the registry. One that was never used is zeros, and
    /// has no objects.
    ///
    /// # Safety
    ///
    /// The hint is of this address.
    #[inline(always)]
    pub(crate) unsafe fn slab_by_hint(hint: Hint, address: usize) -> Lasting<Slab> {
        let number = (address / SLAB) % (STEP / SLAB);
        // SAFETY: the metadata has room for the slabs of a whole step, and stays with the heap.
        unsafe { Lasting::new((hint.slabs as *const Slab).add(number)) }
    }

    /// The slab of an address in this superblock.
    pub(crate) fn slab_at(&self, address: usize) -> Lasting<Slab> {
        let (offset, _) = self.aliases.offset(address);
        // SAFETY: the metadata has room for all slabs, and stays with the heap.
        unsafe { Lasting::new(self.slabs.add(offset / SLAB)) }
    }

    /// The slab of an address, if a superblock is there.
    #[inline]
    pub(crate) fn slab_of(address: usize) -> Option<Lasting<Slab>> {
        match registry::hint(address) {
            // SAFETY: the hint is of this address.
            Some(hint) => Some(unsafe { Self::slab_by_hint(hint, address) }),
            None => Self::slab_without_hint(address),
        }
    }

    #[cold]
    fn slab_without_hint(address: usize) -> Option<Lasting<Slab>> {
        match at(address) {
            At::Superblock(superblock) => Some(superblock.slab_at(address)),
            _ => None,
        }
    }

    /// The address at which a slab hands out an object that begins at an offset in the superblock.
    #[inline]
    pub(crate) fn address(&self, slab: &Slab, offset: usize) -> usize {
        match slab.is_merged() {
            true => self.aliases.address_in(0, offset),
            false => self.aliases.address(offset),
        }
    }

    /// Whether an object at this address of the superblock is handed out there.
    pub(crate) fn hands_out(&self, slab: &Slab, address: usize) -> bool {
        let (_, is_of_subpage) = self.aliases.offset(address);
        is_of_subpage || slab.is_merged() && self.aliases.alias(address) == 0
    }

    /// Where a slab begins.
    pub(crate) fn offset_of(&self, slab: Lasting<Slab>) -> usize {
        (slab.as_ptr() as usize - self.slabs as usize) / size_of::<Slab>() * SLAB
    }

    /// Says in the shared table what a slab is.
    fn publish(&self, guard: &SlabGuard<'_>) {
        let word = guard.slab().shape().size() as u64
            | u64::from(guard.touched_pages) << 16
            | u64::from(guard.slab().is_merged()) << 31
            | guard.generation << 32;
        // SAFETY: the table has a word for each slab.
        unsafe {
            (*self.table.add(self.offset_of(guard.slab()) / SLAB)).store(word, Ordering::Release);
        }
    }

    /// Enters the pages of a slab that its objects have reached in the page tables of all aliases.
    /// Faults are left to enter the pages of large objects, which may be used only partly, and of a
    /// slab that is the only one of its class (`slabs`).
    ///
    /// One call per alias is cheaper than a fault per page and alias, and most pages are written in
    /// all of them sooner or later. They are entered by writing, although reading would enter
    /// neighbours along with a page: marking an entry as written later costs the processor more
    /// than that (`bench/README.md`), or a fault while the memory is tracked. These pages are new,
    /// so they count as written anyway. Aliases in which few objects begin are left alone.
    pub(crate) fn touch(&self, guard: &mut SlabGuard<'_>, slabs: u32) {
        let needed = guard.high_pages();
        if needed <= guard.touched_pages {
            return;
        }
        if self.backing == Backing::Plain || slabs <= 1 {
            guard.touched_pages = needed;
            self.publish(guard);
            return;
        }
        let to = match slabs < FEW_SLABS {
            true => needed.next_multiple_of(FEW_PAGES).min(SLAB_PAGES),
            false => SLAB_PAGES,
        };
        let pages = guard.touched_pages as usize..to as usize;
        let from = self.offset_of(guard.slab()) + pages.start * PAGE;
        let bytes = pages.len() * PAGE;
        guard.touched_pages = to;
        self.publish(guard);
        let busy = match guard.slab().is_merged() {
            true => 1,
            false => geometry::busy_subpages(guard.slab().shape().size(), self.subpages, pages),
        };
        for subpage in (0..self.subpages).filter(|subpage| busy >> subpage & 1 != 0) {
            // SAFETY: mapped and writable.
            unsafe { map::populate(self.aliases.address_in(subpage, from), bytes) };
        }
    }

    /// Gives the memory of a slab without objects back.
    fn remove(&self, guard: &mut SlabGuard<'_>) {
        let start = self.aliases.address_in(0, self.offset_of(guard.slab()));
        let bytes = guard.touched_pages as usize * PAGE;
        // SAFETY: the slab is empty, so no object is in these pages.
        unsafe {
            match self.backing {
                Backing::Aliased => map::remove(start, bytes),
                Backing::Plain => _ = map::discard(start, bytes),
            }
        }
        guard.touched_pages = 0;
        self.publish(guard);
    }

    /// Copies what objects can be in to fresh shared memory, for a child. `begun` slabs were used.
    ///
    /// # Safety
    ///
    /// All locks of the heap are held.
    pub(crate) unsafe fn copy_for_child(&self, begun: usize) -> Result<(), Errno> {
        let copy = map::shared(self.aliases.bytes())?;
        self.copy.store(copy, Ordering::Relaxed);
        for index in 0..begun {
            // SAFETY: the caller holds all locks, so that the slab's metadata does not change; both
            // mappings are as long as an alias. The program's other threads may write meanwhile, as
            // they may while the kernel copies at a `fork(2)`.
            unsafe {
                let slab = &*self.slabs.add(index);
                let bytes = slab.high_pages_with_all_locks() as usize * PAGE;
                let from = self.aliases.address_in(0, index * SLAB) as *const u8;
                std::ptr::copy_nonoverlapping(from, copy.add(index * SLAB), bytes);
            }
        }
        Ok(())
    }

    /// In a forked child: puts the copy in the place of the memory that is the parent's.
    ///
    /// # Safety
    ///
    /// No other thread runs.
    pub(crate) unsafe fn use_copy(&self) -> Result<(), Errno> {
        let base = self.aliases.base() as *mut u8;
        let bytes = self.aliases.bytes();
        let copy = self.copy.swap(null_mut(), Ordering::Relaxed);
        if copy.is_null() {
            return Err(Errno::NOMEM);
        }
        // SAFETY: both are ours; addresses stay what they were.
        unsafe {
            map::replace(base, copy, bytes)?;
            map::alias_first(base, bytes, self.subpages)
        }
    }

    /// In the parent: the copy is the child's.
    pub(crate) fn drop_copy(&self) {
        let copy = self.copy.swap(null_mut(), Ordering::Relaxed);
        if !copy.is_null() {
            // SAFETY: `copy_for_child` made the copy, and nothing in the parent uses it.
            unsafe { map::unmap(copy, self.aliases.bytes()) };
        }
    }
}
