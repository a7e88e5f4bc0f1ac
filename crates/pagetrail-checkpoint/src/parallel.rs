//! [`in_parallel`] and [`try_each`]: the same work on many items by all processors.

use std::thread;

/// More threads than this would take the processors away from the program that is being checkpointed.
const THREADS_MAX: usize = 8;

/// The results of `work` on each item, in order. Fewer than `few` items for each thread are not worth one.
pub(crate) fn in_parallel<T: Sync, R: Send>(
    items: &[T],
    few: usize,
    work: impl Fn(&T) -> R + Sync,
) -> Vec<R> {
    let processors = thread::available_parallelism().map_or(1, usize::from);
    let threads = processors.min(THREADS_MAX).min(items.len() / few);
    if threads < 2 {
        return items.iter().map(work).collect();
    }
    let work = &work;
    thread::scope(|scope| {
        let parts: Vec<_> = items
            .chunks(items.len().div_ceil(threads))
            .map(|part| scope.spawn(move || part.iter().map(work).collect::<Vec<R>>()))
            .collect();
        let joined = parts.into_iter().map(|part| {
            part.join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        });
        joined.flatten().collect()
    })
}

/// Does `work` on each item, with memory that the items of a thread share; the first error of each thread ends it.
pub(crate) fn try_each<T: Send, M: Default, E: Send>(
    mut items: Vec<T>,
    few: usize,
    work: impl Fn(T, &mut M) -> Result<(), E> + Sync,
) -> Result<(), E> {
    let processors = thread::available_parallelism().map_or(1, usize::from);
    let threads = processors.min(THREADS_MAX).min(items.len() / few).max(1);
    let each = items.len().div_ceil(threads).max(1);
    let work = &work;
    let all = move |items: Vec<T>| {
        let mut memory = M::default();
        items
            .into_iter()
            .try_for_each(|item| work(item, &mut memory))
    };
    thread::scope(|scope| {
        let mut parts = Vec::new();
        while items.len() > each {
            let part = items.split_off(items.len() - each);
            parts.push(scope.spawn(move || all(part)));
        }
        let own = all(items);
        parts.into_iter().fold(own, |outcome, part| {
            let joined = part
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            outcome.and(joined)
        })
    })
}
