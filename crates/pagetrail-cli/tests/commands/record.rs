//! `pagetrail record` on real programs: what is in the file, and which exit code comes of it.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::common::recording::{
    FILE, Recording, assert_known_pages, check_schema, directory, known_pages, trail, wait_until,
};
use crate::common::running::Running;
use crate::common::{error_line, report, run};
use pagetrail_trail::End;
use rustix::process::Signal;

/// Leaves a row for the table of what works where: `absent` for a reason, or else `works`.
fn note_row(technique: &str, reason: Option<&str>) {
    let Some(rows) = std::env::var_os("PAGETRAIL_ROWS").filter(|_| technique != "auto") else {
        return;
    };
    let row = serde_json::json!({
        "where": std::env::var("PAGETRAIL_WHERE").unwrap_or("this machine".into()),
        "subject": "record -- CMD",
        "technique": technique,
        "status": if reason.is_some() { "absent" } else { "works" },
        "reason": reason,
    });
    let file = Path::new(&rows).join(format!("record-{technique}"));
    fs::write(file, format!("{row}\n")).expect("a row");
}

#[test]
fn a_program_is_recorded_from_its_start_to_its_end() {
    let directory = directory();
    let program = known_pages().to_str().expect("UTF-8");
    for technique in [
        "auto",
        "pagemap-scan",
        "userfaultfd",
        "soft-dirty",
        "compare",
        "none",
    ] {
        let arguments = [
            "record",
            "--technique",
            technique,
            "--interval",
            "10ms",
            "--",
            program,
            // Half a second at least: some rounds, however busy the machine is.
            "100",
        ];
        let output = run(directory.path(), &arguments);
        if output.status.code() == Some(3) {
            note_row(technique, Some(&error_line(&output, 3)));
            continue;
        }
        assert_eq!(output.status.code(), Some(0), "{technique}: {output:?}");
        assert_eq!(output.stdout, b"ready\n", "the output is the program's");
        let report = report(directory.path(), FILE);
        assert_known_pages(&report);
        assert_eq!(report["command"][1], "100");
        assert_eq!(report["end"]["kind"], "exited");
        assert!(
            report["rounds"].as_array().map_or(0, Vec::len) > 1,
            "{technique}"
        );
        note_row(technique, None);
    }
}

#[test]
fn the_shortest_program_leaves_a_round() {
    let directory = directory();
    let output = run(directory.path(), &["record", "--last-round", "--", "true"]);
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(message.starts_with("pagetrail: recorded ") && message.lines().count() == 1);
    assert!(
        message.ends_with("look at it with: pagetrail report\n"),
        "{message}"
    );
    assert!(!message.contains("--last-round"), "nothing is missing");
    let report = report(directory.path(), FILE);
    assert!(!check_schema(&report).is_empty());
}

#[test]
fn what_is_missing_at_the_end_is_said() {
    let directory = directory();
    let record = |interval, script| {
        let arguments = ["record", "--interval", interval, "--", "sh", "-c", script];
        let output = run(directory.path(), &arguments);
        assert_eq!(output.status.code(), Some(3), "{output:?}");
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(message.lines().count(), 1, "{message}");
        message
    };
    // Its exit status is passed on though there is no round, and no file.
    let message = record("1h", "exit 3");
    assert!(message.contains("nothing was recorded"), "{message}");
    assert!(message.contains("(--last-round records it)"), "{message}");
    assert!(!directory.path().join(FILE).exists());
    let message = record("1ms", "sleep 0.3; exit 3");
    assert!(message.contains("without the program's last "), "{message}");
    assert!(message.contains("(--last-round records them)"), "{message}");
    assert!(!trail(directory.path()).rounds.is_empty());
}

#[test]
fn the_exit_status_is_the_programs() {
    let directory = directory();
    for (script, code, end) in [
        ("exit 3", 3, End::Exited(3)),
        ("kill -9 $$", 137, End::Killed(9)),
        ("kill -TERM $$", 143, End::Killed(15)),
    ] {
        let long = format!("sleep 0.3; {script}");
        for arguments in [
            ["--last-round", "--", "sh", "-c", script],
            ["--interval=1ms", "--", "sh", "-c", &long],
        ] {
            let output = run(directory.path(), &[&["record"], &arguments[..]].concat());
            assert_eq!(output.status.code(), Some(code), "{output:?}");
            let trail = trail(directory.path());
            assert_eq!(trail.end.as_ref(), Some(&end));
            assert!(!trail.rounds.is_empty());
        }
    }
}

#[test]
fn a_process_is_followed_to_its_end() {
    let directory = directory();
    let running = Running::known_pages();
    let recording = Recording::start(directory.path(), &["-p", &running.pid()]);
    recording.wait_for(4);
    drop(running);
    let output = recording.wait();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(trail(directory.path()).end, Some(End::Gone));
    assert_known_pages(&report(directory.path(), FILE));
}

#[test]
fn an_interrupt_ends_a_recording_and_keeps_it() {
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        let directory = directory();
        let mut running = Running::known_pages();
        let recording = Recording::start(directory.path(), &["-p", &running.pid()]);
        recording.wait_for(3);
        recording.signal(signal);
        let output = recording.wait();
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        assert!(running.is_alive(), "the process is left alone");
        assert_eq!(trail(directory.path()).end, Some(End::Detached));
        assert_known_pages(&report(directory.path(), FILE));
    }
}

#[test]
fn signals_are_the_programs_business() {
    let directory = directory();
    let script = "trap 'exit 7' TERM; : > ready; while :; do sleep 0.02; done";
    let recording = Recording::start(directory.path(), &["--", "sh", "-c", script]);
    let ready = directory.path().join("ready");
    wait_until("the program is ready", || ready.exists());
    recording.wait_for(1);
    let before = trail(directory.path()).rounds.len();
    recording.signal(Signal::INT);
    recording.wait_for(before + 3);
    recording.signal(Signal::TERM);
    let output = recording.wait();
    assert_eq!(output.status.code(), Some(7), "{output:?}");
    assert_eq!(trail(directory.path()).end, Some(End::Exited(7)));
    let message = String::from_utf8_lossy(&output.stderr);
    // Its children: recorded, or, on a busy machine, counted because none lived at a round.
    assert!(message.contains(" processes"), "{message}");
}

/// Without descriptors nothing can be recorded, and the reason is said: the process is there.
#[test]
fn few_descriptors_are_no_missing_process() {
    let directory = directory();
    let running = Running::known_pages();
    let mut recorded = 0;
    for limit in [4, 5, 6, 8, 10, 12, 64] {
        let script = format!("ulimit -n {limit}; exec \"$0\" record -p \"$1\" --rounds 1");
        let mut shell = Command::new("sh");
        shell.current_dir(directory.path()).stdin(Stdio::null());
        shell.args([
            "-c",
            &script,
            env!("CARGO_BIN_EXE_pagetrail"),
            &running.pid(),
        ]);
        let output = shell.output().expect("a shell");
        let message = String::from_utf8_lossy(&output.stderr);
        match output.status.code() {
            Some(0) => recorded += 1,
            Some(2 | 3) => assert!(
                message.contains("Too many open files"),
                "{limit}: {message}"
            ),
            _ => panic!("{limit}: {output:?}"),
        }
    }
    assert!(recorded > 0, "64 are enough");
}

#[test]
fn limits_end_a_recording() {
    let directory = directory();
    let running = Running::known_pages();
    let pid = running.pid();
    let arguments = ["record", "-p", &pid, "--rounds", "3", "--interval", "10ms"];
    let output = run(directory.path(), &arguments);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(trail(directory.path()).rounds.len(), 3);
    let arguments = [
        "record",
        "-p",
        &pid,
        "--duration",
        "50ms",
        "--interval",
        "1h",
    ];
    let output = run(directory.path(), &arguments);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let trail = trail(directory.path());
    assert_eq!((trail.rounds.len(), trail.end), (1, Some(End::Detached)));
    assert!(trail.rounds[0].duration_ns >= 49_000_000);
}

#[test]
fn a_program_runs_on_behind_a_limit() {
    let directory = directory();
    // Far longer than a round, on a busy machine, too.
    let script = "sleep 2; : > done; exit 4";
    let arguments = [
        "record",
        "--interval",
        "10ms",
        "--rounds",
        "1",
        "--",
        "sh",
        "-c",
        script,
    ];
    let output = run(directory.path(), &arguments);
    assert_eq!(output.status.code(), Some(4), "{output:?}");
    assert!(directory.path().join("done").exists());
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(message.contains("runs on untracked"), "{message}");
    assert_eq!(trail(directory.path()).end, Some(End::Detached));
}
