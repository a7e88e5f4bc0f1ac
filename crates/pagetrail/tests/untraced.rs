//! Programs that a watch starts cannot notice: they have no tracer, unless they are held at their
//! end.

#![allow(clippy::print_stdout, reason = "tests print what they did")]

mod support;

use pagetrail::Technique::{Adaptive, Compare, PagemapScan};
use pagetrail::{AtExit, Ended, State, Target, Technique, Watch};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use support::{has, row, victim_program, working};

const ALL: &[Technique] = &[PagemapScan, Adaptive, Compare];
const TIMEOUT: Duration = Duration::from_secs(120);

/// How a program ends while its rounds are collected all the time.
fn end(mut command: Command, technique: Technique, at_exit: AtExit) -> Option<Ended> {
    command.stdin(Stdio::null());
    let watch = Watch::builder().target(Target::command(command));
    let watch = watch.at_exit(at_exit).technique(technique);
    let mut watch = watch.start().unwrap();
    let deadline = Instant::now() + TIMEOUT;
    while Instant::now() < deadline {
        match watch.wait(Duration::from_millis(5)) {
            State::Ended(ended) => return ended,
            State::Exiting => watch.release_exit(),
            _ => match watch.collect() {
                Ok(round) => round.commit(),
                Err(pagetrail::Error::Gone { .. }) => {}
                Err(error) => panic!("{technique}: {error}"),
            },
        }
    }
    panic!("{technique}: no end:\n{}", support::describe(watch.pid()));
}

/// Whether the program ends successfully without a watch here; otherwise the test cannot judge it.
fn ends_well_here(program: &Path, what: &str) -> bool {
    let output = Command::new(program).stdin(Stdio::null()).output().unwrap();
    if !output.status.success() {
        row(what, "any", "absent", &format!("alone: {}", output.status));
    }
    output.status.success()
}

#[test]
fn a_program_has_no_tracer() {
    let what = "command: no tracer";
    let Some(program) = victim_program("untraced") else {
        return;
    };
    if !ends_well_here(&program, what) {
        return;
    }
    for technique in working(what, ALL) {
        let ended = end(Command::new(&program), technique, AtExit::Run);
        assert_eq!(ended, Some(Ended::Exited(0)), "{technique}");
        // A hold at the end is noticed, which its documentation says.
        let ended = end(Command::new(&program), technique, AtExit::Hold);
        assert_eq!(ended, Some(Ended::Exited(10)), "{technique}");
        row(what, technique.name(), "works", "");
    }
}

/// A program with LeakSanitizer, which stops all threads by ptrace(2) at its end.
fn with_leak_sanitizer() -> Option<PathBuf> {
    let here = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let own = std::process::id();
    let (source, program) = (
        here.join(format!("leaks-{own}.c")),
        here.join(format!("leaks-{own}")),
    );
    let text = "#include <stdlib.h>\nint main(void) { free(malloc(10)); return 0; }\n";
    fs::write(&source, text).unwrap();
    let mut compiler = Command::new("cc");
    let compiler = compiler.args(["-fsanitize=address", "-o"]);
    let compiled = compiler.args([&program, &source]).output();
    fs::remove_file(&source).unwrap();
    let compiled = compiled.is_ok_and(|output| output.status.success());
    compiled.then_some(program)
}

#[test]
fn leak_sanitizers_work() {
    let what = "command: LeakSanitizer";
    let program = has("cc").then(with_leak_sanitizer).flatten();
    let Some(program) = program else {
        row(what, "any", "absent", "cc -fsanitize=address (libasan)");
        return;
    };
    if ends_well_here(&program, what) {
        for technique in working(what, ALL) {
            let ended = end(Command::new(&program), technique, AtExit::Run);
            assert_eq!(ended, Some(Ended::Exited(0)), "{technique}");
            row(what, technique.name(), "works", "");
        }
    }
    fs::remove_file(&program).unwrap();
}
