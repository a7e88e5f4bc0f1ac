//! The files of `pagetrail record`: what is overwritten and what is not, and what is left of a
//! recording that fails.

use std::fs;
use std::process::Command;

use crate::common::recording::{FILE, Recording, assert_known_pages, directory, trail};
use crate::common::running::Running;
use crate::common::{error_line, last_line, report, run};
use pagetrail_trail::End;
use rustix::process::Signal;

#[test]
fn pictures_come_with_the_recording() {
    let directory = directory();
    let arguments = [
        "record",
        "--last-round",
        "--html",
        "a.html",
        "--png",
        "a.png",
        "--",
        "sh",
        "-c",
        "exit 5",
    ];
    let output = run(directory.path(), &arguments);
    assert_eq!(output.status.code(), Some(5), "{output:?}");
    let file = |name| fs::read(directory.path().join(name)).expect(name);
    assert!(file("a.html").starts_with(b"<!doctype html>"));
    assert!(file("a.png").starts_with(b"\x89PNG"));
}

#[test]
fn what_was_recorded_outlives_a_full_disk() {
    let directory = directory();
    let running = Running::known_pages();
    let pid = running.pid();
    let full = run(directory.path(), &["record", "-p", &pid, "-o", "/dev/full"]);
    assert!(last_line(&full, 2).contains("No space left on device"));
    // A limit on the size of files does the same in the middle of a recording. Its unit is the
    // shell's.
    let script = "ulimit -f 16; exec \"$0\" record -p \"$1\" --interval 5ms";
    let output = Command::new("sh")
        .args(["-c", script, env!("CARGO_BIN_EXE_pagetrail"), &pid])
        .current_dir(directory.path())
        .output()
        .expect("it starts");
    let message = last_line(&output, 2);
    let trail = trail(directory.path());
    assert!(trail.rounds.len() > 2 && trail.is_cut_off());
    let kept = format!("the {} rounds before are kept", trail.rounds.len());
    assert!(message.contains(&kept), "{message}");
    assert_known_pages(&report(directory.path(), FILE));
}

#[test]
fn only_recordings_are_overwritten() {
    let directory = directory();
    let path = directory.path();
    fs::write(path.join("text"), "precious").expect("a file");
    let refused = run(path, &["record", "-o", "text", "--", "true"]);
    assert!(error_line(&refused, 2).contains("is not a recording"));
    assert_eq!(fs::read(path.join("text")).expect("a file"), b"precious");
    assert_eq!(
        run(
            path,
            &["record", "--last-round", "--", "sh", "-c", "exit 1"]
        )
        .status
        .code(),
        Some(1)
    );
    let whole = ["record", "--last-round", "--", "true"];
    assert_eq!(run(path, &whole).status.code(), Some(0));
    assert_eq!(trail(path).end, Some(End::Exited(0)), "the new one");
    // A recording that cannot begin leaves the earlier one, and no new file.
    let absent = "4194305";
    error_line(&run(path, &["record", "-p", absent]), 2);
    assert_eq!(trail(path).end, Some(End::Exited(0)));
    error_line(&run(path, &["record", "-p", absent, "-o", "new"]), 2);
    assert!(!path.join("new").exists());
}

#[test]
fn pictures_and_the_recording_are_different_files() {
    let directory = directory();
    let path = directory.path();
    fs::write(path.join("text"), "precious").expect("a file");
    for (arguments, says) in [
        (["-o", "a", "--html", "a"], "a is the recording itself"),
        (
            ["--html", "text", "--png", "b"],
            "text exists and is no web page",
        ),
        (["--html", "b", "--png", "b"], "b is the HTML page"),
    ] {
        let command = ["--", "sh", "-c", ": > ran"];
        let refused = run(path, &[&["record"], &arguments[..], &command].concat());
        assert!(error_line(&refused, 2).contains(says), "{refused:?}");
        let names = fs::read_dir(path).expect("a directory").map(|entry| {
            entry
                .expect("an entry")
                .file_name()
                .into_string()
                .expect("UTF-8")
        });
        assert_eq!(
            names.collect::<Vec<_>>(),
            ["text"],
            "refused before anything is done"
        );
    }
}

/// On a machine where this guest runs there is nothing to see here; elsewhere the recording before
/// must outlive the attempt.
#[test]
fn a_guest_that_cannot_run_leaves_the_earlier_recording() {
    let directory = directory();
    let path = directory.path();
    let whole = ["record", "--last-round", "--", "true"];
    assert_eq!(run(path, &whole).status.code(), Some(0));
    let before = fs::read(path.join(FILE)).expect("a recording");
    let output = run(path, &["record", "--vm", "--", "true"]);
    let message = String::from_utf8_lossy(&output.stderr);
    match output.status.code() {
        Some(0) => assert_eq!(trail(path).end, Some(End::Exited(0))),
        Some(3) => {
            assert!(!message.contains("recorded 0"), "{message}");
            assert!(fs::read(path.join(FILE)).is_ok_and(|after| after == before));
        }
        _ => panic!("{output:?}"),
    }
}

#[test]
fn two_recordings_do_not_share_a_file() {
    let directory = directory();
    let running = Running::known_pages();
    let recording = Recording::start(directory.path(), &["-p", &running.pid()]);
    recording.wait_for(1);
    let second = run(directory.path(), &["record", "--", "true"]);
    assert!(error_line(&second, 2).contains("another recording"));
    recording.signal(Signal::INT);
    assert_eq!(recording.wait().status.code(), Some(0));
}
