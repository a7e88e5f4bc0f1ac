//! `pagetrail report` as its users call it: output, files, exit codes and messages.

mod common;

use std::fs::{self, File};
use std::io::Read;
use std::process::Stdio;

use common::{error_line, pagetrail, run};
use pagetrail::PageRange;
use pagetrail_trail::{End, Header, Mapping, Round, Trail};
use tempfile::TempDir;

/// A directory with a recording of `rounds` rounds under the default name.
fn recorded(rounds: u32) -> TempDir {
    const BASE: u64 = 0x7f00_0000_0000;
    let pages = |first: u64, count: u64| {
        let start = BASE + first * 4096;
        PageRange::new(start, start + count * 4096).expect("not empty")
    };
    let trail = Trail {
        header: Header {
            command: vec!["./writer".into()],
            pid: 7,
            page_size: 4096,
            technique: "compare".into(),
            interval_ms: 10,
            ..Header::default()
        },
        mappings: vec![Mapping {
            range: pages(0, 1000),
            name: "[heap]".into(),
            permissions: "rw-p".into(),
            untracked: None,
            first_round: 0,
            last_round: None,
        }],
        rounds: (0..rounds)
            .map(|index| Round {
                index,
                start_ns: u64::from(index) * 10_000_000,
                duration_ns: 10_000_000,
                written: (0..100)
                    .map(|i| pages(u64::from(index % 10) + 10 * i, 1))
                    .collect(),
                ..Round::default()
            })
            .collect(),
        end: Some(End::Exited(0)),
    };
    let directory = tempfile::tempdir().expect("a temporary directory");
    let file = File::create(directory.path().join("pagetrail.trail")).expect("a new file");
    trail.write(file).expect("the trail is written");
    directory
}

#[test]
fn the_default_file_is_reported() {
    let directory = recorded(20);
    let output = run(directory.path(), &["report"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    assert!(
        text.contains("./writer") && text.contains("[heap]"),
        "{text}"
    );
    assert!(!text.contains('\x1b'), "no colours into a pipe");
    assert!(output.stderr.is_empty());
}

#[test]
fn json_and_files_at_once() {
    let directory = recorded(20);
    let arguments = ["report", "--json", "--html", "a.html", "--png", "a.png"];
    let output = run(directory.path(), &arguments);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(json["rounds"].as_array().map(Vec::len), Some(20));
    assert_eq!(json["rounds"][0]["written_pages"], 100);
    let file = |name| fs::read(directory.path().join(name)).expect(name);
    assert!(file("a.html").starts_with(b"<!doctype html>"));
    assert!(file("a.png").starts_with(b"\x89PNG"));
}

#[test]
fn a_cut_off_recording_is_reported_up_to_its_last_whole_round() {
    let directory = recorded(20);
    let path = directory.path().join("pagetrail.trail");
    let whole = fs::read(&path).expect("the recording");
    fs::write(&path, &whole[..whole.len() * 3 / 4]).expect("a shorter one");
    let output = run(directory.path(), &["report", "--json"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let rounds = json["rounds"].as_array().map_or(0, Vec::len);
    assert!((1..20).contains(&rounds), "{rounds} rounds");
    assert_eq!(json["end"], serde_json::Value::Null);
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let directory = recorded(2000);
    for arguments in [["report", "--json"].as_slice(), &["report"]] {
        let mut child = pagetrail(directory.path(), arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the command starts");
        // Dropped after one byte, long before the end of a document larger than a pipe.
        let mut first = [0];
        let mut stdout = child.stdout.take().expect("it is piped");
        stdout.read_exact(&mut first).expect("one byte");
        drop(stdout);
        let output = child.wait_with_output().expect("it ends");
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        assert!(output.stderr.is_empty(), "{output:?}");
    }
}

#[test]
fn errors_name_what_was_wrong() {
    let directory = recorded(2);
    let path = directory.path();
    fs::write(path.join("text"), "no trail at all").expect("a file");
    assert!(error_line(&run(path, &["report", "absent"]), 2).contains("absent"));
    assert!(error_line(&run(path, &["report", "text"]), 2).contains("not a trail"));
    let unwritable = run(path, &["report", "--html", "no/such/directory.html"]);
    assert!(error_line(&unwritable, 2).contains("no/such/directory.html"));
    let full = run(path, &["report", "--png", "/dev/full"]);
    assert!(error_line(&full, 2).contains("/dev/full"));
    let empty = tempfile::tempdir().expect("a temporary directory");
    let message = error_line(&run(empty.path(), &["report"]), 2);
    assert!(message.contains("pagetrail record"), "the cure: {message}");
}
