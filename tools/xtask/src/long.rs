//! What takes too long for every change: `soak` tests for hours what `test` tries for seconds,
//! `bench` measures anew what `bench/results/` keeps.

use std::fs;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};

use pagetrail_steps::products::{Product, Profile};
use pagetrail_steps::recordings::{self, Place};
use pagetrail_steps::repo::Repo;
use pagetrail_steps::steps::{NotHere, Outcome};
use pagetrail_steps::tally::Tally;
use pagetrail_steps::time::duration;
use pagetrail_suites::{collector, ooh, posix};

/// Longer forms of the tests, by the variables that they read.
const SOAK: &[(&str, &str)] = &[
    ("PAGETRAIL_LONG", "1"),
    ("PAGETRAIL_STRESS_SECONDS", "120"),
    ("PAGETRAIL_ORACLE_ROUNDS", "3000"),
];

/// How many seeds a fuzz test tries in each pass.
const FUZZ_ITERATIONS: u64 = 1_000_000;

/// The standing checks of the promises, and all else that has a long form; as arguments of `cargo
/// test`. The shortest first, so that a short soak has something of most.
const SUITES: &[&[&str]] = &[
    &["--package", "pagetrail", "--test", "transparency"],
    &["--package", "pagetrail", "--test", "killed_tracker"],
    &["--package", "pagetrail", "--test", "stress"],
    &["--package", "pagetrail", "--test", "replica"],
    &["--package", "pagetrail-preload", "--test", "random"],
    &["--package", "pagetrail-trail"],
    &["--package", "pagetrail-checkpoint"],
    &["--package", "pagetrail-vm"],
    &["--package", "pagetrail"],
];

/// Runs the suites in their long form, over and over with new seeds, until the time is up; stops at
/// the first that fails. `arguments`: `--for TIME`; an hour without.
pub(crate) fn soak(repo: &Repo, arguments: &[String]) -> Result<bool> {
    let time = match arguments {
        [] => Duration::from_secs(3600),
        [flag, time] if flag == "--for" => duration(time)?,
        _ => bail!("soak takes --for TIME, as in --for 8h"),
    };
    let began = Instant::now();
    for pass in 0.. {
        for suite in SUITES {
            if began.elapsed() >= time {
                println!("soaked for {} s: nothing found", began.elapsed().as_secs());
                return Ok(true);
            }
            println!("== pass {pass}: {}", suite.join(" "));
            // Tests that draw their seeds draw others in each pass; those that count begin where
            // the last pass has ended.
            let first = 1 + pass * FUZZ_ITERATIONS;
            let mut cargo = repo.cargo(&["test", "--release"]);
            cargo.args(*suite).envs(SOAK.iter().copied());
            cargo.env("PAGETRAIL_FUZZ_ITERATIONS", FUZZ_ITERATIONS.to_string());
            if suite.contains(&"pagetrail-trail") {
                cargo.env("PAGETRAIL_SEED", first.to_string());
            }
            if !cargo.status()?.success() {
                println!(
                    "soak: found something after {} s, in pass {pass}; repeat it with the seed above and \
                     PAGETRAIL_LONG=1 cargo test --release {}",
                    began.elapsed().as_secs(),
                    suite.join(" ")
                );
                return Ok(false);
            }
        }
        println!("== pass {pass}: logs of processor and hypervisor");
        let mut tally = Tally::default();
        match ooh::run(
            repo,
            ooh::Extent::Whole,
            ooh::Only::default(),
            None,
            &mut tally,
        )? {
            Outcome::NotHere(why) => println!("not here: {why}"),
            Outcome::Passed => {}
            Outcome::Failed => return Ok(false),
        }
        println!("== pass {pass}: the Open POSIX Test Suite");
        match posix::long(repo) {
            Ok(true) => {}
            Err(error) if error.is::<NotHere>() => println!("not here: {error}"),
            other => return other,
        }
    }
    Ok(true)
}

/// Each result and the command, after `cargo run --release`, that makes it.
const RESULTS: &[(&str, &[&str])] = &[
    (
        "bench.json",
        &["--package", "pagetrail-cli", "--", "bench", "--json"],
    ),
    (
        "metrics.json",
        &[
            "--package",
            "pagetrail-cli",
            "--",
            "bench",
            "--metrics",
            "--json",
        ],
    ),
    (
        "bare_loop.json",
        &["--package", "pagetrail", "--example", "bare_loop", "41"],
    ),
    (
        "attach_stop.json",
        &["--package", "pagetrail", "--example", "attach_stop"],
    ),
    (
        "checkpoint.json",
        &[
            "--package",
            "pagetrail-checkpoint",
            "--example",
            "bench_checkpoint",
        ],
    ),
    (
        "frames.json",
        &[
            "--package",
            "pagetrail-checkpoint",
            "--example",
            "bench_frames",
        ],
    ),
    (
        "adaptive.json",
        &[
            "--package",
            "pagetrail-cli",
            "--",
            "bench",
            "--json",
            "--suite",
            "bench/definitions/adaptive.toml",
        ],
    ),
    (
        "sweep.json",
        &[
            "--package",
            "pagetrail-cli",
            "--",
            "bench",
            "--json",
            "--suite",
            "bench/definitions/sweep.toml",
        ],
    ),
    (
        "tier.json",
        &["--package", "pagetrail-tier", "--example", "bench_tier"],
    ),
    (
        "scale.json",
        &["--package", "pagetrail-bench", "--example", "bench_scale"],
    ),
    (
        "snapshot.json",
        &[
            "--package",
            "pagetrail-checkpoint",
            "--example",
            "bench_snapshot",
        ],
    ),
];

/// What ours, the kernel's own tiering and DAMON's make of a program whose hot pages lie so, and
/// which faults moving causes, in a guest with two nodes.
const TIERS: &[(&str, &str)] = &[
    ("scattered", "tier_guest_scattered.json"),
    ("stretch", "tier_guest_stretch.json"),
    ("faults", "tier_guest_faults.json"),
];

/// Programs that are recorded in a guest.
const TIER_PROGRAMS: &[&str] = &["redis", "sqlite"];

/// Kernels in whose guests `pagetrail bench` compares techniques that the host lacks, and the
/// results.
const GUESTS: &[(&str, &str)] = &[("6.12", "guest-6.12.json"), ("7.x", "guest-7.x.json")];

/// Sizes that emulation measures in minutes.
const GUEST_BENCH: &[&str] = &["bench", "--json", "--runs", "3", "--size", "1M,10M"];

/// Measures everything, or what `only` names, and replaces the recorded results; for an idle
/// machine.
pub(crate) fn bench(repo: &Repo, only: Option<&str>) -> Result<()> {
    match only {
        Some("guests") => return bench_guests(repo),
        Some("programs") => return bench_programs(repo, "programs"),
        Some("budget") => return bench_programs(repo, "budget"),
        Some("tier-guest") => return bench_tiers(repo),
        Some("tier-programs") => return bench_tier_programs(repo),
        _ => {}
    }
    let wanted = |name: &str| only.is_none_or(|only| name.strip_suffix(".json") == Some(only));
    ensure!(
        RESULTS.iter().any(|(name, _)| wanted(name)),
        "no such benchmark; there are: {}, programs, budget, guests, tier-guest, tier-programs, collector, checkpointer, restore, subpage, trees, units, vm",
        RESULTS
            .iter()
            .filter_map(|(name, _)| name.strip_suffix(".json"))
            .collect::<Vec<_>>()
            .join(", ")
    );
    for (name, arguments) in RESULTS.iter().filter(|(name, _)| wanted(name)) {
        println!("== {name}");
        let mut cargo = repo.cargo(&["run", "--quiet", "--release"]);
        keep(repo, name, cargo.args(*arguments))?;
    }
    match only {
        None => {
            bench_programs(repo, "programs")?;
            bench_programs(repo, "budget")?;
            bench_tiers(repo)?;
            bench_tier_programs(repo)?;
            bench_guests(repo)
        }
        Some("tier") => {
            bench_tiers(repo)?;
            bench_tier_programs(repo)
        }
        Some(_) => Ok(()),
    }
}

/// Ours beside the kernel's own tiering.
fn bench_tiers(repo: &Repo) -> Result<()> {
    let mut build = repo.cargo(&["build", "--release", "--package", "pagetrail-tier"]);
    let built = build.args(["--example", "bench_tier_guest"]).status()?;
    ensure!(built.success(), "the program does not build");
    let program = repo.target.join("release/examples/bench_tier_guest");
    for (layout, name) in TIERS {
        println!("== {name}");
        let mut xtask = Command::new(std::env::current_exe()?);
        // Little memory, because most of the near node is taken away first.
        xtask.args(["vm", "--kernel", "7.x", "--numa", "2", "--memory", "768M"]);
        keep(repo, name, xtask.arg("--").arg(&program).arg(layout))?;
    }
    Ok(())
}

/// What real programs touch, recorded in a guest, under ours and other policies on a simulated
/// machine.
fn bench_tier_programs(repo: &Repo) -> Result<()> {
    let mut build = repo.cargo(&["build", "--release", "--package", "pagetrail-cli"]);
    let built = build.args(["--package", "pagetrail-tier", "--bins", "--examples"]);
    ensure!(built.status()?.success(), "the programs do not build");
    let release = repo.target.join("release");
    let dir = repo.target.join("tier");
    fs::create_dir_all(&dir)?;
    let name = "tier_programs.json";
    println!("== {name}");
    let mut replay = Command::new(release.join("examples/bench_tier"));
    replay.arg("programs");
    for program in TIER_PROGRAMS {
        let trail = dir.join(format!("{program}.trail"));
        let mut xtask = Command::new(std::env::current_exe()?);
        xtask.args(["vm", "--kernel", "7.x", "--"]);
        xtask.arg(release.join("examples/bench_tier_guest"));
        xtask
            .args(["record", program])
            .arg(release.join("pagetrail"));
        let recorded = xtask.stderr(Stdio::inherit()).output()?;
        ensure!(recorded.status.success(), "{program}: {}", recorded.status);
        fs::write(&trail, recorded.stdout)?;
        replay.arg(trail);
    }
    keep(repo, name, &mut replay)
}

/// Real programs, as the suite of that name has it; those on libgc are compiled for it.
fn bench_programs(repo: &Repo, suite: &str) -> Result<()> {
    let name = &format!("{suite}.json");
    println!("== {name}");
    let programs = collector::programs(repo)?;
    let mut cargo = repo.cargo(&["run", "--quiet", "--release", "--package", "pagetrail-cli"]);
    cargo
        .args(["--", "bench", "--json", "--suite"])
        .arg(repo.root.join(format!("bench/definitions/{suite}.toml")))
        .arg("--programs")
        .arg(programs);
    keep(repo, name, &mut cargo)
}

/// The part of it that runs in guests: the OoH paper's comparison of /proc, userfaultfd and ours on
/// one kernel.
fn bench_guests(repo: &Repo) -> Result<()> {
    let program = Product::Command.build(repo, Profile::Release)?;
    for (kernel, name) in GUESTS {
        println!("== {name}");
        let mut xtask = Command::new(std::env::current_exe()?);
        xtask.args(["vm", "--kernel", kernel, "--timeout", "1800", "--"]);
        keep(repo, name, xtask.arg(&program).args(GUEST_BENCH))?;
    }
    Ok(())
}

/// Runs a command and keeps what it prints among the results.
fn keep(repo: &Repo, name: &str, command: &mut Command) -> Result<()> {
    let output = command.stderr(Stdio::inherit()).output()?;
    ensure!(output.status.success(), "{name}: {}", output.status);
    let (place, verb) = match name {
        _ if GUESTS.iter().any(|(_, guest)| *guest == name) => (Place::Guest, "guests"),
        _ if TIERS.iter().any(|(_, guest)| *guest == name) => (Place::Guest, "tier-guest"),
        // Recorded in a guest, replayed here.
        "tier_programs.json" => (Place::Here, "tier-programs"),
        other => (Place::Here, other.trim_end_matches(".json")),
    };
    let command = format!("cargo xtask bench {verb}");
    recordings::keep(repo, name, &output.stdout, place, &command)
}
