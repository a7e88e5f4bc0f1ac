//! [`Shortage`]: what is done where a process has no descriptor left for the next child that lacks
//! pages.
//!
//! The child's parent waits meanwhile, within `fork(2)`, and none of its pages can be filled.
//! Others get theirs, and those that lack none give their descriptor back.

use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::time::{Duration, Instant};

/// How long is waited for others to give descriptors back, when nothing else can be done.
const TIMEOUT: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(1);

/// Whether descriptors are short, and since when.
#[derive(Debug, Default)]
pub(crate) struct Shortage {
    now: Option<Errno>,
    without_progress_since: Option<Instant>,
}

impl Shortage {
    /// There was none for a child. The first thing is to allow more.
    pub(crate) fn begins(&mut self, errno: Errno) {
        if self.now.replace(errno).is_none() {
            allow_more();
        }
    }

    /// Something was done for another process.
    pub(crate) fn has_passed(&mut self) {
        *self = Self::default();
    }

    /// Nothing could be done. Waits a moment where descriptors are short; gives the reason when
    /// that has lasted too long.
    pub(crate) fn goes_on(&mut self) -> Option<Errno> {
        let errno = self.now?;
        let since = *self.without_progress_since.get_or_insert_with(Instant::now);
        std::thread::sleep(PAUSE);
        (since.elapsed() > TIMEOUT).then_some(errno)
    }
}

/// Lets this process have as many descriptors as it may. Allocates nothing, and takes no lock.
pub(crate) fn allow_more() {
    let limit = getrlimit(Resource::Nofile);
    // It is not raised where that is forbidden; there is another way then, or an error.
    let _ = setrlimit(
        Resource::Nofile,
        Rlimit {
            current: limit.maximum,
            ..limit
        },
    );
}
