//! [`Local`]: runs programs on this machine, in every environment.

use std::collections::{BTreeMap, HashMap};
use std::env;
use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use pagetrail::{Capabilities, TrackMode};
use pagetrail_compare::behaviour::{Behaviour, Digest, End};
use pagetrail_compare::capture::Capture;
use pagetrail_compare::environment::{Environment, Rounds};
use pagetrail_compare::guest::Guests;
use pagetrail_compare::local::tracker::{self, Tracked};
use pagetrail_compare::local::{Leftovers, Limits, set_apart};
use pagetrail_compare::method::{Outcome, Runner};
use pagetrail_compare::sample::Sample;
use pagetrail_compare::suite::{PROGRAM, Suite};
use pagetrail_compare::{Scratch, Usage, work};
use pagetrail_probes::{Found, Probes, Settings};
use pagetrail_vm::check::{report, try_accesses, try_guest};

use super::args::CompareArgs;
use crate::session::guest;
use crate::session::signals::{Addressee, Signals};
use crate::session::{start, subpage};

/// A run that takes so many times as long as the first one hangs, if it takes this time, too.
const TIMES_MAX: u32 = 50;
const TIME_MIN: Duration = Duration::from_secs(60);

/// This machine.
pub(super) struct Local<'a> {
    command: &'a [OsString],
    /// This program, which has the tests of suites and the virtual machine.
    own: OsString,
    began: Instant,
    limits: Limits,
    /// Why environments are not here, once that was found out.
    absences: Vec<(Environment, Option<String>)>,
    /// How long the first run of each test may take.
    timeout: Duration,
    /// What probes are to find, and the probes once they are attached; otherwise why they are not.
    probed: Settings,
    probes: Option<Result<Probes, String>>,
    /// What the first run of each test took.
    first: HashMap<String, Duration>,
    /// Virtual machines with a kernel of their own.
    guests: Guests,
    leftovers: Leftovers,
    /// Where tests of suites have their files, which go also where a test is killed.
    scratch: Option<Scratch>,
}

impl<'a> Local<'a> {
    pub(super) fn new(args: &'a CompareArgs, probed: Settings) -> Result<Self> {
        let (command, timeout) = (args.command.as_slice(), args.timeout);
        let mut signals = Signals::take(Addressee::Us).context("cannot handle signals")?;
        Ok(Self {
            command,
            own: env::current_exe()
                .context("cannot find this program")?
                .into(),
            began: Instant::now(),
            limits: Limits::new(move || signals.stop_requested()),
            absences: Vec::new(),
            timeout,
            probed,
            probes: None,
            first: HashMap::new(),
            guests: Guests::new(args.linux.settings(command, timeout)),
            leftovers: Leftovers::begin().context("cannot adopt processes")?,
            // A test that needs one says why there is none.
            scratch: match command.is_empty() {
                true => Scratch::new_in(&env::temp_dir()).ok(),
                false => None,
            },
        })
    }

    /// Why an environment is not here.
    fn absence(&mut self, environment: &Environment) -> Option<String> {
        let known = self.absences.iter().find(|(of, _)| of == environment);
        if let Some((_, reason)) = known {
            return reason.clone();
        }
        let reason = match environment {
            Environment::Kvm(paging) => self.guests.absence(*paging),
            _ => absence(environment),
        };
        self.absences.push((environment.clone(), reason.clone()));
        reason
    }

    fn words(&self, suite: &str, test: &str) -> Vec<OsString> {
        match suite {
            PROGRAM => self.command.to_vec(),
            _ => {
                let test = format!("{suite}/{test}");
                let own = self.own.clone();
                let mut words = vec![own, "compare".into(), "--as-work".into(), test.into()];
                if let Some(scratch) = &self.scratch {
                    words.extend(["--as-work-in".into(), scratch.path().into()]);
                }
                words
            }
        }
    }
}

impl Runner for Local<'_> {
    fn run(&mut self, suite: &str, test: &str, environment: &Environment) -> Result<Outcome> {
        let missing = suite.parse::<Suite>().ok();
        let missing = missing.and_then(|suite| work::absence(suite, test));
        if let Some(reason) = missing.or_else(|| self.absence(environment)) {
            return Ok(Outcome::NotHere(reason));
        }
        if let Environment::Kvm(paging) = environment {
            return self.guests.run(*paging, suite, test, &mut self.limits);
        }
        let words = self.words(suite, test);
        let key = format!("{suite}/{test}");
        let time = self.first.get(&key);
        let is_first = time.is_none();
        let limit = time.map_or(self.timeout, |time| (*time * TIMES_MAX).max(TIME_MIN));
        self.limits.begin(limit);
        let others = self.leftovers.before();
        let before = Usage::now();
        let began = Instant::now();
        let launched = launch(&words, environment, &mut self.limits);
        let took = began.elapsed();
        let mut counts = before.since();
        self.leftovers.end(&others);
        let (capture, tracked) = match launched {
            // What cannot be tracked at all, says why.
            Err(error) if is_refusal(&error) => {
                return Ok(Outcome::NotHere(format!("{error:#}")));
            }
            ran => ran?,
        };
        if is_first && matches!(tracked.end, End::TimedOut(_)) {
            let end = tracked.end;
            return Ok(Outcome::NotHere(format!(
                "its first run {end}; --timeout says how long it may take"
            )));
        }
        counts.rounds = tracked.rounds as f64;
        counts.pages = tracked.pages as f64;
        self.first.entry(key).or_insert(took);
        let (time_ns, behaviour) = match suite {
            PROGRAM => (took.as_nanos() as f64, capture.behaviour(tracked.end)?),
            _ => match of_test(capture, tracked.end)? {
                Ok(of_test) => of_test,
                Err(reason) => return Ok(Outcome::Failed(reason)),
            },
        };
        Ok(Outcome::Ran(Sample {
            time_ns,
            counts,
            behaviour,
            kvm: BTreeMap::new(),
        }))
    }

    fn probe(
        &mut self,
        suite: &str,
        test: &str,
        environment: &Environment,
    ) -> Result<Result<Found, String>> {
        let words = self.words(suite, test);
        let time = self.first.get(&format!("{suite}/{test}"));
        let limit = time.map_or(self.timeout, |time| (*time * TIMES_MAX).max(TIME_MIN));
        let attached = self.probes.get_or_insert_with(|| attach(&self.probed));
        let probes = match attached {
            Ok(probes) => probes,
            Err(reason) => return Ok(Err(reason.clone())),
        };
        if let Environment::Kvm(paging) = environment {
            let (guests, limits) = (&mut self.guests, &mut self.limits);
            return guests.probe(*paging, suite, test, limits, probes);
        }
        if let Err(error) = probes.begin() {
            return Ok(Err(error.to_string()));
        }
        self.limits.begin(limit);
        let others = self.leftovers.before();
        let launched = launch(&words, environment, &mut self.limits);
        let found = probes.found();
        self.leftovers.end(&others);
        launched?;
        Ok(found.map_err(|error| error.to_string()))
    }

    fn now(&self) -> Duration {
        self.began.elapsed()
    }

    fn notes(&self) -> Vec<String> {
        let mut notes = self.guests.notes();
        notes.extend(self.leftovers.note());
        notes
    }
}

/// Attaches probes; otherwise why they are not here.
fn attach(settings: &Settings) -> Result<Probes, String> {
    Probes::attach(settings).map_err(|error| error.to_string())
}

/// Time and behaviour of a test of a suite, by what it says; otherwise why it has failed.
fn of_test(mut capture: Capture, end: End) -> Result<Result<(f64, Behaviour), String>> {
    let message = capture.message()?;
    let message = message.strip_prefix("pagetrail: ").unwrap_or(&message);
    if end != End::Exited(0) {
        return Ok(Err(match message.is_empty() {
            true => format!("it {end}"),
            false => message.to_owned(),
        }));
    }
    let said = capture.start_of_output()?;
    Ok(match said.parse::<work::Report>() {
        Err(error) => Err(error.to_string()),
        Ok(report) => {
            let behaviour = Behaviour {
                end,
                output: Digest::of(&report.result.to_ne_bytes()),
                errors: Digest::of(message.as_bytes()),
                message: message.to_owned(),
            };
            Ok((report.time_ns as f64, behaviour))
        }
    })
}

/// Runs a program in an environment once.
fn launch(
    words: &[OsString],
    environment: &Environment,
    limits: &mut Limits,
) -> Result<(Capture, Tracked)> {
    match environment {
        Environment::Native => plain(program(words)?, limits),
        Environment::Heap { subpages } => {
            let mut command = program(words)?;
            subpage::preload(&mut command, subpages)?;
            plain(command, limits)
        }
        Environment::Tracked {
            technique,
            interval,
        } => {
            let mut command = program(words)?;
            set_apart(&mut command);
            let capture = Capture::of(&mut command)?;
            limits.watch(&capture)?;
            let tracked = tracker::run(command, *technique, *interval, limits)?;
            Ok((capture, tracked))
        }
        Environment::Vm(Rounds::None) => {
            let mut command = Command::new(env::current_exe()?);
            command.args(["vm", "run", "--"]).args(words);
            plain(command, limits)
        }
        Environment::Vm(Rounds::Writes(interval)) => {
            recorded(words, TrackMode::Writes, *interval, limits)
        }
        Environment::Vm(Rounds::Accesses(interval)) => {
            recorded(words, TrackMode::Alternate, *interval, limits)
        }
        Environment::Kvm(_) => bail!("a guest with a kernel of its own starts its programs itself"),
    }
}

fn program(words: &[OsString]) -> Result<Command> {
    match words.split_first() {
        Some((program, arguments)) => Ok(start::command(program, arguments)),
        None => bail!("no program is named"),
    }
}

/// Starts a program and waits for it.
fn plain(mut command: Command, limits: &mut Limits) -> Result<(Capture, Tracked)> {
    set_apart(&mut command);
    let capture = Capture::of(&mut command)?;
    limits.watch(&capture)?;
    let began = Instant::now();
    let mut child = command.spawn().map_err(|source| pagetrail::Error::Spawn {
        command: command.get_program().to_string_lossy().into(),
        source,
    })?;
    let end = match limits.wait_for(&mut child)? {
        Ok(status) => end_of(status),
        Err(_) => End::TimedOut(began.elapsed().as_secs()),
    };
    let tracked = Tracked {
        end,
        rounds: 0,
        pages: 0,
    };
    Ok((capture, tracked))
}

/// Runs a program as a guest, and collects its rounds.
fn recorded(
    words: &[OsString],
    track: TrackMode,
    interval: Duration,
    limits: &mut Limits,
) -> Result<(Capture, Tracked)> {
    let mut capture = None;
    let mut source = guest::start(words, Some(track), None, |command| {
        set_apart(command);
        capture = Some(Capture::of(command)?);
        Ok(())
    })?;
    let capture = capture.context("the guest's output went nowhere")?;
    limits.watch(&capture)?;
    let tracked = tracker::run_guest(&mut source, interval, limits)?;
    Ok((capture, tracked))
}

fn end_of(status: ExitStatus) -> End {
    match (status.code(), status.signal()) {
        (Some(code), _) => End::Exited(code),
        (None, Some(signal)) => End::Killed(signal),
        (None, None) => End::Unknown,
    }
}

/// Whether an error is about this environment alone, so that others can still be measured. A
/// program that cannot be started is nowhere.
fn is_refusal(error: &anyhow::Error) -> bool {
    match error.downcast_ref::<pagetrail::Error>() {
        Some(error) => !matches!(error, pagetrail::Error::Spawn { .. }),
        None => error.is::<pagetrail_vm::Error>(),
    }
}

/// Why an environment is not here, if it is not.
fn absence(environment: &Environment) -> Option<String> {
    match environment {
        Environment::Native | Environment::Kvm(_) => None,
        Environment::Tracked { technique, .. } => {
            let capabilities = Capabilities::probe();
            capabilities.status(*technique).reason().map(Into::into)
        }
        Environment::Heap { subpages } => subpage::variables(subpages)
            .err()
            .map(|error| format!("{error:#}")),
        Environment::Vm(rounds) => {
            let tried = report().and_then(|_| match rounds {
                Rounds::Accesses(_) => try_accesses(),
                _ => try_guest().map(drop),
            });
            tried.err().map(|error| error.to_string())
        }
    }
}
