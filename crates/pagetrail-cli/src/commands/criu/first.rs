//! The first process of a copy's namespaces (`restore --first-of-copy`, which `copies` starts): it
//! starts the program there, and waits for what ends there. When it ends, so does the copy.
//!
//! Standard input says what is to become of the copy: a byte, and it is left alone; its end
//! without one, and the process that wanted the copy has gone.

use std::fs;
use std::io::Read;
use std::process::ExitCode;
use std::sync::mpsc::{self, Receiver, TryRecvError};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::io::Errno;
use rustix::process::{WaitOptions, wait};
use serde_json::json;

use super::args::RestoreArgs;
use super::restore;
use crate::commands::checkpoint::{chain, open, text};
use crate::session::signals::{Addressee, Signals};

/// Where the kernel has the last PID of a namespace: the next is the one after it.
const LAST_PID: &str = "/proc/sys/kernel/ns_last_pid";
/// How far from the PIDs of the program those are with which CRIU works.
const PIDS_APART: u32 = 1000;
/// How often is looked for processes that have ended.
const POLL: Duration = Duration::from_millis(50);

/// Runs the subcommand.
pub(super) fn run(args: &RestoreArgs) -> Result<ExitCode> {
    let mut signals = Signals::take(Addressee::Us).context("cannot handle signals")?;
    let owner = watch_owner()?;
    keep_pids_free(args)?;
    let started = restore::start(args)?;
    let document = json!({"pid": started.pid, "running_ns": started.running.as_nanos() as u64});
    text::print(&document.to_string())?;
    started.finish()?;
    let mut is_left_alone = false;
    while !signals.stop_requested() && wait_for_ended() {
        match owner.try_recv() {
            _ if is_left_alone => {}
            Ok(()) => is_left_alone = true,
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Disconnected) => break,
        }
        thread::sleep(POLL);
    }
    Ok(ExitCode::SUCCESS)
}

/// Says once that the copy is left alone; is disconnected when the owner has gone.
fn watch_owner() -> Result<Receiver<()>> {
    let (said, owner) = mpsc::channel();
    let listening = move || {
        let mut byte = [0];
        if std::io::stdin().read_exact(&mut byte).is_ok() {
            // Nobody waits for it any more when this process ends.
            let _ = said.send(());
        }
    };
    let thread = thread::Builder::new().spawn(listening);
    thread.context("cannot start a thread")?;
    Ok(owner)
}

/// Keeps the processes that work here from taking the PIDs that the program needs.
fn keep_pids_free(args: &RestoreArgs) -> Result<()> {
    let store = open(&args.store, &args.key)?;
    let pids = chain::image(&store, args.at.as_ref())?.criu_processes();
    if let Some(last) = pids.iter().max() {
        // Where it cannot be written, the PIDs are most likely free all the same.
        let _ = fs::write(LAST_PID, (last + PIDS_APART).to_string());
    }
    Ok(())
}

/// Waits for all processes that have ended; tells whether there are others.
fn wait_for_ended() -> bool {
    loop {
        match wait(WaitOptions::NOHANG) {
            Ok(Some(_)) | Err(Errno::INTR) => {}
            Ok(None) => return true,
            Err(_) => return false,
        }
    }
}
