//! [`within`]: reading files that may never answer.
//!
//! A file of a process may lie on a file system whose server hangs (FUSE, NFS). The thread that
//! reads it waits, and no option of `open(2)` or `read(2)` prevents that. So a thread of its own
//! reads, and is abandoned when it takes too long.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long a file may take.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(2);

/// Threads at the same time, abandoned ones among them. Once all are abandoned, no file is read.
const THREADS_MAX: usize = 16;
/// Threads that read files of one directory at the same time: if it is silent, no more than these
/// are abandoned. Further readers wait for one of them.
const OF_DIRECTORY_MAX: usize = 4;

/// Threads by the directory whose files they read. A directory with abandoned ones is silent: its
/// other files are not asked for meanwhile, so that each is waited for once.
static THREADS: Mutex<BTreeMap<PathBuf, Threads>> = Mutex::new(BTreeMap::new());
/// Is notified when one of them ends or is abandoned.
static CHANGED: Condvar = Condvar::new();

/// Threads that read files of a directory.
#[derive(Clone, Copy, Default)]
struct Threads {
    /// Threads whose result is awaited.
    reading: usize,
    /// Threads that took too long, and still wait.
    abandoned: usize,
}

/// The result of `read`, which is of the file at `path`, if it comes within `timeout`.
pub(crate) fn within<T: Send + 'static>(
    path: &Path,
    timeout: Duration,
    read: impl FnOnce() -> Option<T> + Send + 'static,
) -> Option<T> {
    let directory = path.parent().unwrap_or(path).to_owned();
    if !begin(&directory, timeout) {
        return None;
    }
    let (done, result) = mpsc::sync_channel(0);
    let own = directory.clone();
    let started = std::thread::Builder::new().spawn(move || {
        // Nobody takes it after the timeout: then it is the waiting that has come to its end.
        if done.send(read()).is_err() {
            change(&own, |threads| threads.abandoned -= 1);
        }
    });
    let read = match started {
        Ok(_) => result.recv_timeout(timeout),
        Err(_) => Ok(None),
    };
    change(&directory, |threads| {
        threads.reading -= 1;
        // A thread that panicked has ended.
        threads.abandoned += usize::from(matches!(read, Err(RecvTimeoutError::Timeout)));
    });
    // After the change: the end of the channel says to the thread that it was abandoned.
    drop(result);
    read.unwrap_or_default()
}

/// Counts a new reader of a directory, once there is room for it; `false` if the directory is
/// silent, or there is no room in time.
fn begin(directory: &Path, timeout: Duration) -> bool {
    let deadline = Instant::now() + timeout;
    let mut threads = threads();
    loop {
        let own = threads.get(directory).copied().unwrap_or_default();
        let abandoned: usize = threads.values().map(|threads| threads.abandoned).sum();
        let reading: usize = threads.values().map(|threads| threads.reading).sum();
        if own.abandoned > 0 || abandoned >= THREADS_MAX {
            return false;
        }
        if own.reading < OF_DIRECTORY_MAX && reading + abandoned < THREADS_MAX {
            threads.entry(directory.to_owned()).or_default().reading += 1;
            return true;
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return false;
        }
        let waited = CHANGED.wait_timeout(threads, left);
        threads = waited.unwrap_or_else(PoisonError::into_inner).0;
    }
}

fn change(directory: &Path, change: impl FnOnce(&mut Threads)) {
    let mut all = threads();
    if let Some(threads) = all.get_mut(directory) {
        change(threads);
        if threads.reading + threads.abandoned == 0 {
            all.remove(directory);
        }
    }
    CHANGED.notify_all();
}

fn threads() -> MutexGuard<'static, BTreeMap<PathBuf, Threads>> {
    // Nothing panics while it is held.
    THREADS.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn a_file_that_does_not_answer_is_left_and_its_directory_with_it() {
        let (file, other) = (Path::new("/silent/a"), Path::new("/silent/b"));
        assert_eq!(within(file, TIMEOUT, || Some(5)), Some(5));
        assert_eq!(within(file, TIMEOUT, || None::<u32>), None);
        let (answer, hung) = channel::<()>();
        let read = within(file, Duration::from_millis(1), move || hung.recv().ok());
        assert_eq!(read, None);
        assert_eq!(within(other, TIMEOUT, || Some(5)), None);
        assert_eq!(within(Path::new("/b"), TIMEOUT, || Some(5)), Some(5));
        drop(answer);
        // Once it has answered, the directory is asked again.
        let begun = std::time::Instant::now();
        while within(other, TIMEOUT, || Some(5)).is_none() {
            assert!(
                begun.elapsed() < Duration::from_secs(60),
                "it was not forgotten"
            );
            std::thread::yield_now();
        }
    }

    /// The processes of a tree are read at the same time, and none is without names for that.
    #[test]
    fn many_readers_do_not_keep_each_other_from_reading() {
        let readers: Vec<_> = (0..32)
            .map(|number| {
                let slow = move || {
                    std::thread::sleep(Duration::from_millis(5));
                    Some(number)
                };
                std::thread::spawn(move || {
                    within(Path::new("/many/a"), Duration::from_secs(60), slow)
                })
            })
            .collect();
        for (number, reader) in readers.into_iter().enumerate() {
            assert_eq!(reader.join().expect("it does not panic"), Some(number));
        }
    }

    /// However many begin together, the threads that a silent directory costs are few.
    #[test]
    fn a_silent_directory_costs_few_threads() {
        let (answer, hung) = channel::<()>();
        let hung = std::sync::Arc::new(Mutex::new(hung));
        let begun = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let readers: Vec<_> = (0..64)
            .map(|_| {
                let (hung, begun) = (hung.clone(), begun.clone());
                std::thread::spawn(move || {
                    within(Path::new("/few/a"), Duration::from_millis(200), move || {
                        begun.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                        let hung = hung.lock().unwrap_or_else(PoisonError::into_inner);
                        hung.recv().ok()
                    })
                })
            })
            .collect();
        for reader in readers {
            assert_eq!(reader.join().expect("it does not panic"), None);
        }
        let begun = begun.load(std::sync::atomic::Ordering::Relaxed);
        assert!(begun <= OF_DIRECTORY_MAX, "{begun} threads");
        drop(answer);
    }
}
