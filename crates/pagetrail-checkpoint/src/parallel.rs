//! [`in_parallel`]: the same work on many items by all processors.

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
