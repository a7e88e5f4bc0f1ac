//! `pagetrail compare` as its users call it; its figures are not checked here, but for their shape.

use std::path::Path;
use std::process::{Command, Stdio};

use pagetrail::{Capabilities, Technique};
use serde_json::Value;

use crate::common::{error_line, pagetrail, run};

/// The document of a comparison, and its exit code.
fn document(directory: &Path, arguments: &[&str]) -> (Value, Option<i32>) {
    let output = run(directory, &[&["compare", "--json"], arguments].concat());
    let value = serde_json::from_slice(&output.stdout);
    let value = value.unwrap_or_else(|error| panic!("{error}: {output:?}"));
    (value, output.status.code())
}

fn has_pagemap_scan() -> bool {
    Capabilities::probe().works(Technique::PagemapScan)
}

/// Runs a test of a suite by itself; gives what it says.
fn work(name: &str) -> String {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let output = run(directory.path(), &["compare", "--as-work", name]);
    assert!(output.status.success(), "{name}: {output:?}");
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// Tests that need no process of their own are run by the crate's own tests.
#[test]
fn tests_of_suites_find_their_results_right() {
    for name in [
        "memory/faults",
        "memory/brk",
        "memory/page",
        "memory/mmap",
        "memory/exec",
        "memory/fork",
        "memory/shell",
        "memory/motion",
        "ipc/pipe",
        "ipc/pipe-copy",
        "ipc/stream",
        "ipc/datagram",
        "ipc/shared-memory",
        "disk/files",
        "disk/random-write",
        "apps/web",
    ] {
        let said = work(name);
        let numbers: Vec<u64> = said
            .split_whitespace()
            .map(|word| word.parse().expect("a number"))
            .collect();
        assert_eq!(numbers.len(), 2, "{name}: {said}");
        assert!(numbers[0] > 0 && numbers[1] > 0, "{name}: {said}");
    }
}

#[test]
fn a_program_in_two_environments() {
    if !has_pagemap_scan() {
        return pagetrail_skips::not_here("compare: pagemap-scan does not work here");
    }
    let directory = tempfile::tempdir().expect("a temporary directory");
    let page = directory.path().join("page.html");
    let (found, code) = document(
        directory.path(),
        &[
            "native,tracked:pagemap-scan@5ms,tracked:mprotect,native",
            "--runs",
            "3",
            "--seed",
            "7",
            "--html",
            page.to_str().expect("UTF-8"),
            "--",
            "sh",
            "-c",
            "echo said; i=0; while [ $i -lt 20000 ]; do i=$((i + 1)); done; exit 3",
        ],
    );
    assert_eq!(code, Some(0), "{found}");
    assert_eq!((&found["schema"], &found["seed"]), (&1.into(), &7.into()));
    let test = &found["suites"][0]["tests"][0];
    assert_eq!(test["runs"], 3);
    assert_eq!(test["ends"], "exited with code 3");
    assert_eq!(test["unstable"], Value::Null);
    let environments = test["environments"].as_array().expect("a list");
    assert_eq!(environments.len(), 2);
    // It tracks the own process only.
    assert_eq!(found["absent"][0]["name"], "tracked:mprotect");
    let tracked = &environments[1];
    assert_eq!(tracked["environment"], "tracked:pagemap-scan@5ms");
    assert_eq!(tracked["differs"], Value::Null);
    for figure in ["low", "median", "high"] {
        assert!(tracked["ratio"][figure].as_f64().expect("a number") > 0.0);
    }
    let counts = |environment: &Value, name: &str| environment["counts"][name].as_f64();
    assert!(counts(tracked, "rounds") > Some(0.0), "{tracked}");
    assert_eq!(counts(&environments[0], "rounds"), Some(0.0));
    assert!(counts(&environments[0], "minor_faults") > Some(0.0));
    let page = std::fs::read_to_string(page).expect("it was written");
    assert!(page.contains("<svg") && !page.contains("<script"));
}

#[test]
fn a_program_that_behaves_differently_is_named_and_fails() {
    if !has_pagemap_scan() {
        return pagetrail_skips::not_here("compare: pagemap-scan does not work here");
    }
    let directory = tempfile::tempdir().expect("a temporary directory");
    // The tracker is the parent natively, too, but a variable tells the heap.
    let script = "test -z \"$PAGETRAIL_SUBPAGES\" || { echo odd >&2; exit 4; }";
    let library = directory.path().join("empty.so");
    std::fs::write(&library, "").expect("it can be written");
    let mut command = pagetrail(
        directory.path(),
        &["compare", "heap:8", "--runs", "1", "--", "sh", "-c", script],
    );
    // The loader warns about it on standard error, and goes on.
    command.env("PAGETRAIL_ALLOC_LIBRARY", &library);
    let output = command.output().expect("it starts");
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(
        text.contains("behaves differently in heap:8: it exited with code 4 (odd)"),
        "{text}"
    );
}

#[test]
fn a_suite_has_scores_and_conditions_are_judged() {
    if !has_pagemap_scan() {
        return pagetrail_skips::not_here("compare: pagemap-scan does not work here");
    }
    let directory = tempfile::tempdir().expect("a temporary directory");
    let (found, code) = document(
        directory.path(),
        &[
            "tracked:pagemap-scan",
            "--suite",
            "net",
            "--runs",
            "1",
            "--fail-if",
            "net/tracked:pagemap-scan>100000x",
        ],
    );
    // One round decides nothing.
    assert_eq!(code, Some(3), "{found}");
    let suite = &found["suites"][0];
    assert_eq!(suite["name"], "net");
    let tests = suite["tests"].as_array().expect("a list").len();
    assert_eq!(suite["scores"][1]["count"], tests);
    assert_eq!(suite["scores"][1]["too_few_rounds"], true);
    assert_eq!(found["conditions"].as_array().map(Vec::len), Some(0));
    let (found, code) = document(
        directory.path(),
        &[
            "tracked:pagemap-scan",
            "--runs",
            "6",
            "--fail-if",
            "tracked:pagemap-scan>100000x",
            "--",
            "true",
        ],
    );
    assert_eq!(code, Some(0), "{found}");
    assert_eq!(found["conditions"][0]["holds"], false);
}

#[test]
fn single_tests_of_suites_are_measured() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let (found, _) = document(
        directory.path(),
        &[
            "heap:8",
            "--suite",
            "memory/brk,net/udp,memory/brk,memory/faults",
            "--runs",
            "1",
        ],
    );
    assert_eq!(
        found["command"],
        serde_json::json!(["memory/brk", "net/udp", "memory/brk", "memory/faults"])
    );
    let suites = found["suites"].as_array().expect("a list");
    let tests = suites.iter().flat_map(|suite| {
        let tests = suite["tests"].as_array().expect("a list");
        tests.iter().map(|test| {
            let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            (word(&suite["name"]), word(&test["name"]))
        })
    });
    let tests: Vec<_> = tests.collect();
    let pairs = [("memory", "brk"), ("memory", "faults"), ("net", "udp")];
    assert_eq!(
        tests,
        pairs.map(|(suite, test)| (suite.to_owned(), test.to_owned()))
    );
}

#[test]
fn who_is_not_here_is_said_and_alone_is_exit_code_3() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let mut command = pagetrail(
        directory.path(),
        &[
            "compare",
            "tracked:compare",
            "--runs",
            "1",
            "--fail-if",
            "tracked:compare>1x",
            "--",
            "true",
        ],
    );
    command.env("PAGETRAIL_DISABLE", "compare");
    let output = command.output().expect("it starts");
    let (text, errors) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert_eq!(output.status.code(), Some(3), "{text} {errors}");
    assert!(text.contains("not here: tracked:compare: "), "{text}");
    assert!(errors.contains("cannot decide --fail-if"), "{errors}");
}

/// Whether a process with this in its command line is there.
fn is_running(marker: &str) -> bool {
    let processes = std::fs::read_dir("/proc").expect("it can be listed");
    let mut lines = processes.filter_map(|entry| {
        let line = std::fs::read(entry.ok()?.path().join("cmdline")).ok()?;
        Some(String::from_utf8_lossy(&line).into_owned())
    });
    lines.any(|line| line.split('\0').any(|word| word == marker))
}

#[test]
fn a_first_run_that_takes_too_long_is_ended_with_what_it_has_started() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let mut environments = vec!["native"];
    if has_pagemap_scan() {
        environments.push("tracked:pagemap-scan");
    }
    for against in environments {
        // An argument that no other process has, and that sleep(1) takes for a time.
        let marker = format!("86{}.{}", std::process::id(), against.len());
        let script = format!("sleep {marker} & sleep {marker}");
        let (found, code) = document(
            directory.path(),
            &[
                "native,heap:8",
                "--against",
                against,
                "--timeout",
                "300ms",
                "--",
                "sh",
                "-c",
                &script,
            ],
        );
        assert_eq!(code, Some(3), "{found}");
        let reason = found["absent"][0]["reason"].as_str().unwrap_or_default();
        assert!(
            reason.contains("its first run was still running"),
            "{found}"
        );
        // It has been killed, but may not have ended yet.
        let there = (0..600).all(|_| {
            std::thread::sleep(std::time::Duration::from_millis(50));
            is_running(&marker)
        });
        assert!(!there, "{against}: a process was left");
    }
}

/// Waits until a process has this word in its command line, or until none has.
fn comes_to(marker: &str, running: bool) -> bool {
    (0..6000).any(|_| {
        let is_there = is_running(marker) == running;
        if !is_there {
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        is_there
    })
}

/// A program that ends at once, and leaves two processes: one in its process group, and one that
/// has left it, as daemons do.
fn leaving(marker: &str) -> String {
    format!("sleep {marker} & setsid sh -c 'sleep {marker} & sleep {marker}' & echo left")
}

#[test]
fn what_a_run_leaves_behind_is_ended_and_named() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let mut environments = "native,heap:8".to_owned();
    if has_pagemap_scan() {
        environments += ",tracked:pagemap-scan";
    }
    let marker = format!("87{}.5", std::process::id());
    let library = directory.path().join("empty.so");
    std::fs::write(&library, "").expect("it can be written");
    let mut command = pagetrail(
        directory.path(),
        &["compare", &environments, "--runs", "1", "--json", "--"],
    );
    command.args(["sh", "-c", &leaving(&marker)]);
    command.env("PAGETRAIL_ALLOC_LIBRARY", &library);
    let output = command.output().expect("it starts");
    let left = is_running(&marker);
    let found: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {output:?}"));
    assert!(!left, "a process was left: {found}");
    let notes = found["notes"].as_array().expect("a list");
    let said = notes.iter().filter_map(Value::as_str);
    let said: Vec<&str> = said
        .filter(|note| note.contains("outlived their runs"))
        .collect();
    assert_eq!(said.len(), 1, "{found}");
    assert!(
        said[0].ends_with("were ended, each after its run"),
        "{said:?}"
    );
}

#[test]
fn a_program_has_no_terminal_that_could_stop_it() {
    if !has_pagemap_scan() {
        return pagetrail_skips::not_here("compare: pagemap-scan does not work here");
    }
    let directory = tempfile::tempdir().expect("a temporary directory");
    // It asks its terminal something, if it has one: in the background of one it would be stopped.
    let asks = "read answer </dev/tty || exit 7";
    let program = env!("CARGO_BIN_EXE_pagetrail");
    let environments = "native,tracked:pagemap-scan";
    let command = format!(
        "'{program}' compare {environments} --runs 1 --timeout 60s --json -- sh -c '{asks}' >found"
    );
    let script = Command::new("script")
        .args(["-qfec", &command, "screen"])
        .current_dir(directory.path())
        .env("SHELL", "/bin/sh")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let Ok(mut script) = script else {
        return pagetrail_skips::not_here("compare: no script(1), which gives it a terminal");
    };
    script.wait().expect("a child");
    let found = std::fs::read(directory.path().join("found")).expect("it was written");
    let found: Value = serde_json::from_slice(&found).expect("JSON");
    let test = &found["suites"][0]["tests"][0];
    assert_eq!(test["ends"], "exited with code 7", "{found}");
}

#[test]
fn an_interrupted_comparison_leaves_nothing_behind() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let mut environments = vec!["native"];
    if has_pagemap_scan() {
        environments.push("tracked:pagemap-scan");
    }
    for against in environments {
        let marker = format!("88{}.{}", std::process::id(), against.len());
        let script = format!("{}; sleep {marker}", leaving(&marker));
        let mut command = pagetrail(
            directory.path(),
            &["compare", "native,heap:8", "--against", against, "--"],
        );
        command.args(["sh", "-c", &script]);
        command.stdout(std::process::Stdio::piped());
        command.stderr(std::process::Stdio::piped());
        let child = command.spawn().expect("it starts");
        assert!(comes_to(&marker, true), "{against}: it does not start");
        let pid = rustix::process::Pid::from_raw(child.id() as i32).expect("it has a number");
        rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("it is ours");
        let output = child.wait_with_output().expect("it ends");
        assert!(error_line(&output, 2).contains("interrupted"), "{output:?}");
        assert!(comes_to(&marker, false), "{against}: a process was left");
    }
}

#[test]
fn an_interrupted_suite_leaves_no_files() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let files = directory.path().join("files");
    std::fs::create_dir(&files).expect("it can be made");
    let mut command = pagetrail(
        directory.path(),
        &["compare", "native,heap:8", "--suite", "disk/random-read"],
    );
    // More rounds than anybody waits for.
    let library = directory.path().join("empty.so");
    std::fs::write(&library, "").expect("it can be written");
    command.args(["--runs", "1000"]);
    command.env("PAGETRAIL_ALLOC_LIBRARY", &library);
    command.env("TMPDIR", &files);
    command.stdout(std::process::Stdio::piped());
    command.stderr(std::process::Stdio::piped());
    let child = command.spawn().expect("it starts");
    let has_files = || {
        let mut own = std::fs::read_dir(&files)
            .expect("it can be listed")
            .flatten();
        own.any(|own| std::fs::read_dir(own.path()).is_ok_and(|mut tests| tests.next().is_some()))
    };
    let began = std::time::Instant::now();
    while !has_files() {
        assert!(began.elapsed().as_secs() < 120, "the test makes no files");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    let pid = rustix::process::Pid::from_raw(child.id() as i32).expect("it has a number");
    rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("it is ours");
    let output = child.wait_with_output().expect("it ends");
    assert!(error_line(&output, 2).contains("interrupted"), "{output:?}");
    let left = std::fs::read_dir(&files).expect("it can be listed").count();
    assert_eq!(left, 0);
}

#[test]
fn a_program_that_writes_without_end_is_ended() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let marker = format!("endless{}", std::process::id());
    let output = run(
        directory.path(),
        &["compare", "native,heap:8", "--", "yes", &marker],
    );
    let line = error_line(&output, 2);
    assert!(line.contains("the program writes more than"), "{line}");
    assert!(comes_to(&marker, false), "it goes on");
}

#[test]
fn what_is_wrong_is_said_in_one_line() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let directory = directory.path();
    for (arguments, code, part) in [
        (
            &["nativ,vm", "--", "true"][..],
            2,
            "'nativ' is no environment; there are native",
        ),
        (
            &["native", "--", "true"],
            2,
            "nothing to compare native with",
        ),
        (&["vm"], 2, "name a program after --, or --suite"),
        (
            &["vm", "--suite", "memroy"],
            2,
            "'memroy' is no suite; there are processor",
        ),
        (
            &["vm", "--suite", "memory/none"],
            2,
            "the suite memory has no test 'none'; there are faults",
        ),
        (
            &["vm", "--suite", "net", "--", "true"],
            2,
            "cannot be used with",
        ),
        (&["vm", "--runs", "0", "--", "true"], 2, "--runs"),
        (
            &["vm", "--runs", "2", "--for", "3s", "--", "true"],
            2,
            "cannot be used with",
        ),
        (
            &["vm", "--fail-if", "vm>2", "--", "true"],
            2,
            "a bound is a multiple",
        ),
        (
            &["vm", "--fail-if", "heap:8>2x", "--", "true"],
            2,
            "heap:8 is not compared here",
        ),
        (
            &["vm", "--html", "/nowhere/x.html", "--", "true"],
            2,
            "/nowhere/x.html",
        ),
        (
            &["vm", "--runs", "1", "--", "/no/such/program"],
            127,
            "/no/such/program",
        ),
        (&["--as-work", "memory/none"], 2, "has no test 'none'"),
    ] {
        let output = run(directory, &[&["compare"], arguments].concat());
        let line = error_line(&output, code);
        assert!(line.contains(part), "{arguments:?}: {line}");
    }
}
