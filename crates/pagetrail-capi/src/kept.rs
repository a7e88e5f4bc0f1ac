//! `Handle`: what pointers to checkpointers and snapshots point to, with a lock that refuses
//! instead of waiting.

use crate::failure::{Failure, Status};
use pagetrail_checkpoint::{Completion, CowSnapshot};
use std::sync::{Mutex, TryLockError};

/// Something of which one thread uses one at a time, in the process that made it.
pub(crate) struct Handle<T> {
    inside: Mutex<T>,
    /// The process that made it.
    owner: u32,
}

/// Regions of memory that survive the program. Each call locks it: a call while another thread is
/// inside one gets PAGETRAIL_STATUS_BUSY.
pub struct Checkpointer(pub(crate) Handle<Kept>);

/// What memory held at one instant. Each call locks it: a call while another thread is inside one
/// gets PAGETRAIL_STATUS_BUSY.
pub struct Snapshot(pub(crate) Handle<Taken>);

/// The pages of a process that was restored lazily. Each call locks it: a call while another thread
/// is inside one gets PAGETRAIL_STATUS_BUSY.
pub struct Pager(pub(crate) Handle<Option<pagetrail_restore::Pager>>);

/// Memory that can be put back to what it was. Each call locks it: a call while another thread is
/// inside one gets PAGETRAIL_STATUS_BUSY.
pub struct Arena(pub(crate) Handle<Kind>);

/// Memory, and what it is put back to, once there is that.
pub(crate) enum Kind {
    Plain(pagetrail_checkpoint::Arena),
    Kept(pagetrail_checkpoint::Snapshot),
    /// What was kept could not be, and the memory is gone.
    Gone,
}

/// A checkpointer, and the checkpoint that is on its way.
pub(crate) struct Kept {
    pub(crate) checkpointer: pagetrail_checkpoint::Checkpointer,
    pub(crate) saving: Option<Completion>,
}

/// A snapshot, `None` once it was saved, and what was read of it last.
pub(crate) struct Taken {
    pub(crate) snapshot: Option<CowSnapshot>,
    pub(crate) contents: Vec<u8>,
}

// C calls from any thread.
const _: () = {
    const fn is_shared<T: Sync>() {}
    is_shared::<Handle<Kept>>();
    is_shared::<Handle<Taken>>();
    is_shared::<Handle<Option<pagetrail_restore::Pager>>>();
    is_shared::<Handle<Kind>>();
};

impl<T> Handle<T> {
    pub(crate) fn new(inside: T) -> Self {
        Self {
            inside: Mutex::new(inside),
            owner: std::process::id(),
        }
    }

    /// Runs `body` with the lock held.
    pub(crate) fn with<R>(
        &self,
        body: impl FnOnce(&mut T) -> Result<R, Failure>,
    ) -> Result<R, Failure> {
        let misuse = |status, text| Err(Failure::Misuse(status, text));
        if std::process::id() != self.owner {
            return misuse(
                Status::Forked,
                "it belongs to the parent process, which made it",
            );
        }
        match self.inside.try_lock() {
            Ok(mut inside) => body(&mut inside),
            Err(TryLockError::WouldBlock) => {
                misuse(Status::Busy, "another call on the same object is under way")
            }
            Err(TryLockError::Poisoned(_)) => misuse(
                Status::Panicked,
                "the library panicked in an earlier call on this object; free it",
            ),
        }
    }

    /// Whether no thread is inside a call, as far as the lock shows.
    pub(crate) fn is_idle(&self) -> bool {
        // A forked child has a copy of the lock, in whatever state; no other process can be inside.
        std::process::id() != self.owner
            || !matches!(self.inside.try_lock(), Err(TryLockError::WouldBlock))
    }
}
