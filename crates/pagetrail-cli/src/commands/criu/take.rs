//! `pagetrail checkpoint --restorable`: checkpoints by CRIU, which keep the process running.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, ExitCode};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use pagetrail::Target;
use pagetrail_checkpoint::criu::{Dump, Dumps, frozen};
use pagetrail_checkpoint::{Error, Manifest};
use pagetrail_criu::{Engine, Scratch, is_log, reason, start_with};

use crate::commands::checkpoint::args::TakeArgs;
use crate::commands::checkpoint::{json, plain, text, writer};
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
    let mut signals = Signals::take(Addressee::Us).context("cannot handle signals")?;
    let interval = args.every.unwrap_or(NO_INTERVAL);
    let count = args.count.or(args.every.is_none().then_some(1));
    let mut schedule = Schedule::new(Instant::now(), interval, None);
    let mut taken = 0;
    loop {
        if taken > 0 && Target::process(pid).is_err() {
            return Ok(ExitCode::SUCCESS);
        }
        let manifest = take(pid, args, &engine, &mut dumps)?;
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

fn take(pid: u32, args: &TakeArgs, engine: &Engine, dumps: &mut Dumps) -> Result<Manifest> {
    let scratch = Scratch::new()?;
    let (ours, theirs) = UnixStream::pair().context("cannot make a pair of sockets")?;
    let mut command = engine.command("dump", scratch.path());
    command.args(["--leave-running", "-t", &pid.to_string()]);
    command.args(&args.criu_arg);
    let mut child = start_with(command, theirs.into())?;
    let taken = dumps.take_with(&ours, |dump| finish(dump, &mut child, scratch.path()));
    // CRIU waits for nothing more: where the store failed, it undoes what it did and goes.
    drop(ours);
    let status = child.wait().context("cannot wait for CRIU")?;
    taken.map_err(|error| {
        let is_about_criu = match &error {
            Error::Peer(_) => true,
            Error::Io { what, .. } => what.contains("connection"),
            _ => false,
        };
        match is_about_criu && !status.success() {
            true => failed(pid, scratch.path()),
            false => plain(error),
        }
    })
}

fn failed(pid: u32, directory: &Path) -> anyhow::Error {
    let reason = reason("dump", directory);
    anyhow::anyhow!("CRIU cannot save process {pid}, which goes on: {reason}")
}

/// Waits for CRIU's end, and adds its files.
fn finish(dump: &mut Dump<'_>, child: &mut Child, directory: &Path) -> Result<Duration, Error> {
    let io = |what: &str, cause| Error::Io {
        what: what.into(),
        cause,
    };
    let status = child.wait();
    let status = status.map_err(|cause| io("cannot wait for CRIU", cause))?;
    if !status.success() {
        return Err(Error::Refused(format!(
            "CRIU cannot save the process, which goes on: {}",
            reason("dump", directory)
        )));
    }
    let unread = |cause| io("cannot read CRIU's files", cause);
    let mut names = Vec::new();
    for entry in fs::read_dir(directory).map_err(unread)? {
        let entry = entry.map_err(unread)?;
        let is_file = entry.file_type().map_err(unread)?.is_file();
        if let Ok(name) = entry.file_name().into_string()
            && is_file
            && !is_log(&name)
        {
            names.push(name);
        }
    }
    names.sort();
    for name in &names {
        let mut file = File::open(directory.join(name)).map_err(unread)?;
        dump.add_file(name, &mut file)?;
    }
    let stats = fs::read(directory.join("stats-dump")).unwrap_or_default();
    Ok(frozen(&stats).unwrap_or_default())
}
