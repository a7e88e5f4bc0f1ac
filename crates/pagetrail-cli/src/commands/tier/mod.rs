//! `pagetrail tier`: `plan`, `run` and `status`.

pub(crate) mod args;
mod config;
mod daemon;
mod find;
mod guest;
mod heat;
mod metrics;
mod page;
mod plan;
mod process;
mod status;

use std::io::{self, Write};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use self::args::{RunArgs, StatusArgs, TierArgs, TierCommand};
use self::config::Config;
use self::daemon::Daemon;
use self::status::Status;
use crate::outfile::{Kind, OutFile};
use crate::session::schedule::Schedule;
use pagetrail_endpoint as endpoint;

/// How soon a signal is noticed.
const SIGNAL_POLL: Duration = Duration::from_millis(50);

/// Runs one of the subcommands.
pub(crate) fn run(args: &TierArgs) -> Result<ExitCode> {
    match &args.command {
        TierCommand::Plan(args) => {
            print(&plan::text_of(args)?)?;
            Ok(ExitCode::SUCCESS)
        }
        TierCommand::Run(args) => keep(args),
        TierCommand::Status(args) => status(args),
    }
}

/// Runs `tier run`.
fn keep(args: &RunArgs) -> Result<ExitCode> {
    let mut signals = signal_hook::iterator::Signals::new([SIGHUP, SIGINT, SIGTERM])
        .context("cannot handle signals")?;
    let mut daemon = Daemon::new(&args.config, args.dry_run)?;
    // Before hours of running, not after.
    let html = args.html.as_deref();
    let html = html
        .map(|path| OutFile::open(path, Kind::Page))
        .transpose()?;
    let start = Instant::now();
    let mut schedule = Schedule::new(start, daemon.window(), args.duration);
    'windows: loop {
        daemon.turn()?;
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
                schedule = Schedule::new(
                    Instant::now(),
                    daemon.window(),
                    args.duration.map(|all| all.saturating_sub(start.elapsed())),
                );
            }
            let left = schedule
                .deadline()
                .saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            thread::sleep(left.min(SIGNAL_POLL));
        }
    }
    daemon.finish(html)?;
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
    let text = endpoint::get(&address, "/status")?;
    let status: Status = serde_json::from_str(&text)
        .with_context(|| format!("{address} does not answer as pagetrail does"))?;
    let out = match args.json {
        true => serde_json::to_string_pretty(&status)? + "\n",
        false => status.text(),
    };
    print(&out)?;
    Ok(ExitCode::SUCCESS)
}

fn print(text: &str) -> Result<()> {
    let written = io::stdout().lock().write_all(text.as_bytes());
    written.context("cannot write to standard output")
}
