//! `pagetrail compare`: checks what is asked for, measures, and writes the tables.

use std::ffi::OsString;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use pagetrail_compare::condition::{Condition, Verdict};
use pagetrail_compare::environment::Environment;
use pagetrail_compare::guest::agent;
use pagetrail_compare::method::{self, Length, Plan, PlannedSuite};
use pagetrail_compare::results::{Comparison, Setting};
use pagetrail_compare::suite::{PROGRAM, Part};
use pagetrail_compare::{Progress, page, text, work};
use pagetrail_probes::Settings;

use self::args::CompareArgs;
use self::runner::Local;
use super::bench::clear_progress;
use crate::exit;
use crate::outfile::{Kind, OutFile};

pub(crate) mod args;
mod guest_args;
mod runner;

/// Where this is the first process of a guest that `compare` has started, is that, to its end.
pub(crate) fn be_first_process() -> Option<ExitCode> {
    agent::is_first_process().then(|| {
        agent::first_process(exit::message);
        // The kernel stops the machine when its first process ends.
        ExitCode::from(exit::OPERATION)
    })
}

/// Runs the subcommand.
pub(crate) fn run(args: &CompareArgs) -> Result<ExitCode> {
    if let Some(test) = &args.as_work {
        work::serve(test, args.as_work_in.as_deref())?;
        return Ok(ExitCode::SUCCESS);
    }
    if args.as_guest {
        agent::serve(&mut Local::new(args, probed(args, 0))?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let plan = plan(args)?;
    let mut all = plan.environments.iter().chain([&plan.against]);
    let has_guest = all.any(|environment| matches!(environment, Environment::Kvm(_)));
    args.linux.check(has_guest)?;
    check(&args.fail_if, &plan)?;
    // Before minutes of measuring, not after.
    let page = args.html.as_deref();
    let page = page.map(|path| OutFile::open(path, Kind::Page));
    let page = page.transpose()?;
    let mut runner = Local::new(args, probed(args, plan.seed))?;
    // Not where the document goes to the terminal, too: its log would have both.
    let is_said = io::stderr().is_terminal() && !(args.json && io::stdout().is_terminal());
    let mut say = |next: &Progress| {
        if is_said {
            say(next);
        }
    };
    let compared = method::compare(&plan, setting(args), &mut runner, &mut say);
    if is_said {
        clear_progress();
    }
    let comparison = match compared {
        Ok(comparison) => comparison,
        Err(error) => {
            page.into_iter().for_each(|page| page.discard());
            return Err(error);
        }
    };
    let (verdicts, undecided) = judge(&args.fail_if, &comparison);
    if let Some(out) = page {
        out.write(|out| page::write(&comparison, &verdicts, out))?;
    }
    let mut out = BufWriter::new(io::stdout().lock());
    let written = match args.json {
        true => text::write_json(&comparison, &verdicts, &mut out),
        false => text::write(&comparison, &verdicts, &mut out),
    };
    written
        .and_then(|()| out.flush())
        .context("cannot write to standard output")?;
    Ok(code(&comparison, &verdicts, undecided.as_deref()))
}

/// What probes are to find.
fn probed(args: &CompareArgs, seed: u64) -> Settings {
    Settings {
        functions: args.functions.clone(),
        interval: args.every,
        seed,
    }
}

/// What the figures mean for the caller.
fn code(comparison: &Comparison, verdicts: &[Verdict], undecided: Option<&str>) -> ExitCode {
    let negative = verdicts.iter().any(|verdict| verdict.holds) || comparison.has_differences();
    if let Some(undecided) = undecided {
        exit::message(&format!("cannot decide --fail-if {undecided}"));
    }
    if negative {
        return ExitCode::from(exit::NEGATIVE);
    }
    match undecided.is_none() && comparison.has_ratios() {
        true => ExitCode::SUCCESS,
        false => {
            if undecided.is_none() {
                exit::message(
                    "nothing could be compared: all but one environment, or all tests, are not here",
                );
            }
            ExitCode::from(exit::MACHINE)
        }
    }
}

/// What is to be compared.
fn plan(args: &CompareArgs) -> Result<Plan> {
    let mut environments: Vec<Environment> = Vec::new();
    for environment in &args.environments {
        if *environment != args.against && !environments.contains(environment) {
            environments.push(environment.clone());
        }
    }
    if environments.is_empty() {
        bail!(
            "there is nothing to compare {} with; name more environments, as in native,vm",
            args.against
        );
    }
    let suites = planned(args.suite.iter().flat_map(|suites| &suites.0));
    let planned = match (args.command.is_empty(), suites.is_empty()) {
        (true, true) => bail!("there is nothing to run; name a program after --, or --suite"),
        (true, false) => suites,
        (false, _) => vec![PlannedSuite {
            name: PROGRAM.into(),
            tests: vec![pagetrail_report::words::command(&words(&args.command))],
        }],
    };
    Ok(Plan {
        against: args.against.clone(),
        environments,
        suites: planned,
        length: match args.length {
            Some(time) => Length::Time(time),
            None => Length::Rounds(args.runs as usize),
        },
        seed: args.seed.unwrap_or_else(seed),
        probe: args.probe || !args.functions.is_empty(),
    })
}

/// The tests of all parts, each once, by suite.
fn planned<'a>(parts: impl Iterator<Item = &'a Part>) -> Vec<PlannedSuite> {
    let mut planned: Vec<PlannedSuite> = Vec::new();
    for part in parts {
        let name = part.suite.name();
        let at = planned.iter().position(|suite| suite.name == name);
        let at = at.unwrap_or_else(|| {
            planned.push(PlannedSuite {
                name: name.into(),
                tests: Vec::new(),
            });
            planned.len() - 1
        });
        for test in part.tests() {
            if planned[at].tests.iter().all(|other| other != test) {
                planned[at].tests.push(test.into());
            }
        }
    }
    planned
}

/// A seed that is another one each time, and short enough to be typed.
fn seed() -> u64 {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH);
    let time = since_1970.map_or(0, |time| u64::from(time.subsec_nanos()));
    (time ^ u64::from(std::process::id()) << 8) % 1_000_000
}

fn words(command: &[OsString]) -> Vec<String> {
    let words = command.iter();
    words.map(|word| word.to_string_lossy().into()).collect()
}

fn setting(args: &CompareArgs) -> Setting {
    let command = match args.command.is_empty() {
        true => {
            let suites = args.suite.iter().flat_map(|suites| &suites.0);
            suites.map(ToString::to_string).collect()
        }
        false => words(&args.command),
    };
    Setting {
        kernel: pagetrail_bench::measure::kernel(),
        machine: pagetrail_bench::measure::machine(),
        date: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
        command,
        cpus: std::thread::available_parallelism().map_or(1, usize::from),
    }
}

/// Refuses conditions on what is not compared.
fn check(conditions: &[Condition], plan: &Plan) -> Result<()> {
    let environments = plan.environments.iter().map(ToString::to_string);
    let environments: Vec<String> = environments.collect();
    let suites = plan.suites.iter().map(|suite| suite.name.clone());
    let suites: Vec<String> = suites.collect();
    for condition in conditions {
        condition.check(&environments, &suites)?;
    }
    Ok(())
}

/// What became of the conditions, and the first that cannot be decided.
fn judge(conditions: &[Condition], comparison: &Comparison) -> (Vec<Verdict>, Option<String>) {
    let mut verdicts = Vec::new();
    let mut undecided = None;
    for condition in conditions {
        match condition.judge(comparison) {
            Ok(verdict) => verdicts.push(verdict),
            Err(error) => undecided = undecided.or(Some(error.to_string())),
        }
    }
    (verdicts, undecided)
}

/// Says on the terminal which run is next.
fn say(next: &Progress) {
    // A line that wraps could not be erased.
    let width = terminal_size::terminal_size_of(io::stderr()).map(|(width, _)| width.0);
    let line = next.within(usize::from(width.unwrap_or(80)).saturating_sub(1));
    // Nothing is left to be done where standard error cannot be written.
    let _ = write!(io::stderr(), "\r\x1b[K{line}");
}
