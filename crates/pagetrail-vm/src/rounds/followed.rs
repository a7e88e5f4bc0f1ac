//! What only the members of a tree need of a [`GuestSource`]: rounds that nobody waits for, and a
//! process that goes on with another program.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use pagetrail::{Event, Heaps};

use super::Collected;
use super::link::{Request, Rounds};
use super::source::{GuestSource, Phase};

impl GuestSource {
    /// Requests a round, unless one is there or on its way.
    pub(super) fn begin_collect(&mut self) {
        if let (true, None, Phase::Guest(link)) =
            (self.ready.is_empty(), self.requested, &mut self.phase)
        {
            self.requested = Some(Instant::now());
            link.send(&Request::Round);
        }
    }

    /// Whether a round is on its way that was requested since then.
    pub(super) fn awaits_answer(&self, since: Instant) -> bool {
        let is_requested = self.requested.is_some_and(|requested| requested >= since);
        is_requested && matches!(self.phase, Phase::Guest(_))
    }

    /// What becomes readable when the guest sends something.
    pub(super) fn link(&self) -> Option<BorrowedFd<'_>> {
        match &self.phase {
            Phase::Guest(link) => Some(link.as_fd()),
            Phase::Exiting(_) | Phase::Over => None,
        }
    }

    /// Goes on with another program of the process, which sends its rounds over this link.
    pub(super) fn continue_with(&mut self, link: Rounds, command: Vec<String>) {
        self.end_program();
        self.phase = Phase::Guest(link);
        // All that it maps is new.
        self.regions.clear();
        let pid = self.process.pid();
        for kind in &mut self.kinds {
            kind.heaps = kind.heaps.take().map(|_| Heaps::new(pid));
        }
        self.events.push(Event::Exec { command });
    }

    /// Ends the rounds of a process that goes on as no guest.
    pub(super) fn continue_natively(&mut self) {
        self.end_program();
        let note = "the program that it executes cannot be a guest, and is not recorded".into();
        self.add(
            Collected::default(),
            vec![Event::Note(note)],
            Duration::ZERO,
        );
    }

    /// Takes in what the program before has sent. Others may still have its end of the link open.
    fn end_program(&mut self) {
        while let Phase::Guest(link) = &mut self.phase {
            if let Some(before) = link.take_pre_exec() {
                self.add(before, Vec::new(), Duration::ZERO);
            } else if !self.receive(Duration::ZERO) {
                break;
            }
        }
        self.phase = Phase::Over;
        self.requested = None;
    }
}
