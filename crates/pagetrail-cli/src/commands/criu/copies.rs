//! `pagetrail restore --count`: copies of a process, each in a PID namespace and a mount namespace
//! of its own, which end with their first process (see `first`): all are started, or none.
//!
//! The namespaces are made by unshare(1). Files and the network are those of this process.

use std::env;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, ExitCode, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use pagetrail_checkpoint::Image;
use pagetrail_checkpoint::criu::{SocketAddress, socket_addresses};
use pagetrail_criu::Engine;
use pagetrail_report::words;
use serde_json::{Value, json};

use super::args::RestoreArgs;
use super::restore::check_kind;
use crate::commands::checkpoint::chain::image;
use crate::commands::checkpoint::{open, plain, text};
use crate::exit;
use crate::session::signals::{Addressee, Signals};

/// Makes the namespaces, and ends what is in them when it is ended itself.
const NAMESPACES: [&str; 6] = [
    "unshare",
    "--pid",
    "--mount",
    "--fork",
    "--mount-proc",
    "--kill-child",
];
/// What a copy reads that is to live longer than this.
const LEFT_ALONE: &[u8] = b"\n";
/// How often is looked whether a copy has ended, or a signal has come.
const POLL: Duration = Duration::from_millis(50);
/// What the messages of this program begin with.
const PREFIX: &str = "pagetrail: ";

/// Runs the subcommand.
pub(super) fn run(args: &RestoreArgs, count: u32) -> Result<ExitCode> {
    // What all copies would fail at is said once.
    Engine::find()?;
    let store = open(&args.store, &args.key)?;
    let mut image = image(&store, args.at.as_ref())?;
    check_kind(&mut image)?;
    let number = image.manifest().number;
    if count > 1 {
        check_sockets(&mut image)?;
    }
    let mut signals = Signals::take(Addressee::Us).context("cannot handle signals")?;
    let copies: Result<Vec<Copy>> = (0..count).map(|_| Copy::start(args, number)).collect();
    let mut copies = copies?;
    for (copy, at) in copies.iter_mut().zip(1..) {
        copy.wait_until_it_runs()
            .with_context(|| format!("copy {at} of {count} cannot be started"))?;
    }
    if signals.stop_requested() {
        bail!("interrupted; no copy is left");
    }
    say(args, number, &copies)?;
    if args.wait {
        return Ok(wait_for_all(copies, &mut signals));
    }
    for copy in copies {
        copy.leave()?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Refuses addresses that the first copy would take from the others.
fn check_sockets(image: &mut Image) -> Result<()> {
    let files = image.criu_file("files.img").map_err(plain)?;
    let addresses = socket_addresses(&files.unwrap_or_default()).unwrap_or_default();
    for address in addresses {
        let named = words::printable(&address.to_string()).into_owned();
        if !matches!(address, SocketAddress::Path(_)) {
            bail!(
                "the program has {named}, which one process of a network namespace alone can have; start copies one by \
                 one, each in a network namespace of its own: unshare --net pagetrail restore --count 1 .."
            );
        }
        exit::message(&format!("the last copy has {named}, the others lose it"));
    }
    Ok(())
}

fn say(args: &RestoreArgs, number: u64, copies: &[Copy]) -> Result<()> {
    if args.json {
        let all: Vec<Value> = copies.iter().map(Copy::document).collect();
        let document = json!({"schema": 1, "number": number, "copies": all});
        return text::print(&document.to_string());
    }
    for (copy, at) in copies.iter().zip(1..) {
        text::print(&format!(
            "checkpoint {number}, copy {at}: process {} runs after {}; it ends with process {}",
            copy.pid,
            words::time(copy.running_ns as f64),
            copy.first
        ))?;
    }
    Ok(())
}

/// Waits until all have ended, or a signal has come: then they end. Tells whether all went well.
fn wait_for_all(copies: Vec<Copy>, signals: &mut Signals) -> ExitCode {
    let mut code = ExitCode::SUCCESS;
    let mut running: Vec<(Copy, u32)> = copies.into_iter().zip(1..).collect();
    while !running.is_empty() && !signals.stop_requested() {
        running.retain_mut(|(copy, at)| {
            let ended = copy.child.try_wait().ok().flatten();
            if ended.and_then(|status| status.code()) == Some(exit::OPERATION.into()) {
                exit::message(&format!("copy {at} has ended: {}", copy.complaint()));
                code = ExitCode::from(exit::OPERATION);
            }
            ended.is_none()
        });
        thread::sleep(POLL);
    }
    code
}

/// A copy, which ends when this is dropped.
struct Copy {
    child: Child,
    tell: Option<ChildStdin>,
    said: Option<BufReader<ChildStdout>>,
    complaints: Option<ChildStderr>,
    /// Its first process, and the program's, by their PIDs here.
    first: u32,
    pid: u32,
    running_ns: u64,
}

impl Copy {
    fn start(args: &RestoreArgs, number: u64) -> Result<Self> {
        let program = env::current_exe().context("cannot find this program")?;
        let [unshare, options @ ..] = NAMESPACES;
        let mut command = Command::new(unshare);
        command.args(options).arg("--").arg(program);
        command.args(["restore", "--first-of-copy", "--at"]);
        command.arg(number.to_string());
        command.args(args.lazy.then_some("--lazy"));
        if let Some(file) = &args.key.key_file {
            command.arg("--key-file").arg(file);
        }
        let passed_on = args.criu_arg.iter();
        command.args(passed_on.map(|arg| format!("--criu-arg={arg}")));
        command.arg("--").arg(&args.store);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        // A signal from the keyboard is for this process, which ends the others.
        command.stderr(Stdio::piped()).process_group(0);
        let mut child = command.spawn().context("cannot run unshare(1)")?;
        Ok(Self {
            tell: child.stdin.take(),
            said: child.stdout.take().map(BufReader::new),
            complaints: child.stderr.take(),
            child,
            first: 0,
            pid: 0,
            running_ns: 0,
        })
    }

    /// Waits until the program runs.
    fn wait_until_it_runs(&mut self) -> Result<()> {
        let mut line = String::new();
        if let Some(said) = &mut self.said {
            said.read_line(&mut line).context("cannot read")?;
        }
        let Ok(document) = serde_json::from_str::<Value>(&line) else {
            bail!("{}", self.complaint());
        };
        let inner = document["pid"].as_u64().unwrap_or_default();
        self.running_ns = document["running_ns"].as_u64().unwrap_or_default();
        self.first = children(self.child.id()).into_iter().next().unwrap_or(0);
        let program = children(self.first)
            .into_iter()
            .find(|pid| u64::from(inner_pid(*pid)) == inner);
        self.pid = program.unwrap_or(0);
        Ok(())
    }

    /// Why it did not start.
    fn complaint(&mut self) -> String {
        let mut text = String::new();
        if let Some(complaints) = &mut self.complaints {
            // What can be read is said.
            let _ = complaints.read_to_string(&mut text);
        }
        let line = text.lines().next().unwrap_or("it does not say why");
        line.strip_prefix(PREFIX).unwrap_or(line).to_owned()
    }

    /// Lets it live longer than this process.
    fn leave(mut self) -> Result<()> {
        if let Some(tell) = &mut self.tell {
            tell.write_all(LEFT_ALONE).context("a copy has ended")?;
        }
        self.tell = None;
        Ok(())
    }

    fn document(&self) -> Value {
        json!({"pid": self.pid, "first_pid": self.first, "running_ns": self.running_ns})
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        if self.tell.is_some() {
            // The kernel ends what is in its namespaces.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// The children of a process whose first thread has started them.
fn children(pid: u32) -> Vec<u32> {
    let text = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    let text = text.unwrap_or_default();
    text.split_whitespace().flat_map(str::parse).collect()
}

/// The PID that a process has in the namespace below this one (`NSpid`, `proc_pid_status(5)`).
fn inner_pid(pid: u32) -> u32 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let pids = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    let inner = pids.and_then(|pids| pids.split_whitespace().nth(1));
    inner.and_then(|pid| pid.parse().ok()).unwrap_or(0)
}
