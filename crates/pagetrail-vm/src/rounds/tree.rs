//! [`GuestTree`]: the guests of a program that is followed, each a source of rounds.

use std::os::fd::OwnedFd;
use std::process::Child;
use std::time::{Duration, Instant};

use pagetrail::{DirtySource, Ended, State, TrackMode};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::announce::{Announcement, Announcements, Kind};
use super::link::Rounds;
use super::process::{Process, ended};
use super::source::{GuestSource, RoundDetail};

/// How long a member is waited for that does not answer: one that is stopped (`SIGSTOP`) answers
/// when it goes on, and is not waited for again.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// The longest time until the end of a process is noticed that sends none.
const END_POLL: Duration = Duration::from_millis(20);

/// What has changed in a tree of guests; returned by [`GuestTree::follow`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GuestChange {
    /// A process is recorded from now on, and its rounds have all that it writes.
    Appeared {
        /// Its number: see [`GuestMember::number`].
        number: u32,
    },
    /// A process has ended and is no longer a member; how is not known. The end of the first comes
    /// by [`GuestTree::wait`].
    Ended {
        /// Its number.
        number: u32,
    },
}

/// A process of a program that is followed.
#[derive(Debug)]
pub struct GuestMember {
    number: u32,
    id: u64,
    parent: Option<u32>,
    is_root: bool,
    appeared: Duration,
    command: Vec<String>,
    source: GuestSource,
}

impl GuestMember {
    /// The number of the process: processes are counted from 0 as they appear.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// The number of its parent; `None` for the first, and where the parent was not a member.
    pub fn parent(&self) -> Option<u32> {
        self.parent
    }

    /// Whether it is the program that was started.
    pub fn is_root(&self) -> bool {
        self.is_root
    }

    /// When it appeared, since the tree began.
    pub fn appeared(&self) -> Duration {
        self.appeared
    }

    /// The command line of the program that it runs.
    pub fn command(&self) -> &[String] {
        &self.command
    }

    /// Its source of rounds.
    pub fn source(&self) -> &GuestSource {
        &self.source
    }

    /// Its source of rounds, to collect from where [`Self::is_ready`].
    pub fn source_mut(&mut self) -> &mut GuestSource {
        &mut self.source
    }

    /// Whether a round of it is there, so that a collect does not wait.
    pub fn is_ready(&mut self) -> bool {
        matches!(self.source.state(), Some(State::Ready | State::Exiting))
    }
}

/// The guests of a program that is followed ([`Settings::follow`](crate::Settings::follow)).
///
/// Call [`Self::follow`] when [`Self::wait`] returns, and collect from each of
/// [`Self::members_mut`] that [is ready](GuestMember::is_ready). A process that ends waits until
/// its last round has been committed. Dropping the tree leaves all processes running, unrecorded.
#[derive(Debug)]
pub struct GuestTree {
    announcements: Announcements,
    track: TrackMode,
    detail: RoundDetail,
    /// The first process, until it announces itself; or has ended.
    first: First,
    command: Vec<String>,
    members: Vec<GuestMember>,
    changes: Vec<GuestChange>,
    next_number: u32,
    began: Instant,
}

#[derive(Debug)]
enum First {
    Starting(Child),
    Member,
    Ended(Option<Ended>),
}

impl GuestTree {
    /// Makes a tree of the process `child`, which becomes a guest with the other end of the
    /// announcements, and of all processes that come of it. `command` is what it runs.
    ///
    /// `track` and `detail` are as for [`GuestSource::new`], for all of them.
    pub fn new(
        announcements: Announcements,
        child: Child,
        command: Vec<String>,
        track: TrackMode,
        detail: RoundDetail,
    ) -> Self {
        Self {
            announcements,
            track,
            detail,
            first: First::Starting(child),
            command,
            members: Vec::new(),
            changes: Vec::new(),
            next_number: 0,
            began: Instant::now(),
        }
    }

    /// The processes that are recorded now, in the order of their numbers.
    pub fn members(&self) -> &[GuestMember] {
        &self.members
    }

    /// The processes that are recorded now, in the order of their numbers.
    pub fn members_mut(&mut self) -> &mut [GuestMember] {
        &mut self.members
    }

    /// When the tree began.
    pub fn began(&self) -> Instant {
        self.began
    }

    /// Takes in who has come and gone, and returns what has changed since the last call.
    pub fn follow(&mut self) -> Vec<GuestChange> {
        self.take_in();
        std::mem::take(&mut self.changes)
    }

    /// Requests a round of each process, and waits until all that answer have.
    pub fn request_rounds(&mut self) {
        let since = Instant::now();
        self.members
            .iter_mut()
            .for_each(|member| member.source.begin_collect());
        let deadline = since + ANSWER_TIMEOUT;
        loop {
            let mut asked = self.members.iter_mut();
            let Some(asked) = asked.find(|member| member.source.awaits_answer(since)) else {
                return;
            };
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            asked.source.receive(left);
        }
    }

    /// Waits until something is to be done, but at most for `timeout`: [`State::Ready`] when a
    /// process is new, or a round of one is there, [`State::Exiting`] when the first process is
    /// about to end. The tree ends with that process; what is left of it then runs on.
    pub fn wait(&mut self, timeout: Duration) -> State {
        let deadline = Instant::now() + timeout;
        loop {
            self.take_in();
            if let Some(state) = self.state() {
                return state;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return State::Running;
            }
            self.poll(left.min(END_POLL));
        }
    }

    fn state(&mut self) -> Option<State> {
        for member in &mut self.members {
            match member.source.state() {
                Some(State::Exiting) if member.is_root => return Some(State::Exiting),
                Some(State::Ready | State::Exiting) => return Some(State::Ready),
                _ => {}
            }
        }
        if !self.changes.is_empty() {
            return Some(State::Ready);
        }
        match &self.first {
            First::Ended(ended) => Some(State::Ended(*ended)),
            First::Starting(_) | First::Member => None,
        }
    }

    /// Waits until a member or a new process sends something.
    fn poll(&self, timeout: Duration) {
        let mut fds = vec![PollFd::new(&self.announcements, PollFlags::IN)];
        let links = self
            .members
            .iter()
            .filter_map(|member| member.source.link());
        fds.extend(links.map(|link| PollFd::from_borrowed_fd(link, PollFlags::IN)));
        let timeout = Timespec::try_from(timeout).ok();
        // A signal ends it early, which does no harm.
        let _ = poll(&mut fds, timeout.as_ref());
    }

    /// Lets processes go that wait at their end.
    pub fn release_exit(&mut self) {
        for member in &mut self.members {
            member.source.release_exit();
        }
    }

    /// Takes in all that has been sent, and who has ended.
    fn take_in(&mut self) {
        while let Some((announcement, descriptors)) = self.announcements.receive() {
            self.announced(announcement, descriptors);
        }
        for member in &mut self.members {
            member.source.receive(Duration::ZERO);
        }
        self.remove_ended();
    }

    fn announced(&mut self, announcement: Announcement, descriptors: Vec<OwnedFd>) {
        let Announcement { kind, id, .. } = announcement;
        let mut members = self.members.iter_mut();
        let known = members.find(|member| member.id == id);
        let mut descriptors = descriptors.into_iter();
        let link = descriptors.next().map(Rounds::of);
        match (kind, known, link, descriptors.next()) {
            (Kind::Native, Some(member), ..) => member.source.continue_natively(),
            (_, Some(member), Some(link), _) => {
                member.command = pagetrail::command_line(member.source.pid());
                member.source.continue_with(link, member.command.clone());
            }
            (_, None, Some(link), Some(process)) => self.add(announcement, link, process),
            // The recorder has as many descriptors as it may have.
            _ => tracing::error!("a process is not recorded: its descriptors cannot be received"),
        }
    }

    fn add(&mut self, announcement: Announcement, link: Rounds, process: OwnedFd) {
        let first = std::mem::replace(&mut self.first, First::Member);
        let (process, is_root) = match first {
            First::Starting(child) => (Process::Child(child), true),
            first => {
                self.first = first;
                let Some(process) = Process::other(process) else {
                    // It has ended, by a signal: what it wrote is lost with it.
                    return;
                };
                (process, false)
            }
        };
        let mut members = self.members.iter();
        let parent = members.find(|member| member.id == announcement.parent);
        let command = match (announcement.kind, parent) {
            (Kind::Started, Some(parent)) => parent.command.clone(),
            _ if is_root => std::mem::take(&mut self.command),
            _ => pagetrail::command_line(process.pid()),
        };
        self.members.push(GuestMember {
            number: self.next_number,
            id: announcement.id,
            parent: parent.map(GuestMember::number),
            is_root,
            appeared: self.began.elapsed(),
            command,
            source: GuestSource::of(link, process, self.track, self.detail),
        });
        self.changes.push(GuestChange::Appeared {
            number: self.next_number,
        });
        self.next_number += 1;
    }

    fn remove_ended(&mut self) {
        if let First::Starting(child) = &mut self.first
            && let Ok(Some(status)) = child.try_wait()
        {
            self.first = First::Ended(ended(status));
        }
        let (first, changes) = (&mut self.first, &mut self.changes);
        self.members.retain_mut(|member| {
            let Some(State::Ended(ended)) = member.source.state() else {
                return true;
            };
            let number = member.number;
            match member.is_root {
                true => *first = First::Ended(ended),
                false => changes.push(GuestChange::Ended { number }),
            }
            false
        });
    }
}
