//! [`Cache`]: free objects of each class that one thread keeps, so that most calls take no lock.

use super::core::{Core, SHARED_CACHES};
use super::lasting::Lasting;
use super::slab::{ALLOCATED, FREE, Slab, Slot};
use super::thread;
use crate::classes::{ALIASED_CLASSES, CLASSES, SIZES};
use crate::geometry::PAGE;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicU8, Ordering};

/// A cache keeps runs of up to this many pages.
pub(crate) const RUN_CLASSES: usize = 8;
/// The number of magazines: one per class, then one per length of runs.
const MAGAZINES: usize = CLASSES + RUN_CLASSES;

/// The bytes of free objects that a magazine of small objects holds at most.
const MAGAZINE_BYTES: usize = 16384;
/// The number of free objects that a magazine of small objects holds at most;
/// [`MAGAZINE_OBJECTS_LEAST`] fit in any case.
const MAGAZINE_OBJECTS: usize = 128;
const MAGAZINE_OBJECTS_LEAST: usize = 8;
/// The bytes that a magazine of objects of a page and more holds at most.
const MAGAZINE_LARGE_BYTES: usize = 65536;
const MAGAZINE_LARGE_OBJECTS: usize = 8;

/// How many objects a magazine gets when it is first filled; the number doubles each time after
/// that.
const FIRST_OBJECTS: u32 = 4;

/// Free objects of a class, from `bottom` up to `top`; the one below `top` is handed out next.
/// Pointers are used rather than an index because a call takes fewer instructions.
struct Magazine {
    top: *mut Slot,
    bottom: *mut Slot,
    end: *mut Slot,
    /// Where objects come from.
    slab: Option<Lasting<Slab>>,
}

impl Magazine {
    fn count(&self) -> u32 {
        // SAFETY: both are in the slots of this magazine, in this order.
        unsafe { self.top.offset_from(self.bottom) as u32 }
    }

    fn capacity(&self) -> u32 {
        // SAFETY: both pointers are into the slots of this magazine, `end` not below `bottom`.
        unsafe { self.end.offset_from(self.bottom) as u32 }
    }

    /// # Safety
    ///
    /// `count` slots from `bottom` on are filled.
    unsafe fn set_count(&mut self, count: u32) {
        // SAFETY: `count` filled slots are within the magazine, so the result is too.
        self.top = unsafe { self.bottom.add(count as usize) };
    }
}

/// The free objects that one thread keeps.
pub(crate) struct Cache {
    magazines: [Magazine; MAGAZINES],
    /// How many objects each magazine gets the next time it is filled.
    batches: [u32; MAGAZINES],
    /// The next cache in the list of all caches of the heap.
    pub(crate) next: *mut Cache,
    /// The next cache in the list of those that no thread uses.
    pub(crate) next_idle: *mut Cache,
}

fn capacity(magazine: usize) -> usize {
    let bytes = match magazine.checked_sub(CLASSES) {
        None => usize::from(SIZES[magazine]),
        Some(less) => (less + 1) * PAGE,
    };
    if magazine < ALIASED_CLASSES {
        (MAGAZINE_BYTES / bytes).clamp(MAGAZINE_OBJECTS_LEAST, MAGAZINE_OBJECTS)
    } else {
        (MAGAZINE_LARGE_BYTES / bytes).min(MAGAZINE_LARGE_OBJECTS)
    }
}

/// The bytes that a cache takes, slots included.
pub(crate) fn bytes() -> usize {
    let slots: usize = (0..MAGAZINES).map(capacity).sum();
    size_of::<Cache>().next_multiple_of(align_of::<Slot>()) + slots * size_of::<Slot>()
}

/// The magazine of runs of this many pages, if they are cached.
#[inline]
pub(crate) fn magazine_of_runs(pages: usize) -> Option<usize> {
    (pages <= RUN_CLASSES).then(|| CLASSES + pages - 1)
}

impl Cache {
    /// Makes an empty cache.
    ///
    /// # Safety
    ///
    /// [`bytes`] at `place` are the caller's, aligned to 64 bytes.
    pub(crate) unsafe fn make(place: *mut u8) -> *mut Self {
        let cache = place.cast::<Self>();
        let after = size_of::<Self>().next_multiple_of(align_of::<Slot>());
        // SAFETY: the caller owns `bytes()` bytes here, which `bytes` computes as this header and
        // the slots of all magazines; 64 is a multiple of both alignments.
        unsafe {
            let mut slots = place.add(after).cast::<Slot>();
            (&raw mut (*cache).next).write(null_mut());
            (&raw mut (*cache).next_idle).write(null_mut());
            for index in 0..MAGAZINES {
                let magazine = (&raw mut (*cache).magazines).cast::<Magazine>().add(index);
                let end = slots.add(capacity(index));
                magazine.write(Magazine {
                    top: slots,
                    bottom: slots,
                    end,
                    slab: None,
                });
                let batch = (&raw mut (*cache).batches).cast::<u32>().add(index);
                batch.write(FIRST_OBJECTS);
                slots = end;
            }
        }
        cache
    }

    /// Takes a free object out of a magazine.
    #[inline(always)]
    pub(crate) fn pop(&mut self, magazine: usize) -> Option<NonNull<u8>> {
        debug_assert!(magazine < MAGAZINES);
        // SAFETY: every index of a class or of a cached run length is below `MAGAZINES`.
        let magazine = unsafe { self.magazines.get_unchecked_mut(magazine) };
        if magazine.top == magazine.bottom {
            return None;
        }
        // SAFETY: slots below the top are filled, with objects that are out of their slabs, whose
        // bytes stay where they are.
        unsafe {
            magazine.top = magazine.top.sub(1);
            let slot = *magazine.top;
            (*slot.state).store(ALLOCATED, Ordering::Relaxed);
            Some(NonNull::new_unchecked(slot.object))
        }
    }

    /// Puts an object into a magazine; returns false if the magazine is full.
    ///
    /// # Safety
    ///
    /// The object is the caller's, of the magazine's class, and `state` is its byte.
    #[inline(always)]
    pub(crate) unsafe fn push(
        &mut self,
        magazine: usize,
        object: *mut u8,
        state: *const AtomicU8,
    ) -> bool {
        debug_assert!(magazine < MAGAZINES);
        // SAFETY: every index of a class or of a cached run length is below `MAGAZINES`.
        let magazine = unsafe { self.magazines.get_unchecked_mut(magazine) };
        if magazine.top == magazine.end {
            return false;
        }
        // SAFETY: `top` is below `end`, so the slot exists; the caller owns the object, and `state`
        // is its byte.
        unsafe {
            (*state).store(FREE, Ordering::Relaxed);
            magazine.top.write(Slot { object, state });
            magazine.top = magazine.top.add(1);
        }
        true
    }

    /// Fills an empty magazine of a class; false if there is no memory.
    #[cold]
    pub(crate) fn fill(&mut self, class: usize, core: &Core) -> bool {
        let magazine = &mut self.magazines[class];
        let batch_max = magazine.capacity() / 2;
        let wanted = self.batches[class].min(batch_max);
        self.batches[class] = (wanted * 2).min(batch_max);
        let mut bin = core.bin(class).lock();
        // Filled from the end on, so that the lowest address is handed out first.
        let mut left = wanted;
        while left > 0 {
            let slab = match magazine.slab {
                Some(slab) => slab,
                None => match bin.take_slab(core) {
                    Some(slab) => *magazine.slab.insert(slab),
                    None => break,
                },
            };
            let taken = bin.take_objects(slab, left as usize, |slot| {
                left -= 1;
                // SAFETY: `left` is below the capacity, and the magazine is empty.
                unsafe { magazine.bottom.add(left as usize).write(slot) };
            });
            debug_assert!(taken > 0, "a slab with objects gives some");
            if !bin.has_objects(slab) {
                // The slab is full, and the bin has ended this cache's ownership of it.
                magazine.slab = None;
            }
        }
        let taken = wanted - left;
        // SAFETY: both are within the slots, of which so many are filled then.
        unsafe {
            if left > 0 {
                let from = magazine.bottom.add(left as usize);
                std::ptr::copy(from, magazine.bottom, taken as usize);
            }
            magazine.set_count(taken);
        }
        taken > 0
    }

    /// Puts the older half of a full magazine back.
    #[cold]
    pub(crate) fn drain(&mut self, magazine: usize, core: &Core) {
        let count = self.magazines[magazine].count();
        self.put_back(magazine, count - count / 2, core);
    }

    /// Puts everything back, and the slabs that objects came from.
    pub(crate) fn empty(&mut self, core: &Core) {
        for index in 0..MAGAZINES {
            let count = self.magazines[index].count();
            self.put_back(index, count, core);
            self.batches[index] = FIRST_OBJECTS;
            let magazine = &mut self.magazines[index];
            if let Some(slab) = magazine.slab.take() {
                core.bin(index).lock().leave_slab(slab, core);
            }
        }
    }

    fn put_back(&mut self, index: usize, count: u32, core: &Core) {
        if count == 0 {
            return;
        }
        let magazine = &mut self.magazines[index];
        // SAFETY: so many slots are filled.
        let slots = unsafe { std::slice::from_raw_parts(magazine.bottom, count as usize) };
        if index < CLASSES {
            core.bin(index).lock().put_objects(slots, core);
        } else {
            core.put_runs(slots);
        }
        let rest = magazine.count() - count;
        // SAFETY: both are within the slots, of which so many are filled then.
        unsafe {
            let from = magazine.bottom.add(count as usize);
            std::ptr::copy(from, magazine.bottom, rest as usize);
            magazine.set_count(rest);
        }
    }

    /// Gives up the cache of a thread that does not exist in a forked child: its slabs go back to
    /// their bins. The objects in the magazines stay unavailable, since the thread may have been
    /// changing them at the fork.
    ///
    /// # Safety
    ///
    /// The thread does not exist, and had no lock when the process was forked.
    pub(crate) unsafe fn abandon(&mut self, core: &Core) {
        for (class, magazine) in self.magazines.iter_mut().enumerate() {
            magazine.top = magazine.bottom;
            if let Some(slab) = magazine.slab.take() {
                core.bin(class).lock().leave_slab(slab, core);
            }
        }
    }
}

/// Hands caches to threads.
impl Core {
    /// Takes a cache that no thread uses; null if there is no memory.
    pub(crate) fn take_cache(&self) -> *mut Cache {
        let mut caches = self.caches.lock();
        // SAFETY: caches are never given back before their heap.
        unsafe {
            if !caches.idle.is_null() {
                let cache = caches.idle;
                caches.idle = std::mem::replace(&mut (*cache).next_idle, null_mut());
                return cache;
            }
            let Ok(place) = self.pool.lock().take(bytes()) else {
                return null_mut();
            };
            let cache = Cache::make(place);
            (*cache).next = std::mem::replace(&mut caches.all, cache);
            cache
        }
    }

    /// Takes a cache back from a thread that ends.
    ///
    /// # Safety
    ///
    /// It is from [`Self::take_cache`], and the caller's.
    pub(crate) unsafe fn give_cache(&self, cache: *mut Cache) {
        // SAFETY: the cache is from `take_cache` and used by the caller alone, so this reference to
        // it is the only one.
        unsafe {
            (*cache).empty(self);
            let mut caches = self.caches.lock();
            (*cache).next_idle = std::mem::replace(&mut caches.idle, cache);
        }
    }

    /// Calls `call` with a cache that threads share; `None` if there is no memory for one.
    pub(crate) fn with_shared_cache<R>(
        &self,
        call: impl FnOnce(&Self, &mut Cache) -> R,
    ) -> Option<R> {
        let mut place = self.shared_caches[thread::number() % SHARED_CACHES].lock();
        if place.is_null() {
            *place = self.take_cache();
        }
        // SAFETY: caches are never freed before their heap, and the lock of this place makes the
        // reference the only one.
        unsafe { place.as_mut() }.map(|cache| call(self, cache))
    }
}
