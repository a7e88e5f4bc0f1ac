//! [`Collector`]: collects the rounds of all processes in view, for the thread that draws them.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::Result;
use pagetrail::{Change, DirtySource, Error, Member, Origin, State, Tree};
use pagetrail_recorder::{Converter, Schedule};
use pagetrail_top::{Collected, Exchange, FunctionNames, Update};
use pagetrail_trail::{End, Header};
use pagetrail_vm::{GuestChange, GuestMember, GuestTree};

use crate::recording::stacks::Sampling;
use crate::session::start::{self, Named};
use crate::session::subject::{self, Subject};

/// Longest time until the end of the program is handled.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Collects the rounds of one process or several.
pub(super) struct Collector<'a> {
    exchange: &'a Exchange,
    named: Named<'a>,
    interval: Duration,
    /// How processes are sampled for the functions that write, if that is asked for.
    sampling: Option<Sampling>,
    /// The processes in view, by their number in the tree.
    sources: BTreeMap<u32, Source>,
    /// What the view does not have yet.
    updates: Vec<Update>,
    /// Whether the guest has no more rounds; its end is still awaited.
    is_over: bool,
}

/// What it takes to collect the rounds of a process.
struct Source {
    converter: Converter,
    names: FunctionNames,
}

impl<'a> Collector<'a> {
    pub(super) fn new(
        exchange: &'a Exchange,
        named: Named<'a>,
        interval: Duration,
        sampling: Option<Sampling>,
    ) -> Self {
        Self {
            exchange,
            named,
            interval,
            sampling,
            sources: BTreeMap::new(),
            updates: Vec::new(),
            is_over: false,
        }
    }

    /// Adds the processes with which the view begins; returns the header of the first.
    pub(super) fn add_present(&mut self, subject: &Subject) -> Option<Header> {
        match subject {
            Subject::Guest(source) => self.add(0, None, self.named, &**source),
            Subject::Guests(tree) => tree
                .members()
                .iter()
                .for_each(|member| self.add_guest(member)),
            Subject::Tree(tree) => {
                for member in tree.members() {
                    self.add_member(member);
                }
            }
        }
        let first = self.updates.first().and_then(|update| match update {
            Update::Appeared { header, .. } => Some(header.clone()),
            _ => None,
        });
        self.exchange.post(std::mem::take(&mut self.updates));
        first
    }

    fn add_member(&mut self, member: &Member) {
        let named = match member.origin() {
            Origin::Root => self.named,
            // Not the program that was started.
            _ => Named::Processes(&[]),
        };
        self.add(member.number(), member.parent(), named, member.watch());
    }

    fn add(
        &mut self,
        number: u32,
        parent: Option<u32>,
        named: Named<'_>,
        source: &dyn DirtySource,
    ) {
        let header = start::header(source, named, self.interval);
        self.add_with(number, parent, header, source);
    }

    fn add_guest(&mut self, member: &GuestMember) {
        let header = start::guest_header(member, self.interval);
        self.add_with(member.number(), member.parent(), header, member.source());
    }

    fn add_with(
        &mut self,
        number: u32,
        parent: Option<u32>,
        header: Header,
        source: &dyn DirtySource,
    ) {
        let sampling = self.sampling.as_mut();
        let sampler = sampling.and_then(|sampling| sampling.start(source));
        let has_functions = sampler.is_some();
        let converter = Converter::new(header.pid, sampler);
        let names = FunctionNames::default();
        self.sources.insert(number, Source { converter, names });
        self.updates.push(Update::Appeared {
            number,
            parent,
            header,
            has_functions,
        });
    }

    /// Collects until the view closes; returns whether the target has ended.
    pub(super) fn follow(&mut self, subject: &mut Subject) -> Result<bool> {
        let mut schedule = Schedule::new(Instant::now(), self.interval, None);
        let mut ended = false;
        loop {
            let left = schedule
                .deadline()
                .saturating_duration_since(Instant::now());
            let timeout = match ended || self.exchange.is_full() {
                true => POLL_INTERVAL,
                false => left.min(POLL_INTERVAL),
            };
            if self.exchange.wait_closed(timeout) {
                return Ok(ended);
            }
            if ended || self.exchange.is_full() {
                continue;
            }
            let end = self.step(subject, &mut schedule)?;
            ended = end.is_some();
            self.updates.extend(end.map(Update::Over));
            self.exchange.post(std::mem::take(&mut self.updates));
        }
    }

    /// Collects a round of each process if one is due; returns how the target ended if it has.
    fn step(&mut self, subject: &mut Subject, schedule: &mut Schedule) -> Result<Option<End>> {
        let state = subject.wait(Duration::ZERO);
        if let State::Ended(ended) = state {
            return Ok(Some(pagetrail_recorder::end(ended)));
        }
        if self.is_over || state == State::Running && Instant::now() < schedule.deadline() {
            return Ok(None);
        }
        if let (State::Running | State::Exiting, Subject::Guests(tree)) = (state, &mut *subject) {
            tree.request_rounds();
        }
        let due = (state == State::Running).then(|| schedule.deadline());
        match self.take_rounds(subject, due) {
            Err(error) if is_gone(&error) => {
                if matches!(subject, Subject::Guest(_)) {
                    self.is_over = true;
                    return Ok(None);
                }
                return Ok(match subject.wait(POLL_INTERVAL) {
                    State::Ended(ended) => Some(pagetrail_recorder::end(ended)),
                    // Others of its tree may live on, or come to the control group.
                    _ if subject.count() > 1 || matches!(self.named, Named::Cgroup(_)) => None,
                    _ => Some(End::Gone),
                });
            }
            taken => taken?,
        }
        if state == State::Exiting {
            subject.release_exit();
        }
        match subject.next_collect() {
            Some(due) => schedule.set_next_within(due, Instant::now(), self.interval),
            None => schedule.advance(Instant::now()),
        }
        Ok(None)
    }

    /// Takes a round of each process that is due by then, or of all; of new ones, too.
    fn take_rounds(&mut self, subject: &mut Subject, due: Option<Instant>) -> Result<()> {
        let tree = match subject {
            Subject::Guest(source) => {
                return match subject::is_guest_due(&mut **source, due) {
                    true => self.take_round(0, &mut **source),
                    false => Ok(()),
                };
            }
            Subject::Guests(tree) => return self.take_guests(tree),
            Subject::Tree(tree) => tree,
        };
        self.follow_tree(tree);
        let mut gone = Ok(());
        for member in tree.members_mut() {
            // Nobody waits for the other rounds.
            if self.exchange.is_closed() {
                break;
            }
            let next = member.watch().next_collect();
            if next.zip(due).is_some_and(|(next, due)| next > due) {
                continue;
            }
            match self.take_round(member.number(), member.watch_mut()) {
                Err(error) if is_gone(&error) => {
                    if member.origin() == Origin::Root {
                        gone = Err(error);
                    }
                }
                taken => taken?,
            }
        }
        gone
    }

    /// Takes the rounds of guests that are there, and looks which guests came and ended.
    fn take_guests(&mut self, tree: &mut GuestTree) -> Result<()> {
        for change in tree.follow() {
            match change {
                GuestChange::Appeared { number } => {
                    let mut members = tree.members().iter();
                    let member = members.find(|member| member.number() == number);
                    member.into_iter().for_each(|member| self.add_guest(member));
                }
                GuestChange::Ended { number } => {
                    self.sources.remove(&number);
                    let end = End::Gone;
                    self.updates.push(Update::Ended { number, end });
                }
                _ => {}
            }
        }
        for member in tree.members_mut() {
            if member.is_ready() {
                self.take_round(member.number(), member.source_mut())?;
            }
        }
        Ok(())
    }

    /// Looks which processes came and ended.
    fn follow_tree(&mut self, tree: &mut Tree) {
        for change in tree.follow() {
            match change {
                Change::Appeared { number } => {
                    let mut members = tree.members().iter();
                    let member = members.find(|member| member.number() == number);
                    member
                        .into_iter()
                        .for_each(|member| self.add_member(member));
                }
                Change::Ended { number, ended } => {
                    self.sources.remove(&number);
                    let end = pagetrail_recorder::end(ended);
                    self.updates.push(Update::Ended { number, end });
                }
                // The screen has no room for messages.
                _ => {}
            }
        }
    }

    /// Collects a round of one process.
    fn take_round(&mut self, number: u32, source: &mut dyn DirtySource) -> Result<()> {
        let Some(Source { converter, names }) = self.sources.get_mut(&number) else {
            return Ok(());
        };
        let converted = converter.take_round(source, Ok)?;
        let mut round = converted.round;
        // The view has functions of its own; in its rounds nobody looks for them.
        let functions = round.attribution.take().map(|attribution| {
            let page_writes = round.written.page_count();
            names.round(&attribution, page_writes, converted.stacks)
        });
        let present = converter.present().iter();
        let gone = converted.changes.gone.into_iter();
        self.updates.push(Update::Round(Box::new(Collected {
            number,
            round,
            present: present.map(|numbered| numbered.mapping.clone()).collect(),
            gone: gone.map(|gone| gone.mapping).collect(),
            functions,
        })));
        Ok(())
    }
}

fn is_gone(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(Error::Gone { .. }))
}
