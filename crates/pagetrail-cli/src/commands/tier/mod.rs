//! `pagetrail tier`: `plan`, `run`, `status` and `agent`.

pub(crate) mod args;
mod guest;

use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use pagetrail_endpoint as endpoint;
use pagetrail_recorder::Schedule;
use pagetrail_report::words;
use pagetrail_tier_service::agent::{Agent, Which};
use pagetrail_tier_service::plan::{self, Options, Subject};
use pagetrail_tier_service::{Config, Daemon, Notifier, Status, machine_limit};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use self::args::{
    AgentArgs, PlanArgs, RunArgs, StatusArgs, SubjectArgs, TierArgs, TierCommand, WhichArgs,
};
use crate::exit;
use crate::outfile::{Kind, OutFile};
use crate::session::waiting::Waiting;

/// Older than this, a status is said to be.
const STATUS_OLD: Duration = Duration::from_secs(10);
/// How soon a signal is noticed.
const SIGNAL_POLL: Duration = Duration::from_millis(50);

/// Runs one of the subcommands.
pub(crate) fn run(args: &TierArgs) -> Result<ExitCode> {
    match &args.command {
        TierCommand::Plan(args) => {
            print(&plan(args)?)?;
            Ok(ExitCode::SUCCESS)
        }
        TierCommand::Run(args) => keep(args),
        TierCommand::Status(args) => status(args),
        TierCommand::Agent(args) => agent(args),
    }
}

/// Runs `tier plan`; what it prints.
fn plan(args: &PlanArgs) -> Result<String> {
    if args.follow {
        bail!(
            "a plan is for one guest, and programs that it executes run natively: record them (record --vm --follow \
             --access), and plan for each recording (--trail)"
        );
    }
    let html = args.html.as_deref();
    let html = html
        .map(|path| OutFile::open(path, Kind::Page))
        .transpose()?;
    let options = Options {
        fast: args.fast,
        windows: args.windows,
        window: args.window,
        fast_nodes: args.fast_node.clone(),
    };
    let kind = args.source.0;
    let subject = match &args.subject {
        SubjectArgs { pid: Some(pid), .. } => Subject::process(*pid, kind, &options)?,
        SubjectArgs {
            guest: Some(vm), ..
        } => Subject::monitor(vm, kind, args.agent.as_ref(), &options)?,
        SubjectArgs {
            trail: Some(path), ..
        } => Subject::recording(path, &options)?,
        SubjectArgs { vm: true, .. } => {
            let (pid, source) = guest::start(&args.command, kind)?;
            Subject::guest(pid, source, &options)?
        }
        _ => bail!("nothing is named to plan for: give --pid, --guest, --trail or --vm"),
    };
    let waiting = Waiting::during("watching what is accessed");
    let planned = plan::watch(subject, &options)?;
    drop(waiting);
    if let Some(html) = html {
        html.write(|out| planned.write_page(out))?;
    }
    match args.json {
        true => planned.json(),
        false => Ok(planned.text()),
    }
}

/// Runs `tier run`.
fn keep(args: &RunArgs) -> Result<ExitCode> {
    let mut signals = signal_hook::iterator::Signals::new([SIGHUP, SIGINT, SIGTERM])
        .context("cannot handle signals")?;
    let mut daemon = Daemon::new(&args.config, args.dry_run, Box::new(guest::start))?;
    let mut notifier = Notifier::from_environment();
    // Before hours of running, not after.
    let html = args.html.as_deref();
    let html = html
        .map(|path| OutFile::open(path, Kind::Page))
        .transpose()?;
    let start = Instant::now();
    let mut schedule = Schedule::new(start, daemon.window(), args.duration);
    let mut is_ready = false;
    'windows: loop {
        let turned = daemon.turn(&mut || match is_ready {
            true => notifier.alive(Instant::now()),
            false => notifier.starting(Instant::now()),
        });
        say(&mut daemon);
        turned?;
        if !std::mem::replace(&mut is_ready, true) {
            notifier.ready();
        }
        notifier.status(&daemon.summary());
        if daemon.is_over() {
            break;
        }
        let now = Instant::now();
        if schedule.is_over(now) {
            break;
        }
        schedule.advance(now);
        loop {
            for signal in signals.pending() {
                if signal != SIGHUP {
                    break 'windows;
                }
                daemon.reload();
                say(&mut daemon);
                schedule = Schedule::new(
                    Instant::now(),
                    daemon.window(),
                    args.duration.map(|all| all.saturating_sub(start.elapsed())),
                );
            }
            notifier.alive(Instant::now());
            let left = schedule
                .deadline()
                .saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            thread::sleep(left.min(SIGNAL_POLL));
        }
    }
    notifier.stopping();
    if let Some(html) = html {
        html.write(|out| daemon.write_page(out))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn say(daemon: &mut Daemon) {
    for line in daemon.take_messages() {
        exit::message(&line);
    }
}

/// Runs `tier agent`.
fn agent(args: &AgentArgs) -> Result<ExitCode> {
    let which = match &args.which {
        WhichArgs {
            cgroup: Some(cgroup),
            ..
        } => Which::Cgroup(cgroup.clone()),
        WhichArgs { pid, .. } if !pid.is_empty() => Which::Pids(pid.clone()),
        WhichArgs { min_memory, .. } => Which::Larger(*min_memory),
    };
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        let handled = signal_hook::flag::register(signal, Arc::clone(&stop));
        handled.context("cannot handle signals")?;
    }
    let agent = Agent::listen(&args.listen, which, args.source.0, args.window);
    let agent = agent.map_err(machine_limit)?;
    agent.serve(&stop, &mut |line| exit::message(&line))?;
    Ok(ExitCode::SUCCESS)
}

/// Runs `tier status`.
fn status(args: &StatusArgs) -> Result<ExitCode> {
    let address = match (&args.whom.at, &args.whom.config) {
        (Some(address), _) => address.clone(),
        (None, Some(path)) => match Config::read(path)?.listen {
            Some(address) => address,
            None => bail!("{} does not say where to listen", path.display()),
        },
        (None, None) => bail!("nothing says where the daemon listens: give --at or --config"),
    };
    let (text, age) = endpoint::get_with_age(&address, "/status")?;
    let status: Status = serde_json::from_str(&text)
        .with_context(|| format!("{address} does not answer as pagetrail does"))?;
    let in_words = words::time(age.as_secs_f64() * 1e9);
    if let Some(max) = args.max_age.filter(|max| age > *max) {
        bail!(
            "the status of {address} is {in_words} old, more than {}: process {} does not go on; start it again",
            words::time(max.as_secs_f64() * 1e9),
            status.pid
        );
    }
    let out = match args.json {
        true => serde_json::to_string_pretty(&status)? + "\n",
        false if age > STATUS_OLD => format!("{}as it was {in_words} ago\n", status.text()),
        false => status.text(),
    };
    print(&out)?;
    Ok(ExitCode::SUCCESS)
}

fn print(text: &str) -> Result<()> {
    let written = io::stdout().lock().write_all(text.as_bytes());
    written.context("cannot write to standard output")
}
