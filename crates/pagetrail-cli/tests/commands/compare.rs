//! `report BEFORE AFTER`, and the tables and traces that other tools read.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::common::{error_line, pagetrail, run};
use pagetrail_trail::Trail;
use serde_json::Value;
use tempfile::TempDir;

/// `before.trail`, and `after.trail`, which writes 64 pages a round more at a place without a name.
fn recordings() -> TempDir {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let write = |name: &str, trail: &Trail| {
        let file = File::create(directory.path().join(name)).expect("a new file");
        trail.write(file).expect("the trail is written");
    };
    let before = pagetrail_report::testing::program_with_stacks(60);
    let mut after = before.clone();
    let place = after.mappings[2].range.start();
    for round in &mut after.rounds {
        let first = 1024 + u64::from(round.index) * 8;
        round
            .written
            .insert(pagetrail_report::testing::pages(place, first, 64));
    }
    write("before.trail", &before);
    write("after.trail", &after);
    directory
}

#[test]
fn two_recordings_side_by_side() {
    let directory = recordings();
    let here = directory.path();
    let both = ["report", "before.trail", "after.trail"];
    let text = run(here, &both);
    assert_eq!(text.status.code(), Some(0), "{text:?}");
    let text = String::from_utf8(text.stdout).expect("UTF-8");
    for word in ["before ", "after ", "anonymous", "[heap]", "recurse", "all"] {
        assert!(text.contains(word), "{word}: {text}");
    }
    let json = run(
        here,
        &[&both[..], &["--json", "--html", "page.html"]].concat(),
    );
    assert_eq!(json.status.code(), Some(0), "{json:?}");
    let json: Value = serde_json::from_slice(&json.stdout).expect("JSON");
    assert_eq!(json["mappings"][0]["name"], "anonymous");
    let ratio = json["mappings"][0]["pages_per_second"]["ratio"].as_f64();
    assert!(ratio > Some(1.2), "{json}");
    let page = fs::read_to_string(here.join("page.html")).expect("it is written");
    assert!(page.starts_with("<!doctype html>") && page.contains("anonymous"));
}

#[test]
fn a_condition_that_holds_is_a_negative_finding() {
    let directory = recordings();
    let here = directory.path();
    let judge = |conditions: &[&str]| {
        let mut arguments = vec!["report", "before.trail", "after.trail"];
        for condition in conditions {
            arguments.extend(["--fail-if", condition]);
        }
        run(here, &arguments)
    };
    for (conditions, code) in [
        (&["written>1.1x"][..], 1),
        (&["written>100x"], 0),
        (&["written>100x", "written:anonymous>1.1x"], 1),
        (&["working-set:[heap]>1.0x"], 0),
        (&["written:recurse>1.1x"], 0),
        (&["working-set<=0"], 0),
    ] {
        let output = judge(conditions);
        assert_eq!(
            output.status.code(),
            Some(code),
            "{conditions:?} {output:?}"
        );
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(text.contains("FAIL: "), code == 1, "{text}");
    }
    let line = error_line(&judge(&["written:nowhere>1x"]), 2);
    assert!(line.contains("nowhere"), "{line}");
    let line = error_line(&judge(&["wrote>1x"]), 2);
    assert!(line.contains("written>1.1x"), "an example: {line}");
    let one = run(here, &["report", "before.trail", "--fail-if", "written>1x"]);
    assert_eq!(one.status.code(), Some(2), "{one:?}");
    let png = run(
        here,
        &["report", "before.trail", "after.trail", "--png", "x"],
    );
    assert!(error_line(&png, 2).contains("--png is of one recording"));
    fs::write(here.join("text"), "no trail").expect("a file");
    let wrong = run(
        here,
        &["report", "before.trail", "text", "--html", "new.html"],
    );
    assert!(error_line(&wrong, 2).contains("not a trail"));
    assert!(!here.join("new.html").exists());
}

/// A Python that has a module, by which files are read independently: `PAGETRAIL_TEST_PYTHON` or
/// the one that is installed.
fn reader(module: &str) -> Option<String> {
    let has = |python: &String| {
        let import = format!("import {module}");
        let status = Command::new(python)
            .args(["-c", &import])
            .stderr(Stdio::null())
            .status();
        status.is_ok_and(|status| status.success())
    };
    let chosen = std::env::var("PAGETRAIL_TEST_PYTHON").ok();
    let found = chosen.into_iter().chain(["python3".into()]).find(has);
    if found.is_none() {
        pagetrail_skips::not_here(format_args!("no Python with {module}"));
    }
    found
}

#[test]
fn a_parquet_file_is_read_by_others() {
    let directory = recordings();
    let here = directory.path();
    let output = run(here, &["report", "after.trail", "--parquet"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(here.join("after.parquet").exists());
    let again = run(
        here,
        &["report", "after.trail", "--parquet", "before.trail"],
    );
    assert!(error_line(&again, 2).contains("before.trail is a recording"));
    let document = run(here, &["report", "after.trail", "--json"]);
    let document: Value = serde_json::from_slice(&document.stdout).expect("JSON");
    let Some(python) = reader("pyarrow") else {
        return;
    };
    let script = "import json, pyarrow.parquet as p\n\
                  rows = p.read_table('after.parquet').to_pylist()\n\
                  print(json.dumps(dict(pages=sum(r['pages'] for r in rows), \
                  rounds=len({r['round'] for r in rows}), \
                  heap=sum(r['pages'] for r in rows if r['mapping'] == '[heap]'), \
                  stack=sum(r['pages'] for r in rows if r['stack'] == 'start;recurse;recurse'), \
                  thread=sorted({r['thread'] or 0 for r in rows}), \
                  process=sorted({r['process'] for r in rows}), \
                  year=rows[0]['time'].year)))";
    let read = Command::new(python)
        .args(["-c", script])
        .current_dir(here)
        .output()
        .expect("it starts");
    let read: Value =
        serde_json::from_slice(&read.stdout).unwrap_or_else(|error| panic!("{error}: {read:?}"));
    assert_eq!(read["pages"], document["summary"]["page_writes"]);
    assert_eq!(read["rounds"], 60);
    let heap = document["mappings"].as_array().expect("a list").iter();
    let heap = heap.filter(|mapping| mapping["name"] == "[heap]");
    let heap: u64 = heap.filter_map(|m| m["page_writes"].as_u64()).sum();
    assert_eq!(read["heap"], heap);
    // Pages of stacks are not multiplied by the period.
    assert_eq!(read["stack"], 30 * 5 + 30 * 2);
    assert_eq!(read["thread"], serde_json::json!([0, 4711]));
    assert_eq!(read["process"], serde_json::json!([4711]));
    assert_eq!(read["year"], 2026);
}

#[test]
fn a_trace_is_json() {
    let directory = recordings();
    let here = directory.path();
    let output = run(here, &["report", "after.trail", "--chrome-trace"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let trace = fs::read(here.join("after.trace.json")).expect("it is written");
    let trace: Value = serde_json::from_slice(&trace).expect("JSON");
    assert!(trace["traceEvents"].as_array().expect("a list").len() > 120);
    let again = run(here, &["report", "after.trail", "--chrome-trace"]);
    assert_eq!(again.status.code(), Some(0), "over its own file: {again:?}");
}

#[test]
fn a_recording_serves_its_counts() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let here: &Path = directory.path();
    let mut program = Command::new("sleep").arg("60").spawn().expect("it starts");
    let pid = program.id().to_string();
    let arguments = [
        "record",
        "--interval",
        "10ms",
        "--metrics",
        "127.0.0.1:0",
        "-p",
    ];
    let mut recorder = pagetrail(here, &[&arguments[..], &[&pid]].concat())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut messages = BufReader::new(recorder.stderr.take().expect("it is piped"));
    let mut line = String::new();
    while !line.contains("http://") {
        line.clear();
        let length = messages.read_line(&mut line).expect("a line");
        assert!(length > 0, "it ended without saying where it listens");
    }
    let address = line
        .trim()
        .rsplit_once("http://")
        .and_then(|(_, rest)| rest.strip_suffix("/metrics"))
        .unwrap_or_else(|| panic!("{line}"))
        .to_owned();
    let fetch = || {
        let mut stream = TcpStream::connect(&address).expect("it listens");
        stream
            .write_all(b"GET /metrics HTTP/1.0\r\n\r\n")
            .expect("it is asked");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("it answers");
        answer
    };
    while !fetch().contains("pagetrail_record_rounds_total{pid=") {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let answer = fetch();
    assert!(answer.contains("application/openmetrics-text"), "{answer}");
    assert!(answer.trim_end().ends_with("# EOF"), "{answer}");
    program.kill().expect("a child");
    program.wait().expect("a child");
    assert!(recorder.wait().expect("a child").success());
    let refused = ["record", "--metrics", "8.8.8.8:80", "--", "true"];
    assert!(error_line(&run(here, &refused), 2).contains("of this machine"));
}
