//! Programs that `pagetrail record` starts run as they would without: set-user-ID ones too, and
//! while pagetrail is stopped.

#![allow(clippy::print_stderr, reason = "a test that cannot run says so")]

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::common::pagetrail;
use crate::common::running::Running;
use rustix::fs::{StatVfsMountFlags, statvfs};
use rustix::process::{Pid, Signal, geteuid, kill_process};

const TIMEOUT: Duration = Duration::from_secs(120);
const NOBODY: u32 = 65534;

fn await_that(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !is_so() {
        assert!(Instant::now() < deadline, "not within {TIMEOUT:?}: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A set-user-ID program that prints its effective user.
fn set_user_id(directory: &Path) -> Option<String> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/victims/untraced.c");
    let program = directory.join("privileged");
    let mut compiler = Command::new("cc");
    let compiler = compiler.args(["-O1", "-pthread", "-o"]).arg(&program);
    let status = compiler.arg(source).status();
    assert!(status.is_ok_and(|status| status.success()), "cc failed");
    fs::set_permissions(&program, Permissions::from_mode(0o4755)).expect("it is ours");
    let of = statvfs(directory).expect("its file system");
    (!of.f_flag.contains(StatVfsMountFlags::NOSUID)).then(|| program.display().to_string())
}

fn as_nobody(directory: &Path, arguments: &[&str]) -> Output {
    // Where nobody can reach it.
    let command = directory.join("pagetrail");
    let mut command = Command::new(command);
    command.current_dir(directory).args(arguments);
    command.stdin(Stdio::null()).uid(NOBODY).gid(NOBODY);
    command.output().expect("it starts")
}

#[test]
fn programs_keep_the_privileges_that_they_get() {
    if !geteuid().is_root() {
        pagetrail_skips::not_here("set-user-ID programs for somebody else need root");
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path();
    fs::set_permissions(path, Permissions::from_mode(0o777)).expect("it is ours");
    fs::copy(env!("CARGO_BIN_EXE_pagetrail"), path.join("pagetrail")).expect("a copy");
    let Some(program) = set_user_id(path) else {
        pagetrail_skips::not_here(format!("{} is mounted nosuid", path.display()));
        return;
    };
    let record = ["record", "--technique", "compare", "--interval", "10ms"];
    let run = |rest: &[&str]| as_nobody(path, &[&record[..], rest].concat());
    let become_it = format!("exec {program} print");
    let start_it = format!("{program} print; exit 3");
    for (words, code) in [
        // The program cannot be tracked, so it runs untracked.
        (&["--", &program, "print"][..], 2),
        (&["--", "sh", "-c", &start_it], 3),
    ] {
        let output = run(words);
        assert_eq!(output.stdout, b"euid 0\n", "{output:?}");
        assert_eq!(output.status.code(), Some(code), "{output:?}");
    }
    let refused = run(&["--", &program, "print"]);
    let message = String::from_utf8_lossy(&refused.stderr);
    assert!(message.contains("set-user-ID"), "{message}");
    // It ends before the next round or after it, so its recording has one more error or not.
    let output = run(&["--", "sh", "-c", &become_it]);
    assert_eq!(output.stdout, b"euid 0\n", "{output:?}");
    // Watched by root it keeps them, too.
    let output = pagetrail(path, &record)
        .args(["--", &program, "print"])
        .output();
    let output = output.expect("it starts");
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(output.stdout, b"euid 0\n", "{output:?}");
}

#[test]
fn a_stopped_pagetrail_stops_no_program() {
    let directory = tempfile::tempdir().expect("a directory");
    let count = directory.path().join("count");
    // Each child's end is a signal, which a tracer would have to pass on.
    let script = "trap 'exit 7' TERM; i=0; while :; do i=$((i+1)); true | cat; echo $i > next || exit; \
                  mv next count; done";
    let arguments = ["record", "--interval", "5ms", "--", "sh", "-c", script];
    let mut command = pagetrail(directory.path(), &arguments);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    // Whatever becomes of the test, the script ends with the directory.
    let mut recording = Running(command.spawn().expect("it starts"));
    let counted = || {
        let text = fs::read_to_string(&count).unwrap_or_default();
        text.trim().parse::<u64>().unwrap_or(0)
    };
    await_that("it counts", || counted() >= 3);
    let pid = Pid::from_child(&recording.0);
    let send = |signal| kill_process(pid, signal).expect("it runs");
    let is_stopped = || {
        let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
        stat.is_ok_and(|stat| stat.rsplit(')').next().is_some_and(|s| s.starts_with(" T")))
    };
    send(Signal::STOP);
    await_that("pagetrail is stopped", is_stopped);
    let before = counted();
    await_that("it counts on", || counted() >= before + 5);
    assert!(is_stopped());
    send(Signal::CONT);
    send(Signal::TERM);
    let mut status = None;
    await_that("its end", || {
        status = recording.0.try_wait().expect("our child");
        status.is_some()
    });
    assert_eq!(status.and_then(|status| status.code()), Some(7));
}
