//! `cargo xtask bench subpage checkpoints`: what increments of programs on the allocator take, by
//! parts of a page, beside the bytes that differ (figure 10 of Lu et al., and the volume that it
//! saves).
//!
//! The bytes that differ are those of one image and the next, compared byte by byte: what `compare`
//! would see.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::kit::{Heap, Kit, WORKLOADS, Workload, median, said};
use pagetrail_steps::repo::{Repo, program};

const PARTS: [&str; 5] = ["1", "4", "8", "16", "32"];
/// The time between two checkpoints.
const EVERY: &str = "300ms";
/// Changes between two pauses of 20 ms: some 5,000 between two checkpoints, ..
const FEW: u32 = 400;
/// .. and some 100,000, a quarter of the smallest records.
const MANY: u32 = 10_000;
const SMALLEST_BYTES: u32 = 64;

/// What runs, gone with this.
struct Running(Vec<Child>);

impl Drop for Running {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Measures; a value for each program and pace.
pub(super) fn measure(repo: &Repo, kit: &Kit, increments: usize) -> Result<Vec<Value>> {
    let mut cargo = repo.cargo(&["build", "--quiet", "--release", "--example", "exact_bytes"]);
    let status = cargo.arg("--package=pagetrail-checkpoint").status()?;
    ensure!(status.success(), "the release build failed");
    let mut results = Vec::new();
    let compiled = |workload: &&Workload| !workload.program.ends_with(".py");
    for workload in WORKLOADS.iter().filter(compiled) {
        for per_pause in [FEW, MANY] {
            if per_pause == MANY && workload.bytes != SMALLEST_BYTES {
                continue;
            }
            let endless = Workload {
                updates: u32::MAX / 2,
                per_pause,
                ..*workload
            };
            let words = kit.words(&endless);
            let name = format!("{}, {per_pause} updates in 20 ms", workload.name);
            results.push(of_program(repo, kit, increments, &name, |parts| {
                let mut command = kit.under(&words, Heap::Parts(parts));
                let running = Running(vec![command.stdout(Stdio::piped()).spawn()?]);
                wait_until_filled(running.0[0].id())?;
                Ok(running)
            })?);
        }
    }
    if program("redis-server").is_some() && program("redis-benchmark").is_some() {
        let start = |parts: &str| redis(kit, parts);
        results.push(of_program(repo, kit, increments, "Redis, 64 B", start)?);
    }
    Ok(results)
}

/// Waits for a program to pause, which it does from its first updates on.
fn wait_until_filled(pid: u32) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(300);
    loop {
        let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
        let mut lines = status.lines();
        let switches = lines.find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        let switches: u64 = switches.context("no such line")?.trim().parse()?;
        if switches > 25 {
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "the program does not begin");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn of_program(
    repo: &Repo,
    kit: &Kit,
    increments: usize,
    name: &str,
    start: impl Fn(&str) -> Result<Running>,
) -> Result<Value> {
    println!("== {name}, checkpoints");
    let mut variants = Vec::new();
    // What whole pages take for a byte that differs: not every run gets as far as every other
    // between two checkpoints.
    let mut pages = 0.0;
    for parts in PARTS {
        let mut running = start(parts)?;
        let pid = running.0.first().context("nothing runs")?.id();
        let store = kit.programs.join("store");
        if store.exists() {
            fs::remove_dir_all(&store)?;
        }
        let status = Command::new(&kit.pagetrail)
            .args(["checkpoint", "--trust-subpages", "--compression", "none"])
            .args(["--every", EVERY, "--count"])
            .arg((increments + 1).to_string())
            .arg("-p")
            .arg(pid.to_string())
            .arg("--store")
            .arg(&store)
            .stdout(Stdio::null())
            .status()?;
        ensure!(status.success(), "{name} cannot be checkpointed");
        let update_ns = end(&mut running)?;
        drop(running);
        let exact: PathBuf = repo.target.join("release/examples/exact_bytes");
        let mut exact = Command::new(exact);
        exact.arg(&store);
        let said = said(exact)?;
        let increments = said["increments"].as_array().context("no increments")?;
        let of = |key: &str| median(increments, key);
        let (stored, exact) = (of("stored_bytes")?, of("exact_bytes")?);
        if parts == "1" {
            pages = stored / exact;
        }
        println!(
            "{parts:>3} parts: {:.2} MB stored, {:.1} of the {:.2} MB that differ, {:.2} of what pages take; \
             pause {:.1} ms, whole {:.0} ms{}",
            stored / 1e6,
            stored / exact,
            exact / 1e6,
            stored / exact / pages,
            of("pause_ns")? / 1e6,
            of("total_ns")? / 1e6,
            update_ns.map_or(String::new(), |ns| format!("; {ns:.0} ns of an update")),
        );
        variants.push(json!({
            "parts": parts,
            "stored_bytes": stored,
            "exact_bytes": exact,
            "page_bytes": of("page_bytes")?,
            "pause_ms": of("pause_ns")? / 1e6,
            "total_ms": of("total_ns")? / 1e6,
            "update_ns": update_ns,
        }));
    }
    fs::remove_dir_all(kit.programs.join("store"))?;
    Ok(json!({"program": name, "variants": variants}))
}

/// Ends a program of ours; the processor time of an update, faults included. `None` of one that
/// does not tell.
fn end(running: &mut Running) -> Result<Option<f64>> {
    if running.0[0].stdout.is_none() {
        return Ok(None);
    }
    let child = &mut running.0[0];
    let status = Command::new("kill").arg(child.id().to_string()).status()?;
    ensure!(status.success(), "the program cannot be ended");
    let stdout = child.stdout.take().context("no standard output")?;
    let run: Value = serde_json::from_reader(stdout).context("the program says nothing")?;
    let number = |key: &str| run[key].as_f64().context("a run without its updates");
    Ok(Some(number("update_ms")? * 1e6 / number("updates")?))
}

/// A server with records of 64 bytes, of which some are replaced all the time.
fn redis(kit: &Kit, parts: &str) -> Result<Running> {
    let port = std::net::TcpListener::bind("127.0.0.1:0")?
        .local_addr()?
        .port()
        .to_string();
    let words = ["redis-server", "--port", &port, "--save", "", "--dir", "/"];
    let words = words.map(str::to_owned);
    let mut command = kit.under(&words, Heap::Parts(parts));
    let mut running = Running(vec![command.stdout(Stdio::piped()).spawn()?]);
    let stdout = running.0[0].stdout.take().context("no standard output")?;
    let mut lines = BufReader::new(stdout).lines();
    let ready = lines.any(|line| line.is_ok_and(|line| line.contains("Ready to accept")));
    ensure!(ready, "redis-server does not start");
    // It goes on talking, and must not wait for somebody to listen.
    std::thread::spawn(move || lines.for_each(drop));
    let load = |arguments: &[&str]| {
        let mut command = Command::new("redis-benchmark");
        command.args(["-p", &port, "-t", "set", "-d", "64", "-q"]);
        command.args(arguments).stdout(Stdio::null());
        command
    };
    let filled = load(&["-r", "200000", "-n", "400000", "-P", "64"]).status()?;
    ensure!(filled.success(), "redis-benchmark fails");
    let mut command = load(&["-r", "200000", "-n", "100000000", "-c", "1"]);
    running.0.push(command.spawn()?);
    Ok(running)
}
