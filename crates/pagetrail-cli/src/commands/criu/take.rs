//! `pagetrail checkpoint --restorable`: checkpoints by CRIU, which keep the process running.

use std::fs;
use std::io::{self, Write};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use pagetrail::Target;
use pagetrail_checkpoint::Manifest;
use pagetrail_checkpoint::criu::Dumps;

use pagetrail_criu::{Chain, Engine, lineage};

use crate::commands::checkpoint::args::TakeArgs;
use crate::commands::checkpoint::{json, plain, text, writer};
use crate::exit;
use crate::session::schedule::Schedule;
use crate::session::signals::{Addressee, Signals};

/// How soon a signal is noticed.
const SIGNAL_POLL: Duration = Duration::from_millis(100);
/// The next is due at once.
const NO_INTERVAL: Duration = Duration::from_nanos(1);
/// The argument of CRIU with which it takes processes of a session that is not theirs.
const SHELL_JOB: &str = "--shell-job";

/// Runs the subcommand.
pub(crate) fn run(args: &TakeArgs) -> Result<ExitCode> {
    let Some(pid) = args.pid else {
        bail!("--restorable takes a running process: -p PID");
    };
    // First, so that what cannot be done leaves no empty store.
    Target::process(pid)?;
    let engine = Engine::find()?;
    check(pid, args)?;
    let mut dumps = Dumps::new(writer(&args.store, &args.writing, true)?);
    if let Some(number) = lineage::find(pid, dumps.writer().store()) {
        // Where that is damaged, the first is a base.
        let _ = dumps.build_on(number);
    }
    if let Some(label) = &args.label {
        dumps.writer().label_next(label.clone());
    }
    let mut signals = Signals::take(Addressee::Us).context("cannot handle signals")?;
    let interval = args.every.unwrap_or(NO_INTERVAL);
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
        let manifest = take(&mut chain, &mut dumps)?;
        lineage::note(pid, &manifest);
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
        loop {
            if signals.stop_requested() {
                return Ok(ExitCode::SUCCESS);
            }
            let left = schedule
                .deadline()
                .saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            std::thread::sleep(left.min(SIGNAL_POLL));
        }
    }
}

/// The leader of a process' session: 0 where it lives outside this PID namespace, as that of a
/// shell that has entered a container.
///
/// Read from `/proc/PID/stat` ([proc_pid_stat(5)]): rustix' `getsid` takes 0 for impossible.
///
/// [proc_pid_stat(5)]: https://man7.org/linux/man-pages/man5/proc_pid_stat.5.html
fn session_of(pid: u32) -> Option<u32> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // State, parent, process group, session: after the name, which may hold anything.
    text.rsplit(')')
        .next()?
        .split_whitespace()
        .nth(3)?
        .parse()
        .ok()
}

/// Refuses what CRIU would refuse, in words of our own.
fn check(pid: u32, args: &TakeArgs) -> Result<()> {
    let session = session_of(pid);
    if session != Some(pid) && !args.criu_arg.iter().any(|arg| arg == SHELL_JOB) {
        let leader = match session {
            None | Some(0) => "a process that cannot be seen from here".into(),
            Some(leader) => format!("process {leader}"),
        };
        bail!(
            "process {pid} belongs to the session of {leader}, which would not be saved; start it by \
             setsid(1), or pass --criu-arg={SHELL_JOB}, here and to restore, to give it another session's terminal"
        );
    }
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let tracer = status
        .lines()
        .find_map(|line| line.strip_prefix("TracerPid:"));
    match tracer.map(str::trim) {
        None | Some("0") => Ok(()),
        Some(tracer) => bail!("process {pid} is traced by process {tracer}; CRIU must trace it"),
    }
}

/// Takes the next; without tracking from the first time on that it fails with it.
fn take(chain: &mut Chain<'_>, dumps: &mut Dumps) -> Result<Manifest> {
    match chain.take(dumps).map_err(plain) {
        Err(error) if chain.stop_tracking() => {
            let manifest = chain.take(dumps).map_err(plain)?;
            exit::message(&format!(
                "all pages are read from now on, while the process stands still: {error:#}"
            ));
            Ok(manifest)
        }
        outcome => outcome,
    }
}
