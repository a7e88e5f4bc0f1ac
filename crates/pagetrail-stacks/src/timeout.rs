//! [`within`]: reading files that may never answer.
//!
//! A file of a process may lie on a file system whose server hangs (FUSE, NFS). The thread that
//! reads it waits, and no option of `open(2)` or `read(2)` prevents that. So a thread of its own
//! reads, and is left behind.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Duration;

/// How long a file may take.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(2);

/// Threads that may wait for files at the same time; beyond that no file is read.
const WAITING_MAX: usize = 4;

static WAITING: AtomicUsize = AtomicUsize::new(0);

/// The result of `read`, if it comes within `timeout`.
pub(crate) fn within<T: Send + 'static>(
    timeout: Duration,
    read: impl FnOnce() -> Option<T> + Send + 'static,
) -> Option<T> {
    if WAITING.load(Ordering::Relaxed) >= WAITING_MAX {
        return None;
    }
    let (done, result) = mpsc::sync_channel(1);
    let started = std::thread::Builder::new().spawn(move || {
        WAITING.fetch_add(1, Ordering::Relaxed);
        let read = read();
        WAITING.fetch_sub(1, Ordering::Relaxed);
        // Nobody waits for it after the timeout.
        let _ = done.send(read);
    });
    started.ok()?;
    result.recv_timeout(timeout).ok().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn a_file_that_does_not_answer_is_left() {
        assert_eq!(within(TIMEOUT, || Some(5)), Some(5));
        assert_eq!(within(TIMEOUT, || None::<u32>), None);
        let (answer, hung) = channel::<()>();
        let read = within(Duration::from_millis(1), move || hung.recv().ok());
        assert_eq!(read, None);
        drop(answer);
    }
}
