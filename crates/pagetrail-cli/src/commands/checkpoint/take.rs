//! `pagetrail checkpoint`: takes one checkpoint of a process, or one after the other.

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use pagetrail::{Ended, State, Target};
use pagetrail_checkpoint::{
    Error, Manifest, MaxOverhead, ProcessCheckpointer, ProcessOptions, Writer,
};
use pagetrail_criu::lineage::{self, By};
use pagetrail_recorder::Schedule;
use pagetrail_report::words;

use super::args::TakeArgs;
use super::complaints::{self, Complaints, Pruning};
use super::metrics::Metrics;
use super::{json, lock, plain, text, writer_of};
use crate::args::DURATION_MAX;
use crate::exit;
use crate::session::guest;
use crate::session::signals::{Addressee, Signals};
use crate::session::start;
use crate::session::waiting::Waiting;

/// How soon a signal is noticed.
const SIGNAL_POLL: Duration = Duration::from_millis(100);

/// The next is due at once.
const NO_INTERVAL: Duration = Duration::from_nanos(1);

/// Runs the subcommand; with `restartable`, a process can be started anew from what it takes.
pub(super) fn run(args: &TakeArgs, restartable: bool) -> Result<ExitCode> {
    // First, so that a wrong PID leaves no empty store.
    let asked = match args.pid {
        Some(pid) => Some(Target::process(pid)?),
        None if args.vm => {
            pagetrail_vm::check::report()?;
            None
        }
        None if args.every.is_none() => bail!(
            "a program that has just started has nothing worth saving; --every TIME says how often it is saved"
        ),
        None if args.json => {
            bail!("--json needs standard output, which is the program's; -p PID does without")
        }
        None => None,
    };
    let budget = args.budget()?;
    let mut writer = writer_of(&args.store, &args.writing, restartable)?;
    let options = ProcessOptions {
        mode: args.mode.into(),
        max_pause: args.max_pause,
        max_overhead: budget.map(|budget| MaxOverhead {
            share: budget.share,
            shortest: *budget.intervals.start(),
            longest: *budget.intervals.end(),
        }),
        technique: args.technique.0,
        trust_subpages: args.trust_subpages,
        report_again: args.report_again,
        trust_shared: args.trust_shared,
        restartable,
        ..ProcessOptions::default()
    };
    if let Some(label) = &args.label {
        writer.label_next(label.clone());
    }
    let metrics = Metrics::new(args.metrics_file.clone(), args.metrics_listen)?;
    let process = match args.pid {
        Some(pid) => ProcessCheckpointer::attach(pid, options),
        None if args.vm => of_guest(args, options)?,
        None => launch(args, options),
    };
    let mut process = process.map_err(plain)?;
    if let Some(asked) = asked {
        lock::check_is_same(&asked)?;
    }
    let before = args
        .pid
        .and_then(|pid| lineage::find(pid, writer.store(), By::Pagetrail));
    // Where that is damaged, the first is a base.
    let was_restored = before.is_some_and(|number| process.build_on(&mut writer, number).is_ok());
    let is_program = args.pid.is_none() && !args.vm;
    let addressee = match is_program {
        true => Addressee::Program(process.pid()),
        false => Addressee::Us,
    };
    let signals = Signals::take(addressee).context("cannot handle signals")?;
    let mut session = Session {
        args,
        process,
        signals,
        metrics,
        is_program,
        was_restored,
        ended: None,
        shown: false,
        is_kept: true,
        pruning: Pruning::default(),
    };
    if is_program {
        return session.of_program(&mut writer);
    }
    match (args.interval(), args.count) {
        (Some(interval), _) => session.repeat(&mut writer, interval),
        (None, Some(_)) => session.repeat(&mut writer, NO_INTERVAL),
        (None, None) => {
            session.take(&mut writer)?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Starts a program as a guest. Its output does not mix with ours.
fn of_guest(
    args: &TakeArgs,
    options: ProcessOptions,
) -> Result<pagetrail_checkpoint::Result<ProcessCheckpointer>> {
    let source = guest::start(&args.command, None, None, guest::set_apart)?;
    let words = args.command.iter();
    let command = words.map(|word| word.to_string_lossy().into()).collect();
    Ok(ProcessCheckpointer::of_source(
        Box::new(source),
        command,
        options,
    ))
}

/// Starts a program, which has the terminal.
fn launch(
    args: &TakeArgs,
    options: ProcessOptions,
) -> pagetrail_checkpoint::Result<ProcessCheckpointer> {
    // The parser refuses a command line with neither a process nor a program.
    let (program, arguments) = args.command.split_first().unwrap_or_else(|| unreachable!());
    ProcessCheckpointer::launch(start::command(program, arguments), options)
}

struct Session<'a> {
    args: &'a TakeArgs,
    process: ProcessCheckpointer,
    signals: Signals,
    metrics: Metrics,
    /// Whether the process is a program that was started here.
    is_program: bool,
    /// Whether it was restored from a checkpoint of this store.
    was_restored: bool,
    /// How it ended, once that is known.
    ended: Option<Option<Ended>>,
    /// Whether the progress line is on the screen.
    shown: bool,
    /// Whether the budget was kept by the last checkpoint.
    is_kept: bool,
    /// What was said of older checkpoints that could not be removed.
    pruning: Pruning,
}

impl Session<'_> {
    /// Takes a checkpoint, and tells about it.
    fn take(&mut self, writer: &mut Writer) -> Result<Manifest> {
        // A program that was started here has the terminal.
        let is_shown = !self.is_program || self.args.progress.progress;
        let waiting = is_shown.then(|| {
            let progress = writer.store().progress();
            Waiting::on("saving the process", progress, self.args.progress)
        });
        let taken = self.process.checkpoint(writer);
        drop(waiting);
        self.metrics.count(taken.as_ref().ok());
        let manifest = taken.map_err(plain)?;
        if self.was_restored {
            lineage::note(self.process.pid(), manifest.number, manifest.id);
        }
        self.erase();
        let overhead = self.process.overhead();
        let line = match (self.args.json, overhead) {
            (true, _) => json::taken(&manifest, overhead).to_string(),
            (false, Some(overhead)) => {
                format!("{}, {}", text::taken(&manifest), text::overhead(&overhead))
            }
            (false, None) => text::taken(&manifest),
        };
        match self.is_program {
            true => exit::message(&line),
            false => writeln!(io::stdout(), "{line}").context("cannot write to standard output")?,
        }
        if let Some(overhead) = overhead
            && std::mem::replace(&mut self.is_kept, overhead.is_kept) != overhead.is_kept
        {
            exit::message(&text::budget(&overhead));
        }
        if let Some(keep) = self.args.keep {
            self.pruning
                .of(writer.prune(keep as usize).map_err(plain), "checkpoints");
        }
        Ok(manifest)
    }

    /// Takes checkpoints of a program from an interval after its start on, and waits for its end.
    fn of_program(&mut self, writer: &mut Writer) -> Result<ExitCode> {
        let interval = self.args.interval().unwrap_or(NO_INTERVAL);
        let failure = match self.wait_until(Instant::now() + interval, 0) {
            true => self.repeat(writer, interval),
            false => Ok(ExitCode::SUCCESS),
        };
        // Reported now, since the program may run for a long time.
        let failure = failure.err().filter(|error| !has_ended(error));
        let failure = failure.map(|error| exit::report(&error));
        let ended = loop {
            if let Some(ended) = self.ended {
                break ended;
            }
            self.signals.stop_requested();
            if let State::Ended(ended) = self.process.wait(SIGNAL_POLL) {
                self.ended = Some(ended);
            }
        };
        Ok(failure.unwrap_or_else(|| exit::of_program(ended)))
    }

    /// Takes one after the other. One that fails is reported, and tried again when the next is due.
    fn repeat(&mut self, writer: &mut Writer, interval: Duration) -> Result<ExitCode> {
        let mut schedule = Schedule::new(Instant::now(), interval, None);
        let (mut taken, mut failure) = (0, None);
        let mut complaints = Complaints::default();
        loop {
            match self.take(writer) {
                Ok(_) => {
                    taken += 1;
                    failure = None;
                    if let Some(line) = complaints.over() {
                        self.erase();
                        exit::message(&line);
                    }
                }
                Err(error) if has_ended(&error) && taken > 0 => break,
                Err(error) if self.is_lasting(&error) => return Err(error),
                Err(error) => {
                    let line = format!("{error:#}; trying again in time for the next");
                    if let Some(line) = complaints.line(line, Instant::now()) {
                        self.erase();
                        exit::message(&words::printable(&line));
                    }
                    failure = Some(error);
                }
            }
            if self.args.count.is_some_and(|count| taken >= count) {
                break;
            }
            let now = Instant::now();
            schedule.advance(now);
            // One that failed is tried again after the shortest interval.
            if failure.is_some() {
                complaints::rest(&mut schedule, now);
            } else if let Some(next) = self.process.next_checkpoint() {
                schedule.set_next_within(next, now, DURATION_MAX);
            }
            let mut goes_on = self.wait_until(schedule.deadline(), taken);
            // It becomes later while the process fills memory.
            while goes_on
                && failure.is_none()
                && let Some(next) = self.process.next_checkpoint()
                && next > Instant::now()
            {
                goes_on = self.wait_until(next, taken);
                if Instant::now() < next {
                    break; // A guest has something to take.
                }
            }
            if !goes_on {
                break;
            }
        }
        self.erase();
        // What was said last is how it ended.
        Ok(ExitCode::from(if failure.is_some() {
            exit::OPERATION
        } else {
            0
        }))
    }

    /// Whether trying again cannot help.
    fn is_lasting(&mut self, error: &anyhow::Error) -> bool {
        if let State::Ended(ended) = self.process.wait(Duration::ZERO) {
            self.ended = Some(ended);
        }
        let ended = self.ended.is_some();
        // Another writer may come while this one could not reach the store. A full one has no room
        // a moment later, and each try would stop the process.
        let full_or_busy = match error.downcast_ref() {
            Some(Error::Io { .. }) => self.args.every.is_some(),
            Some(Error::Busy { .. }) => true,
            _ => false,
        };
        let not_now = matches!(
            error.downcast_ref(),
            Some(
                pagetrail::Error::NotStopping { .. }
                    | pagetrail::Error::Frozen { .. }
                    | pagetrail::Error::Traced { .. }
            )
        );
        let mid_transfer = matches!(error.downcast_ref(), Some(Error::NotNow(_)));
        ended || !(full_or_busy || not_now || mid_transfer)
    }

    /// Waits; false when the process has ended or somebody asked to stop.
    fn wait_until(&mut self, deadline: Instant, taken: u32) -> bool {
        loop {
            if self.signals.stop_requested() {
                return false;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return true;
            }
            self.show(&format!(
                "{taken} taken; the next in {:.0} s; Ctrl-C to end",
                left.as_secs_f64().ceil()
            ));
            match self.process.wait(left.min(SIGNAL_POLL)) {
                State::Ended(ended) => {
                    self.ended = Some(ended);
                    return false;
                }
                // A guest's last one, at its end.
                State::Exiting | State::Ready => return true,
                _ => {}
            }
        }
    }

    fn show(&mut self, line: &str) {
        // A program that was started here may use the terminal as it likes.
        if io::stderr().is_terminal() && !self.args.json && !self.is_program {
            self.shown = true;
            let _ = write!(io::stderr(), "\r{line}\x1b[K");
        }
    }

    fn erase(&mut self) {
        if std::mem::take(&mut self.shown) {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

fn has_ended(error: &anyhow::Error) -> bool {
    use pagetrail::Error::{Gone, NoSuchProcess};
    matches!(
        error.downcast_ref(),
        Some(Gone { .. } | NoSuchProcess { .. })
    )
}
