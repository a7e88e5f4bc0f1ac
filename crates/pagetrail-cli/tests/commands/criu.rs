//! The commands that speak with CRIU, without CRIU: a client of the page server, programs that are
//! called `criu` and are not it, and what is said of all that cannot be done. CRIU itself comes in
//! `cargo xtask restore`.

#![allow(clippy::print_stdout, reason = "tests print what they did")]

#[path = "../../../pagetrail-checkpoint/tests/common/criu.rs"]
mod client;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::common::running::Running;
use crate::common::{error_line, pagetrail, run};
use client::{Client, Memory, PAGE, Page, process};
use serde_json::Value;

/// A page server for one connection, and a connection to it.
fn serve(directory: &Path, more: &[&str]) -> (Running, TcpStream) {
    let mut arguments = vec![
        "page-server",
        "--once",
        "--listen",
        "127.0.0.1:0",
        "--store",
    ];
    arguments.extend(["store", "--json"]);
    arguments.extend(more);
    let mut command = pagetrail(directory, &arguments);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut server = Running(command.spawn().unwrap());
    let mut line = String::new();
    let mut said = BufReader::new(server.0.stderr.take().unwrap());
    said.read_line(&mut line).unwrap();
    let address = line.trim().strip_prefix("pagetrail: listening at ");
    let address = address.unwrap_or_else(|| panic!("{line}"));
    let stream = TcpStream::connect(address).unwrap();
    server.0.stderr = Some(said.into_inner());
    (server, stream)
}

fn end(mut server: Running) -> (i32, String, String) {
    let (mut out, mut err) = (String::new(), String::new());
    server
        .0
        .stdout
        .take()
        .unwrap()
        .read_to_string(&mut out)
        .unwrap();
    server
        .0
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut err)
        .unwrap();
    (server.0.wait().unwrap().code().unwrap(), out, err)
}

fn memory() -> Memory {
    let mut memory = Memory::default();
    memory.change(&mut fastrand::Rng::with_seed(7));
    let page = Page {
        bytes: vec![7; PAGE as usize],
        lazy: true,
        dirty: true,
    };
    let pages = memory.spaces.entry(process(77)).or_default();
    pages.insert(9, page);
    memory
}

fn dump(directory: &Path) -> Memory {
    let mut memory = memory();
    let (server, stream) = serve(directory, &[]);
    let mut client = Client {
        stream,
        long: false,
    };
    assert_eq!(client.dump(&mut memory).unwrap(), 0);
    drop(client);
    let (code, out, _) = end(server);
    assert_eq!(code, 0);
    let taken: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(
        (&taken["by_criu"], &taken["number"]),
        (&true.into(), &1.into())
    );
    memory
}

#[test]
fn dumps_come_and_go_over_tcp() {
    let scratch = tempfile::tempdir().unwrap();
    let directory = scratch.path();
    let memory = dump(directory);
    for (name, lazy) in [("full", false), ("lazy", true)] {
        let mut arguments = vec!["export", "store", "--criu", name];
        arguments.extend(lazy.then_some("--lazy"));
        let output = run(directory, &arguments);
        assert!(output.status.success(), "{output:?}");
        memory.check_files(&directory.join(name), lazy);
        let mode = fs::metadata(directory.join(name)).unwrap().permissions();
        assert_eq!(mode.mode() & 0o777, 0o700);
        let line = error_line(&run(directory, &arguments), 2);
        assert!(line.contains("File exists"), "{line}");
    }
    let (server, stream) = serve(directory, &["--at", "1"]);
    let mut client = Client { stream, long: true };
    let found = client.get(77, 9 * PAGE, 1).unwrap();
    assert!(found == vec![7; PAGE as usize]);
    assert_eq!(client.close().unwrap(), 0);
    drop(client);
    let (code, out, _) = end(server);
    let served: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(code, 0);
    assert_eq!(
        (&served["served"], &served["pages"]),
        (&1.into(), &1.into())
    );

    let log = run(directory, &["log", "store"]);
    let log = String::from_utf8(log.stdout).unwrap();
    assert!(log.contains("CRIU: process 4096, process 77"), "{log}");
    assert!(run(directory, &["verify", "store"]).status.success());
    let show = run(directory, &["show", "store"]);
    assert!(show.status.success(), "{show:?}");
    for refused in [["--raw", "raw"], ["--core", "core"]] {
        let output = run(directory, &[&["export", "store"][..], &refused].concat());
        let line = error_line(&output, 2);
        assert!(line.contains("process"), "{line}");
        assert!(!directory.join(refused[1]).exists());
    }
}

#[test]
fn what_is_not_criu_is_refused_in_a_line() {
    let scratch = tempfile::tempdir().unwrap();
    let directory = scratch.path();
    for wrong in [&b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"[..], &[0; 64]] {
        let (server, mut stream) = serve(directory, &[]);
        let _ = stream.write_all(wrong);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        assert!(answer.is_empty());
        let (code, out, err) = end(server);
        assert_eq!((code, out.as_str()), (2, ""));
        assert!(err.contains("not as CRIU sends it"), "{err}");
        assert_eq!(err.lines().count(), 1, "{err}");
    }
    let line = error_line(
        &run(directory, &["page-server", "--store", "none", "--at", "3"]),
        2,
    );
    assert!(line.contains("not a checkpoint store"), "{line}");
    assert!(!directory.join("none").exists());
}

/// A program that is called `criu`.
fn pretend(directory: &Path, script: &str) {
    let path = directory.join("criu");
    fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
}

fn with_criu(directory: &Path, arguments: &[&str]) -> Output {
    let mut command = pagetrail(directory, arguments);
    let path = std::env::var("PATH").unwrap();
    command.env("PATH", format!("{}:{path}", directory.display()));
    command.output().unwrap()
}

fn sleeper(own_session: bool) -> Running {
    let mut command = Command::new(if own_session { "setsid" } else { "sleep" });
    command.args(own_session.then_some("sleep")).arg("1000");
    let child = command.stdin(Stdio::null()).spawn().unwrap();
    let pid = child.id();
    let name = || fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    while name().trim() != "sleep" {
        std::thread::yield_now();
    }
    Running(child)
}

#[test]
fn a_criu_that_cannot_is_named() {
    let scratch = tempfile::tempdir().unwrap();
    let directory = scratch.path();
    let sleeping = sleeper(true);
    let pid = sleeping.pid();
    let take = ["checkpoint", "--restorable", "-p", &pid, "--store", "made"];
    for (script, reason) in [
        (
            "echo Version: 3.17.1",
            "is CRIU 3.17; it must be 4.1 or newer",
        ),
        ("echo hello", "does not say its version"),
    ] {
        pretend(directory, script);
        let line = error_line(&with_criu(directory, &take), 3);
        assert!(line.contains(reason), "{line}");
    }
    assert!(!directory.join("made").exists());
    pretend(directory, "echo Version: 4.1.1");
    if !rustix::process::geteuid().is_root() {
        let line = error_line(&with_criu(directory, &take), 3);
        assert!(line.contains("needs root"), "{line}");
        return pagetrail_skips::not_here("CRIU needs root");
    }
    // One that says why it cannot.
    let fails = "if [ \"$1\" = --version ]; then echo Version: 4.1.1; exit; fi\n\
        echo '(00.1) Error (criu/x.c:1): rlimit: Cannot set RLIMIT_NOFILE' > \"$3/$1.log\"\n\
        echo '(00.1) Error (criu/x.c:7): a socket that nobody knows' >> \"$3/$1.log\"\n\
        exit 1";
    pretend(directory, fails);
    let line = error_line(&with_criu(directory, &take), 2);
    let reason =
        format!("CRIU cannot save process {pid}, which goes on: a socket that nobody knows");
    assert!(line.contains(&reason), "{line}");
    let numbers = run(directory, &["log", "made"]);
    assert_eq!(numbers.stdout, b"no checkpoint\n");

    let inside = sleeper(false);
    let other = inside.pid();
    let line = error_line(
        &with_criu(
            directory,
            &[
                "checkpoint",
                "--restorable",
                "-p",
                &other,
                "--store",
                "made",
            ],
        ),
        2,
    );
    assert!(line.contains("belongs to the session of "), "{line}");

    // What no process can be started from.
    dump(directory);
    let line = error_line(&with_criu(directory, &["restore", "store"]), 2);
    assert!(line.contains("has the pages alone"), "{line}");
    let plain = run(directory, &["checkpoint", "-p", &pid, "--store", "plain"]);
    if plain.status.success() {
        let line = error_line(&with_criu(directory, &["restore", "plain"]), 2);
        assert!(line.contains("--restorable"), "{line}");
        let line = error_line(&run(directory, &["export", "plain", "--criu", "x"]), 2);
        assert!(line.contains("was not made by CRIU"), "{line}");
    } else {
        println!("no checkpoint without CRIU here: {plain:?}");
    }
}
