//! [`Waiting`]: a line on the terminal while a long step runs.

use std::io::{self, IsTerminal, Write};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Time before the line appears: short steps show none.
const QUIET: Duration = Duration::from_secs(1);
const PERIOD: Duration = Duration::from_secs(1);

/// A line on standard error, if that is a terminal, that says what is being done and for how long;
/// erased at the end.
pub(crate) struct Waiting(Option<(Sender<()>, JoinHandle<()>)>);

impl Waiting {
    /// Begins; `what` is done until this is dropped, as in "verifying the store".
    pub(crate) fn during(what: &'static str) -> Self {
        if !io::stderr().is_terminal() {
            return Self(None);
        }
        let (end, ended) = mpsc::channel::<()>();
        let since = Instant::now();
        let line = move || {
            let mut after = QUIET;
            let mut shown = false;
            while let Err(RecvTimeoutError::Timeout) = ended.recv_timeout(after) {
                // A failure to show it is ignored.
                let seconds = since.elapsed().as_secs();
                let _ = write!(io::stderr(), "\r{what}: {seconds} s\x1b[K");
                (after, shown) = (PERIOD, true);
            }
            if shown {
                let _ = write!(io::stderr(), "\r\x1b[K");
            }
        };
        let thread = std::thread::Builder::new().spawn(line);
        Self(thread.ok().map(|thread| (end, thread)))
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some((end, thread)) = self.0.take() {
            drop(end);
            let _ = thread.join();
        }
    }
}
