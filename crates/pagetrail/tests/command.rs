//! Programs that a watch starts are followed through `execve` to their end, with their signals,
//! streams and exit status.

#![allow(clippy::print_stdout, reason = "tests print what they did")]

mod support;

use pagetrail::Technique::{self, Compare, PagemapScan, Userfaultfd};
use pagetrail::{AtExit, Ended, Event, State, Target, Watch};
use std::fs::File;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use support::{row, times, victim_program, working};

const ALL: &[Technique] = &[PagemapScan, Userfaultfd, Compare];

/// The observations of a program's run.
#[derive(Debug, Default)]
struct Seen {
    ended: Option<Ended>,
    execs: u32,
    rounds: u32,
    last_pages: u64,
    /// The regions for which the kernel had no memory or address space (`ENOMEM`), as of the last
    /// round.
    refused: Vec<String>,
}

/// Follows a command to its end.
fn follow(command: Command, technique: Technique, interval: Duration) -> Seen {
    follow_held(command, technique, interval, AtExit::Run)
}

/// Holds every other program at its end.
fn alternate(number: u32) -> AtExit {
    match number % 2 {
        0 => AtExit::Hold,
        _ => AtExit::Run,
    }
}

/// Follows a program like [`follow`], and sets what happens at its end.
fn follow_held(
    command: Command,
    technique: Technique,
    interval: Duration,
    at_exit: AtExit,
) -> Seen {
    let started = Watch::builder()
        .target(Target::command(command))
        .at_exit(at_exit)
        .technique(technique)
        .start();
    let mut watch = started.unwrap();
    let mut seen = Seen::default();
    let deadline = Instant::now() + Duration::from_secs(120);
    loop {
        assert!(
            Instant::now() < deadline,
            "{watch:?} {seen:?}\n{}",
            support::describe(watch.pid())
        );
        let state = watch.wait(interval);
        if let State::Ended(ended) = state {
            seen.ended = ended;
            return seen;
        }
        match watch.collect() {
            Ok(round) => {
                let execs = round
                    .events()
                    .iter()
                    .filter(|e| matches!(e, Event::Exec { .. }));
                seen.execs += execs.count() as u32;
                seen.last_pages = round.dirty().page_count();
                let untracked = round.untracked().iter().map(ToString::to_string);
                seen.refused = untracked
                    .filter(|line| line.contains("(os error 12)"))
                    .collect();
                seen.rounds += 1;
                round.commit();
            }
            // It was killed meanwhile: the next wait returns its status.
            Err(pagetrail::Error::Gone { .. }) => {}
            Err(error) => panic!("{technique}: {error}"),
        }
        if state == State::Exiting {
            watch.release_exit();
        }
    }
}

fn shell(script: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", script]).stdin(Stdio::null());
    command
}

#[test]
fn exit_codes_and_signals_pass_through() {
    for technique in working("command: status", ALL) {
        for n in 0..times(20, 200) {
            let interval = Duration::from_millis(u64::from(n % 5));
            let ended =
                |script| follow_held(shell(script), technique, interval, alternate(n)).ended;
            assert_eq!(ended("exit 7"), Some(Ended::Exited(7)));
            assert_eq!(ended("kill -TERM $$; sleep 60"), Some(Ended::Killed(15)));
            assert_eq!(ended("kill -KILL $$"), Some(Ended::Killed(9)));
        }
        row("command: status", technique.name(), "works", "");
    }
}

#[test]
fn exec_chains_are_followed() {
    for technique in working("command: exec", ALL) {
        let mut seen_execs = 0;
        for n in 0..times(20, 200) {
            let chain = shell("exec env sh -c 'exec env true'");
            let seen = follow_held(chain, technique, Duration::ZERO, alternate(n));
            assert_eq!(seen.ended, Some(Ended::Exited(0)), "{technique}");
            seen_execs += seen.execs;
        }
        // With pauses, so that each image appears in a round.
        let script = "sleep 0.2; exec sh -c 'sleep 0.2; exec sh -c \"sleep 0.2; exit 3\"'";
        for at_exit in [AtExit::Hold, AtExit::Run] {
            let interval = Duration::from_millis(20);
            let seen = follow_held(shell(script), technique, interval, at_exit);
            println!("{technique}: {seen:?}, {seen_execs} in the quick chains");
            assert_eq!(seen.ended, Some(Ended::Exited(3)));
            assert_eq!(seen.execs, 2);
        }
        // Without pauses: the watch reads one program while the target executes the next.
        for n in 0..times(20, 200) {
            let chain = shell("exec env env env env env sleep 0.05");
            let seen = follow_held(chain, technique, Duration::ZERO, alternate(n));
            assert_eq!(seen.ended, Some(Ended::Exited(0)), "{technique}");
            assert_eq!(seen.refused, [""; 0], "{technique}");
        }
        row("command: exec", technique.name(), "works", "");
    }
}

#[test]
fn exec_by_the_leader_and_by_another_thread() {
    let Some(program) = victim_program("execer") else {
        return;
    };
    for technique in working("command: execer", ALL) {
        for how in ["main", "thread"] {
            for at_exit in [AtExit::Hold, AtExit::Run] {
                let mut command = Command::new(&program);
                command.args(["600", how, "20"]).stdin(Stdio::null());
                let interval = Duration::from_millis(3);
                let seen = follow_held(command, technique, interval, at_exit);
                println!("{technique} {how}: {seen:?}");
                assert_eq!(seen.ended, Some(Ended::Exited(20)), "{technique} {how}");
            }
        }
        row("command: execer", technique.name(), "works", "");
    }
}

#[test]
fn a_missing_program_is_reported() {
    for _ in 0..times(100, 1000) {
        let error = Watch::builder()
            .target(Target::command(Command::new("/nonexistent/program")))
            .start()
            .unwrap_err();
        match error {
            pagetrail::Error::Spawn { source, .. } => {
                assert_eq!(source.kind(), std::io::ErrorKind::NotFound);
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn streams_are_those_of_the_command() {
    let dir = std::env::temp_dir();
    let (input, output) = (
        dir.join(format!("pagetrail-in-{}", std::process::id())),
        dir.join(format!("pagetrail-out-{}", std::process::id())),
    );
    let text = "a line\n".repeat(100_000);
    std::fs::write(&input, &text).unwrap();
    for technique in working("command: streams", ALL) {
        let mut command = Command::new("cat");
        command
            .stdin(File::open(&input).unwrap())
            .stdout(File::create(&output).unwrap());
        let seen = follow(command, technique, Duration::from_millis(1));
        assert_eq!(seen.ended, Some(Ended::Exited(0)));
        assert!(std::fs::read_to_string(&output).unwrap() == text);
        row("command: streams", technique.name(), "works", "");
    }
    std::fs::remove_file(input).unwrap();
    std::fs::remove_file(output).unwrap();
}

#[test]
fn the_last_round_has_the_last_writes() {
    let Some(program) = victim_program("lastwords") else {
        return;
    };
    for technique in working("command: last round", ALL) {
        for how in ["main", "exit"] {
            let mut command = Command::new(&program);
            command.args(["600", how]).stdin(Stdio::null());
            // There is only one collect, at the end.
            let seen = follow_held(command, technique, Duration::from_secs(60), AtExit::Hold);
            assert_eq!(seen.ended, Some(Ended::Exited(0)), "{technique}");
            assert!(seen.last_pages >= 500, "{technique}: {seen:?}");
        }
        row("command: last round", technique.name(), "works", "");
    }
}

#[test]
fn stopping_and_continuing_works() {
    for technique in working("command: stop", ALL) {
        // The shell stops itself, and its child continues it.
        let script = "(sleep 0.1; kill -CONT $$) & kill -STOP $$; wait; exit 5";
        for n in 0..times(4, 30) {
            let interval = Duration::from_millis(5);
            let seen = follow_held(shell(script), technique, interval, alternate(n));
            assert_eq!(seen.ended, Some(Ended::Exited(5)), "{technique}");
        }
        row("command: stop", technique.name(), "works", "");
    }
}

#[test]
fn a_running_program_is_followed_through_exec() {
    for technique in working("process: exec", ALL) {
        let mut child = shell("sleep 0.3; exec sh -c 'sleep 0.3; exec sleep 0.3'")
            .spawn()
            .unwrap();
        let target = Target::process(child.id()).unwrap();
        let mut watch = Watch::builder()
            .target(target)
            .technique(technique)
            .start()
            .unwrap();
        let mut execs = 0;
        while let State::Running = watch.wait(Duration::from_millis(20)) {
            match watch.collect() {
                Ok(round) => {
                    execs += round
                        .events()
                        .iter()
                        .filter(|e| matches!(e, Event::Exec { .. }))
                        .count();
                    round.commit();
                }
                Err(pagetrail::Error::Gone { .. }) => break,
                Err(error) => panic!("{technique}: {error}"),
            }
        }
        // The tracker must not have consumed the child's exit status, which is the parent's.
        let status = child.wait().unwrap();
        assert_eq!((status.code(), status.signal()), (Some(0), None));
        assert_eq!(execs, 2, "{technique}");
        row("process: exec", technique.name(), "works", "");
    }
}
