//! Operations on a [`Core`] as a whole: its statistics, locking and copying before a `fork(2)`,
//! destruction.

use super::cache::{self, Cache};
use super::core::Core;
use super::map;
use crate::stats::Stats;
use rustix::io::Errno;

impl Core {
    /// What the heap takes of the process.
    pub(crate) fn stats(&self) -> Stats {
        let (superblocks, superblock_bytes) = self.superblocks.lock().size();
        let (plain, plain_bytes) = self.plain.lock().size();
        let (arenas, run_bytes) = self.pages.lock().size();
        let (huges, huge_bytes) = self.huges.lock().size();
        Stats {
            superblocks,
            superblock_bytes,
            plain_bytes,
            run_bytes,
            huge_bytes,
            mappings: superblocks * self.common.subpages.count() as usize + plain + arenas + huges,
        }
    }

    /// Takes all locks, before a `fork(2)`.
    pub(crate) fn lock_all(&self) {
        for cache in &self.shared_caches {
            cache.acquire();
        }
        self.caches.acquire();
        for bin in &self.bins {
            bin.acquire();
        }
        self.pages.acquire();
        self.huges.acquire();
        self.superblocks.acquire();
        self.plain.acquire();
        self.pool.acquire();
    }

    /// Gives all locks back.
    pub(crate) fn unlock_all(&self) {
        self.pool.release();
        self.plain.release();
        self.superblocks.release();
        self.huges.release();
        self.pages.release();
        for bin in &self.bins {
            bin.release();
        }
        self.caches.release();
        for cache in &self.shared_caches {
            cache.release();
        }
    }

    /// Copies shared memory for a child.
    ///
    /// # Safety
    ///
    /// All locks are held.
    pub(crate) unsafe fn copy_for_child(&self) -> Result<(), Errno> {
        // SAFETY: the caller holds all locks, that of the superblocks among them.
        unsafe {
            self.superblocks
                .held()
                .try_for_each(|superblock, begun| superblock.copy_for_child(begun))
        }
    }

    /// In the parent: the copies are the child's.
    ///
    /// # Safety
    ///
    /// All locks are held.
    pub(crate) unsafe fn drop_copies(&self) {
        // SAFETY: the caller holds all locks, that of the superblocks among them.
        let _ = unsafe {
            self.superblocks.held().try_for_each(|superblock, _| {
                superblock.drop_copy();
                Ok(())
            })
        };
    }

    /// In a forked child: puts the copies in their places.
    ///
    /// # Safety
    ///
    /// All locks are held, and no other thread runs.
    pub(crate) unsafe fn use_copies(&self) -> Result<(), Errno> {
        // SAFETY: the caller holds all locks, and no other thread runs that could use the memory.
        unsafe {
            self.superblocks
                .held()
                .try_for_each(|superblock, _| superblock.use_copy())
        }
    }

    /// In a forked child, after the locks are given back: takes over what other threads had; `mine`
    /// is this one's cache.
    ///
    /// # Safety
    ///
    /// No other thread runs.
    pub(crate) unsafe fn abandon_caches(&self, mine: *mut Cache) {
        let caches = self.caches.lock();
        let mut cache = caches.all;
        while !cache.is_null() {
            // SAFETY: a cache of this heap. Its thread does not exist in the child, or it is shared
            // and its lock is free.
            unsafe {
                let shared = self
                    .shared_caches
                    .iter()
                    .any(|place| *place.held() == cache);
                if cache != mine && !shared {
                    (*cache).abandon(self);
                }
                cache = (*cache).next;
            }
        }
    }

    /// Gives everything back to the kernel, this included.
    ///
    /// # Safety
    ///
    /// The heap and its objects are not used any more.
    pub(crate) unsafe fn destroy(this: *mut Self) {
        // SAFETY: the caller uses neither the heap nor any object of it, so that all its mappings
        // may go.
        unsafe {
            let core = &mut *this;
            let mut pool = core.pool.lock();
            core.huges.lock().drop_all(&mut pool);
            core.pages.lock().drop_all();
            core.superblocks.lock().drop_all();
            core.plain.lock().drop_all();
            let mut cache = core.caches.lock().all;
            while !cache.is_null() {
                let next = (*cache).next;
                pool.give(cache.cast(), cache::bytes());
                cache = next;
            }
            pool.drop_all();
            // Its lock goes with the rest.
            drop(pool);
            core.common.descriptor.drop_mapping();
            map::unmap(this.cast(), size_of::<Self>());
        }
    }
}
