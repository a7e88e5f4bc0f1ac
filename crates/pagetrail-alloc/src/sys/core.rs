//! [`Core`]: one heap, which decides where an object goes and what lies at an address.

use super::cache::{self, Cache};
use super::descriptor::Descriptor;
use super::huge::{Huge, Huges};
use super::lasting::Lasting;
use super::lock::Locked;
use super::lookup::{At, at};
use super::map;
use super::pages::{Arena, Pages, RUN_PAGES_MAX};
use super::pool::Pool;
use super::registry;
use super::slab::{ALLOCATED, FREE, Key, Slab, SlabGuard, Slot};
use super::superblock::{Backing, Common, Superblock, Superblocks};
use crate::bin::Bin;
use crate::classes::{self, ALIASED_CLASSES, ALIGN, CLASSES, SMALL_MAX};
use crate::fatal;
use crate::geometry::{PAGE, SLAB};
use crate::subpage_count::SubpageCount;
use rustix::io::Errno;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicU8, Ordering};

/// No object is larger.
const BYTES_MAX: usize = isize::MAX as usize;

/// How many caches are shared by threads that have none of their own.
pub(super) const SHARED_CACHES: usize = 4;

/// A heap's state. Locks are taken in the order of the fields.
pub(crate) struct Core {
    /// Caches for threads that have none of their own.
    pub(super) shared_caches: [Locked<*mut Cache>; SHARED_CACHES],
    pub(super) caches: Locked<Caches>,
    pub(super) bins: [Locked<Bin>; CLASSES],
    pub(super) pages: Locked<Pages>,
    pub(super) huges: Locked<Huges>,
    pub(super) superblocks: Locked<Superblocks>,
    /// Superblocks of objects that share pages but are mapped once.
    pub(super) plain: Locked<Superblocks>,
    pub(super) pool: Locked<Pool>,
    pub(super) common: Common,
    /// The next in the list of all heaps of the process.
    pub(crate) next: *mut Core,
}

/// The caches of a heap.
pub(crate) struct Caches {
    pub(super) all: *mut Cache,
    pub(super) idle: *mut Cache,
}

// SAFETY: the pointers are to caches of this heap, which live as long as it does, and are followed
// under the lock of the caches.
unsafe impl Send for Caches {}

// SAFETY: every field that changes after `make` is behind a lock, or changes under the lock of the
// list of heaps (`next`).
unsafe impl Sync for Core {}

/// What lies at an address.
enum Found<'heap> {
    Small {
        class: usize,
        state: *const AtomicU8,
    },
    Run {
        arena: &'heap Arena,
        state: *const AtomicU8,
        pages: usize,
    },
    Huge {
        huge: *const Huge,
        bytes: usize,
    },
}

impl Core {
    /// Makes a heap.
    pub(crate) fn make(subpages: SubpageCount) -> Result<*mut Self, Errno> {
        let place = map::private(size_of::<Self>(), 4096, false)?.cast::<Self>();
        let owner = place as usize;
        // SAFETY: the memory is fresh and large enough; the heap gets one key of each class and
        // kind, each behind its lock.
        unsafe {
            let bin = |class| Locked::new(Bin::new(Key::of_class(owner, class)));
            let superblocks =
                |backing| Locked::new(Superblocks::new(backing, Key::of_unused(owner, backing)));
            place.write(Self {
                shared_caches: [const { Locked::new(null_mut()) }; SHARED_CACHES],
                caches: Locked::new(Caches {
                    all: null_mut(),
                    idle: null_mut(),
                }),
                bins: std::array::from_fn(bin),
                pages: Locked::new(Pages::new()),
                huges: Locked::new(Huges::new()),
                superblocks: superblocks(Backing::Aliased),
                plain: superblocks(Backing::Plain),
                pool: Locked::new(Pool::new()),
                common: Common {
                    subpages,
                    owner,
                    descriptor: Descriptor::make(subpages),
                },
                next: null_mut(),
            });
        }
        Ok(place)
    }

    pub(crate) fn subpages_per_page(&self) -> SubpageCount {
        self.common.subpages
    }

    pub(crate) fn bin(&self, class: usize) -> &Locked<Bin> {
        &self.bins[class]
    }

    /// The heap as an address that is only compared.
    pub(crate) fn owner(&self) -> usize {
        self.common.owner
    }

    /// A slab for a bin, by the key of its class.
    pub(crate) fn take_slab(&self, key: &mut Key) -> Option<Lasting<Slab>> {
        let mut superblocks = self.superblocks_of(key.class()?).lock();
        let mut pool = self.pool.lock();
        superblocks.take(key, &self.common, &mut pool).ok()
    }

    fn superblocks_of(&self, class: usize) -> &Locked<Superblocks> {
        match class < ALIASED_CLASSES {
            true => &self.superblocks,
            false => &self.plain,
        }
    }

    /// Takes a slab back from a bin; all its objects are in, and it has no owner and is in no list.
    pub(crate) fn give_slab(&self, guard: SlabGuard<'_>) {
        let class = guard.slab().shape().class();
        let mut superblocks = self.superblocks_of(class).lock();
        // SAFETY: a slab of this heap is from `take_slab`, which takes its marks from the same
        // pool; `give` ends the program where it is another heap's.
        unsafe { superblocks.give(guard, &mut self.pool.lock()) };
    }

    /// Takes runs back from a cache.
    pub(crate) fn put_runs(&self, slots: &[Slot]) {
        let mut pages = self.pages.lock();
        for slot in slots {
            let address = slot.object as usize;
            let At::Arena(arena) = at(address) else {
                fatal::abort("the cache that held ", address, " is corrupted");
            };
            pages.give(arena.get(), address);
        }
    }

    /// Memory of at least `size` bytes, not zeroed; null if there is none.
    #[inline(always)]
    pub(crate) fn allocate(&self, cache: &mut Cache, size: usize) -> *mut u8 {
        if size > SMALL_MAX {
            return self.allocate_pages(cache, size, PAGE).0;
        }
        self.allocate_small(cache, classes::class_of(size))
    }

    #[inline(always)]
    fn allocate_small(&self, cache: &mut Cache, class: usize) -> *mut u8 {
        match cache.pop(class) {
            Some(object) => object.as_ptr(),
            None => self.allocate_from_empty(cache, class),
        }
    }

    #[cold]
    #[inline(never)]
    fn allocate_from_empty(&self, cache: &mut Cache, class: usize) -> *mut u8 {
        match cache.fill(class, self).then(|| cache.pop(class)).flatten() {
            Some(object) => object.as_ptr(),
            None => self.allocate_elsewhere(cache, class),
        }
    }

    /// Memory for an object of a class that no slab can be had for, because the process may have no
    /// more addresses or mappings: in a slab of larger objects, or a page of its own. Memory that
    /// was freed there is still mapped.
    #[cold]
    fn allocate_elsewhere(&self, cache: &mut Cache, class: usize) -> *mut u8 {
        let size = usize::from(classes::SIZES[class]);
        // Whatever alignment the class has, which the caller may have asked for.
        let align = 1 << size.trailing_zeros();
        match classes::class_aligned(size.max(PAGE), align) {
            Some(plain) if class < ALIASED_CLASSES => self.allocate_small(cache, plain),
            _ => self.allocate_pages(cache, size, PAGE).0,
        }
    }

    /// Allocates at least `size` bytes from the cache alone; `None` if its magazine is empty or the
    /// object would be large.
    #[inline(always)]
    pub(crate) fn allocate_at_hand(cache: &mut Cache, size: usize) -> Option<NonNull<u8>> {
        match size > SMALL_MAX {
            true => None,
            false => cache.pop(classes::class_of(size)),
        }
    }

    /// Frees a small object into the cache; false if its magazine is full or no small object is
    /// there.
    ///
    /// # Safety
    ///
    /// The program does not use the object any more. An address that is no small object is left
    /// alone.
    #[inline(always)]
    pub(crate) unsafe fn free_at_hand(&self, cache: &mut Cache, object: *mut u8) -> bool {
        match self.find_small(object as usize) {
            // SAFETY: an object and its byte, as found; the program has given it up.
            Some((state, class)) => unsafe { cache.push(class, object, state) },
            None => false,
        }
    }

    /// Allocates at least `size` zeroed bytes; null if there is no memory.
    pub(crate) fn allocate_zeroed(&self, cache: &mut Cache, size: usize) -> *mut u8 {
        let (object, zeroed) = match size > SMALL_MAX {
            true => self.allocate_pages(cache, size, PAGE),
            false => (self.allocate(cache, size), false),
        };
        if !zeroed && !object.is_null() {
            // SAFETY: the object has `size` bytes, and the program does not have it yet.
            unsafe { object.write_bytes(0, size) };
        }
        object
    }

    /// Allocates at least `size` bytes at a multiple of `align`, a power of two; null if there is
    /// no memory.
    pub(crate) fn allocate_aligned(&self, cache: &mut Cache, size: usize, align: usize) -> *mut u8 {
        if align <= ALIGN {
            return self.allocate(cache, size);
        }
        match classes::class_aligned(size, align) {
            Some(class) => self.allocate_small(cache, class),
            None => self.allocate_pages(cache, size, align.max(PAGE)).0,
        }
    }

    /// Whole pages, and whether they are zeros.
    #[inline(never)]
    fn allocate_pages(&self, cache: &mut Cache, size: usize, align: usize) -> (*mut u8, bool) {
        if size > BYTES_MAX || align > BYTES_MAX {
            return (null_mut(), false);
        }
        let pages = size.div_ceil(PAGE).max(1);
        if align == PAGE
            && let Some(magazine) = cache::magazine_of_runs(pages)
            && let Some(object) = cache.pop(magazine)
        {
            return (object.as_ptr(), false);
        }
        let owner = self.common.owner;
        if pages <= RUN_PAGES_MAX && align / PAGE <= RUN_PAGES_MAX {
            let taken = self.pages.lock().take(pages, align / PAGE, owner);
            if let Ok(run) = taken {
                // SAFETY: the byte of a run that was taken a moment ago.
                unsafe { (*run.state).store(ALLOCATED, Ordering::Relaxed) };
                return (run.start, run.zeroed);
            }
            // No room for an arena; there may be some for this.
        }
        let mut huges = self.huges.lock();
        let taken = huges.take(pages * PAGE, align, owner, &mut self.pool.lock());
        (taken.unwrap_or(null_mut()), true)
    }

    /// The small object at an address, if the program has one there: its byte and its class.
    #[inline(always)]
    fn find_small(&self, address: usize) -> Option<(*const AtomicU8, usize)> {
        let hint = registry::hint(address)?;
        // SAFETY: the registry says that a superblock is there, and none is given back before its
        // heap.
        let slab = unsafe { Superblock::slab_by_hint(hint, address) };
        if !(hint.subpage.has(address) || hint.subpage.is_first() && slab.is_merged()) {
            return None;
        }
        self.find_in(slab.get(), address)
    }

    #[inline(always)]
    fn find_in(&self, slab: &Slab, address: usize) -> Option<(*const AtomicU8, usize)> {
        let (state, class) = slab.find(address % SLAB, (&raw const *self) as usize)?;
        (state.load(Ordering::Relaxed) == ALLOCATED).then_some((&raw const *state, class))
    }

    /// What is at an address that the program says is an object; ends the program if none is.
    fn find(&self, address: usize, call: &str) -> Found<'_> {
        if let Some((state, class)) = self.find_small(address) {
            return Found::Small { class, state };
        }
        match at(address) {
            At::Arena(arena) => {
                if let Some((state, pages)) = arena.run_at(address)
                    && arena.owner == self.common.owner
                    && state.load(Ordering::Relaxed) == ALLOCATED
                {
                    let arena = arena.get();
                    return Found::Run {
                        arena,
                        state,
                        pages,
                    };
                }
            }
            At::Huge(huge) => {
                if let Some(bytes) = huge.bytes_at(address)
                    && huge.owner == self.common.owner
                {
                    let huge = huge.as_ptr();
                    return Found::Huge { huge, bytes };
                }
            }
            At::Superblock(superblock) => {
                let slab = superblock.slab_at(address);
                if superblock.hands_out(slab.get(), address)
                    && let Some((state, class)) = self.find_in(slab.get(), address)
                {
                    return Found::Small { class, state };
                }
            }
            At::Nothing => {}
        }
        self.complain(address, call)
    }

    /// Takes an object back.
    ///
    /// # Safety
    ///
    /// The program does not use the object any more. (An address that is no object of this heap
    /// ends the program.)
    #[inline(always)]
    pub(crate) unsafe fn free(&self, cache: &mut Cache, object: *mut u8) {
        // SAFETY: an object and its byte, as found; the program has given it up.
        unsafe {
            match self.find_small(object as usize) {
                Some((state, class)) => self.keep(cache, class, object, state),
                None => self.free_otherwise(cache, object),
            }
        }
    }

    /// Puts a freed object into the cache, which is drained if its magazine is full.
    ///
    /// # Safety
    ///
    /// The program does not use the object any more; the magazine is that of its class, and `state`
    /// is its byte.
    #[inline(always)]
    unsafe fn keep(
        &self,
        cache: &mut Cache,
        magazine: usize,
        object: *mut u8,
        state: *const AtomicU8,
    ) {
        // SAFETY: the object is not used any more, the magazine is that of its class and `state`
        // its byte: the caller's contract has the same conditions as `push`.
        unsafe {
            if !cache.push(magazine, object, state) {
                self.free_to_full(cache, magazine, object, state);
            }
        }
    }

    /// # Safety
    ///
    /// The conditions of [`Self::keep`] hold, and the magazine is full.
    #[cold]
    #[inline(never)]
    unsafe fn free_to_full(
        &self,
        cache: &mut Cache,
        magazine: usize,
        object: *mut u8,
        state: *const AtomicU8,
    ) {
        cache.drain(magazine, self);
        // SAFETY: the conditions of `keep` include those of `push`: a freed object, its magazine
        // and its byte.
        unsafe { cache.push(magazine, object, state) };
    }

    /// # Safety
    ///
    /// The conditions of [`Self::free`] hold.
    #[inline(never)]
    unsafe fn free_otherwise(&self, cache: &mut Cache, object: *mut u8) {
        // SAFETY: objects and their bytes, as found; the program no longer uses this one.
        unsafe {
            match self.find(object as usize, "free of ") {
                Found::Small { class, state } => self.keep(cache, class, object, state),
                Found::Run {
                    arena,
                    state,
                    pages,
                } => match cache::magazine_of_runs(pages) {
                    Some(magazine) => self.keep(cache, magazine, object, state),
                    None => {
                        (*state).store(FREE, Ordering::Relaxed);
                        self.pages.lock().give(arena, object as usize);
                    }
                },
                Found::Huge { huge, .. } => {
                    self.huges.lock().give(huge, &mut self.pool.lock());
                }
            }
        }
    }

    /// How many bytes an object has room for.
    pub(crate) fn usable(&self, object: *mut u8) -> usize {
        match self.find(object as usize, "the size of ") {
            Found::Small { class, .. } => classes::SIZES[class].into(),
            Found::Run { pages, .. } => pages * PAGE,
            Found::Huge { bytes, .. } => bytes,
        }
    }

    /// Gives an object another size, and perhaps another place; null if there is no memory, and it
    /// stays what it was.
    ///
    /// # Safety
    ///
    /// Unless that happens, the program uses the new place alone.
    pub(crate) unsafe fn reallocate(
        &self,
        cache: &mut Cache,
        object: *mut u8,
        size: usize,
    ) -> *mut u8 {
        if size > BYTES_MAX {
            return null_mut();
        }
        let address = object as usize;
        let room = match self.find(address, "realloc of ") {
            Found::Small { class, .. } => classes::SIZES[class].into(),
            Found::Run { arena, pages, .. } => {
                let wanted = size.div_ceil(PAGE);
                let large = pages.min(wanted) > cache::RUN_CLASSES && wanted <= RUN_PAGES_MAX;
                if large && wanted != pages && self.pages.lock().resize(arena, address, wanted) {
                    return object;
                }
                pages * PAGE
            }
            Found::Huge { huge, bytes } => {
                if size > RUN_PAGES_MAX * PAGE {
                    let mut huges = self.huges.lock();
                    // SAFETY: `huge` was found at the object's address, and the caller does not use
                    // the old place after the move.
                    let moved = unsafe { huges.resize(huge, size, &mut self.pool.lock()) };
                    return moved.unwrap_or(null_mut());
                }
                bytes
            }
        };
        // An object is not moved back and forth with each small change of its size.
        if size <= room && size >= room / 2 {
            return object;
        }
        let to = self.allocate(cache, size);
        if to.is_null() {
            return if size <= room { object } else { to };
        }
        // SAFETY: `to` was allocated a moment ago and is another object; the caller uses the old
        // one no more.
        unsafe {
            std::ptr::copy_nonoverlapping(object, to, room.min(size));
            self.free(cache, object);
        }
        to
    }
}
