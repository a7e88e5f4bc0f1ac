//! `pagetrail top`: the live view of a process, or of a program that it starts, with its children.
//!
//! [`pane::Pane`] collects the rounds of a process; `pagetrail-top` holds the last of them, draws
//! them and reads keys.

pub(crate) mod args;
mod pane;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, IsTerminal};
use std::process::{ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use pagetrail::{Change, DirtySource, Error, Member, Origin, State};
use pagetrail_report::words;
use pagetrail_top::{Action, Input, ProcessTable, Screen};
use pagetrail_trail::End;
use pagetrail_vm::UnitStrategy;

use self::args::TopArgs;
use self::pane::Pane;
use crate::events;
use crate::exit;
use crate::recording::stacks::Sampling;
use crate::session::schedule::Schedule;
use crate::session::signals::{Addressee, Signals};
use crate::session::start::{self, Named};
use crate::session::subject::Subject;

/// Longest time until a signal, or the end of the program, is handled.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Runs the subcommand.
pub(crate) fn run(args: &TopArgs) -> Result<ExitCode> {
    if !io::stdout().is_terminal() {
        bail!("top needs a terminal as standard output; without one use `pagetrail record`");
    }
    let wanted = start::Wanted {
        target: Named::from(&args.target),
        technique: &args.technique,
        budget: args.budget.budget(args.interval, "--interval")?,
        guest: &args.guest,
        track: None,
        last_round: false,
        subpages: None,
        units: UnitStrategy::Static,
    };
    let mut subject = start::start_tree(&wanted, !args.no_children, |command| {
        let (stdout, stderr) = program_output(args)?;
        command.stdin(Stdio::null()).stdout(stdout).stderr(stderr);
        Ok(())
    })?;
    let mut live = Live {
        panes: BTreeMap::new(),
        shown: 0,
        shows_processes: false,
        named: Named::from(&args.target),
        interval: args.interval.shortest,
        sampling: args.stacks.map(|how| Sampling::new(how.into(), None)),
        is_guest: args.guest.vm,
        is_over: false,
    };
    live.add_present(&subject);
    let first = live
        .panes
        .values()
        .next()
        .map(|pane| &pane.state.trail().header);
    let (name, pid) = first.map_or_else(Default::default, |header| {
        (words::command(&header.command), header.pid)
    });
    let ended = {
        let mut signals = Signals::take(Addressee::Us).context("cannot handle signals")?;
        // Until the terminal is as it was.
        let _muted = events::mute_on_terminal();
        let mut screen = Screen::take().context("cannot take the terminal")?;
        live.follow(&mut subject, &mut screen, &mut signals)?
    };
    if !ended && args.target.pid.is_none() {
        exit::message(&format!("{name} runs on as process {pid}"));
    }
    Ok(ExitCode::SUCCESS)
}

/// Where the program's output goes while the live view uses the screen.
fn program_output(args: &TopArgs) -> Result<(Stdio, Stdio)> {
    let Some(path) = &args.output else {
        return Ok((Stdio::null(), Stdio::null()));
    };
    let cannot = || format!("cannot write {}", path.display());
    let file = File::create(path).with_context(cannot)?;
    Ok((file.try_clone().with_context(cannot)?.into(), file.into()))
}

/// The live view of one process or several.
struct Live<'a> {
    /// The processes in view, by their number in the tree.
    panes: BTreeMap<u32, Pane>,
    /// The number of the process that is shown.
    shown: u32,
    /// Whether the table of processes is shown.
    shows_processes: bool,
    named: Named<'a>,
    interval: Duration,
    /// How processes are sampled for the functions that write, if that is asked for.
    sampling: Option<Sampling>,
    /// Whether the target is a guest of KVM.
    is_guest: bool,
    /// Whether the guest has no more rounds; its end is still awaited.
    is_over: bool,
}

impl Live<'_> {
    /// Adds the processes with which the view begins.
    fn add_present(&mut self, subject: &Subject) {
        match subject {
            Subject::Guest(source) => self.add(0, None, self.named, &**source),
            Subject::Tree(tree) => {
                for member in tree.members() {
                    self.add_member(member);
                }
            }
        }
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
        let sampling = self.sampling.as_mut();
        let stacks = sampling.and_then(|sampling| sampling.start(source));
        self.panes.insert(number, Pane::new(header, parent, stacks));
    }

    /// Shows the target until the user quits; returns whether the target has ended.
    fn follow(
        &mut self,
        subject: &mut Subject,
        screen: &mut Screen,
        signals: &mut Signals,
    ) -> Result<bool> {
        let mut schedule = Schedule::new(Instant::now(), self.interval, None);
        let mut ended = false;
        self.draw(screen)?;
        loop {
            let left = schedule
                .deadline()
                .saturating_duration_since(Instant::now());
            let timeout = if ended {
                POLL_INTERVAL
            } else {
                left.min(POLL_INTERVAL)
            };
            let mut changed = true;
            match screen.input(timeout)? {
                Some(Input::Action(Action::Quit) | Input::Gone) => return Ok(ended),
                Some(Input::Action(action)) => self.act(action),
                Some(Input::Resized) => {}
                None => changed = false,
            }
            if signals.stop_requested() {
                return Ok(ended);
            }
            if !ended {
                let end = self.step(subject, &mut schedule, &mut changed)?;
                if let Some(end) = end {
                    if let Some(pane) = self.panes.get_mut(&self.shown) {
                        pane.state.finish(end);
                    }
                    (ended, changed) = (true, true);
                }
            }
            if changed {
                self.draw(screen)?;
            }
        }
    }

    fn act(&mut self, action: Action) {
        let numbers = || self.panes.keys().copied();
        match action {
            Action::Next => {
                let next = numbers().find(|number| *number > self.shown);
                self.shown = next.or_else(|| numbers().next()).unwrap_or(0);
            }
            Action::Previous => {
                let before = numbers().rev().find(|number| *number < self.shown);
                self.shown = before.or_else(|| numbers().next_back()).unwrap_or(0);
            }
            // A table of one process can be closed, too.
            Action::Processes => {
                self.shows_processes = !self.shows_processes && self.panes.len() > 1;
            }
            Action::Sort | Action::Functions | Action::Quit => {
                for pane in self.panes.values_mut() {
                    match action {
                        Action::Sort => pane.state.next_sort(),
                        _ => pane.state.switch_table(),
                    }
                }
            }
        }
    }

    fn draw(&mut self, screen: &mut Screen) -> Result<()> {
        if let Some(pane) = self.panes.get_mut(&self.shown) {
            pane.state.refresh();
        }
        let panes = self.panes.iter();
        let states = panes.map(|(number, pane)| (*number, pane.parent, &pane.state));
        let table = ProcessTable::new(states, self.shown, self.shows_processes);
        if let Some(pane) = self.panes.get(&self.shown) {
            screen.draw(&pane.state, &table)?;
        }
        Ok(())
    }

    /// Collects a round of each process if one is due; returns how the target ended if it has.
    fn step(
        &mut self,
        subject: &mut Subject,
        schedule: &mut Schedule,
        changed: &mut bool,
    ) -> Result<Option<End>> {
        let state = subject.wait(Duration::ZERO);
        if let State::Ended(ended) = state {
            return Ok(Some(pagetrail_recorder::end(ended)));
        }
        if self.is_over || state == State::Running && Instant::now() < schedule.deadline() {
            return Ok(None);
        }
        *changed = true;
        let due = (state == State::Running).then(|| schedule.deadline());
        match self.take_rounds(subject, due) {
            Err(error) if is_gone(&error) => {
                if self.is_guest {
                    self.is_over = true;
                    return Ok(None);
                }
                return Ok(match subject.wait(POLL_INTERVAL) {
                    State::Ended(ended) => Some(pagetrail_recorder::end(ended)),
                    // Others of its tree may live on.
                    _ if subject.count() > 1 => None,
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
                return match self.panes.get_mut(&0) {
                    Some(pane) => pane.take_round(&mut **source),
                    None => Ok(()),
                };
            }
            Subject::Tree(tree) => tree,
        };
        for change in tree.follow() {
            match change {
                Change::Appeared { number } => {
                    let mut members = tree.members().iter();
                    let member = members.find(|member| member.number() == number);
                    member
                        .into_iter()
                        .for_each(|member| self.add_member(member));
                }
                Change::Ended { number, ended } if number == self.shown => {
                    if let Some(pane) = self.panes.get_mut(&number) {
                        pane.state.finish(pagetrail_recorder::end(ended));
                    }
                }
                Change::Ended { number, .. } => drop(self.panes.remove(&number)),
                // The screen has no room for messages.
                _ => {}
            }
        }
        let mut gone = Ok(());
        for member in tree.members_mut() {
            let Some(pane) = self.panes.get_mut(&member.number()) else {
                continue;
            };
            let next = member.watch().next_collect();
            if next.zip(due).is_some_and(|(next, due)| next > due) {
                continue;
            }
            match pane.take_round(member.watch_mut()) {
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
}

fn is_gone(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(Error::Gone { .. }))
}
