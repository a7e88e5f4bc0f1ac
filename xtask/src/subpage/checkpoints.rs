//! `cargo xtask bench subpage checkpoints`: what increments of programs on the allocator take, by parts of a page, beside the
//! bytes that differ.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::{Kit, Workload, median};
use crate::repo::{Repo, program};

const PARTS: [&str; 4] = ["1", "4", "8", "16"];
/// Checkpoints of each, the base included, and the time between them.
const CHECKPOINTS: &str = "8";
const EVERY: &str = "300ms";
/// How long a program fills its memory before the first.
const FILLING: Duration = Duration::from_secs(3);
/// Changes between two pauses of 20 ms: some 5,000 between two checkpoints.
const PER_PAUSE: u32 = 400;

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

/// Measures; a value for each program.
pub(super) fn measure(repo: &Repo, kit: &Kit, workloads: &[Workload]) -> Result<Vec<Value>> {
    let mut cargo = repo.cargo(&["build", "--quiet", "--release", "--example", "exact_bytes"]);
    let status = cargo.arg("--package=pagetrail-checkpoint").status()?;
    ensure!(status.success(), "the release build failed");
    let mut results = Vec::new();
    for workload in workloads {
        let endless = Workload {
            updates: u32::MAX / 2,
            per_pause: PER_PAUSE,
            ..*workload
        };
        let words = kit.words(&endless);
        results.push(of_program(repo, kit, workload.name, |parts| {
            let mut command = kit.under(&words, Some(parts));
            Ok(Running(vec![command.stdout(Stdio::null()).spawn()?]))
        })?);
    }
    if program("redis-server").is_some() && program("redis-benchmark").is_some() {
        let start = |parts: &str| redis(kit, parts);
        results.push(of_program(repo, kit, "Redis, 64 B", start)?);
    }
    Ok(results)
}

fn of_program(
    repo: &Repo,
    kit: &Kit,
    name: &str,
    start: impl Fn(&str) -> Result<Running>,
) -> Result<Value> {
    println!("== {name}, checkpoints");
    let mut variants = Vec::new();
    let mut pages = 0.0;
    for parts in PARTS {
        let running = start(parts)?;
        std::thread::sleep(FILLING);
        let pid = running.0.first().context("nothing runs")?.id();
        let store = kit.programs.join("store");
        if store.exists() {
            fs::remove_dir_all(&store)?;
        }
        let status = Command::new(&kit.pagetrail)
            .args(["checkpoint", "--trust-units", "--compression", "none"])
            .args(["--every", EVERY, "--count", CHECKPOINTS, "-p"])
            .arg(pid.to_string())
            .arg("--store")
            .arg(&store)
            .stdout(Stdio::null())
            .status()?;
        ensure!(status.success(), "{name} cannot be checkpointed");
        drop(running);
        let exact: PathBuf = repo.target.join("release/examples/exact_bytes");
        let said = super::said({
            let mut command = Command::new(exact);
            command.arg(&store);
            command
        })?;
        let increments = said["increments"].as_array().context("no increments")?;
        let of = |key: &str| median(increments, key);
        let (stored, exact) = (of("stored_bytes")?, of("exact_bytes")?);
        if parts == "1" {
            pages = stored;
        }
        println!(
            "{parts:>3} parts: {:.2} MB stored, {:.2} of pages, {:.1} of the {:.2} MB that differ; \
             pause {:.1} ms, whole {:.0} ms",
            stored / 1e6,
            stored / pages,
            stored / exact,
            exact / 1e6,
            of("pause_ns")? / 1e6,
            of("total_ns")? / 1e6,
        );
        variants.push(json!({
            "parts": parts,
            "stored_bytes": stored,
            "exact_bytes": exact,
            "page_bytes": of("page_bytes")?,
            "pause_ms": of("pause_ns")? / 1e6,
            "total_ms": of("total_ns")? / 1e6,
        }));
    }
    Ok(json!({"program": name, "variants": variants}))
}

/// A server with records of 64 bytes, of which some are replaced all the time.
fn redis(kit: &Kit, parts: &str) -> Result<Running> {
    let port = std::net::TcpListener::bind("127.0.0.1:0")?
        .local_addr()?
        .port()
        .to_string();
    let words = ["redis-server", "--port", &port, "--save", "", "--dir", "/"];
    let words = words.map(str::to_owned);
    let mut command = kit.under(&words, Some(parts));
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
