//! [`Shortage`]: what is done where a process has no descriptor left for the next child that lacks
//! pages.
//!
//! The child's parent waits meanwhile, within `fork(2)`, and none of its pages can be filled.
//! Others get theirs, and those that lack none give their descriptor back.

use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::time::{Duration, Instant};

/// The timeout for other processes to give descriptors back, when nothing else can be done.
const TIMEOUT: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(1);

/// Whether descriptors are short, and since when.
#[derive(Debug, Default)]
pub(crate) struct Shortage {
    now: Option<Errno>,
    without_progress_since: Option<Instant>,
}

impl Shortage {
    /// Notes that there was no descriptor for a child, and raises the limit.
    pub(crate) fn begins(&mut self, errno: Errno) {
        if self.now.replace(errno).is_none() {
            allow_more();
        }
    }

    /// Notes that a page was filled, or a descriptor became free.
    pub(crate) fn has_passed(&mut self) {
        *self = Self::default();
    }

    /// Notes that nothing could be done for any process. Where descriptors are short it waits a
    /// moment, and after [`TIMEOUT`] without progress returns the error to give up with.
    pub(crate) fn goes_on(&mut self) -> Option<Errno> {
        let errno = self.now?;
        let since = *self.without_progress_since.get_or_insert_with(Instant::now);
        std::thread::sleep(PAUSE);
        (since.elapsed() > TIMEOUT).then_some(errno)
    }
}

/// Raises the limit of descriptors to the hard limit. Allocates nothing, and takes no lock.
pub(crate) fn allow_more() {
    let limit = getrlimit(Resource::Nofile);
    // Where that is forbidden the limit stays, and the caller waits for a descriptor or fails.
    let _ = setrlimit(
        Resource::Nofile,
        Rlimit {
            current: limit.maximum,
            ..limit
        },
    );
}
