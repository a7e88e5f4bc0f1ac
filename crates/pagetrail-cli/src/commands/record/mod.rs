//! `pagetrail record`: tracks a process, or a program from start to end, and writes its rounds to a
//! file.

pub(crate) mod args;
mod follow;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use pagetrail::{Ended, Error, State, TrackMode};
use pagetrail_recorder::{Recorder, Schedule, Totals};
use pagetrail_report::words;
use pagetrail_trail::End;

use self::args::RecordArgs;
use super::report::{Pictures, read_all};
use crate::args::DEFAULT_FILE;
use crate::exit;
use crate::recording::metrics::Metrics;
use crate::recording::output::Output;
use crate::recording::progress::Progress;
use crate::recording::stacks::{self, Sampling, raise_descriptor_limit};
use crate::session::find;
use crate::session::signals::{Addressee, Signals};
use crate::session::start::{self, Named};
use crate::session::subject::Subject;

/// Longest time until a signal is handled.
const SIGNAL_POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Runs the subcommand.
pub(crate) fn run(args: &RecordArgs) -> Result<ExitCode> {
    let budget = args.budget.budget(args.interval, "--interval")?;
    let metrics = args.metrics.as_ref().map(Metrics::listen).transpose()?;
    let output = Output::open(&args.output)?;
    let pictures = match Pictures::open(&args.pictures, &args.output) {
        Ok(pictures) => pictures,
        Err(error) => {
            output.discard();
            return Err(error);
        }
    };
    let named = Named::from(&args.target);
    let wanted = start::Wanted {
        target: named,
        technique: &args.technique,
        budget,
        guest: &args.guest,
        track: args.access.map(TrackMode::from),
        last_round: args.last_round,
        subpages: args.subpages.as_deref(),
        units: args.units,
    };
    let mut subject = match start::start_tree(&wanted, !args.no_children, |_| Ok(())) {
        Ok(subject) => subject,
        Err(error) => {
            pictures.discard();
            output.discard();
            return match error.downcast_ref() {
                Some(Error::Privileged { .. }) => run_untracked(args, &error),
                _ => Err(error),
            };
        }
    };
    // Programs that are started have been by now.
    raise_descriptor_limit();
    let is_program = matches!(named, Named::Program(_));
    let addressee = match (is_program, subject.first()) {
        (true, Some(source)) => Addressee::Program(source.pid()),
        _ => Addressee::Us,
    };
    // A program started here has the terminal to itself.
    if !is_program {
        announce(&subject, args, &output);
    }
    if let Some(metrics) = &metrics {
        metrics.announce();
    }
    let mut session = Session {
        metrics,
        signals: Signals::take(addressee).context("cannot handle signals")?,
        // A program started here may use the terminal as it likes.
        progress: Progress::new(!is_program),
        subject: &mut subject,
        named,
        interval: args.interval.shortest,
        sampling: args
            .stacks
            .map(|how| Sampling::new(how.into(), args.stacks_period)),
        is_program,
        is_guest: args.guest.vm,
        is_behind: false,
        ended: None,
        unseen: None,
    };
    let recorded = session.record(args, &output);
    let unseen = session.unseen;
    let did_not_start = session.has_reported_failure(recorded.as_ref().ok());
    let kept = recorded.and_then(|totals| keep(&totals, unseen, output, pictures));
    if !is_program {
        return kept.map(|()| ExitCode::SUCCESS);
    }
    // Reported now, since the program may run for a long time.
    let failure = kept.err().filter(|_| !did_not_start);
    let failure = failure.map(|error| exit::report(&error));
    if session.ended.is_none() {
        exit::message("the program runs on untracked; waiting for its end");
    }
    let ended = session.wait_for_end();
    Ok(failure.unwrap_or_else(|| exit::of_program(ended)))
}

/// Runs the program without tracking, after tracking it failed.
fn run_untracked(args: &RecordArgs, error: &anyhow::Error) -> Result<ExitCode> {
    let failure = exit::report(error);
    let Some((program, arguments)) = args.target.command.split_first() else {
        return Ok(failure);
    };
    let started = start::command(program, arguments).spawn();
    let mut child = started.with_context(|| format!("cannot run {}", program.display()))?;
    exit::message("the program runs untracked; waiting for its end");
    let addressee = Addressee::Program(child.id());
    let mut signals = Signals::take(addressee).context("cannot handle signals")?;
    while child.try_wait()?.is_none() {
        signals.stop_requested();
        std::thread::sleep(SIGNAL_POLL_INTERVAL);
    }
    Ok(failure)
}

/// The reason for which a recording ends.
enum Stop {
    /// The target ended.
    Ended,
    /// A limit was reached, or a signal asked to stop.
    Requested,
}

/// The result of waiting for the next round.
enum Waited {
    /// The round is due.
    Due,
    /// The program is held at its exit.
    Exiting,
    Stop(Stop),
}

struct Session<'a> {
    subject: &'a mut Subject,
    named: Named<'a>,
    interval: Duration,
    /// How processes are sampled for the code that writes, if that is asked for.
    sampling: Option<Sampling>,
    signals: Signals,
    progress: Progress,
    /// Serves counts of the recording.
    metrics: Option<Metrics>,
    /// Whether pagetrail started the target.
    is_program: bool,
    /// Whether the program is a guest of KVM, which sends a round at its end.
    is_guest: bool,
    /// Whether it was said that processes come faster than they can be attached to.
    is_behind: bool,
    /// How the target ended, once it has; the inner value is known only for a program started here.
    ended: Option<Option<Ended>>,
    /// Time before a program's exit that no round covers.
    unseen: Option<Duration>,
}

impl Session<'_> {
    /// Records until the target ends, a limit is reached, or a signal asks to stop.
    fn record(&mut self, args: &RecordArgs, output: &Output) -> Result<Totals> {
        let to_file = || output.path().display().to_string();
        let mut schedule = Schedule::new(Instant::now(), self.interval, args.duration);
        let mut recorder = Recorder::new(|| Ok(Box::new(output.begin()?)));
        self.add_present(&mut recorder);
        let stop = self.rounds(
            &mut recorder,
            &mut schedule,
            args.rounds.unwrap_or(u32::MAX),
        );
        self.progress.erase();
        if let Some(sampled) = recorder.sampled() {
            exit::message(&stacks::line(sampled));
        }
        let end = match stop {
            Ok(Stop::Ended) => pagetrail_recorder::end(self.wait_for_end()),
            Ok(Stop::Requested) => End::Detached,
            Err(error) => {
                // If the file cannot grow, this fails too, and the trail reads as cut off.
                let _ = recorder.finish(&End::Detached);
                return Err(error.context(to_file()));
            }
        };
        recorder.finish(&end).with_context(to_file)
    }

    fn rounds(
        &mut self,
        recorder: &mut Recorder<'_>,
        schedule: &mut Schedule,
        rounds_max: u32,
    ) -> Result<Stop> {
        let mut last = Instant::now();
        let mut held = false;
        if let Some(due) = self.subject.next_collect() {
            schedule.set_next_within(due, last, self.interval);
        }
        loop {
            let waited = self.wait_until(schedule.deadline());
            // After the round of a program that was held at its exit there is nothing to see, even
            // if another round is due before its end shows.
            let is_unseen = self.is_program && !self.is_guest && !held;
            if let Waited::Stop(Stop::Ended) = waited {
                self.unseen = is_unseen.then(|| last.elapsed());
                return Ok(Stop::Ended);
            }
            let is_last = !matches!(waited, Waited::Due) || schedule.is_over(Instant::now());
            let is_due = Instant::now() >= schedule.deadline();
            match self.take_rounds(recorder, rounds_max, is_due, is_last) {
                Err(error) if is_gone(&error) => {
                    match self.is_program {
                        true => self.unseen = is_unseen.then(|| last.elapsed()),
                        false => self.ended = Some(None),
                    }
                    return Ok(Stop::Ended);
                }
                taken => {
                    if taken? {
                        last = Instant::now();
                    }
                }
            }
            match waited {
                Waited::Stop(stop) => return Ok(stop),
                // The process ends now, unless other threads outlive its main thread.
                Waited::Exiting => self.subject.release_exit(),
                Waited::Due => {}
            }
            held = matches!(waited, Waited::Exiting);
            let now = Instant::now();
            if recorder.totals().rounds >= rounds_max || schedule.is_over(now) {
                return Ok(Stop::Requested);
            }
            match self.subject.next_collect() {
                Some(due) => schedule.set_next_within(due, now, self.interval),
                None => schedule.advance(now),
            }
            self.progress.update(recorder.totals());
            if let (Some(metrics), Some(header)) = (&self.metrics, recorder.header()) {
                metrics.publish(header, recorder.totals());
            }
        }
    }

    /// Whether the program is a guest that could not start: then it has said why.
    fn has_reported_failure(&mut self, totals: Option<&Totals>) -> bool {
        self.is_guest
            && totals.is_some_and(|totals| totals.rounds == 0)
            && self.wait_for_end() != Some(Ended::Exited(0))
    }

    fn wait_until(&mut self, deadline: Instant) -> Waited {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.subject.wait(left.min(SIGNAL_POLL_INTERVAL)) {
                State::Ended(ended) => {
                    self.ended = Some(ended);
                    return Waited::Stop(Stop::Ended);
                }
                State::Exiting => return Waited::Exiting,
                State::Ready => return Waited::Due,
                _ if self.signals.stop_requested() => return Waited::Stop(Stop::Requested),
                _ if Instant::now() >= deadline => return Waited::Due,
                _ => {}
            }
        }
    }

    /// Waits until the target has ended, and returns how.
    fn wait_for_end(&mut self) -> Option<Ended> {
        loop {
            if let Some(ended) = self.ended {
                return ended;
            }
            match self.subject.wait(SIGNAL_POLL_INTERVAL) {
                State::Ended(ended) => self.ended = Some(ended),
                State::Exiting => self.subject.release_exit(),
                // Nobody wants it any more.
                State::Ready => self.subject.drop_round(),
                _ => {
                    self.signals.stop_requested();
                }
            }
        }
    }
}

fn is_gone(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(Error::Gone { .. }))
}

/// Prints what was recorded and writes the pictures; without a single round, leaves all files as
/// they were.
///
/// `unseen` is the time before the exit of a program that no round covers. A program that ends
/// before its first round is no error.
fn keep(
    totals: &Totals,
    unseen: Option<Duration>,
    output: Output,
    pictures: Pictures,
) -> Result<()> {
    if totals.rounds == 0 {
        let path = output.path().display().to_string();
        let left = match output.discard() {
            true => "there is no file",
            false => "what was there is still there",
        };
        pictures.discard();
        let Some(unseen) = unseen else {
            bail!("{path}: nothing was recorded, it ended before the first round; {left}");
        };
        exit::message(&format!(
            "{path}: nothing was recorded, the program ended after {} ms, before its first round \
             (--last-round records it); {left}",
            milliseconds(unseen)
        ));
        return Ok(());
    }
    summary(totals, unseen, &output);
    match pictures.is_empty() {
        true => Ok(()),
        false => {
            let mut tree = read_all(output.path())?;
            pictures.write(&mut tree, None)
        }
    }
}

fn milliseconds(time: Duration) -> String {
    words::count(time.as_millis().max(1) as u64)
}

/// Prints what is recorded and which child processes are not. If standard error is not a terminal,
/// it is the only message until the end.
fn announce(subject: &Subject, args: &RecordArgs, output: &Output) {
    let Some(first) = subject.first() else {
        return exit::message(&format!(
            "waiting for processes of the control group, to record them into {}; it ends by Ctrl-C or \
             SIGTERM",
            output.path().display()
        ));
    };
    let roots = match Named::from(&args.target) {
        Named::Cgroup(_) => vec![first.pid()],
        _ => subject.roots(),
    };
    let others = match subject.count() - roots.len() {
        0 => String::new(),
        n => format!(" and {n} more"),
    };
    let (what, it) = match roots.len() {
        1 => ("process", "it ends with the process"),
        _ => ("processes", "it ends with them"),
    };
    exit::message(&format!(
        "recording {what} {}{others} by {} into {}; {it}, or by Ctrl-C or SIGTERM",
        find::list(&roots),
        first.technique_name(),
        output.path().display()
    ));
    if args.no_children {
        roots.iter().for_each(|root| leave_out_children(*root));
    }
}

/// Prints which child processes of a process are not recorded.
fn leave_out_children(pid: u32) {
    let children = find::children(pid);
    if !children.is_empty() {
        let of = match children.len() {
            1 => "its child process is".into(),
            n => format!("its {n} child processes are"),
        };
        exit::message(&format!(
            "{of} not tracked, by --no-children: {}",
            find::list(&children)
        ));
    }
}

/// Prints one line with what was recorded and how to look at it.
fn summary(totals: &Totals, unseen: Option<Duration>, output: &Output) {
    let path = output.path();
    let mut line = format!(
        "recorded {}, {} page writes{}, in {}",
        words::plural(totals.rounds.into(), "round"),
        words::count(totals.page_writes),
        match totals.processes {
            0 | 1 => String::new(),
            n => format!(" of {} processes", words::count(n.into())),
        },
        path.display()
    );
    if let Some(unseen) = unseen {
        line += &format!(
            ", without the program's last {} ms (--last-round records them)",
            milliseconds(unseen)
        );
    }
    if totals.short_lives > 0 {
        line += &format!(
            ", without {} {} that began and ended between two rounds",
            words::count(totals.short_lives),
            match totals.short_lives {
                1 => "process",
                _ => "processes",
            }
        );
    }
    if totals.children > 0 {
        let children = match totals.children {
            1 => "child process",
            _ => "child processes",
        };
        line += &format!(
            ", without its {} {children}",
            words::count(totals.children.into())
        );
    }
    if output.is_regular() {
        let file = match path.as_os_str() == DEFAULT_FILE {
            true => String::new(),
            false => format!(" {}", words::command(&[path.display().to_string()])),
        };
        line += &format!("; look at it with: pagetrail report{file}");
    }
    exit::message(&line);
}
