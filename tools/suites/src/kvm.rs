//! `cargo xtask kvm`: `pagetrail compare kvm` with real guests, in a guest with nested
//! virtualization: MemoryMotion and a web server under load, as in the Xen study.
//!
//! What is held against expectations are results, exits and counters; the times are those of an
//! emulator, and mean nothing.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use pagetrail_rig::guest::{End, Job, Machine};
use pagetrail_rig::kernel::Series;
use pagetrail_rig::{Rig, place};
use pagetrail_steps::recordings::{self, Place};
use pagetrail_steps::repo::Repo;
use pagetrail_steps::steps::Outcome;

/// The kernel of both guests, the outer and the inner one.
const SERIES: &str = "6.12";

/// For the outer guest, whose guests boot in seconds on an idle machine.
const TIMEOUT: Duration = Duration::from_secs(3600);

/// What an emulated processor needs, as the rig's own kernels do.
const PARAMETERS: &str = "no_timer_check tsc=reliable mitigations=off nokaslr";

/// The study's load on page tables, and one like its web server's.
const TESTS: &str = "memory/motion,apps/web";

/// Functions of KVM that each kind of guest passes, and that its modules export or call from other
/// files, so that no compiler makes them vanish.
const FUNCTIONS: &str = "kvm_mmu_page_fault,x86_emulate_instruction,kvm_mmu_load";

/// The recording.
const RECORDING: &str = "kvm.json";

/// Runs the tests in a guest of the nested rig, and records what was found.
pub fn run(repo: &Repo) -> Result<Outcome> {
    let words = [
        &["native,kvm,kvm:shadow", "--suite", TESTS][..],
        &["--runs", "2", "--functions", FUNCTIONS],
    ];
    let document = nested(repo, &words.concat())?;
    check(&document)?;
    let text = format!("{document:#}\n");
    recordings::keep(
        repo,
        RECORDING,
        text.as_bytes(),
        Place::Guest,
        "cargo xtask kvm",
    )?;
    Ok(Outcome::Passed)
}

/// What `compare` says in a guest that has guests of its own.
fn nested(repo: &Repo, words: &[&str]) -> Result<Value> {
    let command = build(repo)?;
    let rig = Rig::open(repo)?;
    let series = Series::named(SERIES)?;
    let kernel = rig.kernel(series)?;
    let engine = rig.engine(&repo.target.join("kvm"))?;
    let path = std::env::var("PATH").unwrap_or_default();
    let mut env = rig.environment(series);
    env.retain(|(name, _)| name != "PATH");
    env.push(("PATH".to_owned(), format!("{}:{path}", engine.display())));
    let (own, image) = (command.display(), kernel.image().display());
    // One processor for the inner guest, and not the first (`Machine::spares_first`).
    let mut all: Vec<String> = ["taskset", "-c", "1", &own.to_string(), "compare"]
        .map(str::to_owned)
        .to_vec();
    all.extend(words.iter().map(|&word| word.to_owned()));
    all.extend(["--json", "--kernel", &image.to_string()].map(str::to_owned));
    all.extend(["--guest-memory", "768M", "--kernel-parameters", PARAMETERS].map(str::to_owned));
    let job = Job {
        dir: repo.root.clone(),
        command: all,
        env,
    };
    let machine = Machine {
        memory_mib: 3072,
        nested: true,
        timeout: TIMEOUT,
        ..Machine::default()
    };
    let mut printed = Vec::new();
    let end = rig.run(&kernel, &machine, &job, &mut |bytes| {
        printed.extend_from_slice(bytes);
        Ok(())
    })?;
    let text = String::from_utf8_lossy(&printed);
    let place = place(series);
    ensure!(end == End::Exited(0), "in the {place}: {end:?}: {text}");
    serde_json::from_str(&text).with_context(|| text.to_string())
}

/// Each test, by its suite, and what was measured of it in the guest.
fn guests(document: &Value) -> impl Iterator<Item = (String, &Value)> {
    let suites = document["suites"].as_array().into_iter().flatten();
    let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    suites.flat_map(move |suite| {
        let tests = suite["tests"].as_array().into_iter().flatten();
        tests.filter_map(move |test| {
            let name = format!("{}/{}", word(&suite["name"]), word(&test["name"]));
            let mut places = test["environments"].as_array()?.iter();
            let guest = places.find(|place| word(&place["environment"]).starts_with("kvm"))?;
            Some((name, guest))
        })
    })
}

/// Builds the command without symbols, which the guest would have to read and unpack.
fn build(repo: &Repo) -> Result<PathBuf> {
    let mut cargo = repo.cargo(&["rustc", "--quiet", "--package", "pagetrail-cli"]);
    cargo.args(["--bin", "pagetrail", "--", "-C", "strip=symbols"]);
    ensure!(cargo.status()?.success(), "the command does not build");
    let kept = repo.target.join("pagetrail-stripped");
    let built = repo.target.join("debug/pagetrail");
    fs::copy(&built, &kept).with_context(|| built.display().to_string())?;
    Ok(kept)
}

/// The tests ran in the guest as they do outside, and KVM counted what it should.
fn check(document: &Value) -> Result<()> {
    let tests: Vec<_> = guests(document).collect();
    ensure!(
        tests.len() == TESTS.split(',').count(),
        "not all was measured in the guest: {document:#}"
    );
    let absent = document["absent"].to_string();
    ensure!(
        absent.contains("kvm:shadow") && absent.contains("kvm_amd npt=0"),
        "the cure for shadow page tables is missing: {absent}"
    );
    for (test, guest) in tests {
        ensure!(
            guest["differs"].is_null(),
            "{test} behaves differently: {guest:#}"
        );
        let counter = |name: &str| guest["kvm"][name].as_f64().unwrap_or_default();
        ensure!(
            counter("exits") > 0.0,
            "{test}: KVM counted no exits: {guest:#}"
        );
        // The guest's page tables are its own affair.
        ensure!(
            counter("mmu_pte_write") == 0.0,
            "{test}: nested paging wrote for the guest: {guest:#}"
        );
        let found = |what: &str| guest["probed"][what].as_array().into_iter().flatten();
        let exits: f64 = found("exits")
            .filter_map(|exit| exit["count"].as_f64())
            .sum();
        ensure!(exits > 0.0, "{test}: probes saw no exit: {guest:#}");
        println!("{test}: KVM counted {} exits", counter("exits"));
        for (name, count) in guest["kvm"].as_object().into_iter().flatten() {
            println!("  {name:<32} {count}");
        }
        println!("{test}, one more run, under probes: {exits} exits");
        for exit in found("exits") {
            let name = exit["name"].as_str().unwrap_or_default();
            println!("  exit {name:<27} {}", exit["count"]);
        }
        for function in found("functions") {
            let name = function["name"].as_str().unwrap_or_default();
            println!(
                "  {name:<32} {} calls, {} timed",
                function["calls"], function["samples"]
            );
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn document(exits: u64, writes: u64) -> Value {
        let guest = json!({"environment": "kvm", "differs": null, "ratio": {"median": 1.25},
                           "kvm": {"exits": exits, "mmu_pte_write": writes},
                           "probed": {"exits": [{"name": "HLT", "count": 3}]}});
        let test =
            |name: &str| json!({"name": name, "environments": [{"environment": "native"}, guest]});
        json!({
            "absent": [{"name": "kvm:shadow", "reason": "modprobe kvm_amd npt=0"}],
            "suites": [{"name": "memory", "tests": [test("motion")]},
                       {"name": "apps", "tests": [test("web")]}],
        })
    }

    #[test]
    fn a_guest_without_exits_fails() {
        assert!(check(&document(9, 0)).is_ok());
        assert!(check(&document(0, 0)).is_err());
        assert!(check(&document(9, 4)).is_err());
        assert!(check(&json!({})).is_err());
        let mut less = document(9, 0);
        less["suites"][1]["tests"] = json!([]);
        assert!(check(&less).is_err());
    }
}
