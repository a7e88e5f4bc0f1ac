//! Measures what the virtual machine costs a program: `cargo xtask bench vm`.
//!
//! `bench_vm programs` runs the same work natively, as a guest, and as a guest that is recorded,
//! each in its own process, and compares them. Under `cargo xtask vm --nested --counted` the time
//! stamp counter counts instructions: those of the program, of its kernel, and of everything in
//! between. `bench_vm rings` measures collects of a guest of a few instructions, on any KVM;
//! `bench_vm tables` measures those that also track accesses. Each prints one JSON document.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "it reports to the person who started it"
)]

mod clock;
mod work;

use std::ffi::OsString;
use std::os::fd::AsRawFd;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use pagetrail_vm::timed_guest::{CollectTimes, DoneBy, TimedGuest};
use pagetrail_vm::{Collected, Settings, check};
use serde_json::{Value, json};

use work::Work;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// The entries in a dirty ring, which has room for twice as many, and how often they are collected.
const RING: (u64, u32) = (32 << 10, 25);
/// The entries and collects where each write is slow, on an emulated processor.
const RING_EMULATED: (u64, u32) = (4 << 10, 3);

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    let word = |n: usize| arguments.get(n).and_then(|word| word.to_str());
    let result = match (word(0), word(1)) {
        (Some("programs"), None) => programs(),
        (Some("rings"), None) => rings(RING),
        (Some("tables"), None) => tables(RING),
        (Some("work"), Some(name)) => work(name),
        (Some("machine"), Some(link)) => machine(link, false, &arguments[2..]),
        (Some("machine-accesses"), Some(link)) => machine(link, true, &arguments[2..]),
        _ => Err("usage: bench_vm programs|rings|tables".into()),
    };
    match result {
        Ok(document) => {
            println!("{document}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("bench_vm: {error}");
            ExitCode::FAILURE
        }
    }
}

fn work(name: &str) -> Result<Value> {
    Ok(Work::named(name).ok_or("no such work")?.run())
}

/// Becomes a program, which is recorded if `link` is a number.
fn machine(link: &str, accesses: bool, command: &[OsString]) -> Result<Value> {
    let mut settings = Settings::default();
    settings.accesses = accesses;
    match link.parse() {
        Ok(link) => pagetrail_vm::recorded_guest(command, &settings, link)?,
        Err(_) => pagetrail_vm::become_guest(command, &settings)?,
    };
    Ok(Value::Null)
}

/// How a program runs.
#[derive(Clone, Copy, PartialEq)]
enum Mode {
    Natively,
    Guest,
    /// Runs as a guest whose dirty pages are collected once, at its end.
    Recorded,
    /// Runs as a guest whose dirty and accessed pages are collected once, at its end.
    Accesses,
}

const MODES: [(Mode, &str); 4] = [
    (Mode::Natively, "native"),
    (Mode::Guest, "guest"),
    (Mode::Recorded, "recorded"),
    (Mode::Accesses, "accesses"),
];

fn programs() -> Result<Value> {
    let mut results = Vec::new();
    for work in work::ALL {
        let mut result = json!({ "work": work.name });
        let modes = MODES
            .iter()
            .filter(|(mode, _)| work.is_recorded || matches!(mode, Mode::Natively | Mode::Guest));
        for &(mode, name) in modes {
            result[name] = run(work.name, mode)?;
        }
        let sum = &result["native"]["checksum"];
        if result["guest"]["checksum"] != *sum {
            return Err(format!("{}: the results differ", work.name).into());
        }
        results.push(result);
    }
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease")?;
    Ok(json!({
        "kernel": release.trim(),
        "virtualization": check::report()?.virtualization,
        "page_modification_logging": check::report()?.page_modification_logging,
        "calls": work::CALLS,
        "touched_bytes": work::TOUCHED_BYTES,
        "programs": results,
        "bare_exit": bare_exit()?,
        "rings": rings(RING_EMULATED)?,
        "tables": tables(RING_EMULATED)?,
    }))
}

fn run(name: &str, mode: Mode) -> Result<Value> {
    let this = std::env::current_exe()?;
    let mut command = Command::new(&this);
    let link = match mode {
        Mode::Natively => None,
        Mode::Guest => {
            command.args(["machine", "-"]).arg(&this);
            None
        }
        Mode::Recorded | Mode::Accesses => {
            let (rounds, link) = pagetrail_vm::pair()?;
            let machine = match mode {
                Mode::Accesses => "machine-accesses",
                _ => "machine",
            };
            command.args([machine, &link.as_raw_fd().to_string()]);
            command.arg(&this);
            Some((rounds, link))
        }
    };
    let child = command
        .args(["work", name])
        .stdout(Stdio::piped())
        .spawn()?;
    if let Some((mut rounds, link)) = link {
        drop(link);
        // The round is collected when the program has ended, not earlier.
        wait_for_output(&child)?;
        rounds.collect()?;
    }
    let output = child.wait_with_output()?;
    if !output.status.success() {
        return Err(format!("{name}: {}", output.status).into());
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// Waits until a program has printed its result.
fn wait_for_output(child: &std::process::Child) -> Result<()> {
    let output = child.stdout.as_ref().ok_or("no pipe")?;
    let mut polled = [rustix::event::PollFd::new(
        output,
        rustix::event::PollFlags::IN,
    )];
    rustix::event::poll(&mut polled, None)?;
    Ok(())
}

/// Measures a VM exit and entry with nothing in between.
fn bare_exit() -> Result<Value> {
    let mut guest = TimedGuest::new(&[], DoneBy::Call, false)?;
    (0..1000).try_for_each(|_| guest.pass())?;
    let began = clock::ticks();
    (0..work::CALLS).try_for_each(|_| guest.pass())?;
    Ok(json!({ "ticks": (clock::ticks() - began) as f64 / work::CALLS as f64 }))
}

/// Several orders of writes, with their names.
fn orders(entries: u64) -> [(&'static str, Vec<u64>); 3] {
    let forward: Vec<u64> = (0..entries).collect();
    let mut shuffled = forward.clone();
    // Every page once, far from the previous one: the factor is odd, and the number of pages a
    // power of two.
    for (index, page) in shuffled.iter_mut().enumerate() {
        *page = (index as u64 * 20_261) % entries;
    }
    [
        ("one after the other", forward.clone()),
        ("every third", forward.iter().map(|page| page * 3).collect()),
        ("scattered", shuffled),
    ]
}

/// The value per entry, rounded to a tenth.
fn per(value: u128, entries: u64) -> f64 {
    (value as f64 / entries as f64 * 10.0).round() / 10.0
}

/// Lets the guest write once, and collects a round. Returns also the time that the collect took,
/// and its ticks.
fn collected(guest: &mut TimedGuest) -> Result<(Collected, (Duration, u64))> {
    guest.pass()?;
    let (began, ticks) = (Instant::now(), clock::ticks());
    let collected = guest.collect()?;
    Ok((collected, (began.elapsed(), clock::ticks() - ticks)))
}

/// Measures the cost of a dirty-ring entry in a collect.
fn rings((entries, times): (u64, u32)) -> Result<Value> {
    let mut results = Vec::new();
    for (name, order) in orders(entries) {
        let mut guest = TimedGuest::new(&order, DoneBy::Exception, false)?;
        let mut whole = Vec::new();
        let mut parts = Vec::new();
        // The first round also contains new mappings.
        collected(&mut guest)?;
        for _ in 0..times {
            let (collected, took) = collected(&mut guest)?;
            whole.push(took);
            if collected.ring_entries != entries || collected.written.page_count() != entries {
                return Err(
                    format!("{name}: a round has {} entries", collected.ring_entries).into(),
                );
            }
            guest.pass()?;
            parts.push(guest.collect_in_steps()?);
        }
        // Other load can only add to the time, so that the least is taken.
        whole.sort();
        parts.sort_by_key(|parts: &CollectTimes| parts.take + parts.reset + parts.merge);
        let ((elapsed, ticks), least) = (whole[0], parts[0]);
        results.push(json!({
            "order": name,
            "entries": entries,
            "ns_per_entry": per(elapsed.as_nanos(), entries),
            "ticks_per_entry": per(ticks.into(), entries),
            "take_ns": per(least.take.as_nanos(), entries),
            "reset_ns": per(least.reset.as_nanos(), entries),
            "merge_ns": per(least.merge.as_nanos(), entries),
        }));
    }
    Ok(results.into())
}

/// Measures the cost of a page in a collect that also tracks accesses.
fn tables((entries, times): (u64, u32)) -> Result<Value> {
    let mut results = Vec::new();
    for (name, order) in orders(entries) {
        let mut guest = TimedGuest::new(&order, DoneBy::Exception, true)?;
        let mut whole = Vec::new();
        collected(&mut guest)?;
        for _ in 0..times {
            let (collected, took) = collected(&mut guest)?;
            whole.push(took);
            let accessed = collected.accessed.unwrap_or_default();
            // The guest also reads its code and its list.
            if !(entries..entries + entries / 256).contains(&accessed.page_count()) {
                return Err(format!("{name}: a round has {} pages", accessed.page_count()).into());
            }
        }
        whole.sort();
        let (elapsed, ticks) = whole[0];
        results.push(json!({
            "order": name,
            "pages": entries,
            "ns_per_page": per(elapsed.as_nanos(), entries),
            "ticks_per_page": per(ticks.into(), entries),
        }));
    }
    Ok(results.into())
}
