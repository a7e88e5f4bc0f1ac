//! `pagetrail report` as its users call it: output, files, exit codes and messages.

use std::fs::{self, File};
use std::io::Read;
use std::process::Stdio;

use crate::common::{error_line, pagetrail, run};
use pagetrail::PageRange;
use pagetrail_trail::{End, Event, Header, Mapping, Round, Trail};
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
            shared: None,
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
        ..Trail::default()
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
fn files_without_a_name_stand_beside_the_recording() {
    let directory = recorded(3);
    let path = directory.path();
    fs::rename(path.join("pagetrail.trail"), path.join("slow.trail")).expect("a new name");
    let output = run(path, &["report", "slow.trail", "--png", "--html"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(
        said,
        "pagetrail: wrote slow.html\npagetrail: wrote slow.png\n"
    );
    assert!(!output.stdout.is_empty(), "the text is there all the same");
    let file = |name| fs::read(path.join(name)).expect(name);
    assert!(file("slow.html").starts_with(b"<!doctype html>"));
    assert!(file("slow.png").starts_with(b"\x89PNG"));
    // Its own earlier files may be replaced.
    let again = run(path, &["report", "slow.trail", "--png", "--html"]);
    assert_eq!(again.status.code(), Some(0), "{again:?}");
}

#[test]
fn neither_a_recording_nor_any_other_file_becomes_a_page() {
    let directory = recorded(3);
    let path = directory.path();
    let whole = fs::read(path.join("pagetrail.trail")).expect("the recording");
    fs::write(path.join("other.trail"), &whole[..whole.len() / 2]).expect("another one");
    fs::write(path.join("text"), "precious").expect("a file");
    std::os::unix::fs::symlink("pagetrail.trail", path.join("link")).expect("a link");
    for option in ["--html", "--png"] {
        for (file, says) in [
            ("pagetrail.trail", "is a recording"),
            ("link", "is a recording"),
            ("other.trail", "is a recording"),
            ("text", "exists"),
        ] {
            let refused = run(path, &["report", option, file]);
            let message = error_line(&refused, 2);
            assert!(message.contains(&format!("{file} {says}")), "{message}");
        }
    }
    let same = run(path, &["report", "--html", "new", "--png", "new"]);
    assert!(error_line(&same, 2).contains("new is the HTML page"));
    assert!(!path.join("new").exists());
    assert!(fs::read(path.join("pagetrail.trail")).is_ok_and(|now| now == whole));
    assert!(fs::read(path.join("other.trail")).is_ok_and(|now| now == whole[..whole.len() / 2]));
    assert!(fs::read(path.join("text")).is_ok_and(|now| now == b"precious"));
}

/// A recording comes from anywhere, and what is in it must not command the terminal that shows it.
#[test]
fn names_in_a_recording_command_no_terminal() {
    let directory = recorded(3);
    let path = directory.path().join("pagetrail.trail");
    let hostile = "\x1b]0;title\x07\x1b[2J\u{9b}31m\u{202e}\r\n";
    let file = File::open(&path).expect("the recording");
    let mut trail = Trail::read(std::io::BufReader::new(file)).expect("a whole one");
    trail.header.command = vec![hostile.into(), hostile.into()];
    trail.header.technique = hostile.into();
    trail.header.reason = hostile.into();
    trail.mappings[0].name = format!("/lib/{hostile}");
    trail.mappings[0].permissions = hostile.into();
    let refused = Mapping {
        range: PageRange::new(0x1000, 0x2000).expect("not empty"),
        untracked: Some(hostile.into()),
        ..trail.mappings[0].clone()
    };
    trail.mappings.push(refused);
    trail.rounds[1].events = vec![Event::Exec(hostile.into()), Event::Note(hostile.into())];
    trail
        .write(File::create(&path).expect("a file"))
        .expect("it is written");
    let output = run(directory.path(), &["report", "--html"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    let commands = |c: char| c != '\n' && (c.is_control() || c == '\u{202e}');
    assert!(!text.contains(commands), "{text:?}");
    assert!(text.contains("\\u{1b}[2J"), "{text}");
    // Nor does a name on the command line.
    let absent = run(directory.path(), &["report", hostile]);
    let message = error_line(&absent, 2);
    assert!(!message.contains(commands), "{message:?}");
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
