//! `cargo xtask kvm`: `pagetrail compare kvm` with real guests, in a guest with nested
//! virtualization: MemoryMotion and a web server under load, as in the Xen study.
//!
//! What is held against expectations are results, exits and counters; the times are those of an
//! emulator, and mean nothing. `suites` counts instructions instead, in a machine whose clock
//! advances by them; `paging` has nested paging and shadow page tables on the emulated Intel
//! processor.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use pagetrail_rig::bochs::{self, Paging, Settings};
use pagetrail_rig::guest::{End, Job, Machine};
use pagetrail_rig::kernel::Series;
use pagetrail_rig::{Engine, Rig, place};
use pagetrail_steps::recordings::{self, Place};
use pagetrail_steps::repo::Repo;
use pagetrail_steps::steps::Outcome;

use self::counted::{counts, guests, losses, table};

mod counted;

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

/// The study's functions, as KVM has them: a page fault, one that is passed on to the guest, an
/// instruction that is emulated, a write to a page table of the guest among them, and another page
/// table for the guest.
const PAGING_FUNCTIONS: &str = "kvm_mmu_page_fault,kvm_inject_emulated_page_fault,\
     x86_emulate_instruction,kvm_mmu_track_write,kvm_mmu_new_pgd";

/// What the study's table of memory has, most of whose losses are those of shadow page tables:
/// measured where there are such, beside the tests that are measured with both.
const PAGE_TABLES: &str = "memory/page,memory/brk,memory/exec,memory/fork,memory/shell";

/// What the study's tables of subsystems have: arithmetic, calls, memory, communication, libraries.
const SUITES: &str = "processor,calls,memory,ipc,net,library,apps/web";

/// Its disks and files.
const FILES: &str = "disk";

/// Runs the tests in a guest of the nested rig.
pub fn run(repo: &Repo) -> Result<Outcome> {
    let words = [
        &["native,kvm,kvm:shadow", "--suite", TESTS][..],
        &["--runs", "2", "--functions", FUNCTIONS],
    ];
    let document = nested(repo, false, &words.concat())?;
    check(&document)?;
    keep(repo, "kvm.json", &document, Place::Guest, "cargo xtask kvm")?;
    Ok(Outcome::Passed)
}

/// Counts the instructions of suites, and records them: in a guest with a kernel of its own, which
/// has no disk, and of files as a guest of KVM whose calls the host carries out.
pub fn suites(repo: &Repo) -> Result<()> {
    // Instructions are the same in every run, but for what interrupts do.
    let count = |environments, suites| {
        nested(
            repo,
            true,
            &[environments, "--suite", suites, "--runs", "1"],
        )
    };
    let mut document = count("native,kvm", SUITES)?;
    let files = count("native,vm", FILES)?;
    let (Some(all), Some(more)) = (
        document["suites"].as_array_mut(),
        files["suites"].as_array(),
    ) else {
        bail!("no suites: {document:#}\n{files:#}");
    };
    all.extend(more.iter().cloned());
    check_suites(&document)?;
    print!("{}", losses(&document));
    keep(
        repo,
        "compare_guest.json",
        &document,
        Place::Guest,
        "cargo xtask kvm suites",
    )
}

/// What `compare` says in a guest that has guests of its own; `counted`: by instructions.
fn nested(repo: &Repo, counted: bool, words: &[&str]) -> Result<Value> {
    let command = build(repo, false)?;
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
    let mut all = match counted {
        true => vec![own.to_string()],
        false => ["taskset", "-c", "1", &own.to_string()]
            .map(str::to_owned)
            .to_vec(),
    };
    all.push("compare".to_owned());
    all.extend(words.iter().map(|&word| word.to_owned()));
    all.push("--json".to_owned());
    if words.iter().any(|word| word.contains("kvm")) {
        let guest = ["--kernel", &image.to_string(), "--guest-memory", "768M"];
        all.extend(guest.map(str::to_owned));
        all.extend(["--kernel-parameters", PARAMETERS].map(str::to_owned));
    }
    let job = Job {
        dir: repo.root.clone(),
        command: all,
        env,
    };
    let machine = Machine {
        memory_mib: 3072,
        nested: true,
        counted,
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

/// The tests in a guest with nested paging and in one with shadow page tables, on the emulated
/// Intel processor that has both.
pub fn paging(repo: &Repo) -> Result<Outcome> {
    let command = build(repo, true)?;
    let series = Series::named(SERIES)?;
    let Engine { kernel, mut files } = Engine::fetch(series, &repo.target.join("kvm"))?;
    files.push(("vmlinuz".to_owned(), kernel.image().to_owned()));
    let places = [(Paging::Nested, "kvm"), (Paging::Shadow, "kvm:shadow")];
    let measured = places.map(|(paging, environment)| {
        let tests = tests_with(paging);
        println!("-- {tests} in {environment}");
        on_bochs(repo, (paging, environment), &tests, &command, &files)
    });
    let [nested, shadow] = measured;
    let [nested, shadow] = [nested?, shadow?];
    let rows = counts(&nested, &shadow);
    print!("{}", table(&rows));
    check_paging(&nested, &shadow)?;
    // Both are of one kernel and one machine.
    let document = json!({"schema": 1, "kernel": shadow["kernel"],
                          "machine": recordings::machine(Place::Bochs),
                          "date": shadow["date"], "nested": nested, "shadow": shadow});
    keep(
        repo,
        "kvm_paging.json",
        &document,
        Place::Bochs,
        "cargo xtask kvm paging",
    )?;
    Ok(Outcome::Passed)
}

/// The tests that are measured with such page tables.
fn tests_with(paging: Paging) -> String {
    match paging {
        Paging::Nested => TESTS.to_owned(),
        Paging::Shadow => format!("{TESTS},{PAGE_TABLES}"),
    }
}

/// What `compare` says of an environment on the emulated Intel processor.
fn on_bochs(
    repo: &Repo,
    (paging, environment): (Paging, &str),
    tests: &str,
    command: &Path,
    files: &[(String, PathBuf)],
) -> Result<Value> {
    let own = command.display().to_string();
    let words = [
        &[&own, "compare", environment, "--suite", tests, "--json"][..],
        &["--runs", "1", "--kernel", "/vmlinuz"],
        &["--guest-memory", "256M", "--kernel-parameters", PARAMETERS],
        &["--functions", PAGING_FUNCTIONS],
    ];
    let words: Vec<String> = words.concat().into_iter().map(str::to_owned).collect();
    let settings = Settings {
        paging,
        memory_mib: 1024,
        ..Settings::nested(TIMEOUT)
    };
    let ran = bochs::run_with(repo, settings, &words, files)?;
    let text = String::from_utf8_lossy(&ran.printed);
    ensure!(
        ran.status == Some(0),
        "in {environment} it ended with {:?}: {text}",
        ran.status
    );
    serde_json::from_str(&text).with_context(|| text.to_string())
}

/// Each test ran in the guest as it does outside.
fn check_suites(document: &Value) -> Result<()> {
    let suites = document["suites"].as_array().into_iter().flatten();
    let tests: Vec<&Value> = suites
        .flat_map(|suite| suite["tests"].as_array().into_iter().flatten())
        .collect();
    ensure!(!tests.is_empty(), "nothing was measured: {document:#}");
    for test in &tests {
        let failures = test["failures"].as_array().map_or(0, Vec::len);
        ensure!(failures == 0, "a test failed: {test:#}");
    }
    let guests: Vec<_> = guests(document).collect();
    ensure!(
        guests.len() == tests.len(),
        "{} of {} tests were measured in the guest: {document:#}",
        guests.len(),
        tests.len()
    );
    for (test, guest) in guests {
        ensure!(
            guest["differs"].is_null(),
            "{test} behaves differently: {guest:#}"
        );
    }
    Ok(())
}

/// Each test ran in both guests as it does outside, and only shadow page tables made KVM look at
/// the guest's.
fn check_paging(nested: &Value, shadow: &Value) -> Result<()> {
    for (document, name, paging) in [
        (nested, "kvm", Paging::Nested),
        (shadow, "kvm:shadow", Paging::Shadow),
    ] {
        let wanted = tests_with(paging);
        let measured: BTreeSet<String> = guests(document).map(|(test, _)| test).collect();
        for test in wanted.split(',') {
            ensure!(
                measured.contains(test),
                "{test} was not measured in {name}: {document:#}"
            );
        }
        for (test, guest) in guests(document) {
            ensure!(
                guest["differs"].is_null(),
                "{test} behaves differently in {name}: {guest:#}"
            );
            let passed_on = guest["kvm"]["pf_guest"].as_f64().unwrap_or_default();
            ensure!(
                (passed_on > 0.0) == (name == "kvm:shadow"),
                "{test}: {passed_on} faults were passed on to the guest of {name}"
            );
        }
    }
    Ok(())
}

/// Records what was found.
fn keep(repo: &Repo, name: &str, document: &Value, place: Place, command: &str) -> Result<()> {
    let text = format!("{document:#}\n");
    recordings::keep(repo, name, text.as_bytes(), place, command)
}

/// Builds the command without symbols, which the guest would have to read and unpack; a static one
/// for a machine without libraries.
fn build(repo: &Repo, is_static: bool) -> Result<PathBuf> {
    let mut cargo = repo.cargo(&["rustc", "--quiet", "--package", "pagetrail-cli"]);
    cargo.args(["--bin", "pagetrail", "--", "-C", "strip=symbols"]);
    if is_static {
        cargo.args(["-C", "target-feature=+crt-static"]);
    }
    ensure!(cargo.status()?.success(), "the command does not build");
    let kept = repo.target.join(match is_static {
        true => "pagetrail-static",
        false => "pagetrail-stripped",
    });
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

    #[test]
    fn suites_are_whole_or_not_recorded() {
        let whole = document(9, 0);
        assert!(check_suites(&whole).is_ok());
        assert!(check_suites(&json!({})).is_err());
        let of = |change: fn(&mut Value)| {
            let mut document = whole.clone();
            change(&mut document["suites"][0]["tests"][0]);
            check_suites(&document)
        };
        assert!(of(|test| test["failures"] = json!([{"environment": "kvm"}])).is_err());
        assert!(of(|test| test["environments"] = json!([{"environment": "native"}])).is_err());
        assert!(of(|test| test["environments"][1]["differs"] = "output".into()).is_err());
    }

    #[test]
    fn a_table_has_the_counts_of_both() {
        let rows = counts(&document(9, 0), &document(30, 4));
        let of = |name: &str| {
            let mut rows = rows.iter();
            rows.find(|(test, other, _)| test == "memory/motion" && other == name)
                .map(|(_, _, counts)| *counts)
        };
        assert_eq!(of("counter exits"), Some([9.0, 30.0]));
        assert_eq!(of("counter mmu_pte_write"), Some([0.0, 4.0]));
        assert_eq!(of("exit HLT"), Some([3.0, 3.0]));
        let text = table(&rows);
        let line = text.lines().find(|line| line.contains("counter exits"));
        let words: Vec<&str> = line.unwrap_or_default().split_whitespace().collect();
        assert_eq!(words, ["memory/motion", "counter", "exits", "9", "30"]);
        assert!(losses(&document(9, 0)).contains("20.00 % lost"));
    }

    #[test]
    fn faults_are_passed_on_by_shadow_page_tables_alone() {
        let with = |paging, passed_on: u64| {
            let tests = tests_with(paging);
            let suites = tests.split(',').map(|test| {
                let (suite, test) = test.split_once('/').expect("a suite and a test");
                let guest = json!({"environment": "kvm", "kvm": {"pf_guest": passed_on}});
                let test =
                    json!({"name": test, "environments": [{"environment": "native"}, guest]});
                json!({"name": suite, "tests": [test]})
            });
            json!({"suites": suites.collect::<Vec<_>>()})
        };
        let nested = |passed_on| with(Paging::Nested, passed_on);
        let shadow = |passed_on| with(Paging::Shadow, passed_on);
        assert!(check_paging(&nested(0), &shadow(7)).is_ok());
        assert!(check_paging(&nested(0), &shadow(0)).is_err());
        assert!(check_paging(&nested(7), &shadow(7)).is_err());
        assert!(check_paging(&nested(0), &json!({})).is_err());
        // With shadow page tables there are more tests.
        assert!(check_paging(&nested(0), &with(Paging::Nested, 7)).is_err());
    }
}
