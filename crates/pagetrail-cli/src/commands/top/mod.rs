//! `pagetrail top`: the live view of a process, or of a program that it starts.
//!
//! [`state::TopState`] holds the last rounds, [`view::draw`] draws them, [`view::action`] maps keys
//! to actions, and [`screen::Screen`] controls the terminal.

pub(crate) mod args;
mod functions;
mod screen;
mod state;
mod view;

use std::fs::File;
use std::io::{self, IsTerminal};
use std::process::{ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use pagetrail::{DirtySource, Error, State};
use pagetrail_report::words;
use pagetrail_trail::{End, Event, Mapping};
use pagetrail_vm::UnitStrategy;

use self::args::TopArgs;
use self::screen::{Input, Screen};
use self::state::TopState;
use self::view::Action;
use crate::exit;
use crate::recording::layout::Layout;
use crate::recording::round;
use crate::recording::stacks::{Sampling, Stacks};
use crate::session::schedule::Schedule;
use crate::session::signals::{Addressee, Signals};
use crate::session::start::{self, Named};

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
    let mut source = start::start(&wanted, |command| {
        let (stdout, stderr) = program_output(args)?;
        command.stdin(Stdio::null()).stdout(stdout).stderr(stderr);
        Ok(())
    })?;
    let header = start::header(&*source, Named::from(&args.target), args.interval.shortest);
    let name = words::command(&header.command);
    let stacks = args
        .stacks
        .and_then(|how| Sampling::new(how.into(), None).start(&*source));
    let mut state = TopState::new(header);
    if stacks.is_some() {
        state.show_functions();
    }
    let mut live = Live {
        state,
        stacks,
        layout: Layout::naming(source.pid()),
        past: Vec::new(),
        is_guest: args.guest.vm,
        is_over: false,
    };
    let ended = {
        let mut signals = Signals::take(Addressee::Us).context("cannot handle signals")?;
        let mut screen = Screen::take().context("cannot take the terminal")?;
        live.follow(
            &mut *source,
            args.interval.shortest,
            &mut screen,
            &mut signals,
        )?
    };
    if !ended && args.target.pid.is_none() {
        exit::message(&format!("{name} runs on as process {}", source.pid()));
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

/// The live view and the mappings that it needs from round to round.
struct Live {
    state: TopState,
    /// Samples which functions write.
    stacks: Option<Stacks>,
    layout: Layout,
    /// Mappings that vanished but are still in view.
    past: Vec<Mapping>,
    /// Whether the target is a guest of KVM.
    is_guest: bool,
    /// Whether the guest has no more rounds; its end is still awaited.
    is_over: bool,
}

impl Live {
    /// Shows the target until the user quits; returns whether the target has ended.
    fn follow(
        &mut self,
        source: &mut dyn DirtySource,
        interval: Duration,
        screen: &mut Screen,
        signals: &mut Signals,
    ) -> Result<bool> {
        let mut schedule = Schedule::new(Instant::now(), interval, None);
        let mut ended = false;
        screen.draw(&self.state)?;
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
                Some(Input::Action(Action::Sort)) => self.state.next_sort(),
                Some(Input::Action(Action::Functions)) => self.state.switch_table(),
                Some(Input::Resized) => {}
                None => changed = false,
            }
            if signals.stop_requested() {
                return Ok(ended);
            }
            if !ended {
                let end = self.step(source, &mut schedule, &mut changed)?;
                if let Some(end) = end {
                    self.state.finish(end);
                    (ended, changed) = (true, true);
                }
            }
            if changed {
                screen.draw(&self.state)?;
            }
        }
    }

    /// Collects a round if one is due; returns how the target ended if it has.
    fn step(
        &mut self,
        source: &mut dyn DirtySource,
        schedule: &mut Schedule,
        changed: &mut bool,
    ) -> Result<Option<End>> {
        let state = source.wait(Duration::ZERO);
        if let State::Ended(ended) = state {
            return Ok(Some(round::end(ended)));
        }
        if self.is_over || state == State::Running && Instant::now() < schedule.deadline() {
            return Ok(None);
        }
        *changed = true;
        match self.take_round(source) {
            Err(error) if matches!(error.downcast_ref(), Some(Error::Gone { .. })) => {
                if self.is_guest {
                    self.is_over = true;
                    return Ok(None);
                }
                return Ok(Some(match source.wait(POLL_INTERVAL) {
                    State::Ended(ended) => round::end(ended),
                    _ => End::Gone,
                }));
            }
            taken => taken?,
        }
        if state == State::Exiting {
            source.release_exit();
        }
        match source.next_collect() {
            Some(due) => schedule.set_next(due),
            None => schedule.advance(Instant::now()),
        }
        Ok(None)
    }

    fn take_round(&mut self, source: &mut dyn DirtySource) -> Result<()> {
        let began = self.stacks.as_ref().map(Stacks::mark);
        let collected = source.collect()?;
        let index = round::index(&collected)?;
        let changes = self.layout.update(
            index,
            collected.regions(),
            collected.untracked(),
            collected.dirty(),
        );
        let mut round = round::convert(index, &collected);
        round
            .events
            .extend(changes.notes.into_iter().map(Event::Note));
        collected.commit();
        if let Some((stacks, began)) = self.stacks.as_mut().zip(began) {
            let (attribution, new) = stacks.attribute(began, &round.written);
            self.state.push_functions(&attribution, new);
        }
        let rounds = &self.state.trail().rounds;
        let first_in_view = rounds.first().map_or(index, |round| round.index);
        self.past
            .extend(changes.gone.into_iter().map(|gone| gone.mapping));
        self.past
            .retain(|mapping| mapping.last_round.is_none_or(|last| last >= first_in_view));
        let present = self.layout.present().iter();
        let mut mappings = self.past.clone();
        mappings.extend(present.map(|numbered| numbered.mapping.clone()));
        self.state.push_round(&round, &mappings);
        Ok(())
    }
}
