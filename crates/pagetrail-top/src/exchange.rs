//! [`Exchange`]: between the thread that collects and the one that draws and reads keys, neither of
//! which waits for the other: rounds go one way, the wish to end both.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pagetrail_trail::{End, Header, Mapping, Round};
use rustix::event::{EventfdFlags, eventfd};

use crate::FunctionRound;

/// Collects that wait to be drawn at most. A terminal that takes no output stops the rounds, not
/// the memory.
const WAITING_MAX: usize = 4;

/// What has changed, for the view.
pub enum Update {
    /// A process came.
    Appeared {
        /// Its number in the tree.
        number: u32,
        /// Its parent's number.
        parent: Option<u32>,
        /// The program, and how its memory is tracked.
        header: Header,
        /// Whether it is sampled for the functions that write.
        has_functions: bool,
    },
    /// A round of a process.
    Round(Box<Collected>),
    /// A process ended; others may live on.
    Ended {
        /// Its number in the tree.
        number: u32,
        /// How.
        end: End,
    },
    /// The target ended: there are no more updates.
    Over(End),
}

/// A round, and what the view shows beside it.
pub struct Collected {
    /// The process, by its number in the tree.
    pub number: u32,
    /// The round.
    pub round: Round,
    /// Mappings that are there.
    pub present: Vec<Mapping>,
    /// Mappings that vanished since the round before.
    pub gone: Vec<Mapping>,
    /// The functions that wrote, where these are looked for.
    pub functions: Option<FunctionRound>,
}

/// What the two threads share.
pub struct Exchange {
    state: Mutex<State>,
    /// Said when the view has closed.
    closed: Condvar,
    /// Readable when there is something for the view.
    wake: OwnedFd,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Vec<Update>>,
    /// Whether the view has closed: the user quit, or the terminal is gone.
    is_closed: bool,
    /// Whether the collecting thread does not go on.
    is_broken: bool,
}

/// A thread collects while this is there.
#[must_use]
pub struct Collecting<'a>(&'a Exchange);

impl Drop for Collecting<'_> {
    fn drop(&mut self) {
        self.0.state().is_broken = true;
        self.0.wake();
    }
}

impl Exchange {
    /// With no update, for a view that is open.
    ///
    /// # Errors
    ///
    /// There is no descriptor left.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            state: Mutex::default(),
            closed: Condvar::new(),
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        })
    }

    /// Hands updates to the view, all at once.
    pub fn post(&self, updates: Vec<Update>) {
        if !updates.is_empty() {
            self.state().waiting.push_back(updates);
            self.wake();
        }
    }

    /// Whether the view does not keep up.
    pub fn is_full(&self) -> bool {
        self.state().waiting.len() >= WAITING_MAX
    }

    /// Says that the collecting thread does not go on, so that the view closes, when the value is
    /// dropped: also after an error or a panic.
    pub fn collecting(&self) -> Collecting<'_> {
        Collecting(self)
    }

    /// Says that the view has closed.
    pub fn close(&self) {
        self.state().is_closed = true;
        self.closed.notify_all();
    }

    /// Whether the view has closed.
    pub fn is_closed(&self) -> bool {
        self.state().is_closed
    }

    /// Waits until the view closes, but at most for `timeout`; returns whether it has.
    pub fn wait_closed(&self, timeout: Duration) -> bool {
        let state = self.state();
        let waited = self
            .closed
            .wait_timeout_while(state, timeout, |state| !state.is_closed);
        waited.unwrap_or_else(PoisonError::into_inner).0.is_closed
    }

    /// Takes the updates that wait; `None` where there will be no more.
    pub fn take(&self) -> Option<Vec<Update>> {
        // Before the updates: what comes in between wakes the view once more.
        let _ = rustix::io::read(&self.wake, &mut [0; 8]);
        let mut state = self.state();
        if state.is_broken {
            return None;
        }
        Some(state.waiting.drain(..).flatten().collect())
    }

    fn wake(&self) {
        // It fails where the count is at its end: then it can be read already.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }

    /// No thread panics while it has the lock.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AsFd for Exchange {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;

    fn is_readable(exchange: &Exchange) -> bool {
        let mut waiting = [PollFd::new(exchange, PollFlags::IN)];
        poll(&mut waiting, Some(&Timespec::default())).expect("it polls") == 1
    }

    fn ended(number: u32) -> Vec<Update> {
        let end = End::Exited(0);
        vec![Update::Ended { number, end }]
    }

    #[test]
    fn updates_wake_the_view_and_come_in_order() {
        let exchange = Exchange::new().expect("a descriptor");
        exchange.post(Vec::new());
        assert!(!is_readable(&exchange));
        for number in 0..WAITING_MAX as u32 {
            assert!(!exchange.is_full());
            exchange.post(ended(number));
            assert!(is_readable(&exchange));
        }
        assert!(exchange.is_full());
        let updates = exchange.take().expect("there is no error").into_iter();
        let numbers: Vec<_> = updates
            .map(|update| match update {
                Update::Ended { number, .. } => number,
                _ => u32::MAX,
            })
            .collect();
        assert_eq!(numbers, (0..WAITING_MAX as u32).collect::<Vec<_>>());
        assert!(!is_readable(&exchange) && !exchange.is_full());
    }

    #[test]
    fn each_side_hears_that_the_other_has_ended() {
        let exchange = Exchange::new().expect("a descriptor");
        assert!(!exchange.wait_closed(Duration::ZERO));
        std::thread::scope(|scope| {
            scope.spawn(|| exchange.close());
            // It ends long before.
            assert!(exchange.wait_closed(Duration::from_secs(600)));
        });
        exchange.post(ended(0));
        drop(exchange.collecting());
        assert!(is_readable(&exchange) && exchange.take().is_none());
    }
}
