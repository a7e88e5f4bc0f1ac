//! `pagetrail bench` as its users call it; its figures are not checked here.

use std::path::Path;
use std::process::{Command, Output};

use pagetrail::{Capabilities, DISABLE_VARIABLE};
use serde_json::Value;

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pagetrail"));
    command.arg("bench").args(arguments);
    command
}

fn run(arguments: &[&str]) -> Output {
    command(arguments).output().expect("the command starts")
}

fn error_of(output: &Output, code: i32) -> String {
    assert_eq!(output.status.code(), Some(code), "{output:?}");
    assert!(output.stdout.is_empty());
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn all_that_works_is_measured_and_complete() {
    let output = run(&["--size", "1M", "--runs", "1", "--json"]);
    assert!(output.status.success(), "{output:?}");
    let document: Value = serde_json::from_slice(&output.stdout).expect("it is JSON");
    assert_eq!(document["schema"], 2);
    let results = document["results"].as_array().expect("a list");
    let found = |tracked: &str, technique: &str| {
        let mut results = results.iter();
        results.any(|r| r["tracked"] == tracked && r["technique"] == technique)
    };
    for (technique, status) in Capabilities::probe().iter() {
        let works = status.reason().is_none();
        assert_eq!(found("own", technique.name()), works, "{technique}");
        let other = works && technique.name() != "mprotect";
        assert_eq!(found("other", technique.name()), other, "{technique}");
    }
    for result in results {
        let pages = result["pages_written"].as_u64().expect("a number");
        assert_eq!(pages, (1 << 20) / document["page_size"].as_u64().unwrap());
        assert_eq!(result["pages_reported"], pages);
        for figure in ["untracked_pass_ns", "tracked_pass_ns"] {
            let median = result[figure]["median"].as_f64().expect("a number");
            assert!(median > 0.0, "{figure} of {result}");
        }
        let arm = &result["steps"]["arm_ns"];
        assert_eq!(arm["median"], arm["min"], "there was one run");
    }
}

#[test]
fn tables_and_page_are_written() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let page = directory.path().join("bench.html");
    let path = page.to_str().expect("UTF-8");
    let small = ["--size", "64K", "--technique", "none", "--runs", "1"];
    let output = run(&small);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    for part in ["64 KiB", "Overhead in %", "Single steps", "clean collect"] {
        assert!(text.contains(part), "no '{part}' in {text}");
    }
    let output = run(&[&small[..], &["--html", path]].concat());
    assert!(
        output.status.success() && !output.stdout.is_empty(),
        "{output:?}"
    );
    assert!(
        std::fs::read_to_string(Path::new(&page))
            .unwrap()
            .contains("<svg")
    );
}

#[test]
fn what_cannot_be_done_is_said_in_one_line() {
    let missing_unit = error_of(&run(&["--size", "100"]), 2);
    assert!(missing_unit.contains("needs a unit"), "{missing_unit}");
    let unknown = error_of(&run(&["--technique", "magic"]), 2);
    assert!(unknown.contains("unknown technique 'magic'"), "{unknown}");
    error_of(&run(&["--runs", "0"]), 2);

    let huge = error_of(&run(&["--size", "1M,1000000G"]), 2);
    assert!(huge.contains("are available"), "{huge}");
    let nowhere = error_of(&run(&["--size", "1M", "--html", "/nowhere/x.html"]), 2);
    assert!(nowhere.contains("/nowhere/x.html"), "{nowhere}");
    let mut off = command(&["--size", "1M", "--technique", "compare"]);
    off.env(DISABLE_VARIABLE, "compare");
    let off = error_of(&off.output().unwrap(), 3);
    assert!(off.contains("switched off"), "{off}");
    let endless = error_of(&run(&["--suite", "/dev/zero"]), 2);
    assert!(endless.contains("too large for a suite"), "{endless}");
    for message in [huge, nowhere, off, endless] {
        assert!(
            message.starts_with("pagetrail: ") && message.lines().count() == 1,
            "{message}"
        );
    }
}

/// The short form of `cargo xtask bench adaptive`: every pattern, and a program. What was written
/// and not reported would end it.
#[test]
fn a_suite_checks_every_round() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("suite.toml");
    let mut suite = String::from(
        "techniques = [\"pagemap-scan\", \"adaptive\"]\nfalse_positive_ns = 50\noperations_per_ms = 2000\n\
         program_round_ms = 5\nprogram_runs = 1\n[[length]]\nround_ms = 1\nwarm_up = 30\nrounds = 20\nruns = 1\n",
    );
    for pattern in [
        "kind = \"uniform\"",
        "kind = \"zipf\", exponent = 0.99",
        "kind = \"hot\", share = 0.1, elsewhere_per_mille = 1",
        "kind = \"hot\", share = 0.1, elsewhere_per_mille = 1, moves_after = 20000",
        "kind = \"sweep\"",
        "kind = \"idle-burst\", share = 0.1, burst = 10000, idle_ms = 3",
    ] {
        suite += &format!(
            "[[workload]]\nname = '{pattern}'\npages = 1024\nseed = 1\nwork = 100\npattern = {{ {pattern} }}\n"
        );
    }
    suite += "[[program]]\nname = \"true\"\ncommand = [\"true\"]\n[[program]]\nname = \"none\"\ncommand = [\"/no/such\"]\n";
    std::fs::write(&file, suite).unwrap();
    let page = directory.path().join("suite.html");
    let suite = ["--suite", file.to_str().unwrap()];
    let output = run(&[&suite[..], &["--json", "--html", page.to_str().unwrap()]].concat());
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let results: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = results["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 6);
    let page = std::fs::read_to_string(page).unwrap();
    assert!(page.contains("<svg") && page.contains("What it comes to"));
    assert!(!page.contains("{{") && !page.contains("NaN"));
    let short = error_of(&run(&[&suite[..], &["--quick"]].concat()), 2);
    assert!(short.contains("no short form"), "{short}");
    assert_eq!(results["missing"], serde_json::json!(["none"]));
    if results["absent"] != serde_json::json!([]) {
        return pagetrail_skips::not_here(format!("figures of a suite: {}", results["absent"]));
    }
    if is_predicted(&results) {
        return;
    }
    // What pays is measured, and a machine that was busy just then may say that nothing does.
    let again = || {
        let output = run(&[&suite[..], &["--json"]].concat());
        is_predicted(&serde_json::from_slice(&output.stdout).unwrap())
    };
    assert!((0..4).any(|_| again()), "{results:#}");
}

/// Of a program within a budget it says what its rounds cost, and nothing of one that had no round.
#[test]
fn a_budget_is_about_programs_that_had_rounds() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("suite.toml");
    for (round_ms, seconds, has_budget) in [(60_000, "0", false), (5, "0.5", true)] {
        let suite = format!(
            "techniques = [\"pagemap-scan\"]\nfalse_positive_ns = 50\noperations_per_ms = 2000\n\
             program_round_ms = {round_ms}\nprogram_runs = 1\n[[length]]\nround_ms = 1\nwarm_up = 1\n\
             rounds = 1\nruns = 1\n[[program]]\nname = \"sleep\"\ncommand = [\"sleep\", \"{seconds}\"]\n"
        );
        std::fs::write(&file, suite).unwrap();
        let path = file.to_str().unwrap();
        let output = run(&["--suite", path, "--max-overhead", "3%", "--json"]);
        assert!(output.status.success(), "{output:?}");
        let results: Value = serde_json::from_slice(&output.stdout).unwrap();
        if results["absent"] != serde_json::json!([]) {
            return pagetrail_skips::not_here(format!("figures of a suite: {}", results["absent"]));
        }
        let budget = &results["programs"][0]["techniques"][0]["budget"];
        assert_eq!(budget.is_object(), has_budget, "{results:#}");
    }
}

/// Whether `adaptive` predicts the hot pages of a suite's third workload, 102 in each round. A
/// false positive costs less than a fault on any machine.
fn is_predicted(results: &serde_json::Value) -> bool {
    let hot = &results["rows"][2]["techniques"];
    assert_eq!(hot[1]["technique"], "adaptive");
    let figure = |of: usize, name: &str| hot[of][name]["median"].as_f64().unwrap();
    let avoided = &hot[1]["prediction"]["faults_avoided_per_round"]["median"];
    figure(1, "faults_per_round") * 2.0 < figure(0, "faults_per_round")
        && figure(1, "reported_per_written") < 1.6
        && avoided.as_f64().unwrap() > 0.0
}
