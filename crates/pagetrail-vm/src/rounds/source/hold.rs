//! [`GuestHold`]: a guest that is held, as a [`Held`].

use std::time::{Duration, Instant};

use pagetrail::{Held, HeldThread};

use crate::rounds::link::Releaser;

/// A guest whose vCPUs are kept out of it.
#[derive(Debug)]
pub(super) struct GuestHold {
    pub(super) pid: u32,
    pub(super) since: Instant,
    pub(super) threads: Vec<HeldThread>,
    pub(super) _releaser: Option<Releaser>,
}

impl Held for GuestHold {
    fn pid(&self) -> u32 {
        self.pid
    }

    fn threads(&self) -> &[HeldThread] {
        &self.threads
    }

    /// The guest keeps its vCPUs out of itself until the releaser has gone: nobody else lets it go.
    fn check(&self) -> pagetrail::Result<()> {
        Ok(())
    }

    fn release(self: Box<Self>) -> Duration {
        let since = self.since;
        drop(self);
        since.elapsed()
    }
}
