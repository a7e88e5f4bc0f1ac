//! `cargo xtask tier-guests`: guests of KVM under tiering, in a guest with two memory nodes.
//!
//! The guests of the guest run Debian's kernel, a program that checks all its memory, and the agent
//! of tiering, which is reached by vsock. What is asked of them stands in the command's test
//! `tier_guests`; here is what they boot.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use pagetrail_rig::guest::{self, End, Guest, Job, Machine};
use pagetrail_rig::inner::{self, Inner};
use pagetrail_rig::kernel::{Kernel, Series};
use pagetrail_rig::{Rig, place};
use pagetrail_steps::products::{Product, Profile};
use pagetrail_steps::recordings::{self, Place};
use pagetrail_steps::repo::Repo;
use pagetrail_steps::steps::Outcome;

/// The kernel of both guests: it reports accesses.
const SERIES: &str = "7.x";
const MEMORY_MIB: u32 = 3072;
/// In emulation, on a busy machine, several guests boot.
const TIMEOUT: Duration = Duration::from_secs(5400);
/// What the tests note.
const RECORDING: &str = "tier_guests.json";
const COMMAND: &str = "cargo xtask tier-guests";
/// The test program.
const TEST: &str = "tier_guests";
/// The guests' only device besides serial ports.
const MODULES: &[&str] = &["vmw_vsock_virtio_transport"];

/// Runs the tests of guests of guests, or those whose names have a word in them, and keeps what
/// they note.
pub fn run(repo: &Repo, only: Option<&str>) -> Result<Outcome> {
    let test = build_test(repo)?;
    let dir = repo.target.join("tier-guests");
    fs::create_dir_all(&dir)?;
    let programs = programs(repo, &dir)?;
    let rig = Rig::open(repo)?;
    let series = Series::named(SERIES)?;
    let kernel = rig.kernel(series)?;
    let inner = Inner {
        init: include_str!("tier_guests.sh"),
        programs: &programs
            .each_ref()
            .map(|(name, path)| (*name, path.as_path())),
        modules: MODULES,
    };
    rig.inner(&kernel, &inner, &dir)?;
    let mut env = rig.environment(series);
    env.push((inner::VARIABLE.to_owned(), dir.display().to_string()));
    let mut command = vec![test.display().to_string()];
    // Each has processors and memory for itself.
    command.extend(["--test-threads=1", "--nocapture"].map(str::to_owned));
    command.extend(only.map(str::to_owned));
    let job = Job {
        dir: repo.root.clone(),
        command,
        env,
    };
    let machine = Machine {
        memory_mib: MEMORY_MIB,
        numa: true,
        nested: true,
        modules: vec!["vhost_vsock".to_owned()],
        timeout: TIMEOUT,
        ..Machine::default()
    };
    let end = rig.run(&kernel, &machine, &job, &mut guest::print_bytes)?;
    ensure!(end == End::Exited(0), "in the {}: {end:?}", place(series));
    keep(repo, &rig, &kernel)?;
    Ok(Outcome::Passed)
}

/// Keeps what the tests have noted, a line for each guest and step, and of tests that were not run
/// what they had.
fn keep(repo: &Repo, rig: &Rig, kernel: &Kernel) -> Result<()> {
    let path = Guest::out(rig.dir()).join("figures");
    let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let lines = text.lines().map(serde_json::from_str::<Value>);
    let fresh: Vec<Value> = lines.collect::<Result<_, _>>()?;
    let mut steps = recordings::list(repo, RECORDING, "steps")?;
    steps.retain(|step| fresh.iter().all(|other| other["test"] != step["test"]));
    steps.extend(fresh);
    // Stable: a test's steps stay in their order.
    steps.sort_by_key(|step| step["test"].to_string());
    let document = json!({"kernel": kernel.version(), "steps": steps});
    let text = format!("{document:#}\n");
    recordings::keep(repo, RECORDING, text.as_bytes(), Place::Guest, COMMAND)
}

/// What the RAM disk has: the command without symbols, which each guest would keep in memory, and
/// the program whose memory is tiered.
fn programs(repo: &Repo, dir: &Path) -> Result<[(&'static str, PathBuf); 2]> {
    let command = Product::Command.build(repo, Profile::Dev)?;
    let stripped = dir.join("pagetrail");
    succeeds(Command::new("strip").arg("-o").arg(&stripped).arg(command))?;
    let program = dir.join("tier_guest");
    let source = repo.root.join("tests/victims/tier_guest.c");
    let mut compiler = Command::new("gcc");
    compiler.args(["-O2", "-Wall", "-Werror", "-static", "-o"]);
    succeeds(compiler.arg(&program).arg(source))?;
    Ok([("pagetrail", stripped), ("tier_guest", program)])
}

fn succeeds(command: &mut Command) -> Result<()> {
    let name = command.get_program().display().to_string();
    let status = command
        .stdin(Stdio::null())
        .status()
        .with_context(|| name.clone())?;
    ensure!(status.success(), "{name} failed");
    Ok(())
}

/// Has cargo build the tests, of the workspace, whose dependencies are compiled already.
fn build_test(repo: &Repo) -> Result<PathBuf> {
    let mut build = repo.cargo(&["test", "--workspace", "--no-run", "--message-format=json"]);
    let output = build
        .args(["--test", TEST])
        .stderr(Stdio::inherit())
        .output()?;
    ensure!(output.status.success(), "the tests do not build");
    let messages = String::from_utf8(output.stdout)?;
    let program = messages.lines().find_map(|line| {
        let message: Value = serde_json::from_str(line).ok()?;
        let is_it = message["target"]["name"] == TEST;
        Some(PathBuf::from(
            message["executable"].as_str().filter(|_| is_it)?,
        ))
    });
    program.context("cargo built no such test")
}
