//! Runs a program under a tracker that collects rounds and keeps none: what recording one costs,
//! but for the file.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::Result;
use pagetrail::{Children, DirtySource, Ended, Error, State, Target, Technique, Tree, Watch};
use pagetrail_recorder::Schedule;

use super::limits::{LOOK, Limits, kill};
use crate::behaviour::End;

/// What a tracker has seen.
#[derive(Clone, Copy, Debug)]
pub struct Tracked {
    /// How the program ended.
    pub end: End,
    /// How many rounds were collected.
    pub rounds: u64,
    /// How many dirty pages they had in all; a page counts once for each round.
    pub pages: u64,
}

/// Starts a program and tracks it and its children to its end, or until its time is over.
///
/// # Errors
///
/// The program cannot be started or tracked, or [`Limits::check`] ends the run.
pub fn run(
    command: Command,
    technique: Technique,
    interval: Duration,
    limits: &mut Limits,
) -> Result<Tracked> {
    let builder = Watch::builder()
        .target(Target::command(command))
        .technique(technique);
    let mut tree = builder.children(Children::Follow).start_tree()?;
    follow(&mut Subject::Tree(&mut tree), interval, limits)
}

/// Collects the rounds of a guest to its end.
///
/// # Errors
///
/// A round cannot be collected, or [`Limits::check`] ends the run.
pub fn run_guest(
    source: &mut dyn DirtySource,
    interval: Duration,
    limits: &mut Limits,
) -> Result<Tracked> {
    follow(&mut Subject::Guest(source), interval, limits)
}

enum Subject<'a> {
    Tree(&'a mut Tree),
    Guest(&'a mut dyn DirtySource),
}

impl Subject<'_> {
    fn wait(&mut self, timeout: Duration) -> State {
        match self {
            Self::Tree(tree) => tree.wait(timeout),
            Self::Guest(source) => source.wait(timeout),
        }
    }

    /// The program that was started, while it is there.
    fn pid(&self) -> Option<u32> {
        match self {
            Self::Tree(tree) => tree.members().first().map(|member| member.watch().pid()),
            Self::Guest(source) => Some(source.pid()),
        }
    }

    /// Takes a round of every process; gives the pages.
    fn collect(&mut self) -> Result<u64> {
        match self {
            Self::Guest(source) => pages_of(*source),
            Self::Tree(tree) => {
                // Who has come and gone is no concern here.
                tree.follow();
                let members = tree.members_mut().iter_mut();
                members.map(|member| pages_of(member.watch_mut())).sum()
            }
        }
    }

    fn release_exit(&mut self) {
        match self {
            Self::Tree(tree) => tree.release_exit(),
            Self::Guest(source) => source.release_exit(),
        }
    }
}

fn pages_of(source: &mut dyn DirtySource) -> Result<u64> {
    match source.collect() {
        Ok(round) => {
            let pages = round.dirty().page_count();
            round.commit();
            Ok(pages)
        }
        // Its end comes by `wait`.
        Err(Error::Gone { .. }) => Ok(0),
        Err(error) => Err(error.into()),
    }
}

fn follow(subject: &mut Subject<'_>, interval: Duration, limits: &mut Limits) -> Result<Tracked> {
    let began = Instant::now();
    let mut schedule = Schedule::new(began, interval, None);
    let (mut rounds, mut pages) = (0, 0);
    let end = loop {
        let left = schedule
            .deadline()
            .saturating_duration_since(Instant::now());
        match subject.wait(left.min(LOOK)) {
            State::Ended(Some(Ended::Exited(code))) => break End::Exited(code),
            State::Ended(Some(Ended::Killed(signal))) => break End::Killed(signal),
            State::Ended(None) => break End::Unknown,
            state @ (State::Exiting | State::Ready) => {
                pages += subject.collect()?;
                rounds += 1;
                if state == State::Exiting {
                    subject.release_exit();
                }
            }
            _ if Instant::now() >= schedule.deadline() => {
                pages += subject.collect()?;
                rounds += 1;
                schedule.advance(Instant::now());
            }
            _ => {}
        }
        let checked = limits.check();
        if !matches!(checked, Ok(None)) {
            subject.pid().into_iter().for_each(kill);
            while !matches!(subject.wait(LOOK), State::Ended(_)) {
                subject.release_exit();
            }
            checked?;
            break End::TimedOut(began.elapsed().as_secs());
        }
    };
    Ok(Tracked { end, rounds, pages })
}
