//! [`GuestSource`]: a guest in another process as a source of rounds, like a watch on a process.
//!
//! It leaves to its user how the process that becomes the guest is started.

use std::collections::VecDeque;
use std::io;
use std::process::Child;
use std::thread;
use std::time::{Duration, Instant};

use pagetrail::{
    AccessKind, DirtySource, Ended, Event, Found, Heaps, Held, Pace, Region, Round, RoundBuffer,
    RoundCost, State, TrackMode, UntrackedRegion,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::link::{GuestRound, Request, Rounds};
use super::process::Process;
use super::strategy::{Strategy, UnitStrategy};
use super::unit_change::Aliased;
use super::{Collected, mappings};
use crate::error::Error;
use hold::GuestHold;

// By their paths, since `refused` has this file for other processors.
#[path = "source/hold.rs"]
mod hold;
#[path = "source/overhead.rs"]
mod overhead;

/// The name of this source in recordings.
const NAME: &str = "kvm";

/// How often to look whether a program that is no longer a guest has ended.
const END_POLL: Duration = Duration::from_millis(5);

/// The rounds of a program that runs as a guest in a process of its own.
///
/// A round of the guest is one round of each kind that is tracked, all of the same interval: after
/// the first, [`wait`](DirtySource::wait) returns [`State::Ready`] for the next. It returns
/// [`State::Exiting`] when the program is about to end, which then waits until
/// [`release_exit`](DirtySource::release_exit), or until its last round is committed.
///
/// A program that executes another one is no longer a guest:
/// [`collect`](DirtySource::collect) then returns [`pagetrail::Error::Gone`], while
/// [`wait`](DirtySource::wait) goes on to report that it runs, and its end.
///
/// Dropping this leaves the program running, without anybody who collects its rounds.
#[derive(Debug)]
pub struct GuestSource {
    pub(super) process: Process,
    ended: Option<Option<Ended>>,
    pub(super) phase: Phase,
    rounds: RoundBuffer,
    pub(super) kinds: Vec<Kind>,
    /// The kinds of the last collect whose rounds have not been handed out.
    pub(super) ready: VecDeque<AccessKind>,
    pub(super) regions: Vec<Region>,
    /// What the next round is to say.
    pub(super) events: Vec<Event>,
    /// When a round was requested that has not come.
    pub(super) requested: Option<Instant>,
    /// An error that was found while waiting, for the next collect.
    failure: Option<Error>,
    /// Which sub-pages are merged, if they may be.
    units: Option<Strategy>,
    /// What rounds may cost, if that is limited.
    pace: Option<Pace>,
    log_entries: u64,
}

/// A kind of rounds that the consumer wants.
#[derive(Debug)]
pub(super) struct Kind {
    access_kind: AccessKind,
    /// The heap that distinguishes sub-pages, if the program has one. It follows rounds of one
    /// kind.
    pub(super) heaps: Option<Heaps>,
}

#[derive(Debug)]
pub(super) enum Phase {
    /// The program is a guest.
    Guest(Rounds),
    /// The program waits at its end until the link is closed.
    Exiting(#[expect(dead_code, reason = "the program goes on when it is dropped")] Rounds),
    /// The program is no longer a guest.
    Over,
}

/// How much a guest's rounds say of dirty memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoundDetail {
    /// Which pages are dirty.
    Pages,
    /// Which pages are, and which sub-pages in heaps of `pagetrail-alloc`.
    SubPages,
}

impl GuestSource {
    /// Makes a source of the process `child`, which becomes a guest with the other end of the link
    /// ([`recorded_guest`](crate::recorded_guest)).
    ///
    /// Accesses are only reported if the guest's [settings](crate::Settings) say so.
    pub fn new(rounds: Rounds, child: Child, track: TrackMode, detail: RoundDetail) -> Self {
        Self::of(rounds, Process::Child(child), track, detail)
    }

    pub(super) fn of(
        rounds: Rounds,
        process: Process,
        track: TrackMode,
        detail: RoundDetail,
    ) -> Self {
        let pid = process.pid();
        let kinds = match track {
            TrackMode::Alternate => &[AccessKind::Writes, AccessKind::Accesses][..],
            TrackMode::Accesses => &[AccessKind::Accesses],
            _ => &[AccessKind::Writes],
        };
        let kinds = kinds.iter().map(|access_kind| Kind {
            access_kind: *access_kind,
            heaps: (detail == RoundDetail::SubPages).then(|| Heaps::new(pid)),
        });
        Self {
            process,
            ended: None,
            phase: Phase::Guest(rounds),
            rounds: RoundBuffer::new(),
            kinds: kinds.collect(),
            ready: VecDeque::new(),
            regions: Vec::new(),
            events: Vec::new(),
            requested: None,
            failure: None,
            units: None,
            pace: None,
            log_entries: 0,
        }
    }

    /// The number of dirty-ring entries in all rounds so far: what the processor logged, or faults
    /// where it does not log. Merged sub-pages take one.
    pub fn log_entries(&self) -> u64 {
        self.log_entries
    }

    /// Sets how sub-pages are merged and separated while the program runs. Merged sub-pages are
    /// logged, and reported, together. Needs [`RoundDetail::SubPages`].
    ///
    /// # Errors
    ///
    /// This machine's KVM would miss writes to merged sub-pages
    /// ([`check::try_units`](crate::check::try_units)).
    pub fn set_units(&mut self, strategy: UnitStrategy) -> crate::Result<()> {
        self.units = None;
        if strategy != UnitStrategy::Static {
            crate::check::try_units()?;
            self.units = Some(Strategy::new(strategy));
        }
        Ok(())
    }

    /// Takes in a round of the guest, and changes what its sub-pages are merged with.
    fn add_running(&mut self, collected: Collected, collect: Duration) {
        let written = self.units.is_some().then(|| collected.written.clone());
        self.add(collected, Vec::new(), collect);
        let heaps = self.kinds.iter().find_map(|kind| kind.heaps.as_ref());
        if let (Some(units), Some(written), Some(heaps)) = (&mut self.units, written, heaps)
            && let Phase::Guest(link) = &mut self.phase
        {
            let heaps = heaps.aliased().map(|(first, aliases)| Aliased {
                base: first.start(),
                alias_bytes: first.bytes(),
                aliases,
            });
            let changes = units.plan(heaps, &written);
            if !changes.is_empty() {
                link.send(&Request::Units(changes));
            }
        }
    }

    /// Adds what the guest sent, and makes its rounds ready.
    pub(super) fn add(
        &mut self,
        mut collected: Collected,
        mut events: Vec<Event>,
        collect: Duration,
    ) {
        events.splice(..0, self.events.drain(..));
        self.log_entries += collected.ring_entries;
        // A bitmap has no entries.
        let logged = collected.ring_entries.max(collected.written.page_count());
        let unknown = std::mem::take(&mut collected.unknown_calls);
        events.extend(unknown.into_iter().map(unknown_call));
        let regions = mappings::at(self.process.pid(), &collected);
        let remapped = match regions == self.regions {
            true => Default::default(),
            false => mappings::new_since(&self.regions, &regions),
        };
        self.regions = regions;
        for kind in &mut self.kinds {
            let mut found = Found::default();
            found.dirty = match kind.access_kind {
                AccessKind::Writes => std::mem::take(&mut collected.written),
                AccessKind::Accesses => collected.accessed.take().unwrap_or_default(),
            };
            found.remapped = remapped.clone();
            found.events = std::mem::take(&mut events);
            self.rounds.add(kind.access_kind, found);
            if let Some(heaps) = &mut kind.heaps {
                self.rounds
                    .resolve_subpages(kind.access_kind, heaps, &self.regions);
            }
        }
        self.make_ready(collect);
        self.settle(logged);
    }

    fn make_ready(&mut self, collect: Duration) {
        let kinds: Vec<AccessKind> = self.kinds.iter().map(|kind| kind.access_kind).collect();
        let mut cost = RoundCost::default();
        cost.collect = collect;
        self.rounds.end_collect(&kinds, cost);
        self.ready = kinds.into();
    }

    /// Takes in a round that the guest sent. Returns false if it is no longer a guest and has sent
    /// nothing.
    fn take(&mut self, round: GuestRound, collect: Duration) -> bool {
        self.requested = None;
        match round {
            GuestRound::Round(collected) => self.add_running(collected, collect),
            GuestRound::Final(collected) => {
                // The mappings are read while the program waits.
                self.add(collected, Vec::new(), collect);
                if let Phase::Guest(link) = std::mem::replace(&mut self.phase, Phase::Over) {
                    self.phase = Phase::Exiting(link);
                }
            }
            GuestRound::Gone(collected) => {
                let phase = std::mem::replace(&mut self.phase, Phase::Over);
                let Some(collected) = collected else {
                    return false;
                };
                let note = "the program executes another one, which is not recorded".into();
                let events = match phase {
                    // The program says so itself.
                    Phase::Guest(link) if link.is_followed() => Vec::new(),
                    _ => vec![Event::Note(note)],
                };
                self.add(collected, events, collect);
            }
        }
        true
    }

    /// Requests a round, and takes it in.
    fn request(&mut self, request: &Request) -> pagetrail::Result<()> {
        if let Some(error) = self.failure.take() {
            return Err(self.failed(error));
        }
        let began = Instant::now();
        match &mut self.phase {
            Phase::Guest(link) => match link.request(request) {
                Ok(round) => match self.take(round, began.elapsed()) {
                    true => Ok(()),
                    false => Err(pagetrail::Error::Gone {
                        pid: self.process.pid(),
                    }),
                },
                Err(error) => {
                    self.phase = Phase::Over;
                    Err(self.failed(error))
                }
            },
            // What was not committed comes back.
            Phase::Exiting(_) => {
                self.make_ready(Duration::ZERO);
                Ok(())
            }
            Phase::Over if !self.rounds.is_empty() => {
                self.make_ready(Duration::ZERO);
                Ok(())
            }
            Phase::Over => Err(pagetrail::Error::Gone {
                pid: self.process.pid(),
            }),
        }
    }

    fn failed(&self, error: Error) -> pagetrail::Error {
        pagetrail::Error::Io {
            what: format!(
                "receiving a round of the guest, process {}",
                self.process.pid()
            ),
            source: io::Error::other(error),
        }
    }

    /// The round of this kind, of the last collect.
    fn round(&mut self, access_kind: AccessKind) -> pagetrail::Result<Round<'_>> {
        let gone = pagetrail::Error::Gone {
            pid: self.process.pid(),
        };
        let round = self.rounds.round(access_kind, &self.regions, &[]);
        round.ok_or(gone)
    }

    /// Takes in what the guest sends by itself, for at most `timeout`. Returns whether it has sent
    /// anything.
    pub(super) fn receive(&mut self, timeout: Duration) -> bool {
        let Phase::Guest(link) = &mut self.phase else {
            thread::sleep(timeout.min(END_POLL));
            return false;
        };
        let timeout = Timespec::try_from(timeout).ok();
        let is_readable = poll(&mut [PollFd::new(link, PollFlags::IN)], timeout.as_ref());
        if is_readable.unwrap_or(0) == 0 {
            return false;
        }
        match link.receive() {
            Ok(Some(round)) => {
                let requested = self.requested;
                self.take(
                    round,
                    requested.map_or(Duration::ZERO, |since| since.elapsed()),
                );
            }
            Ok(None) => {}
            Err(error) => {
                self.failure = Some(error);
                self.phase = Phase::Over;
            }
        }
        true
    }

    /// The target's state, if it is another one than that it runs.
    pub(super) fn state(&mut self) -> Option<State> {
        if self.failure.is_some() {
            return Some(State::Ready);
        }
        let is_exiting = matches!(self.phase, Phase::Exiting(_));
        if !self.ready.is_empty() {
            let is_first = self.ready.len() == self.kinds.len();
            return Some(match is_exiting && is_first {
                true => State::Exiting,
                false => State::Ready,
            });
        }
        if is_exiting {
            if !self.rounds.is_empty() {
                return Some(State::Exiting);
            }
            self.release_exit();
        }
        if !matches!(self.phase, Phase::Over) {
            return None;
        }
        if self.ended.is_none() {
            self.ended = self.process.ended();
        }
        self.ended.map(State::Ended)
    }
}

impl DirtySource for GuestSource {
    fn pid(&self) -> u32 {
        self.process.pid()
    }

    fn technique_name(&self) -> &str {
        NAME
    }

    fn reason(&self) -> &str {
        match self.kinds.as_slice() {
            [
                Kind {
                    access_kind: AccessKind::Writes,
                    ..
                },
            ] => "it runs as a guest, and KVM logs its writes",
            _ => "it runs as a guest: KVM logs its writes, its page tables have accessed bits",
        }
    }

    fn regions(&self) -> &[Region] {
        &self.regions
    }

    fn untracked(&self) -> &[UntrackedRegion] {
        &[]
    }

    fn wait(&mut self, timeout: Duration) -> State {
        let deadline = Instant::now() + timeout;
        loop {
            if let Some(state) = self.state() {
                return state;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            self.receive(left);
            if left.is_zero() {
                return self.state().unwrap_or(State::Running);
            }
        }
    }

    fn collect(&mut self) -> pagetrail::Result<Round<'_>> {
        if self.ready.is_empty() {
            self.request(&Request::Round)?;
        }
        let Some(access_kind) = self.ready.pop_front() else {
            return Err(pagetrail::Error::Gone {
                pid: self.process.pid(),
            });
        };
        self.round(access_kind)
    }

    fn next_collect(&self) -> Option<Instant> {
        self.pace.as_ref().map(Pace::next)
    }

    fn release_exit(&mut self) {
        if let Phase::Exiting(_) = self.phase {
            self.phase = Phase::Over;
        }
    }

    fn hold(&mut self) -> pagetrail::Result<Box<dyn Held>> {
        let since = Instant::now();
        let releaser = match &self.phase {
            // Before the guest is held, so that a failure does not leave it so.
            Phase::Guest(link) => Some(link.releaser().map_err(|source| pagetrail::Error::Io {
                what: "duplicating a descriptor".into(),
                source,
            })?),
            Phase::Exiting(_) | Phase::Over => None,
        };
        self.request(&Request::Hold)?;
        if let Phase::Over = self.phase {
            return Err(pagetrail::Error::Gone {
                pid: self.process.pid(),
            });
        }
        let pid = self.process.pid();
        let threads = match &mut self.phase {
            Phase::Guest(link) => link.threads().map_err(|error| self.failed(error))?,
            // No thread runs any more.
            Phase::Exiting(_) | Phase::Over => Vec::new(),
        };
        Ok(Box::new(GuestHold {
            pid,
            since,
            threads,
            _releaser: releaser,
        }))
    }

    /// Collects a round of the instant at which the guest was held, which [`hold`](Self::hold) has
    /// received.
    fn collect_held(&mut self, held: &dyn Held) -> pagetrail::Result<Round<'_>> {
        if held.pid() != self.process.pid() {
            return Err(pagetrail::Error::Attach {
                pid: self.process.pid(),
                reason: format!("process {} is held instead", held.pid()),
            });
        }
        self.collect()
    }
}

fn unknown_call(number: u64) -> Event {
    Event::Note(format!(
        "system call {number} is not known: for each such call, all writable memory counts as dirty"
    ))
}

// By its path, since `refused` has this file for other processors.
#[cfg(test)]
#[path = "source/tests.rs"]
mod tests;
