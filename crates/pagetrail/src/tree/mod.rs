//! [`Tree`]: one [`Watch`] for each process of a tree, those included that come later.
//!
//! New processes are looked for at [`Tree::follow`], in `/proc` or in a control group. A process
//! that has come to be since the last look is attached to then, and its first round reports all
//! memory that it has, without what it still shares with its parent unwritten (which page frames
//! tell a privileged tracker): so no page is missing that it wrote since its birth and still has,
//! at the price of false positives in that round. This needs no privilege, costs a `fork` nothing,
//! and no fork ever waits for the tracker, be it stopped or killed. What it cannot see: a process
//! that begins and ends between two looks. Where the kernel gives notice of births ([`births`]),
//! these are counted, and descendants that outlive them are found.
//!
//! The child of a `vfork(2)` or `posix_spawn(3)` writes to its parent's memory until it executes a
//! program; it gets a watch of its own after that.

mod aside;
mod births;
mod find;
mod list;
mod sharing;
mod spaces;

use crate::attach::launch::Ended;
use crate::attach::target_check;
use crate::error::{Error, ErrorKind, Result};
use crate::proc::{cgroup, pidfd};
use crate::source::State;
use crate::target::{Kind, Root, Target};
use crate::types::Inherited;
use crate::watch::Watch;
use crate::watch::builder::{Membership, WatchBuilder};
use aside::Aside;
use births::Births;
use find::{Found, Scope, sharer};
pub use list::ListedProcess;
use rustix::fd::OwnedFd;
use sharing::Sharing;
use spaces::Spaces;
use std::fmt;
use std::time::{Duration, Instant};

/// How long [`Tree::follow`] attaches to new processes; those that are left wait for the next call.
const ATTACH_TIME_MAX: Duration = Duration::from_millis(100);

/// To compare fewer processes with all members takes less than to sort these by their memory.
const FOUND_MIN: usize = 4;

/// How a process came into a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Origin {
    /// The tree began with it.
    Root,
    /// It was there when the tree began. Its rounds report what was written since.
    Present,
    /// The process was found later. Its first round reports all memory that it had then, without
    /// the pages of which it had its parent's frame at the same address
    /// ([`Inherited::shared`]), as far as that is known: those are found in the parent's memory.
    New,
}

/// What has changed in a tree; returned by [`Tree::follow`].
#[derive(Debug)]
#[non_exhaustive]
pub enum Change {
    /// A process is tracked from now on.
    Appeared {
        /// Its number: see [`Member::number`].
        number: u32,
    },
    /// A process has ended and is no longer a member.
    Ended {
        /// Its number.
        number: u32,
        /// How it ended, if that is known.
        ended: Option<Ended>,
    },
    /// A process cannot be tracked. It is tried again from time to time, and reported once.
    Refused {
        /// Its PID.
        pid: u32,
        /// The reason.
        error: Error,
    },
    /// A process with which the tree began shares the address space of a member (`CLONE_VM`), so
    /// that what it writes is in that member's rounds. It gets a watch of its own once it no longer
    /// does.
    Shares {
        /// Its PID.
        pid: u32,
        /// The number of the member.
        member: u32,
    },
    /// Processes of the tree have begun and ended since the last call, so that nothing of them is
    /// known: where [`Tree::sees_births`].
    ShortLives {
        /// How many they were.
        count: u64,
    },
    /// There are more new processes than could be attached to at once. They are attached to at the
    /// next calls.
    Behind {
        /// How many processes wait.
        waiting: usize,
    },
}

/// A tracked process of a tree.
#[derive(Debug)]
pub struct Member {
    number: u32,
    parent: Option<u32>,
    origin: Origin,
    appeared: Duration,
    watch: Watch,
}

impl Member {
    /// The number of the process: processes are counted from 0 as they appear, and no number is
    /// used twice. A PID may be.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// The PID of the process.
    pub fn pid(&self) -> u32 {
        self.watch.pid()
    }

    /// The number of its parent when it appeared; `None` if that was not a member.
    pub fn parent(&self) -> Option<u32> {
        self.parent
    }

    /// How it came into the tree.
    pub fn origin(&self) -> Origin {
        self.origin
    }

    /// When it was attached to, since the tree began.
    pub fn appeared(&self) -> Duration {
        self.appeared
    }

    /// What it had of its parent's memory when it was attached to, or since its last `execve(2)`:
    /// nothing if it is a process with which the tree began, or if that is not known (page
    /// frames are shown to `CAP_SYS_ADMIN` alone).
    pub fn inherited(&self) -> &Inherited {
        self.watch.inherited()
    }

    /// Its watch.
    pub fn watch(&self) -> &Watch {
        &self.watch
    }

    /// Its watch, to collect rounds.
    pub fn watch_mut(&mut self) -> &mut Watch {
        &mut self.watch
    }

    /// How it ended, once it has.
    fn ended(&mut self) -> Option<Option<Ended>> {
        match self.watch.wait(Duration::ZERO) {
            State::Ended(ended) => Some(ended),
            // Before Linux 5.3 there are no pidfds.
            _ => self.watch.is_known_to_be_gone().then_some(None),
        }
    }
}

/// The processes of a tree, each with its [`Watch`]; started by [`WatchBuilder::start_tree`].
///
/// Call [`Self::follow`] at intervals, and collect from each of [`Self::members_mut`] after it. A
/// member whose collect returns [`Error::Gone`] has ended: the next `follow` removes it.
pub struct Tree {
    settings: WatchBuilder,
    scope: Scope,
    members: Vec<Member>,
    /// Numbers of the processes with which the tree began.
    roots: Vec<u32>,
    /// Processes with which the tree began, and that are tracked as part of a member.
    sharing: Vec<Sharing>,
    aside: Vec<Aside>,
    /// Notices of processes that come to be, where the kernel gives them.
    births: Option<Births>,
    /// How the last root ended.
    ended: Option<Ended>,
    next_number: u32,
    began: Instant,
}

impl fmt::Debug for Tree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tree")
            .field("scope", &self.scope)
            .field("members", &self.members)
            .finish_non_exhaustive()
    }
}

impl Tree {
    pub(crate) fn start(settings: WatchBuilder, target: Target, follow: bool) -> Result<Self> {
        let scope = match (&target.0, follow) {
            (Kind::Cgroup(path), _) => Scope::Cgroup(path.clone()),
            (_, true) => Scope::Descendants,
            (_, false) => Scope::Roots,
        };
        let births = match scope {
            Scope::Descendants => Births::new(),
            // A control group lists all its processes.
            Scope::Roots | Scope::Cgroup(_) => None,
        };
        let mut tree = Self {
            settings,
            scope,
            births,
            members: Vec::new(),
            roots: Vec::new(),
            sharing: Vec::new(),
            aside: Vec::new(),
            ended: None,
            next_number: 0,
            began: Instant::now(),
        };
        match target.0 {
            Kind::Command(_) => tree.add_root(target, false)?,
            Kind::Process { pid, pidfd } => tree.start_with(vec![Root { pid, pidfd }])?,
            Kind::Tree(roots) => tree.start_with(roots)?,
            Kind::Cgroup(_) => tree.start_with(Vec::new())?,
            Kind::Own | Kind::OwnRanges(_) => {
                return Err(Error::WrongTree {
                    reason: "the own process is tracked by WatchBuilder::start".into(),
                });
            }
        }
        Ok(tree)
    }

    /// Begins with running processes and those that descend from them.
    fn start_with(&mut self, roots: Vec<Root>) -> Result<()> {
        let pids: Vec<u32> = roots.iter().map(|root| root.pid).collect();
        // Listed before anything is tracked: a process that is not among these is new.
        let present = self.scope.others(pids.iter().copied());
        let listed = present.iter().map(|found| found.pid);
        let spaces = Spaces::among(pids.into_iter().chain(listed));
        for root in roots {
            // Two watches of one address space would count its pages twice, and with `soft-dirty`
            // clear each other's bits.
            match sharer(root.pid, spaces.suspects(root.pid, self.pids())) {
                Some(_) => self.sharing.push(Sharing::new(root)),
                None => {
                    let Root { pid, pidfd } = root;
                    self.add_root(Target(Kind::Process { pid, pidfd }), false)?;
                }
            }
        }
        for found in present {
            self.join(found, Origin::Present, &spaces);
        }
        Ok(())
    }

    /// `is_late`: its memory was tracked as part of a member until now.
    fn add_root(&mut self, target: Target, is_late: bool) -> Result<()> {
        let membership = Membership {
            is_new: is_late,
            parent: None,
            has_followed_children: !matches!(self.scope, Scope::Roots),
        };
        let watch = self.settings.for_member(target, membership).start()?;
        self.roots.push(self.next_number);
        self.add(watch, None, Origin::Root);
        Ok(())
    }

    fn add(&mut self, watch: Watch, parent: Option<u32>, origin: Origin) {
        self.members.push(Member {
            number: self.next_number,
            parent,
            origin,
            appeared: self.began.elapsed(),
            watch,
        });
        self.next_number += 1;
    }

    /// The processes that are tracked now, in the order of their numbers.
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// The processes that are tracked now, in the order of their numbers.
    pub fn members_mut(&mut self) -> &mut [Member] {
        &mut self.members
    }

    /// The PIDs of the members.
    fn pids(&self) -> impl Iterator<Item = u32> + '_ {
        self.members.iter().map(Member::pid)
    }

    /// When the tree began.
    pub fn began(&self) -> Instant {
        self.began
    }

    /// Removes members that have ended, finds new processes and attaches to them. Returns what has
    /// changed, in this order.
    ///
    /// A process that is found here has an interval for its first round that begins now: see
    /// [`Origin::New`].
    pub fn follow(&mut self) -> Vec<Change> {
        let mut changes = Vec::new();
        if let Some(births) = &mut self.births {
            births.look_at_members();
        }
        let ended = self.remove_ended(&mut changes);
        self.update_births(&ended);
        let deadline = Instant::now() + ATTACH_TIME_MAX;
        let mut waiting = 0;
        self.follow_sharing(&mut changes);
        let found = self.find();
        self.aside.retain(|aside| !aside.has_ended());
        let spaces = self.spaces(&found);
        for found in found {
            if !self.aside.iter().all(|aside| aside.may_join(found.pid)) {
                continue;
            }
            if Instant::now() >= deadline {
                waiting += 1;
                continue;
            }
            changes.extend(self.join(found, Origin::New, &spaces));
        }
        if waiting > 0 {
            changes.push(Change::Behind { waiting });
        }
        match self.births.as_mut().map_or(0, Births::take_short_lives) {
            0 => {}
            count => changes.push(Change::ShortLives { count }),
        }
        changes
    }

    /// The processes that belong to the tree and are no members, parents before children.
    fn find(&self) -> Vec<Found> {
        let mut found = self.births.as_ref().map_or_else(Vec::new, Births::living);
        let sharing = self.sharing.iter().map(Sharing::pid);
        let known = self.pids().chain(sharing);
        let known = known.chain(found.iter().map(|found| found.pid));
        let others = self.scope.others(known.collect::<Vec<_>>());
        found.extend(others);
        found
    }

    /// Which of the members and of processes that were found share memory.
    fn spaces(&self, found: &[Found]) -> Spaces {
        if found.len() < FOUND_MIN {
            return Spaces::default();
        }
        Spaces::among(self.pids().chain(found.iter().map(|found| found.pid)))
    }

    /// Takes in the notices of births. `ended`: the PIDs of those that were members until now.
    fn update_births(&mut self, ended: &[u32]) {
        if let Some(mut births) = self.births.take() {
            let sharing = self.sharing.iter().map(Sharing::pid);
            births.update(self.pids().chain(sharing), ended.iter().copied());
            self.births = Some(births);
        }
    }

    /// Whether a process that was found by a notice has not ended since.
    fn lives_on(&mut self, found: &Found) -> bool {
        if !found.is_noticed {
            return true;
        }
        self.update_births(&[]);
        let births = self.births.as_ref();
        births.is_some_and(|births| births.lives(found.pid))
    }

    fn forget_birth(&mut self, pid: u32) {
        if let Some(births) = &mut self.births {
            births.forget(pid);
        }
    }

    /// Whether the kernel tells this tree of each process that comes to be. Then descendants are
    /// found whose parent has ended before they were seen, and those that have ended themselves are
    /// counted: [`Change::ShortLives`].
    ///
    /// It does so for ordinary users since Linux 6.6 (the process connector), and neither in a PID
    /// namespace nor in a network namespace of its own.
    pub fn sees_births(&self) -> bool {
        self.births.is_some()
    }

    /// Returns the PIDs of members that have ended.
    fn remove_ended(&mut self, changes: &mut Vec<Change>) -> Vec<u32> {
        let mut pids = Vec::new();
        for mut member in std::mem::take(&mut self.members) {
            match member.ended() {
                None => self.members.push(member),
                Some(ended) => {
                    let number = member.number;
                    if self.roots.contains(&number) {
                        self.ended = ended;
                    }
                    pids.push(member.pid());
                    changes.push(Change::Ended { number, ended });
                }
            }
        }
        pids
    }

    /// Attaches to a process, and makes it a member. `spaces`: of the members and this process.
    fn join(&mut self, found: Found, origin: Origin, spaces: &Spaces) -> Option<Change> {
        let pid = found.pid;
        let pidfd = pidfd::open(pid);
        // With the pidfd open it can be relied on: by now the PID may be another process's.
        if !found.is_still_there(|| self.lives_on(&found))
            || found.cannot_stop()
            || found.shares_memory(spaces.suspects(pid, self.pids()))
        {
            return None;
        }
        let membership = Membership {
            is_new: origin == Origin::New,
            parent: found.parent,
            has_followed_children: true,
        };
        match self.attach(pid, pidfd, membership) {
            Ok(watch) => {
                let is_parent = |member: &&Member| Some(member.pid()) == found.parent;
                let parent = self.members.iter().find(is_parent).map(Member::number);
                let number = self.next_number;
                self.aside.retain(|aside| aside.pid() != pid);
                self.forget_birth(pid);
                self.add(watch, parent, origin);
                Some(Change::Appeared { number })
            }
            // It has ended, or executes a program just now.
            Err(error) if error.means_gone() || error.kind() == ErrorKind::NotFound => None,
            Err(error) => {
                self.forget_birth(pid);
                let known = self.aside.iter_mut().find(|aside| aside.pid() == pid);
                match known {
                    Some(aside) => {
                        aside.wait_longer();
                        None
                    }
                    None => {
                        self.aside.push(Aside::new(pid));
                        Some(Change::Refused { pid, error })
                    }
                }
            }
        }
    }

    fn attach(&self, pid: u32, pidfd: Option<OwnedFd>, membership: Membership) -> Result<Watch> {
        target_check::check(pid)?;
        let target = Target(Kind::Process { pid, pidfd });
        let builder = self.settings.for_member(target, membership);
        builder.attach()?.start()
    }

    /// Waits until the tree ends, but at most for `timeout`.
    ///
    /// A tree ends with the processes with which it began; what is left of it then runs on. That of
    /// a control group ends when the group is removed. [`State::Exiting`] is that of a program that
    /// the tree has started: see [`AtExit::Hold`](crate::AtExit::Hold).
    pub fn wait(&mut self, timeout: Duration) -> State {
        let deadline = Instant::now() + timeout;
        if let Scope::Cgroup(path) = &self.scope {
            if !cgroup::exists(path) {
                return State::Ended(None);
            }
            std::thread::sleep(timeout);
            return State::Running;
        }
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let roots = &self.roots;
            let mut living = self.members.iter_mut();
            let Some(root) = living.find(|member| roots.contains(&member.number)) else {
                return sharing::wait(&mut self.sharing, left).unwrap_or(State::Ended(self.ended));
            };
            match root.watch.wait(left) {
                State::Ended(_) if self.roots.len() + self.sharing.len() > 1 => {
                    let number = root.number;
                    // Others may live on: it is no longer waited for.
                    self.roots.retain(|root| *root != number);
                }
                state => return state,
            }
        }
    }

    /// Releases a program that is held at its end; see [`State::Exiting`].
    pub fn release_exit(&mut self) {
        for member in &mut self.members {
            member.watch.release_exit();
        }
    }
}
