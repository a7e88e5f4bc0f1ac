//! The commands about checkpoints, as a user types them.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::common::running::Running;
use crate::common::{error_line, pagetrail, run};
use serde_json::Value;

/// Runs a command that must succeed; its lines as JSON.
fn json(directory: &Path, arguments: &[&str]) -> Vec<Value> {
    let output = run(directory, &[arguments, &["--json"]].concat());
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {output:?}");
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    let lines = text.lines();
    lines
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect()
}

#[test]
fn a_chain_from_its_first_checkpoint_to_its_last() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let here = directory.path();
    let busy = Running::busy();
    let pid = busy.pid();
    let take = [
        "checkpoint",
        "-p",
        &pid,
        "--store",
        "s",
        "--every",
        "50ms",
        "--count",
        "4",
    ];
    let metrics = ["--metrics-file", "m", "--compression", "zstd"];
    let taken = json(here, &[&take[..], &metrics].concat());
    assert_eq!(taken.len(), 4);
    assert!(taken[0]["parent"].is_null() && taken[3]["parent"] == 3);
    assert!(taken[3]["copied_pages"].as_u64() < taken[0]["copied_pages"].as_u64());
    let metrics = fs::read_to_string(here.join("m")).expect("metrics");
    assert!(
        metrics.contains("\npagetrail_checkpoints_total 4\n"),
        "{metrics}"
    );

    assert_eq!(
        json(here, &["log", "s"])[0]["checkpoints"]
            .as_array()
            .map(Vec::len),
        Some(4)
    );
    assert!(
        json(here, &["show", "s", "2"])[0]["threads"]
            .as_array()
            .is_some_and(|t| t.len() == 1)
    );
    assert!(
        json(here, &["diff", "s", "1", "4"])[0]["mappings"]
            .as_array()
            .is_some_and(|m| !m.is_empty())
    );
    assert_eq!(json(here, &["verify", "s"])[0]["sound"], true);
    assert_eq!(
        json(here, &["squash", "s", "2", "3"])[0]["removed_checkpoints"],
        1
    );
    assert_eq!(
        json(here, &["prune", "s", "--keep", "1"])[0]["removed_checkpoints"],
        2
    );
    assert_eq!(
        json(here, &["export", "s", "--core", "core", "--raw", "raw"])[0]["number"],
        4
    );
    assert!(
        fs::read(here.join("core"))
            .expect("a core")
            .starts_with(b"\x7fELF")
    );
    let index = fs::read_to_string(here.join("raw.map")).expect("an index");
    assert!(index.contains("[stack]"), "{index}");
    assert_eq!(
        json(here, &["rewind", "-p", &pid, "s", "--to", "4"])[0]["number"],
        4
    );
    assert_eq!(json(here, &["verify", "s"])[0]["sound"], true);

    // People get words.
    for arguments in [&["log", "s"][..], &["show", "s"], &["verify", "s"]] {
        let output = run(here, arguments);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        assert!(!output.stdout.is_empty() && !output.stdout.starts_with(b"{"));
    }

    let pack = fs::read_dir(here.join("s"))
        .expect("a store")
        .find_map(|entry| {
            let path = entry.ok()?.path();
            path.extension()
                .is_some_and(|e| e == "pack")
                .then_some(path)
        });
    let pack = pack.expect("a pack");
    let mut bytes = fs::read(&pack).expect("a pack");
    bytes[100] ^= 1;
    fs::write(&pack, bytes).expect("damage");
    let output = run(here, &["verify", "s"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("is damaged"));
}

#[test]
fn damage_is_said_with_what_it_costs_and_set_aside() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let here = directory.path();
    let busy = Running::busy();
    let pid = busy.pid();
    let take = ["checkpoint", "-p", &pid, "--store", "s", "--count"];
    json(here, &[&take[..], &["5"]].concat());
    let manifest = |number: u32| here.join(format!("s/{number:020}.manifest"));
    let mut bytes = fs::read(manifest(3)).expect("a manifest");
    bytes[100] ^= 1;
    fs::write(manifest(3), bytes).expect("damage");
    let said = |arguments: &[&str], code: i32| {
        let output = run(here, arguments);
        assert_eq!(
            output.status.code(),
            Some(code),
            "{arguments:?}: {output:?}"
        );
        let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
        (text(output.stdout), text(output.stderr))
    };
    let (listed, damage) = said(&["log", "s"], 1);
    assert_eq!(listed.lines().count(), 3, "{listed}");
    assert!(
        damage.contains("checkpoint 3 cannot be read, nor can 4, 5"),
        "{damage}"
    );
    assert!(damage.contains("pagetrail repair s"), "{damage}");
    assert!(
        said(&["verify", "s"], 1)
            .1
            .contains("lost: 3 to 5; 2 others are whole")
    );
    assert!(
        said(&["show", "s"], 2)
            .1
            .contains("the newest that can be read is 2")
    );
    // It goes on all the same, with a base.
    let (taken, damage) = said(&take[..5], 0);
    assert!(taken.starts_with("checkpoint 6 (base)"), "{taken}");
    assert!(
        damage.contains("do not build on what is damaged"),
        "{damage}"
    );
    said(&["prune", "s", "--keep", "2"], 0);
    assert!(said(&["repair", "s"], 0).0.contains("lost: 3 to 5"));
    assert!(
        here.join("s/damaged")
            .join(manifest(3).file_name().expect("a name"))
            .exists()
    );
    assert!(said(&["verify", "s"], 0).1.is_empty());
    assert_eq!(said(&["log", "s"], 0).0.lines().count(), 3);
    assert!(said(&["repair", "s"], 0).0.contains("nothing is damaged"));
}

#[test]
fn what_a_process_says_of_itself_commands_no_terminal() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let here = directory.path();
    let mut command = Command::new("sleep");
    std::os::unix::process::CommandExt::arg0(&mut command, "x\x1b]0;owned\x07\nsecond line");
    let child = command.arg("600").stdin(Stdio::null()).spawn();
    let child = Running(child.expect("sleep starts"));
    let pid = child.pid();
    assert_eq!(
        json(here, &["checkpoint", "-p", &pid, "--store", "s"]).len(),
        1
    );
    for arguments in [&["log", "s"][..], &["show", "s"]] {
        let output = run(here, arguments);
        let text = String::from_utf8(output.stdout).expect("UTF-8");
        assert!(text.contains("owned"), "{text}");
        let is_plain = |c: char| c == '\n' || !c.is_control();
        assert!(text.chars().all(is_plain), "{text:?}");
        assert!(!text.contains("\nsecond line"), "{text}");
    }
    assert_eq!(
        run(here, &["log", "s"])
            .stdout
            .iter()
            .filter(|b| **b == b'\n')
            .count(),
        2
    );
}

#[test]
fn a_process_with_other_descriptors_is_rewound_by_force_only() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let here = directory.path();
    // It opens a file when there is one named `go`, and says so by another. What it has inherited
    // under that number it closes. A process of its own makes the other: the shell would have it
    // open for a moment.
    let script = "exec 9<&-; (: >ready); until test -e go; do sleep 0.01; done; exec 9<go; \
                  (: >done); while :; do sleep 0.01; done";
    let mut command = Command::new("sh");
    command
        .args(["-c", script])
        .current_dir(here)
        .stdin(Stdio::null())
        // What it would inherit may be a file to which other tests write meanwhile.
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let busy = Running(command.spawn().expect("sh starts"));
    let pid = busy.pid();
    let wait_for = |name: &str| {
        while !here.join(name).exists() {
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    };
    wait_for("ready");
    json(here, &["checkpoint", "-p", &pid, "--store", "s"]);
    fs::write(here.join("go"), "x").expect("a file");
    wait_for("done");
    let rewind = ["rewind", "-p", &pid, "s", "--to", "1"];
    let line = error_line(&run(here, &rewind), 2);
    assert!(line.contains("9 (") && line.contains("is new"), "{line}");
    assert!(line.contains("--force"), "{line}");
    let forced = json(here, &[&rewind[..], &["--force"]].concat());
    assert!(
        forced[0]["descriptors"]
            .as_array()
            .is_some_and(|lines| lines.len() == 1)
    );
}

#[test]
fn numbers_are_served_while_checkpoints_are_taken() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let busy = Running::busy();
    let pid = busy.pid();
    let arguments = ["checkpoint", "-p", &pid, "--store", "s", "--every", "50ms"];
    let mut child = pagetrail(directory.path(), &arguments)
        .args(["--metrics-listen", "127.0.0.1:0"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut said = BufReader::new(child.stderr.take().expect("a pipe"));
    let mut taken = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    let child = Running(child);
    let mut line = String::new();
    said.read_line(&mut line).expect("a line");
    let place = line.trim_end().strip_suffix("/metrics");
    let (_, address) = place
        .and_then(|line| line.split_once("http://"))
        .expect("an address");
    taken.next().expect("a checkpoint").expect("a line");
    taken.next().expect("another").expect("a line");
    let ask = |request: &str| {
        let mut stream = TcpStream::connect(address).expect("somebody listens");
        stream
            .write_all(request.as_bytes())
            .expect("it takes requests");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        answer
    };
    // One that says nothing does not keep the others waiting for ever.
    let silent = TcpStream::connect(address).expect("somebody listens");
    let answer = ask("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
    drop(silent);
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    assert!(
        head.contains(&format!("Content-Length: {}\r\n", body.len())),
        "{head}"
    );
    let number = |name: &str| -> f64 {
        let line = body
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.expect(name).parse().expect("a number")
    };
    assert!(number("pagetrail_checkpoints_total") >= 2.0);
    assert!(number("pagetrail_stored_bytes_total") > 0.0);
    assert!(number("pagetrail_pause_seconds_total") >= number("pagetrail_last_pause_seconds"));
    assert!(number("pagetrail_checkpoint_failures_total") == 0.0);
    for request in [
        "GET / HTTP/1.1\r\n\r\n",
        "POST /metrics HTTP/1.1\r\n\r\n",
        "\r\n\r\n",
    ] {
        assert!(ask(request).starts_with("HTTP/1.1 404 "), "{request:?}");
    }
    drop(child);
}

/// What is said of the progress of a command that succeeds: lines of JSON, the last one at the end.
fn progress(directory: &Path, arguments: &[&str]) -> Value {
    let output = run(directory, &[arguments, &["--progress"]].concat());
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {output:?}");
    let text = String::from_utf8(output.stderr).expect("UTF-8");
    let lines = text.lines();
    let lines: Vec<Value> = lines
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    let (last, before) = lines.split_last().expect("a line");
    assert!(before.iter().all(|line| line["is_over"] == false), "{text}");
    assert!(last["is_over"] == true && last["schema"] == 1, "{text}");
    last.clone()
}

#[test]
fn programs_learn_how_far_long_work_is() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let here = directory.path();
    let busy = Running::busy();
    let take = ["checkpoint", "-p", &busy.pid(), "--store", "s"];
    for _ in 0..3 {
        let said = progress(here, &take);
        assert_eq!(said["step"], "saving pages", "{said}");
        assert!(said["done_bytes"].as_u64() > Some(4096), "{said}");
    }
    for (arguments, step) in [
        (&["verify", "s"][..], "checking pages"),
        (&["export", "s", "--raw", "raw"], "writing pages"),
        (&["squash", "s", "1", "2"], "writing packs anew"),
        (&["prune", "s", "--keep-last", "1"], "writing packs anew"),
    ] {
        let said = progress(here, arguments);
        assert_eq!(said["step"], step, "{said}");
        if !step.contains("anew") {
            let (done, total) = (&said["done_bytes"], &said["total_bytes"]);
            assert!(done == total && done.as_u64() > Some(4096), "{said}");
            assert_eq!(said["left_ms"], 0, "{said}");
            assert!(said["bytes_per_second"].as_f64() > Some(0.0), "{said}");
        }
    }
    // Without it nothing is said where standard error is no terminal.
    assert!(run(here, &["verify", "s"]).stderr.is_empty());
}

#[test]
fn a_number_without_an_interval_is_taken_without_delay() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let busy = Running::busy();
    let pid = busy.pid();
    let arguments = ["checkpoint", "-p", &pid, "--store", "s", "--count", "3"];
    assert_eq!(json(directory.path(), &arguments).len(), 3);
}

/// Without an interval nobody waits for room, and each try would stop the process.
#[test]
fn a_full_store_ends_a_number_without_an_interval() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let busy = Running::busy();
    for tree in ["", "--tree"] {
        // A limit of 16 KiB for each file is to the command what a full disk is.
        let command = format!(
            "ulimit -f 32; exec timeout 60 \"$0\" checkpoint {tree} -p {} --store s{tree} --count 2",
            busy.pid()
        );
        let output = Command::new("sh")
            .args(["-c", &command, env!("CARGO_BIN_EXE_pagetrail")])
            .current_dir(directory.path())
            .output()
            .expect("sh(1)");
        let line = error_line(&output, 2);
        assert!(line.contains("File too large"), "{line}");
    }
}

#[test]
fn checkpoints_come_no_sooner_than_their_budget_allows() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let here = directory.path();
    let busy = Running::busy();
    let pid = busy.pid();
    let take = ["checkpoint", "-p", &pid, "--store", "s"];
    let budget = ["--every", "1ms..1s", "--max-overhead", "2%"];
    let count = ["--count", "5"];
    let taken = json(here, &[&take[..], &budget, &count].concat());
    assert_eq!(taken.len(), 5);
    for pair in taken.windows(2) {
        let overhead = &pair[0]["overhead"];
        assert_eq!(overhead["allowed_share"].as_f64(), Some(0.02));
        let stopped = overhead["stopped_ns"].as_u64().expect("a number");
        let next = overhead["next_ns"].as_u64().expect("a number");
        assert!(stopped >= pair[0]["pause_ns"].as_u64().expect("a number"));
        // Its pauses alone take that much.
        assert!(next >= (stopped * 50).min(1_000_000_000) / 2, "{overhead}");
        let at = |taken: &Value| taken["taken_unix_ns"].as_u64().expect("a number");
        assert!(at(&pair[1]) - at(&pair[0]) >= next, "{pair:?}");
    }
    let line = |arguments: &[&str]| error_line(&run(here, arguments), 2);
    let range = [&take[..], &["--every", "1s..2s"]].concat();
    assert!(line(&range).contains("within which --max-overhead chooses"));
    let of_tree = [&range[..], &["--tree"]].concat();
    assert!(line(&of_tree).contains("within which --max-overhead chooses"));
    let no_interval = [&take[..], &["--max-overhead", "2%"]].concat();
    assert_eq!(run(here, &no_interval).status.code(), Some(2));
}

#[test]
fn what_cannot_be_done_is_one_line() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let here = directory.path();
    let busy = Running::busy();
    let line = |arguments: &[&str]| error_line(&run(here, arguments), 2);
    assert!(line(&["log", "nowhere"]).contains("not a checkpoint store"));
    assert!(line(&["prune", "nowhere", "--keep", "1"]).contains("not a checkpoint store"));
    assert!(!here.join("nowhere").exists());
    #[cfg(not(feature = "object-store"))]
    assert!(line(&["log", "s3://bucket/prefix"]).contains("feature `object-store`"));
    let nobody = ["checkpoint", "-p", "4194304", "--store", "nothing"];
    assert!(line(&nobody).contains("no process"));
    assert!(!here.join("nothing").exists());
    fs::create_dir(here.join("open")).expect("a directory");
    fs::set_permissions(here.join("open"), PermissionsExt::from_mode(0o777)).expect("rights");
    let exposed = ["checkpoint", "-p", &busy.pid(), "--store", "open/s"];
    assert!(line(&exposed).contains("writable by everybody"));
    assert!(line(&exposed).contains("--allow-world-writable"));
    let allowed = [&exposed[..], &["--allow-world-writable"]].concat();
    assert_eq!(run(here, &allowed).status.code(), Some(0));
    assert!(line(&["show", "open/s", "7"]).contains("no checkpoint 7"));
    assert!(line(&["export", "open/s"]).contains("--core"));
    let export = ["export", "open/s", "--core", "core", "--raw", "raw"];
    assert_eq!(run(here, &export).status.code(), Some(0));
    assert!(line(&export).contains("--force replaces it"));
    let forced = [&export[..], &["--force"]].concat();
    assert_eq!(run(here, &forced).status.code(), Some(0));
    let started = ["checkpoint", "--store", "s", "--", "sleep", "1"];
    assert!(line(&started).contains("--every TIME says how often it is saved"));
    assert!(line(&["rewind", "-p", "1", "open/s", "--to", "1"]).contains("not the process"));
}
