//! Takes the rounds of all processes of a recording, those included that come while it runs.

use std::time::{Duration, Instant};

use anyhow::Result;
use pagetrail::{Change, DirtySource, Member, State, Tree};
use pagetrail_recorder::Recorder;
use pagetrail_stacks::Sampler;
use pagetrail_trail::{Inherited, Origin, Process};
use pagetrail_vm::{GuestChange, GuestMember, GuestTree};

use super::{Session, is_gone};
use crate::exit;
use crate::recording::stacks::Sampling;
use crate::session::find;
use crate::session::start::{self, Named};
use crate::session::subject::{self, Subject};

impl Session<'_> {
    /// Adds the processes with which the recording begins.
    pub(super) fn add_present(&mut self, recorder: &mut Recorder<'_>) {
        match &*self.subject {
            Subject::Guest(source) => {
                let process = Process {
                    header: start::header(&**source, self.named, self.interval),
                    ..Process::default()
                };
                let stacks = sample(&mut self.sampling, &**source);
                recorder.add(0, process, stacks);
            }
            Subject::Guests(tree) => {
                for member in tree.members() {
                    let process = describe_guest(member, self.interval);
                    let stacks = sample(&mut self.sampling, member.source());
                    recorder.add(member.number(), process, stacks);
                }
            }
            Subject::Tree(tree) => {
                for member in tree.members() {
                    let process = describe(member, self.named, self.interval);
                    let stacks = sample(&mut self.sampling, member.watch());
                    recorder.add(member.number(), process, stacks);
                }
            }
        }
    }

    /// Takes a round of each process that is due, and the others of its interval. All are due where
    /// there is no budget, and in the last round. Of guests that are a tree all are due where
    /// `is_due`, and otherwise those that have sent a round by themselves. Returns whether a round
    /// of the program was taken: within a budget none may be due any more.
    ///
    /// Fails with [`pagetrail::Error::Gone`] when the only process that was named has ended.
    pub(super) fn take_rounds(
        &mut self,
        recorder: &mut Recorder<'_>,
        rounds_max: u32,
        is_due: bool,
        is_last: bool,
    ) -> Result<bool> {
        let mut taken = false;
        let due = match is_last {
            true => None,
            // A process that is due soon is not waited for again.
            false => Some(Instant::now() + self.interval / 4),
        };
        recorder.begin_round();
        if let (true, Subject::Guests(tree)) = (is_due || is_last, &mut *self.subject) {
            tree.request_rounds();
        }
        loop {
            match &mut *self.subject {
                Subject::Guests(tree) => {
                    take_guests(tree, recorder, &mut self.sampling, self.interval)?;
                    taken = true;
                }
                Subject::Guest(source) => {
                    if subject::is_guest_due(&mut **source, due) {
                        recorder.take_round(0, &mut **source)?;
                        taken = true;
                    }
                }
                Subject::Tree(tree) => {
                    for change in tree.follow() {
                        let tree = &*tree;
                        match change {
                            Change::Appeared { number } => {
                                let mut members = tree.members().iter();
                                if let Some(member) =
                                    members.find(|member| member.number() == number)
                                {
                                    let process = describe(member, self.named, self.interval);
                                    let stacks = sample(&mut self.sampling, member.watch());
                                    recorder.add(number, process, stacks);
                                }
                            }
                            // The end of the program that was started comes by `wait`.
                            Change::Ended { number, ended } => {
                                let at = nanoseconds(tree.began().elapsed());
                                recorder.ended(number, at, &pagetrail_recorder::end(ended))?;
                            }
                            Change::Refused { pid, error } => exit::message(&format!(
                                "process {} is not recorded: {error}",
                                find::list(&[pid])
                            )),
                            Change::Behind { waiting } if !self.is_behind => {
                                self.is_behind = true;
                                exit::message(&format!(
                                    "processes come faster than they can be attached to: {waiting} \
                                     wait for the next round"
                                ));
                            }
                            Change::Shares { pid, member } => {
                                let mut members = tree.members().iter();
                                let with = members.find(|other| other.number() == member);
                                let with = with.map_or(0, Member::pid);
                                exit::message(&format!(
                                    "process {} shares the memory of {}, which is recorded once",
                                    find::list(&[pid]),
                                    find::list(&[with]),
                                ));
                            }
                            Change::ShortLives { count } => {
                                recorder.short_lives(nanoseconds(tree.began().elapsed()), count)?;
                            }
                            _ => {}
                        }
                    }
                    taken |= collect(tree, recorder, due)?;
                }
            }
            // Processes may come and go without a pause.
            if matches!(self.subject, Subject::Guests(_))
                || recorder.totals().rounds >= rounds_max
                || self.subject.wait(Duration::ZERO) != State::Ready
            {
                return Ok(taken);
            }
        }
    }
}

/// Takes the rounds of guests that are there, and records which guests came and ended.
fn take_guests(
    tree: &mut GuestTree,
    recorder: &mut Recorder<'_>,
    sampling: &mut Option<Sampling>,
    interval: Duration,
) -> Result<()> {
    for change in tree.follow() {
        match change {
            GuestChange::Appeared { number } => {
                let mut members = tree.members().iter();
                if let Some(member) = members.find(|member| member.number() == number) {
                    let stacks = sample(sampling, member.source());
                    recorder.add(number, describe_guest(member, interval), stacks);
                }
            }
            GuestChange::Ended { number } => {
                let at = nanoseconds(tree.began().elapsed());
                recorder.ended(number, at, &pagetrail_recorder::end(None))?;
            }
            _ => {}
        }
    }
    for member in tree.members_mut() {
        if member.is_ready() {
            recorder.take_round(member.number(), member.source_mut())?;
        }
    }
    Ok(())
}

/// Takes a round of each member that is due by then, or of all. Returns whether a process that was
/// named, or the program that was started, was among them.
fn collect(tree: &mut Tree, recorder: &mut Recorder<'_>, due: Option<Instant>) -> Result<bool> {
    let roots = |member: &&Member| member.origin() == pagetrail::Origin::Root;
    let has_one_root = tree.members().iter().filter(roots).count() == 1;
    let mut gone = None;
    let mut of_root = false;
    for member in tree.members_mut() {
        let is_root = member.origin() == pagetrail::Origin::Root;
        let next = member.watch().next_collect();
        if next.zip(due).is_some_and(|(next, due)| next > due) {
            continue;
        }
        match recorder.take_round(member.number(), member.watch_mut()) {
            Err(error) if is_gone(&error) => {
                if is_root && has_one_root {
                    gone = Some(error);
                }
            }
            taken => {
                taken?;
                of_root |= is_root;
            }
        }
    }
    gone.map_or(Ok(of_root), Err)
}

/// What the trail says of a process when it appears.
fn describe(member: &Member, named: Named<'_>, interval: Duration) -> Process {
    let named = match member.origin() {
        pagetrail::Origin::Root => named,
        // Not the program that was started.
        _ => Named::Processes(&[]),
    };
    Process {
        parent: member.parent(),
        origin: match member.origin() {
            pagetrail::Origin::Root => Origin::Root,
            pagetrail::Origin::Present => Origin::Present,
            _ => Origin::New,
        },
        appeared_ns: nanoseconds(member.appeared()),
        inherited: Inherited {
            pages: member.inherited().pages.clone(),
            shared: member.inherited().shared.clone(),
        },
        header: start::header(member.watch(), named, interval),
    }
}

/// What the trail says of a guest of a tree when it appears.
fn describe_guest(member: &GuestMember, interval: Duration) -> Process {
    Process {
        parent: member.parent(),
        origin: match member.is_root() {
            true => Origin::Root,
            false => Origin::New,
        },
        appeared_ns: nanoseconds(member.appeared()),
        header: start::guest_header(member, interval),
        ..Process::default()
    }
}

fn sample(sampling: &mut Option<Sampling>, source: &dyn DirtySource) -> Option<Sampler> {
    sampling.as_mut()?.start(source)
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
