//! [`on_threads`], [`InOrder`] and [`try_each`]: work on many items by all processors.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

/// More threads than this would take the processors away from the program that is being
/// checkpointed.
const THREADS_MAX: usize = 8;

fn threads_for(items: usize, few: usize) -> usize {
    // To ask for the processors takes as long as to unpack a few pages: it reads what control
    // groups allow.
    if items / few < 2 {
        return 1;
    }
    let processors = thread::available_parallelism().map_or(1, usize::from);
    processors.min(THREADS_MAX).min(items / few).max(1)
}

/// Does the same on as many threads as `items` are worth, where a thread is worth its start for
/// `few` of them; one is the caller's own. The first error of one of them.
pub(crate) fn on_threads<E: Send>(
    items: usize,
    few: usize,
    work: impl Fn() -> Result<(), E> + Sync,
) -> Result<(), E> {
    thread::scope(|scope| {
        let work = &work;
        let others: Vec<_> = (1..threads_for(items, few))
            .map(|_| scope.spawn(work))
            .collect();
        let own = work();
        others.into_iter().fold(own, |outcome, other| {
            let other = other
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            outcome.and(other)
        })
    })
}

/// Something that threads come to with numbered items, in the order of these numbers.
pub(crate) struct InOrder<T> {
    inside: Mutex<Inside<T>>,
    changed: Condvar,
}

struct Inside<T> {
    value: T,
    next: usize,
    closed: bool,
}

impl<T> InOrder<T> {
    pub(crate) fn new(value: T) -> Self {
        let inside = Inside {
            value,
            next: 0,
            closed: false,
        };
        Self {
            inside: Mutex::new(inside),
            changed: Condvar::new(),
        }
    }

    fn inside(&self) -> MutexGuard<'_, Inside<T>> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until all items before have been here. `None` when nobody is let in any more.
    pub(crate) fn pass<R>(&self, item: usize, work: impl FnOnce(&mut T) -> R) -> Option<R> {
        let early = |inside: &mut Inside<T>| inside.next != item && !inside.closed;
        let waited = self.changed.wait_while(self.inside(), early);
        let mut inside = waited.unwrap_or_else(PoisonError::into_inner);
        if inside.closed {
            return None;
        }
        let result = work(&mut inside.value);
        inside.next += 1;
        drop(inside);
        self.changed.notify_all();
        Some(result)
    }

    /// For a thread that goes before its time, by an error or a panic: it must not be waited for.
    /// Who is done forgets this.
    pub(crate) fn leaving(&self) -> Leaving<'_, T> {
        Leaving(self)
    }

    pub(crate) fn into_inner(self) -> T {
        let inside = self.inside.into_inner();
        inside.unwrap_or_else(PoisonError::into_inner).value
    }

    /// Lets nobody in any more: an item will not come.
    pub(crate) fn close(&self) {
        self.inside().closed = true;
        self.changed.notify_all();
    }
}

/// Dropped, it lets nobody in any more.
pub(crate) struct Leaving<'a, T>(&'a InOrder<T>);

impl<T> Drop for Leaving<'_, T> {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// Does `work` on each item, with memory that the items of a thread share; each thread takes the
/// next item when it is done with one, and stops at its first error.
pub(crate) fn try_each<T: Send, M: Default, E: Send>(
    items: Vec<T>,
    few: usize,
    work: impl Fn(T, &mut M) -> Result<(), E> + Sync,
) -> Result<(), E> {
    let count = items.len();
    let items = Mutex::new(items.into_iter());
    let next = || {
        let mut items = items.lock().unwrap_or_else(PoisonError::into_inner);
        items.next()
    };
    on_threads(count, few, || {
        let mut memory = M::default();
        while let Some(item) = next() {
            work(item, &mut memory)?;
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn items_pass_in_their_order_and_none_waits_for_one_that_will_not_come() {
        for fails_at in [None, Some(50)] {
            let next = AtomicUsize::new(0);
            let passed = InOrder::new(Vec::new());
            let outcome = thread::scope(|scope| {
                let work = || {
                    loop {
                        let item = next.fetch_add(1, Ordering::Relaxed);
                        if item >= 100 {
                            return Ok(());
                        }
                        if Some(item) == fails_at {
                            passed.close();
                            return Err(item);
                        }
                        if passed.pass(item, |passed| passed.push(item)).is_none() {
                            return Ok(());
                        }
                    }
                };
                let threads: Vec<_> = (0..4).map(|_| scope.spawn(work)).collect();
                let outcomes = threads.into_iter().map(|thread| thread.join().unwrap());
                outcomes.fold(Ok(()), Result::and)
            });
            let passed = passed.into_inner();
            assert_eq!(passed, (0..passed.len()).collect::<Vec<_>>());
            match fails_at {
                None => assert_eq!((outcome, passed.len()), (Ok(()), 100)),
                Some(at) => assert!(outcome == Err(at) && passed.len() <= at),
            }
        }
    }
}
