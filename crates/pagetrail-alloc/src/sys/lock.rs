//! [`Locked`]: a lock over `futex(2)` that can also be taken before a `fork(2)` and released after
//! it, in both processes.
//!
//! The standard library's mutexes do all but that.

use rustix::thread::futex;
use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, Ordering};

const FREE: u32 = 0;
const HELD: u32 = 1;
/// The lock is held, and another thread may be waiting for it.
const AWAITED: u32 = 2;

/// How many times a thread tries to take the lock before it sleeps.
const SPINS: u32 = 100;

/// A value that one thread at a time can reach.
pub(crate) struct Locked<T> {
    word: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached only through a guard, or by `held`, whose caller holds the lock.
unsafe impl<T: Send> Sync for Locked<T> {}

impl<T> Locked<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self {
            word: AtomicU32::new(FREE),
            value: UnsafeCell::new(value),
        }
    }

    #[inline]
    pub(crate) fn lock(&self) -> Guard<'_, T> {
        self.acquire();
        Guard(self)
    }

    /// Takes the lock without a guard; [`Self::release`] gives it back, perhaps in a forked child.
    #[inline]
    pub(crate) fn acquire(&self) {
        let taken = self
            .word
            .compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed);
        if taken.is_err() {
            self.acquire_slowly();
        }
    }

    #[cold]
    fn acquire_slowly(&self) {
        for _ in 0..SPINS {
            if self.word.load(Ordering::Relaxed) == FREE
                && self
                    .word
                    .compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed)
                    .is_ok()
            {
                return;
            }
            std::hint::spin_loop();
        }
        while self.word.swap(AWAITED, Ordering::Acquire) != FREE {
            // Woken, interrupted, or too late: each time it looks again.
            let _ = futex::wait(&self.word, futex::Flags::PRIVATE, AWAITED, None);
        }
    }

    /// Releases a lock that was taken by [`Self::acquire`].
    #[inline]
    pub(crate) fn release(&self) {
        if self.word.swap(FREE, Ordering::Release) == AWAITED {
            let _ = futex::wake(&self.word, futex::Flags::PRIVATE, 1);
        }
    }

    /// The value of a lock that was taken by [`Self::acquire`].
    ///
    /// # Safety
    ///
    /// The caller holds the lock, and lets no other reference to the value live meanwhile.
    #[expect(clippy::mut_from_ref, reason = "the lock makes it exclusive")]
    pub(crate) unsafe fn held(&self) -> &mut T {
        // SAFETY: the caller holds the lock and has no other reference to the value.
        unsafe { &mut *self.value.get() }
    }
}

/// The lock, held until this is dropped.
pub(crate) struct Guard<'lock, T>(&'lock Locked<T>);

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the lock is held.
        unsafe { &*self.0.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the lock is held, and this guard borrowed exclusively.
        unsafe { &mut *self.0.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.0.release();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thread_at_a_time() {
        static COUNT: Locked<u64> = Locked::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..20_000 {
                        *COUNT.lock() += 1;
                    }
                });
            }
        });
        assert_eq!(*COUNT.lock(), 80_000);
    }
}
