//! `pagetrail checkpoint --restorable`: checkpoints by CRIU, which keep the process running.

use std::io::{self, Write};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use pagetrail::Target;
use pagetrail_checkpoint::criu::Dumps;
use pagetrail_criu::lineage::{self, By};
use pagetrail_criu::{Chain, Engine, check_target};
use pagetrail_recorder::Schedule;

use super::with_cure;
use crate::commands::checkpoint::args::TakeArgs;
use crate::commands::checkpoint::{json, plain, text, writer};
use crate::exit;
use crate::session::signals::{Addressee, Signals};
use crate::session::waiting::Waiting;

/// How soon a signal is noticed.
const SIGNAL_POLL: Duration = Duration::from_millis(100);
/// The next is due at once.
const NO_INTERVAL: Duration = Duration::from_nanos(1);

/// Runs the subcommand.
pub(crate) fn run(args: &TakeArgs) -> Result<ExitCode> {
    let Some(pid) = args.pid else {
        bail!("--restorable takes a running process: -p PID");
    };
    args.budget()?;
    // First, so that what cannot be done leaves no empty store.
    Target::process(pid)?;
    let engine = Engine::find().map_err(with_cure)?;
    check_target(pid, &args.criu_arg).map_err(with_cure)?;
    let mut dumps = Dumps::new(writer(&args.store, &args.writing, true)?);
    if let Some(number) = lineage::find(pid, dumps.writer().store(), By::Criu) {
        // Where that is damaged, the first is a base.
        let _ = dumps.build_on(number);
    }
    if let Some(label) = &args.label {
        dumps.writer().label_next(label.clone());
    }
    let mut signals = Signals::take(Addressee::Us).context("cannot handle signals")?;
    let interval = args.interval().unwrap_or(NO_INTERVAL);
    let count = args.count.or(args.every.is_none().then_some(1));
    let mut schedule = Schedule::new(Instant::now(), interval, None);
    let mut chain = Chain::new(&engine, pid, &args.criu_arg);
    if count != Some(1) {
        chain.track();
    }
    let mut taken = 0;
    loop {
        if taken > 0 && Target::process(pid).is_err() {
            return Ok(ExitCode::SUCCESS);
        }
        let progress = dumps.writer().store().progress();
        let waiting = Waiting::on("saving the processes", progress, args.progress);
        let outcome = chain.take(&mut dumps);
        drop(waiting);
        let (manifest, untracked) = outcome.map_err(plain)?;
        if let Some(error) = untracked {
            let error = plain(error);
            exit::message(&format!(
                "all pages are read from now on, while the process stands still: {error:#}"
            ));
        }
        lineage::note(pid, manifest.number, manifest.id);
        if let Some(keep) = args.keep {
            dumps.writer().prune(keep as usize).map_err(plain)?;
        }
        let line = match args.json {
            true => json::checkpoint(&manifest).to_string(),
            false => text::by_criu(&manifest),
        };
        writeln!(io::stdout(), "{line}").context("cannot write to standard output")?;
        taken += 1;
        if count.is_some_and(|count| taken >= count) {
            return Ok(ExitCode::SUCCESS);
        }
        schedule.advance(Instant::now());
        if !wait_until(schedule.deadline(), &mut signals) {
            return Ok(ExitCode::SUCCESS);
        }
    }
}

/// Waits; false when a signal has come.
fn wait_until(deadline: Instant, signals: &mut Signals) -> bool {
    while !signals.stop_requested() {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return true;
        }
        std::thread::sleep(left.min(SIGNAL_POLL));
    }
    false
}
