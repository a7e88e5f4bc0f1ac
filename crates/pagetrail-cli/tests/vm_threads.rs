//! Compares programs with threads as guests of KVM with native runs: their output, how they end,
//! and which of their writes are in a recording.
//!
//! Needs a KVM that runs guests. The machine with nested virtualization that `cargo xtask test`
//! starts has one.

#![allow(clippy::print_stderr, reason = "a test that cannot run says so")]

mod common;

use std::env;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Command, Stdio};

use common::ending::{described, ended};
use common::guest::{compiled, no_guest, same};
use common::{address, number, pagetrail, report};
use serde_json::Value;

/// The path of a program that `cargo xtask test` has built for these tests, since building it in a
/// guest is slow.
fn built(name: &str) -> Option<String> {
    let directory = env::var_os("PAGETRAIL_GUEST_PROGRAMS")?;
    let program = Path::new(&directory).join(name);
    program.exists().then(|| program.display().to_string())
}

/// The C program with threads: the built one of this name, or one compiled with these flags.
fn threads(directory: &Path, name: &str, flags: &[&str]) -> String {
    built(name).unwrap_or_else(|| {
        let program = compiled(directory, "vm_threads.c", flags);
        program.display().to_string()
    })
}

/// Records a case of the C program with threads, and checks its exit status.
#[track_caller]
fn recorded(directory: &Path, program: &str, case: &str, code: i32) {
    let arguments = ["record", "--vm", "--interval", "20ms", "--", program, case];
    let output = ended(&mut pagetrail(directory, &arguments));
    let text = described("recorded", &output);
    assert_eq!(output.status.code(), Some(code), "{case}\n{text}");
}

#[test]
fn threads_do_what_they_do_natively() {
    if no_guest() {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let program = threads(directory.path(), "vm_threads", &["-pthread"]);
    for case in [
        "work",
        "many",
        "signals",
        "cancel",
        "leave",
        "all",
        "children",
        "disturbed",
        "execute",
        "end",
        "crash",
    ] {
        same(directory.path(), &[&program, case]);
    }
}

#[test]
fn what_is_unmapped_or_protected_is_so_for_all_threads() {
    if no_guest() {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let flags = ["-pthread", "-static"];
    let program = threads(directory.path(), "vm_threads_static", &flags);
    same(directory.path(), &[&program, "memory"]);
}

#[test]
fn exceptions_and_futures_work() {
    if no_guest() {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let program = built("vm_threads_cpp").unwrap_or_else(|| {
        let program = compiled(directory.path(), "vm_threads.cpp", &["-pthread"]);
        program.display().to_string()
    });
    same(directory.path(), &[&program]);
}

#[test]
fn a_go_program_runs() {
    if no_guest() {
        return;
    }
    match built("vm_threads_go") {
        Some(program) => same(Path::new("/"), &[&program]),
        None => eprintln!("not here: a program in Go, which only `cargo xtask test` builds"),
    }
}

#[test]
fn a_collector_that_counts_on_faults_runs() {
    if no_guest() {
        return;
    }
    let Some(program) = built("gcbench") else {
        pagetrail_skips::not_here("a program on libgc, which only `cargo xtask test` builds");
        return;
    };
    let checksum = |mut command: Command| {
        // Not by soft-dirty bits.
        command.env("GC_USE_GETWRITEWATCH", "0");
        let output = ended(command.args([&*program, "0", "on"]));
        assert!(output.status.success(), "{}", described("it", &output));
        let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        assert_eq!(report["provider"], "mprotect", "{report}");
        report["checksum"].clone()
    };
    let guest = pagetrail(Path::new("/"), &["vm", "run", "--"]);
    assert_eq!(checksum(guest), checksum(Command::new("env")));
}

/// Each of four threads writes 500 untouched pages once.
#[test]
fn a_recording_has_what_every_thread_wrote_and_no_more() {
    if no_guest() {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let program = threads(directory.path(), "vm_threads", &["-pthread"]);
    recorded(directory.path(), &program, "written", 0);
    let report = report(directory.path(), "pagetrail.trail");
    let mappings = report["mappings"].as_array().expect("mappings");
    for thread in 0..4u64 {
        let base = 0x1000_0000_0000 + (thread << 30);
        let written = mappings
            .iter()
            .find(|mapping| address(&mapping["start"]) == base);
        let written = written.unwrap_or_else(|| panic!("{report}"));
        assert_eq!(number(&written["distinct_pages"]), 500, "{written}");
    }
}

/// A recording ends with its program also while other threads are busy: the final round waits for
/// none of them, and the exit status is the program's.
#[test]
fn recordings_end_as_their_programs_do() {
    if no_guest() {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let program = threads(directory.path(), "vm_threads", &["-pthread"]);
    for (case, code) in [
        ("end", 33),
        ("execute", 21),
        ("leave", 7),
        ("crash", 128 + 11),
    ] {
        recorded(directory.path(), &program, case, code);
        let report = report(directory.path(), "pagetrail.trail");
        assert_eq!(report["technique"], "kvm", "{report}");
    }
}

#[test]
fn threads_and_signals_of_python_work() {
    if no_guest() {
        return;
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vm_threads.py");
    let script = script.to_str().expect("UTF-8");
    same(Path::new("/"), &["/usr/bin/python3", script]);
}

#[test]
fn redis_serves() {
    if no_guest() {
        return;
    }
    if Command::new("redis-server")
        .arg("--version")
        .output()
        .is_err()
    {
        pagetrail_skips::not_here("redis-server");
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let socket = directory.path().join("socket");
    let socket = socket.to_str().expect("UTF-8");
    let server = [
        "redis-server",
        "--port",
        "0",
        "--unixsocket",
        socket,
        "--save",
        "",
        "--appendonly",
        "yes",
    ];
    let mut guest = pagetrail(directory.path(), &["vm", "run", "--"]);
    let guest = guest.args(server).stdout(Stdio::piped());
    let mut guest = guest.spawn().expect("it starts");
    let mut output = BufReader::new(guest.stdout.take().expect("a pipe"));
    let mut line = String::new();
    while !line.contains("eady to accept connections") {
        line.clear();
        assert_ne!(
            output.read_line(&mut line).expect("its output"),
            0,
            "{line}"
        );
    }
    let mut load = Command::new("redis-benchmark");
    let load = load.args([
        "-s",
        socket,
        "-q",
        "-n",
        "300",
        "-c",
        "10",
        "-t",
        "set,get,lpush,incr",
    ]);
    let load = ended(load);
    assert!(
        load.status.success(),
        "{}",
        described("redis-benchmark", &load)
    );
    let ask = |words: &[&str]| {
        let mut client = Command::new("redis-cli");
        let answer = ended(client.args(["-s", socket]).args(words));
        String::from_utf8(answer.stdout).expect("UTF-8")
    };
    ask(&["set", "key", "value"]);
    assert_eq!(ask(&["get", "key"]), "value\n");
    // By a thread of its own.
    assert_eq!(ask(&["unlink", "key"]), "1\n");
    assert_eq!(ask(&["flushall", "async"]), "OK\n");
    ask(&["shutdown", "nosave"]);
    let mut rest = String::new();
    output.read_to_string(&mut rest).expect("its output");
    let ended = guest.wait().expect("its end");
    assert!(ended.success(), "{ended:?}: {rest}");
}
