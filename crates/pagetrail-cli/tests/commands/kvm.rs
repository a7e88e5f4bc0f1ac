//! `pagetrail compare` with guests that have a kernel of their own, as its users call it. The guest
//! is a script in the place of QEMU: the same program as in a guest answers, on this machine.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;

use crate::common::{error_line, pagetrail, run};

/// A directory with a kernel that nobody starts, and an engine that is this script.
struct Stage(TempDir);

impl Stage {
    /// Where there is no KVM there is nothing to try.
    fn set(script: &str) -> Option<Self> {
        let kvm = fs::File::options().read(true).write(true).open("/dev/kvm");
        if kvm.is_err() {
            pagetrail_skips::not_here("compare kvm: /dev/kvm cannot be opened");
            return None;
        }
        let stage = Self(tempfile::tempdir().expect("a temporary directory"));
        let mut kernel = vec![0; 0x202];
        kernel.extend(b"HdrS");
        fs::write(stage.path().join("vmlinuz"), kernel).expect("it can be written");
        let engine = stage.path().join("qemu-system-x86_64");
        fs::write(&engine, format!("#!/bin/sh\n{script}\n")).expect("it can be written");
        let executable = fs::Permissions::from_mode(0o755);
        fs::set_permissions(&engine, executable).expect("it is ours");
        Some(stage)
    }

    /// The guest answers as one does, and has this program.
    fn answering(program: &str) -> Option<Self> {
        let own = env!("CARGO_BIN_EXE_pagetrail");
        Self::set(&format!(
            "exec {own} compare --as-guest --timeout 1h -- {program}"
        ))
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn command(&self, arguments: &[&str]) -> Command {
        // Memory that nobody takes, so that this program fits with its symbols.
        let machine = ["compare", "--kernel", "vmlinuz", "--guest-memory", "16G"];
        let mut command = pagetrail(self.path(), &[&machine, arguments].concat());
        let path = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{}:{path}", self.path().display()));
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().expect("it starts")
    }

    fn document(&self, arguments: &[&str]) -> (Value, Option<i32>) {
        let output = self.run(&[&["--json"], arguments].concat());
        let document = serde_json::from_slice(&output.stdout);
        let document = document.unwrap_or_else(|error| panic!("{error}: {output:?}"));
        (document, output.status.code())
    }
}

#[test]
fn a_guest_runs_the_program_and_its_results_are_compared() {
    let Some(stage) = Stage::answering("sh -c 'echo said; exit 3'") else {
        return;
    };
    let arguments = ["kvm", "--runs", "2", "--", "sh", "-c", "echo said; exit 3"];
    let (found, code) = stage.document(&arguments);
    assert_eq!(code, Some(0), "{found}");
    let test = &found["suites"][0]["tests"][0];
    assert_eq!(test["ends"], "exited with code 3");
    let guest = &test["environments"][1];
    assert_eq!(guest["environment"], "kvm");
    assert_eq!(guest["differs"], Value::Null);
    assert!(guest["ratio"]["median"].as_f64() > Some(0.0), "{found}");
    assert!(guest["counts"]["minor_faults"].as_f64() > Some(0.0));
    let note = found["notes"][0].as_str().unwrap_or_default();
    assert!(
        note.starts_with("kvm: Linux ") && note.contains("CPU"),
        "{note}"
    );
}

#[test]
fn a_program_that_does_something_else_in_a_guest_is_named() {
    let Some(stage) = Stage::answering("sh -c 'echo odd >&2; exit 4'") else {
        return;
    };
    let output = stage.run(&["kvm", "--runs", "1", "--", "sh", "-c", "exit 3"]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{text}");
    let line = "behaves differently in kvm: it exited with code 4 (odd)";
    assert!(text.contains(line), "{text}");
}

#[test]
fn tests_of_suites_run_in_a_guest_but_for_those_of_a_disk() {
    let Some(stage) = Stage::answering("true") else {
        return;
    };
    let (found, code) = stage.document(&["kvm", "--runs", "1", "--suite", "net,disk"]);
    assert_eq!(code, Some(0), "{found}");
    let suites = found["suites"].as_array().expect("a list");
    for suite in suites {
        for test in suite["tests"].as_array().expect("a list") {
            let count = test["environments"].as_array().map(Vec::len);
            let expected = if suite["name"] == "disk" { 1 } else { 2 };
            assert_eq!(count, Some(expected), "{test}");
        }
    }
    let absent = found["absent"].to_string();
    assert!(absent.contains("disk/files in kvm"), "{absent}");
}

#[test]
fn a_guest_that_does_not_start_or_is_lost_is_said_to_be_so() {
    let ready = "echo '{\"Ready\":{\"kernel\":\"9\",\"cpus\":1}}'";
    for (script, code, part) in [
        (
            "echo 'qemu: no such processor' >&2; exit 1".to_owned(),
            3,
            "not here: kvm: the guest died: qemu: no such processor",
        ),
        (
            format!("{ready}; read line; echo lost >&2; exit 1"),
            1,
            "true fails in kvm: the guest died: lost",
        ),
        // As QEMU does, it goes on without its guest.
        (
            "echo 'KVM internal error. Suberror: 1' >&2; echo 'RAX=0' >&2; exec sleep 7777"
                .to_owned(),
            3,
            "not here: kvm: the guest stopped: KVM internal error. Suberror: 1",
        ),
    ] {
        let Some(stage) = Stage::set(&script) else {
            return;
        };
        let output = stage.run(&["kvm", "--runs", "1", "--", "true"]);
        let text = String::from_utf8_lossy(&output.stdout);
        assert_eq!(output.status.code(), Some(code), "{output:?}");
        assert!(text.contains(part), "{text}");
    }
}

/// Whether a process has this word in its command line.
fn is_running(word: &str) -> bool {
    let processes = fs::read_dir("/proc").expect("it can be listed");
    let mut lines = processes.filter_map(|entry| {
        let line = fs::read(entry.ok()?.path().join("cmdline")).ok()?;
        Some(String::from_utf8_lossy(&line).into_owned())
    });
    lines.any(|line| line.split('\0').any(|other| other == word))
}

/// Waits until it is so; an hour is a test that fails.
fn becomes(is_so: impl Fn() -> bool) -> bool {
    (0..1200).any(|_| {
        std::thread::sleep(Duration::from_millis(50));
        is_so()
    })
}

#[test]
fn a_guest_ends_with_the_command_that_is_killed() {
    let marker = format!("87{}.5", std::process::id());
    let Some(stage) = Stage::set(&format!("exec sleep {marker}")) else {
        return;
    };
    let mut command = stage.command(&["kvm", "--runs", "1", "--", "true"]);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut compare = command.spawn().expect("it starts");
    let started = becomes(|| is_running(&marker));
    compare.kill().expect("it runs");
    compare.wait().expect("it was killed");
    assert!(started, "the guest did not start");
    assert!(becomes(|| !is_running(&marker)), "the guest was left");
}

#[test]
fn what_is_wrong_is_said_in_one_line() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let directory = directory.path();
    fs::write(directory.join("text"), "no kernel").expect("it can be written");
    for (arguments, part) in [
        (
            &["vm", "--kernel", "text"][..],
            "--kernel is for the environments kvm and kvm:shadow",
        ),
        (
            &["kvm", "--kernel", "/nowhere/vmlinuz"],
            "cannot read the guest's kernel /nowhere/vmlinuz",
        ),
        (&["kvm", "--kernel", "text"], "text is no Linux kernel"),
        (&["kvm", "--initrd", "/nowhere/x"], "cannot read /nowhere/x"),
        (
            &["kvm", "--guest-files", "/nowhere/x"],
            "--guest-files: cannot read /nowhere/x",
        ),
        (&["kvm", "--guest-memory", "1M"], "less than Linux needs"),
        (&["kvm", "--kernel-parameters", "a -- b"], "takes no '--'"),
    ] {
        let arguments = [&["compare"], arguments, &["--", "true"]].concat();
        let line = error_line(&run(directory, &arguments), 2);
        assert!(line.contains(part), "{arguments:?}: {line}");
    }
}

#[test]
fn what_is_missing_here_is_said_in_the_report() {
    let Some(stage) = Stage::answering("true") else {
        return;
    };
    let path = std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default())
        .filter(|directory| !directory.join("qemu-system-x86_64").exists())
        .collect::<Vec<_>>();
    let path = std::env::join_paths(path).expect("they were one");
    let mut command = stage.command(&["kvm", "--runs", "1", "--", "true"]);
    let output = command.env("PATH", path).output().expect("it starts");
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    let is_of_red_hat = Path::new("/usr/libexec/qemu-kvm").exists();
    assert!(text.contains("install QEMU") || is_of_red_hat, "{text}");
    let output = stage.run(&["kvm:shadow", "--runs", "1", "--", "true"]);
    let text = String::from_utf8_lossy(&output.stdout);
    // Hosts have nested paging, or neither of the two modules.
    assert!(text.contains("not here: kvm:shadow: "), "{text}");
}
