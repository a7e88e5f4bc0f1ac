//! `record --stacks` and what `report` makes of it, as users run them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use crate::common::{error_line, number, pagetrail, report, run};
use serde_json::Value;

/// The program `hot_and_cold`, compiled once.
fn program() -> &'static str {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    let path = PROGRAM.get_or_init(|| {
        let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("hot_and_cold");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/hot_and_cold.c");
        let status = Command::new("gcc")
            .args(["-O1", "-g", "-fno-omit-frame-pointer", "-o"])
            .arg(&program)
            .arg(source)
            .status();
        assert!(status.is_ok_and(|status| status.success()), "gcc failed");
        program
    });
    path.to_str().expect("UTF-8")
}

fn messages(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Whether stacks were sampled; what is missing here is reported otherwise.
fn is_sampled(messages: &str) -> bool {
    let refused = messages
        .lines()
        .find(|line| line.contains("recording without stacks") || line.contains("no effect"));
    if let Some(line) = refused {
        pagetrail_skips::not_here(line);
    }
    refused.is_none()
}

fn function<'a>(report: &'a Value, name: &str) -> Option<&'a Value> {
    let functions = report["writers"]["functions"].as_array().expect("a list");
    functions
        .iter()
        .find(|function| function["function"] == name)
}

#[test]
fn functions_are_named_with_the_pages_that_they_dirtied() {
    for how in ["--stacks", "--stacks=dwarf"] {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let here = directory.path();
        let each = ["--stacks-period", "1"];
        let arguments = [
            &["record", how, "--interval", "50ms"],
            &each[..],
            &["--", program(), "40"],
        ];
        let arguments = arguments.concat();
        let messages = messages(&run(here, &arguments));
        if !is_sampled(&messages) {
            return;
        }
        assert!(
            messages.contains("page faults with stacks (each fault"),
            "{messages}"
        );
        let document = report(here, "pagetrail.trail");
        let pages = |name: &str| {
            let found = function(&document, name).unwrap_or_else(|| panic!("{name}: {document}"));
            assert_eq!(found["file"], "hot_and_cold");
            number(&found["page_writes"]) as f64
        };
        let ratio = pages("write_hot") / pages("write_cold");
        assert!((2.0..4.0).contains(&ratio), "{how}: {ratio}");
        let main = function(&document, "main").expect("both are called by it");
        let called = number(&main["page_writes_with_callees"]) as f64;
        assert!(called >= pages("write_hot") + pages("write_cold"));
        let writers = &document["writers"];
        assert_eq!(number(&writers["sample_period_max"]), 1);
        let attributed = number(&writers["attributed_page_writes"]);
        assert!(
            attributed * 10 >= number(&writers["page_writes"]) * 8,
            "{writers}"
        );

        let text = run(here, &["report", "--flamegraph", "--folded", "out.txt"]);
        assert_eq!(text.status.code(), Some(0), "{text:?}");
        let text = String::from_utf8_lossy(&text.stdout).into_owned();
        assert!(
            text.contains("write_hot") && text.contains("with callees"),
            "{text}"
        );
        let folded = fs::read_to_string(here.join("out.txt")).expect("it is written");
        assert!(folded.contains("main;write_hot "), "{folded}");
        let drawing = fs::read_to_string(here.join("pagetrail.svg")).expect("it is written");
        assert!(drawing.starts_with("<svg ") && drawing.contains("write_cold"));
        let pprof = run(here, &["report", "--pprof"]);
        assert_eq!(pprof.status.code(), Some(0), "{pprof:?}");
        let profile = fs::read(here.join("pagetrail.pb")).expect("it is written");
        assert!(profile.windows(9).any(|name| name == b"write_hot"));
        // Again, over its own files; but not over another.
        let again = ["report", "--flamegraph", "--folded", "out.txt", "--pprof"];
        assert_eq!(run(here, &again).status.code(), Some(0));
        let line = error_line(&run(here, &["report", "--flamegraph", "out.txt"]), 2);
        assert!(line.contains("is no SVG picture"), "{line}");
    }
}

#[test]
fn what_cannot_be_sampled_is_recorded_without() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let here = directory.path();
    let common = ["record", "--stacks", "--interval", "50ms"];
    let command = ["--", program(), "5"];
    let compare = [&common[..], &["--technique", "compare"], &command].concat();
    let messages_of = |output: &Output| messages(output);
    let said = messages_of(&run(here, &compare));
    assert!(said.contains("no effect with compare"), "{said}");
    assert!(said.contains("recorded "), "{said}");

    let denied = [&common[..], &command].concat();
    let mut denied_command = Command::new(program());
    denied_command
        .arg("deny")
        .arg(pagetrail(here, &[]).get_program())
        .args(denied)
        .current_dir(here);
    let said = messages_of(&denied_command.output().expect("it starts"));
    let lines: Vec<_> = said.lines().collect();
    let without: Vec<_> = lines
        .iter()
        .filter(|line| line.contains("recording without stacks"))
        .collect();
    assert_eq!(without.len(), 1, "{said}");
    assert!(
        without[0].contains("perf_event_open(2) is not permitted"),
        "{said}"
    );
    assert!(said.contains("recorded "), "{said}");
    let line = error_line(&run(here, &["report", "--folded"]), 2);
    assert!(line.contains("record with --stacks"), "{line}");
    assert_eq!(report(here, "pagetrail.trail")["writers"], Value::Null);
}

#[test]
fn a_python_program_is_attributed() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let here = directory.path();
    let script = "import sqlite3\nd = sqlite3.connect(':memory:')\nd.execute('create table t(x)')\n\
                  for i in range(100000): d.execute('insert into t values (?)', ('x' * 200,))";
    let arguments = [
        "record",
        "--stacks=dwarf",
        "--interval",
        "20ms",
        // However late the first rounds are, one has what the program wrote.
        "--last-round",
        "--",
        "python3",
        "-c",
        script,
    ];
    let messages = messages(&run(here, &arguments));
    if !is_sampled(&messages) {
        return;
    }
    let document = report(here, "pagetrail.trail");
    let writers = &document["writers"];
    assert!(number(&writers["attributed_page_writes"]) > 0, "{writers}");
    let stacks = writers["stacks"].as_array().expect("a list");
    let has_sqlite = stacks.iter().any(|stack| {
        let frames = stack["frames"].as_array().expect("a list");
        frames
            .iter()
            .any(|frame| frame.as_str().is_some_and(|name| name.contains("sqlite")))
    });
    assert!(has_sqlite, "{writers}");
}
