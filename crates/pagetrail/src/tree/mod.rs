//! [`Tree`]: one [`Watch`] for each process of a tree, those included that come later.
//!
//! New processes are looked for at [`Tree::follow`], in `/proc` or in a control group. A process
//! that has come to be since the last look is attached to then, and its first round reports all
//! memory that it has: so no page is missing that it wrote since its birth and still has, at the
//! price of false positives in that round. This needs no privilege, costs a `fork` nothing, and no
//! fork ever waits for the tracker, be it stopped or killed. What it cannot see: a process that
//! begins and ends between two looks, and the descendants that such a process leaves behind.
//!
//! The child of a `vfork(2)` or `posix_spawn(3)` writes to its parent's memory until it executes a
//! program; it gets a watch of its own after that.

mod aside;
mod find;

use crate::attach::launch::Ended;
use crate::attach::target_check;
use crate::error::{Error, ErrorKind, Result};
use crate::proc::{cgroup, pidfd};
use crate::source::State;
use crate::target::{Kind, Root, Target};
use crate::watch::Watch;
use crate::watch::builder::{Membership, WatchBuilder};
use aside::Aside;
use find::{Found, Scope};
use rustix::fd::OwnedFd;
use std::fmt;
use std::time::{Duration, Instant};

/// How long [`Tree::follow`] attaches to new processes; those that are left wait for the next call.
const ATTACH_TIME_MAX: Duration = Duration::from_millis(100);

/// How a process came into a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Origin {
    /// The tree began with it.
    Root,
    /// It was there when the tree began. Its rounds report what was written since.
    Present,
    /// It was found later. Its first round reports all memory that it had then.
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
    aside: Vec<Aside>,
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
        let mut tree = Self {
            settings,
            scope,
            members: Vec::new(),
            roots: Vec::new(),
            aside: Vec::new(),
            ended: None,
            next_number: 0,
            began: Instant::now(),
        };
        match target.0 {
            Kind::Command(_) => tree.add_root(target)?,
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
        let present = self.scope.others(pids);
        for Root { pid, pidfd } in roots {
            self.add_root(Target(Kind::Process { pid, pidfd }))?;
        }
        for found in present {
            self.join(found, Origin::Present);
        }
        Ok(())
    }

    fn add_root(&mut self, target: Target) -> Result<()> {
        let membership = Membership {
            is_new: false,
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

    /// When the tree began.
    pub fn began(&self) -> Instant {
        self.began
    }

    /// Removes members that have ended, finds new processes and attaches to them. Returns what has
    /// changed, in this order.
    ///
    /// A process that is found here has an interval for its first round that begins now, and that
    /// round reports all its memory.
    pub fn follow(&mut self) -> Vec<Change> {
        let mut changes = self.remove_ended();
        let deadline = Instant::now() + ATTACH_TIME_MAX;
        let mut waiting = 0;
        let known = self.members.iter().map(Member::pid);
        let found = self.scope.others(known.collect::<Vec<_>>());
        self.aside.retain(|aside| !aside.has_ended());
        for found in found {
            if !self.aside.iter().all(|aside| aside.may_join(found.pid)) {
                continue;
            }
            if Instant::now() >= deadline {
                waiting += 1;
                continue;
            }
            changes.extend(self.join(found, Origin::New));
        }
        if waiting > 0 {
            changes.push(Change::Behind { waiting });
        }
        changes
    }

    fn remove_ended(&mut self) -> Vec<Change> {
        let mut changes = Vec::new();
        for mut member in std::mem::take(&mut self.members) {
            match member.ended() {
                None => self.members.push(member),
                Some(ended) => {
                    let number = member.number;
                    if self.roots.contains(&number) {
                        self.ended = ended;
                    }
                    changes.push(Change::Ended { number, ended });
                }
            }
        }
        changes
    }

    /// Attaches to a process, and makes it a member.
    fn join(&mut self, found: Found, origin: Origin) -> Option<Change> {
        let pid = found.pid;
        let pidfd = pidfd::open(pid);
        // With the pidfd open it can be relied on: by now the PID may be another process's.
        if !found.is_still_there() || found.cannot_stop() || found.shares_memory() {
            return None;
        }
        let membership = Membership {
            is_new: origin == Origin::New,
            has_followed_children: true,
        };
        match self.attach(pid, pidfd, membership) {
            Ok(watch) => {
                let is_parent = |member: &&Member| Some(member.pid()) == found.parent;
                let parent = self.members.iter().find(is_parent).map(Member::number);
                let number = self.next_number;
                self.aside.retain(|aside| aside.pid() != pid);
                self.add(watch, parent, origin);
                Some(Change::Appeared { number })
            }
            // It has ended, or executes a program just now.
            Err(error) if error.means_gone() || error.kind() == ErrorKind::NotFound => None,
            Err(error) => {
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
            let roots = &self.roots;
            let mut living = self.members.iter_mut();
            let Some(root) = living.find(|member| roots.contains(&member.number)) else {
                return State::Ended(self.ended);
            };
            let left = deadline.saturating_duration_since(Instant::now());
            match root.watch.wait(left) {
                State::Ended(_) if self.roots.len() > 1 => {
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
