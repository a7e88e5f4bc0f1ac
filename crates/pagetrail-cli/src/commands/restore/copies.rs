//! `pagetrail restore --count` of a checkpoint that was taken without CRIU: copies that share the
//! pages that none of them writes to.

use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use pagetrail_checkpoint::Image;
use pagetrail_criu::lineage;
use pagetrail_report::words;
use pagetrail_restore::{RestoreOptions, Restored, restore_copies};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use serde_json::{Value, json};

use super::own::plain;
use crate::commands::checkpoint::text;
use crate::commands::criu::args::RestoreArgs;
use crate::exit;
use crate::session::signals::{Addressee, Signals};

/// How often is looked whether a copy has ended, or a signal has come.
const POLL: Duration = Duration::from_millis(50);

/// Starts the copies; with `--wait`, stays until all have ended.
pub(super) fn run(
    args: &RestoreArgs,
    mut image: Image,
    options: &RestoreOptions,
    count: u32,
) -> Result<ExitCode> {
    let (number, id) = (image.manifest().number, image.manifest().id);
    let mut signals = match args.wait {
        true => Some(Signals::take(Addressee::Us).context("cannot handle signals")?),
        false => None,
    };
    let copies = restore_copies(&mut image, options, count).map_err(plain)?;
    drop(image);
    for (copy, at) in copies.iter().zip(1..) {
        lineage::note(copy.pid, number, id);
        for lost in &copy.lost {
            exit::message(&format!("copy {at}: {lost}"));
        }
    }
    let said = say(args, number, &copies);
    if let Some(signals) = &mut signals {
        wait_for_all(&copies, signals);
    }
    // The copies live all the same.
    said.map(|()| ExitCode::SUCCESS)
}

fn say(args: &RestoreArgs, number: u64, copies: &[Restored]) -> Result<()> {
    if args.json {
        let all: Vec<Value> = copies.iter().map(document).collect();
        let document = json!({"schema": 1, "number": number, "copies": all});
        return text::print(&document.to_string());
    }
    for (copy, at) in copies.iter().zip(1..) {
        text::print(&format!(
            "checkpoint {number}, copy {at}: process {} runs after {}, with {}",
            copy.pid,
            words::time(copy.elapsed.as_nanos() as f64),
            words::plural(copy.threads as u64, "thread"),
        ))?;
    }
    Ok(())
}

fn document(copy: &Restored) -> Value {
    json!({
        "pid": copy.pid,
        "threads": copy.threads,
        "lost": copy.lost,
        "running_ns": copy.elapsed.as_nanos() as u64,
    })
}

/// Waits until all have ended; a signal ends them.
fn wait_for_all(copies: &[Restored], signals: &mut Signals) {
    let pids = copies
        .iter()
        .filter_map(|copy| Pid::from_raw(copy.pid as i32));
    let mut running: Vec<Pid> = pids.collect();
    while !running.is_empty() {
        if signals.stop_requested() {
            for pid in &running {
                // It may have ended, but nobody else has its PID before it is waited for.
                let _ = kill_process(*pid, Signal::KILL);
            }
        }
        running.retain(|pid| match waitpid(Some(*pid), WaitOptions::NOHANG) {
            Ok(None) | Err(rustix::io::Errno::INTR) => true,
            Ok(Some((_, status))) => {
                status.exit_status().is_none() && status.terminating_signal().is_none()
            }
            Err(_) => false,
        });
        thread::sleep(POLL);
    }
}
