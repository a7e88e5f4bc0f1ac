//! [`within`]: reading files that may never answer.
//!
//! A file of a process may lie on a file system whose server hangs (FUSE, NFS). The thread that
//! reads it waits, and no option of `open(2)` or `read(2)` prevents that. So a thread of its own
//! reads, and is abandoned when it takes too long.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError, mpsc};
use std::time::Duration;

/// How long a file may take.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(2);

/// Directories with abandoned threads at the same time; with more of them no file is read.
const LEFT_MAX: usize = 16;

/// Directories of files that did not answer, and the threads that still wait for these. Other files
/// there are not asked for meanwhile, so that each is waited for once.
static SILENT: Mutex<Option<HashMap<PathBuf, usize>>> = Mutex::new(None);

/// The result of `read`, which is of the file at `path`, if it comes within `timeout`.
pub(crate) fn within<T: Send + 'static>(
    path: &Path,
    timeout: Duration,
    read: impl FnOnce() -> Option<T> + Send + 'static,
) -> Option<T> {
    let directory = path.parent().unwrap_or(path).to_owned();
    {
        let silent = silent();
        let known = silent.as_ref();
        if known.is_some_and(|known| known.contains_key(&directory) || known.len() >= LEFT_MAX) {
            return None;
        }
    }
    let (done, result) = mpsc::sync_channel(0);
    let own = directory.clone();
    let started = std::thread::Builder::new().spawn(move || {
        // Nobody takes it after the timeout: then it is the waiting that has come to its end.
        if done.send(read()).is_err() {
            answers(&own);
        }
    });
    started.ok()?;
    match result.recv_timeout(timeout) {
        Ok(read) => read,
        Err(_) => {
            // Before the channel ends, by which the thread learns that it was abandoned.
            let mut silent = silent();
            *silent.get_or_insert_default().entry(directory).or_default() += 1;
            drop(silent);
            drop(result);
            None
        }
    }
}

/// Notes that an abandoned thread has come to its end.
fn answers(directory: &Path) {
    let mut silent = silent();
    let Some(known) = silent.as_mut() else { return };
    if let Some(threads) = known.get_mut(directory) {
        *threads -= 1;
        if *threads == 0 {
            known.remove(directory);
        }
    }
}

fn silent() -> MutexGuard<'static, Option<HashMap<PathBuf, usize>>> {
    // Nothing panics while it is held.
    SILENT.lock().unwrap_or_else(PoisonError::into_inner)
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
}
