//! [`Meeting`]: the checkpoints of several processes, one thread each, meet at one instant.
//!
//! All get ready, all processes are held, and only then is copied what is left; none goes on before
//! all have been copied. Who comes later, a child that was born meanwhile, is waited for as well,
//! as long as nothing has been copied. One that fails ends the meeting for
//! all.

use crate::error::{Error, Result};
use crate::process::common::Common;
use crate::process::state::memory::Motion;
use crate::process::together::Together;
use pagetrail::LetGo;
use std::cell::Cell;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// How far a meeting has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    /// Processes run, and are copied meanwhile.
    Preparing,
    /// They are held, one after the other.
    Holding,
    /// All stand still.
    Copying,
    /// They are let go.
    Released,
    /// Somebody failed.
    Ended,
}

struct State {
    phase: Phase,
    /// What lets those go that are held.
    holds: Vec<Box<dyn Fn() + Send>>,
    /// How many take part.
    guests: usize,
    ready: usize,
    held: usize,
    copied: usize,
}

/// Where the checkpoints of several processes wait for each other.
pub(super) struct Meeting {
    state: Mutex<State>,
    changed: Condvar,
    /// What was read of memory that several have, while they ran and when all stood still.
    running: Common,
    at_rest: Common,
}

impl Meeting {
    /// Keeps at most so many bytes of memory that several have, for those who read it later.
    pub(super) fn new(buffer_bytes: u64) -> Self {
        Self {
            running: Common::new(buffer_bytes),
            at_rest: Common::new(buffer_bytes),
            state: Mutex::new(State {
                phase: Phase::Preparing,
                holds: Vec::new(),
                guests: 0,
                ready: 0,
                held: 0,
                copied: 0,
            }),
            changed: Condvar::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets one more take part. It is waited for from here on, so its thread is started after this.
    pub(super) fn guest(&self) -> Guest<'_> {
        self.state().guests += 1;
        Guest {
            meeting: self,
            reached: Cell::new(Phase::Preparing),
            saw_end: Cell::new(false),
        }
    }

    /// Waits until all are ready.
    pub(super) fn wait_for_ready(&self) {
        let mut state = self.wait_while(|state| state.ready < state.guests);
        if state.phase == Phase::Preparing {
            state.phase = Phase::Holding;
        }
        drop(state);
        // Who comes later reads what is there then.
        self.running.clear();
        self.changed.notify_all();
    }

    /// Waits until all are held; false if somebody has failed, or `deadline` has passed.
    pub(super) fn wait_for_held(&self, deadline: Instant) -> bool {
        let mut state = self.state();
        while state.phase < Phase::Ended && state.held < state.guests {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        state.phase < Phase::Ended
    }

    /// Has all copied, and lets all go. False if they are not copied by `deadline`: one may need
    /// another that stands still, as where that serves its memory. Then the meeting has ended, and
    /// all go on at once, also those whose threads still wait.
    pub(super) fn copy(&self, deadline: Instant) -> bool {
        let mut state = self.state();
        state.phase = Phase::Copying;
        self.changed.notify_all();
        while state.phase < Phase::Ended && state.copied < state.guests {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                state.phase = Phase::Ended;
                state.holds.iter().for_each(|let_go| let_go());
                self.changed.notify_all();
                return false;
            }
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        if state.phase == Phase::Copying {
            state.phase = Phase::Released;
        }
        self.changed.notify_all();
        true
    }

    /// Ends the meeting: no checkpoint is published.
    pub(super) fn end(&self) {
        self.state().phase = Phase::Ended;
        self.changed.notify_all();
    }

    /// How many take part.
    pub(super) fn guests(&self) -> usize {
        self.state().guests
    }

    /// Waits while a condition holds, unless the meeting has ended.
    fn wait_while(&self, mut goes_on: impl FnMut(&State) -> bool) -> MutexGuard<'_, State> {
        let goes_on = |state: &mut State| state.phase < Phase::Ended && goes_on(state);
        let waited = self.changed.wait_while(self.state(), goes_on);
        waited.unwrap_or_else(PoisonError::into_inner)
    }
}

/// The checkpoint of one process at a [`Meeting`]. Dropped, it takes no part any longer; if it had
/// been held by then and not been let go, no checkpoint is published.
pub(super) struct Guest<'meeting> {
    meeting: &'meeting Meeting,
    reached: Cell<Phase>,
    saw_end: Cell<bool>,
}

impl Guest<'_> {
    /// Notes how far it has come, and waits until all have come as far.
    fn reach(&self, phase: Phase, count: impl FnOnce(&mut State)) -> Result<()> {
        let mut state = self.meeting.state();
        if self.reached.get() < phase {
            self.reached.set(phase);
            count(&mut state);
            self.meeting.changed.notify_all();
        }
        drop(state);
        let state = self.meeting.wait_while(|state| state.phase < phase);
        match state.phase {
            Phase::Ended => {
                self.saw_end.set(true);
                Err(ended())
            }
            _ => Ok(()),
        }
    }

    /// Notes that its process is held, and what lets it go; waits until all are held.
    fn held_by(&self, let_go: Option<Box<dyn Fn() + Send>>) -> Result<()> {
        self.reach(Phase::Copying, |state| {
            state.held += 1;
            state.holds.extend(let_go);
        })
    }

    /// Whether it has seen that another failed.
    pub(super) fn saw_end(&self) -> bool {
        self.saw_end.get()
    }
}

/// Why the checkpoint of a process was not taken, which in itself was possible.
fn ended() -> Error {
    Error::NotNow("another process of the tree could not be saved".into())
}

impl Together for Guest<'_> {
    fn ready(&self) -> Result<bool> {
        let came_first = self.meeting.state().phase == Phase::Preparing;
        let is_alone = self.meeting.guests() < 2;
        self.reach(Phase::Holding, |state| state.ready += 1)?;
        Ok(came_first && !is_alone)
    }

    fn held(&self, let_go: Option<LetGo>) -> Result<()> {
        self.held_by(
            let_go.map(|let_go| -> Box<dyn Fn() + Send> { Box::new(move || let_go.now()) }),
        )
    }

    fn copied(&self) -> Result<()> {
        self.reach(Phase::Released, |state| state.copied += 1)
    }

    fn common(&self, motion: Motion) -> Option<&Common> {
        Some(match motion {
            Motion::Runs => &self.meeting.running,
            Motion::AtRest => &self.meeting.at_rest,
        })
    }
}

impl Drop for Guest<'_> {
    fn drop(&mut self) {
        let mut state = self.meeting.state();
        let reached = self.reached.get();
        if reached == Phase::Released && state.phase >= Phase::Released {
            return;
        }
        // One that ends before anything was copied is not missed.
        let is_missed = reached >= Phase::Copying;
        if is_missed {
            state.phase = Phase::Ended;
        }
        state.guests -= 1;
        state.ready -= usize::from(reached >= Phase::Holding);
        state.held -= usize::from(reached >= Phase::Copying);
        state.copied -= usize::from(reached >= Phase::Released);
        drop(state);
        self.meeting.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    /// Nobody copies before all are held, and nobody goes on before all have copied; also with one
    /// that comes while the first stand still.
    #[test]
    fn all_are_held_before_any_is_copied_and_copied_before_any_goes_on() {
        let meeting = Meeting::new(0);
        let (held, copied) = (AtomicU32::new(0), AtomicU32::new(0));
        let take_part = |guest: Guest<'_>| {
            guest.ready().unwrap();
            held.fetch_add(1, Ordering::SeqCst);
            guest.held(None).unwrap();
            assert_eq!(held.load(Ordering::SeqCst), 4);
            copied.fetch_add(1, Ordering::SeqCst);
            guest.copied().unwrap();
            assert_eq!(copied.load(Ordering::SeqCst), 4);
        };
        thread::scope(|scope| {
            for _ in 0..3 {
                let guest = meeting.guest();
                scope.spawn(|| take_part(guest));
            }
            meeting.wait_for_ready();
            assert!(meeting.wait_for_held(soon()));
            let late = meeting.guest();
            scope.spawn(|| take_part(late));
            assert!(meeting.wait_for_held(soon()));
            assert!(meeting.copy(soon()));
        });
    }

    #[test]
    fn one_that_ends_before_it_is_held_is_not_waited_for() {
        let meeting = Meeting::new(0);
        thread::scope(|scope| {
            let (stays, leaves) = (meeting.guest(), meeting.guest());
            scope.spawn(move || {
                stays.ready().unwrap();
                stays.held(None).unwrap();
                stays.copied().unwrap();
            });
            scope.spawn(move || {
                leaves.ready().unwrap();
                drop(leaves);
            });
            meeting.wait_for_ready();
            assert!(meeting.wait_for_held(soon()));
            assert_eq!(meeting.guests(), 1);
            assert!(meeting.copy(soon()));
        });
    }

    #[test]
    fn one_that_fails_at_rest_fails_all() {
        let meeting = Meeting::new(0);
        thread::scope(|scope| {
            let (stays, fails) = (meeting.guest(), meeting.guest());
            let stays = scope.spawn(move || {
                stays.ready().unwrap();
                // It may learn of the end here already.
                stays.held(None).and_then(|()| stays.copied())
            });
            scope.spawn(move || {
                fails.ready().unwrap();
                fails.held(None).unwrap();
                drop(fails);
            });
            meeting.wait_for_ready();
            assert!(meeting.wait_for_held(soon()));
            assert!(meeting.copy(soon()));
            assert!(stays.join().unwrap().is_err());
        });
    }

    /// One whose memory another serves cannot be read while that stands still: all are let go.
    #[test]
    fn one_that_needs_another_is_not_waited_for_longer_than_that() {
        let meeting = Meeting::new(0);
        let (let_go, waits) = mpsc::channel::<()>();
        thread::scope(|scope| {
            let (serves, needs) = (meeting.guest(), meeting.guest());
            let serves = scope.spawn(move || {
                serves.ready().unwrap();
                let let_go = move || let_go.send(()).unwrap();
                serves.held_by(Some(Box::new(let_go))).unwrap();
                (serves.copied(), serves.saw_end())
            });
            let needs = scope.spawn(move || {
                needs.ready().unwrap();
                needs.held(None).unwrap();
                waits.recv().unwrap();
                needs.copied()
            });
            meeting.wait_for_ready();
            assert!(meeting.wait_for_held(soon()));
            assert!(!meeting.copy(Instant::now() + Duration::from_millis(10)));
            let (copied, saw_end) = serves.join().unwrap();
            assert!(copied.is_err() && saw_end);
            assert!(needs.join().unwrap().is_err());
        });
    }
}
