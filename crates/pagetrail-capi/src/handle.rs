//! [`Watch`], what a `pagetrail_watch *` points to: a watch, whether it has an open round, and a
//! lock that refuses instead of waiting.
//!
//! A `pagetrail_round *` points to the same place: a watch has one round at a time, and a committed
//! round is distinguished from an open one for as long as its watch lives.

use crate::failure::{Failure, Status};
use std::sync::{Mutex, TryLockError};

/// A watch on one target. Each call locks it: a call while another thread is inside one gets
/// PAGETRAIL_STATUS_BUSY.
pub struct Watch {
    state: Mutex<State>,
    /// The process that started it.
    owner: u32,
}

/// A round of a watch: the pages written since the last committed round. It belongs to its watch.
pub struct Round(#[expect(dead_code, reason = "only pointers to it exist")] Watch);

/// What the lock guards.
pub(crate) struct State {
    pub(crate) watch: pagetrail::Watch,
    /// Whether C holds a round.
    open: bool,
}

fn misuse(status: Status, text: &'static str) -> Failure {
    Failure::Misuse(status, text)
}

impl Watch {
    pub(crate) fn new(watch: pagetrail::Watch) -> Self {
        Self {
            state: Mutex::new(State { watch, open: false }),
            owner: std::process::id(),
        }
    }

    /// Runs `body` with the lock held.
    pub(crate) fn with<T>(
        &self,
        body: impl FnOnce(&mut State) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        if std::process::id() != self.owner {
            return Err(misuse(
                Status::Forked,
                "the watch belongs to the parent process, which started it",
            ));
        }
        match self.state.try_lock() {
            Ok(mut state) => body(&mut state),
            Err(TryLockError::WouldBlock) => Err(misuse(
                Status::Busy,
                "another call on the same watch is under way",
            )),
            Err(TryLockError::Poisoned(_)) => Err(misuse(
                Status::Panicked,
                "the library panicked in an earlier call on this watch; free it",
            )),
        }
    }

    /// Collects a round and opens it.
    pub(crate) fn collect(&self) -> Result<(), Failure> {
        self.with(|state| {
            if state.open {
                return Err(misuse(
                    Status::RoundOpen,
                    "the round before is open: commit it or give it back first",
                ));
            }
            // Held by the watch until it is committed; what C has is the permission to look.
            let _ = state.watch.collect()?;
            state.open = true;
            Ok(())
        })
    }

    /// Runs `body` on the open round.
    pub(crate) fn round<T>(
        &self,
        body: impl FnOnce(&mut pagetrail::Round<'_>) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        self.with(|state| match state.watch.current_round() {
            Some(mut round) if state.open => body(&mut round),
            _ => Err(no_round()),
        })
    }

    /// Ends the open round: by a commit, or so that its pages come back.
    pub(crate) fn close(&self, commit: bool) -> Result<(), Failure> {
        self.with(|state| {
            if !std::mem::replace(&mut state.open, false) {
                return Err(no_round());
            }
            match state.watch.current_round() {
                Some(round) if commit => round.commit(),
                _ => {}
            }
            Ok(())
        })
    }

    /// Whether no thread is inside a call, as far as the lock shows.
    pub(crate) fn is_idle(&self) -> bool {
        // A forked child has a copy of the lock, in whatever state; no other process can be inside.
        std::process::id() != self.owner
            || !matches!(self.state.try_lock(), Err(TryLockError::WouldBlock))
    }
}

fn no_round() -> Failure {
    misuse(
        Status::NoRound,
        "there is no open round: it was committed or given back",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagetrail::{Target, Technique, pages_of};
    use std::sync::mpsc;

    fn watch(buffer: &[u8]) -> Watch {
        let target = Target::ranges(pages_of(buffer));
        let builder = pagetrail::Watch::builder().target(target);
        Watch::new(builder.technique(Technique::None).start().unwrap())
    }

    fn status<T>(result: Result<T, Failure>) -> Option<Status> {
        match result {
            Err(Failure::Misuse(status, _)) => Some(status),
            _ => None,
        }
    }

    #[test]
    fn threads_may_share_a_watch_and_only_one_gets_in() {
        let buffer = vec![1; 1 << 14];
        let watch = watch(&buffer);
        let (inside, is_inside) = mpsc::channel();
        let (go, may_go) = mpsc::channel::<()>();
        std::thread::scope(|scope| {
            let watch = &watch;
            scope.spawn(move || {
                watch.with(|_| {
                    inside.send(()).unwrap();
                    let _ = may_go.recv();
                    Ok(())
                })
            });
            is_inside.recv().unwrap();
            assert_eq!(status(watch.collect()), Some(Status::Busy));
            assert!(!watch.is_idle());
            go.send(()).unwrap();
        });
        assert!(watch.is_idle());
        assert_eq!(status(watch.collect()), None);
    }

    #[test]
    fn after_a_panic_a_watch_is_refused() {
        let buffer = vec![1; 1 << 14];
        let watch = watch(&buffer);
        let outcome = crate::failure::guard(|| watch.with(|_| panic!("on purpose")));
        assert_eq!(outcome, Status::Panicked);
        assert_eq!(status(watch.collect()), Some(Status::Panicked));
        assert!(watch.is_idle(), "it can be freed");
    }
}
