//! Checkpoints in daily use, as a user types them: labels, rules for what stays, programs that are
//! started, encrypted stores.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::common::running::Running;
use crate::common::{error_line, pagetrail, run};
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use serde_json::Value;

/// Runs a command that must succeed; the JSON that it prints.
fn json(here: &Path, arguments: &[&str]) -> Value {
    let output = run(here, &[arguments, &["--json"]].concat());
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {output:?}");
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// The numbers and labels of a store's checkpoints.
fn log(here: &Path) -> Vec<(u64, Option<String>)> {
    let log = json(here, &["log", "s"]);
    let checkpoints = log["checkpoints"].as_array().expect("checkpoints");
    let entry = |c: &Value| {
        let label = c["label"].as_str().map(str::to_owned);
        (c["number"].as_u64().expect("a number"), label)
    };
    checkpoints.iter().map(entry).collect()
}

#[test]
fn checkpoints_have_labels_which_keep_them() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let here = directory.path();
    let busy = Running::busy();
    let pid = busy.pid();
    let take = ["checkpoint", "-p", &pid, "--store", "s"];
    let labelled = json(here, &[&take[..], &["--label", "before"]].concat());
    assert_eq!(labelled["label"], "before");
    json(here, &[&take[..], &["--count", "1"]].concat());
    // The newest that has a label is the one.
    json(here, &[&take[..], &["--label", "before"]].concat());
    json(here, &take);
    assert_eq!(json(here, &["show", "s", "before"])["number"], 3);
    assert_eq!(json(here, &["diff", "s", "before", "4"])["first"], 3);
    let export = ["export", "s", "--at", "before", "--core", "core"];
    assert_eq!(json(here, &export)["number"], 3);
    let rewind = ["rewind", "-p", &pid, "s", "--to", "before"];
    assert_eq!(json(here, &rewind)["number"], 3);
    let text = run(here, &["log", "s"]);
    let text = String::from_utf8_lossy(&text.stdout).into_owned();
    assert!(
        text.lines()
            .nth(1)
            .is_some_and(|line| line.ends_with("before")),
        "{text}"
    );

    let nowhere = error_line(&run(here, &["show", "s", "nowhere"]), 2);
    assert!(
        nowhere.contains("no checkpoint in the store has the label nowhere"),
        "{nowhere}"
    );
    for wrong in ["-x", "a b", "", "12"] {
        let label = format!("--label={wrong}");
        let output = run(here, &[&take[..], &[&label]].concat());
        assert_eq!(output.status.code(), Some(2), "{wrong:?}: {output:?}");
    }
    let every = run(
        here,
        &[&take[..], &["--label", "x", "--every", "1s"]].concat(),
    );
    assert_eq!(every.status.code(), Some(2));

    // As they come, and by the rules: those with a label stay.
    json(here, &[&take[..], &["--keep", "1"]].concat());
    let before = Some("before".to_owned());
    assert_eq!(
        log(here),
        [(1, before.clone()), (3, before.clone()), (5, None)]
    );
    json(here, &take);
    let rule = ["prune", "s", "--keep-last", "1"];
    let would = json(here, &[&rule[..], &["--dry-run"]].concat());
    assert_eq!(would["would_remove"], serde_json::json!([5]));
    assert_eq!(log(here).len(), 4);
    assert_eq!(json(here, &rule)["removed_checkpoints"], 1);
    json(here, &["squash", "s", "before", "6"]);
    assert_eq!(log(here), [(1, before.clone()), (3, before), (6, None)]);
    assert_eq!(
        json(here, &[&rule[..], &["--labelled"]].concat())["removed_checkpoints"],
        2
    );
    assert_eq!(log(here), [(6, None)]);
    assert_eq!(json(here, &["verify", "s"])["sound"], true);
    // All were taken within two hours, and no rule at all is none.
    json(here, &take);
    json(
        here,
        &[
            "prune",
            "s",
            "--keep-hourly",
            "24",
            "--keep-daily",
            "7",
            "--keep-weekly",
            "4",
        ],
    );
    assert!(log(here).len() <= 2);
    let none = run(here, &["prune", "s"]);
    assert_eq!(none.status.code(), Some(2), "{none:?}");
}

#[test]
fn a_program_that_is_started_is_saved_until_its_end() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let here = directory.path();
    let script = "i=0; while [ $i -lt 100 ]; do i=$((i+1)); sleep 0.02; done; echo done; exit 7";
    let every = [
        "checkpoint",
        "--store",
        "s",
        "--every",
        "100ms",
        "--keep",
        "3",
    ];
    let output = run(here, &[&every[..], &["--", "sh", "-c", script]].concat());
    // Its output and its end are its own.
    assert_eq!(output.status.code(), Some(7), "{output:?}");
    assert_eq!(output.stdout, b"done\n");
    let lines = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        lines.lines().count() >= 1 && lines.contains("checkpoint 1 (base)"),
        "{lines}"
    );
    let kept = log(here);
    assert!((1..=3).contains(&kept.len()), "{kept:?}");
    let newest = json(here, &["show", "s"]);
    assert!(
        newest["command"].to_string().contains("sleep 0.02"),
        "{newest}"
    );
    assert!(
        newest["executable"]
            .as_str()
            .is_some_and(|path| path.starts_with('/'))
    );
    assert_eq!(json(here, &["verify", "s"])["sound"], true);

    // A signal is the program's.
    let script = "trap 'exit 9' TERM; echo ready; while :; do sleep 0.02; done";
    let mut command = pagetrail(here, &[&every[..], &["--", "sh", "-c", script]].concat());
    let mut child = command
        .stdout(Stdio::piped())
        .spawn()
        .expect("the command starts");
    let mut ready = [0; 6];
    std::io::Read::read_exact(child.stdout.as_mut().expect("a pipe"), &mut ready).expect("ready");
    // It may not have its handlers yet: the signal is sent until it ends.
    let ended = loop {
        if let Some(status) = child.try_wait().expect("a child") {
            break status;
        }
        let sent = Command::new("kill")
            .args(["-TERM", &child.id().to_string()])
            .status();
        assert!(sent.is_ok());
        std::thread::sleep(Duration::from_millis(300));
    };
    assert_eq!(ended.code(), Some(9));

    for (more, code) in [
        (&["--", "/nonexistent/program"][..], 127),
        (&["--json", "--", "true"], 2),
    ] {
        error_line(&run(here, &[&every[..], more].concat()), code);
    }
    error_line(&run(here, &["checkpoint", "--store", "s", "--", "true"]), 2);
    // One that ends before its first checkpoint is no error.
    let short = run(
        here,
        &[
            "checkpoint",
            "--store",
            "s",
            "--every",
            "1h",
            "--",
            "sh",
            "-c",
            "exit 3",
        ],
    );
    assert_eq!(short.status.code(), Some(3), "{short:?}");
}

#[test]
fn whether_a_process_has_changed_is_found_by_a_scan() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let here = directory.path();
    // It writes when it gets a line, and at no other time. It stays on one processor: the kernel
    // writes to its memory on which one it runs (rseq(2)).
    let mut command = Command::new("python3");
    command.args(["-c", "import os, sys\nos.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\nkept = bytearray(1 << 20)\nwhile True:\n  print('.', flush=True)\n  if not sys.stdin.readline(): break\n  kept[500000] = (kept[500000] + 1) % 256"]);
    let started = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let Ok(mut python) = started else {
        return pagetrail_skips::not_here("python3 is missing");
    };
    let mut lines = BufReader::new(python.stdout.take().expect("a pipe")).lines();
    let stat = format!("/proc/{}/stat", python.id());
    let mut until_it_waits = || {
        lines.next().expect("a line").expect("UTF-8");
        // Until it reads: it sleeps then.
        let sleeps = || fs::read_to_string(&stat).is_ok_and(|stat| stat.contains(") S "));
        while !sleeps() {
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    until_it_waits();
    let pid = python.id().to_string();
    let changed = ["changed", "-p", &pid, "--store", "s"];
    let code = |expected: i32| {
        let output = run(here, &[&changed[..], &["--json"]].concat());
        assert_eq!(output.status.code(), Some(expected), "{output:?}");
        let found: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        assert_eq!(found["changed"], expected == 0, "{found}");
        found
    };
    let none = error_line(&run(here, &changed), 2);
    assert!(none.contains("is not a checkpoint store"), "{none}");
    let other = Running::busy();
    json(here, &["checkpoint", "-p", &other.pid(), "--store", "s"]);
    assert!(code(0)["number"].is_null());
    for taken in [2, 3] {
        json(
            here,
            &["checkpoint", "-p", &pid, "--store", "s", "--count", "1"],
        );
        assert_eq!(code(1)["number"], taken);
        code(1);
        python
            .stdin
            .as_mut()
            .expect("a pipe")
            .write_all(b"x\n")
            .expect("it reads");
        until_it_waits();
        assert_eq!(code(0)["differs"], "page");
    }
    let output = run(here, &[&changed[..], &["--at", "1"]].concat());
    assert!(error_line(&output, 2).contains("is not the one of this checkpoint"));
    drop(python.stdin.take());
    let _ = python.wait();
}

fn key(here: &Path, name: &str, mode: u32) -> String {
    let path = here.join(name);
    fs::write(
        &path,
        format!("{}\n", &name.as_bytes()[0].to_string().repeat(64)[..64]),
    )
    .expect("a key");
    fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("its rights");
    name.into()
}

#[test]
fn an_encrypted_store_needs_its_key_everywhere() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let here = directory.path();
    let busy = Running::busy();
    let pid = busy.pid();
    let (right, wrong) = (key(here, "right", 0o600), key(here, "wrong", 0o600));
    let take = ["checkpoint", "-p", &pid, "--store", "s"];
    let with = |arguments: &[&str]| json(here, &[arguments, &["--key-file", &right]].concat());
    with(&take);
    with(&take);
    let commands: [&[&str]; 9] = [
        &["log", "s"],
        &["show", "s"],
        &["diff", "s", "1", "2"],
        &["verify", "s"],
        &["squash", "s", "1", "1"],
        &["export", "s", "--raw", "raw", "--force"],
        &["rewind", "-p", &pid, "s", "--to", "2"],
        &["prune", "s", "--keep-last", "2"],
        &["repair", "s"],
    ];
    for command in commands {
        with(command);
        let line = error_line(&run(here, command), 2);
        assert!(
            line.contains("is encrypted") && line.contains("--key-file"),
            "{line}"
        );
        let output = run(here, &[command, &["--key-file", &wrong]].concat());
        let line = error_line(&output, 2);
        assert!(line.contains("the key is not the one of s"), "{line}");
    }
    let open = key(here, "open", 0o644);
    for (file, said) in [
        (&*open, "chmod 600"),
        ("missing", "No such file"),
        (".", "no regular file"),
        ("s/pagetrail.store", "does not hold a key"),
    ] {
        let line = error_line(&run(here, &["log", "s", "--key-file", file]), 2);
        assert!(line.contains(said), "{line}");
    }
    // A store that is not encrypted stays so.
    json(here, &["checkpoint", "-p", &pid, "--store", "plain"]);
    let line = error_line(&run(here, &["log", "plain", "--key-file", &right]), 2);
    assert!(line.contains("is not encrypted"), "{line}");
    // The path of the program that every checkpoint has stands in no file.
    let shell = b"while :; do i=$((i+1))";
    let find = |store: &str| {
        let files = fs::read_dir(here.join(store)).expect("a store");
        let mut contents = files.filter_map(|file| fs::read(file.ok()?.path()).ok());
        contents.any(|bytes| bytes.windows(shell.len()).any(|window| window == shell))
    };
    assert!(!find("s") && find("plain"));
}

/// The store's directory `s`, as something that changes.
struct Changes {
    events: OwnedFd,
    buffer: [MaybeUninit<u8>; 4096],
}

impl Changes {
    fn of(here: &Path) -> Self {
        let events = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).expect("inotify");
        let what = WatchFlags::CREATE | WatchFlags::MODIFY | WatchFlags::MOVE | WatchFlags::DELETE;
        inotify::add_watch(&events, here.join("s"), what).expect("a watch");
        Self {
            events,
            buffer: [MaybeUninit::uninit(); 4096],
        }
    }

    /// How many there were since the last call.
    fn count(&mut self) -> usize {
        let mut reader = inotify::Reader::new(&self.events, &mut self.buffer);
        std::iter::from_fn(|| reader.next().ok().map(drop)).count()
    }
}

/// Runs the command, and kills it once it has changed the store so often; whether it ended before.
fn kill_at_change(here: &Path, arguments: &[&str], change: usize) -> bool {
    let mut changes = Changes::of(here);
    let mut command = pagetrail(here, arguments);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().expect("the command starts");
    let mut seen = 0;
    loop {
        seen += changes.count();
        if seen >= change {
            child.kill().expect("the command is ours");
            child.wait().expect("its end");
            return false;
        }
        if let Some(status) = child.try_wait().expect("its state") {
            assert!(status.success(), "{arguments:?}: {status}");
            return true;
        }
        std::thread::sleep(Duration::from_micros(50));
    }
}

/// Kills the command after each change of an encrypted store in turn. (The library's tests kill it
/// between any two steps.)
#[test]
fn an_encrypted_store_is_whole_whenever_its_writer_is_killed() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let here = directory.path();
    fs::create_dir(here.join("s")).expect("a directory");
    let busy = Running::busy();
    let pid = busy.pid();
    let right = key(here, "right", 0o600);
    let mut ended = false;
    let mut seen = BTreeSet::new();
    for change in 1..200 {
        let take = [
            "checkpoint",
            "-p",
            &pid,
            "--store",
            "s",
            "--key-file",
            &right,
            "--count",
            "2",
            "--keep",
            "1",
        ];
        ended = kill_at_change(here, &take, change);
        let verified = run(here, &["verify", "s", "--key-file", &right]);
        let is_store = here.join("s/pagetrail.store").exists();
        let code = if is_store { 0 } else { 2 };
        assert_eq!(
            verified.status.code(),
            Some(code),
            "change {change}: {verified:?}"
        );
        if is_store {
            let log = json(here, &["log", "s", "--key-file", &right]);
            seen.insert(log["checkpoints"].as_array().map(Vec::len));
        }
        if ended {
            break;
        }
    }
    assert!(ended && seen.len() >= 2, "{seen:?}");
    let files = fs::read_dir(here.join("s")).expect("a store");
    for file in files.map(|file| file.expect("an entry")) {
        let mode = file.metadata().expect("metadata").permissions().mode() & 0o777;
        let expected = if file.path().is_dir() { 0o700 } else { 0o600 };
        assert_eq!(mode, expected, "{}", file.path().display());
    }
}
