//! Cores of real programs, opened by gdb: backtraces of all threads, and memory with a value that
//! is known.

#![allow(clippy::print_stdout, reason = "tests print what they did")]

mod common;
#[path = "../../pagetrail/tests/support/mod.rs"]
mod support;

use pagetrail_checkpoint::storage::InMemory;
use pagetrail_checkpoint::{Manifest, ProcessCheckpointer, ProcessOptions, Store, WriterOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use support::{has, row};

/// Killed when dropped.
struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Whether all of `programs` are here; a row if not.
fn have(subject: &str, programs: &[&str]) -> bool {
    let missing: Vec<_> = programs.iter().filter(|program| !has(program)).collect();
    if let Some(first) = missing.first() {
        row(subject, "any", "absent", &format!("no {first}"));
    }
    missing.is_empty()
}

/// Takes two checkpoints, and exports the second as a core.
fn core(pid: u32, out: &Path) -> Manifest {
    let store = Store::create_on(Arc::new(InMemory::new())).unwrap();
    let mut writer = store.writer(WriterOptions::default()).unwrap();
    let mut process = ProcessCheckpointer::attach(pid, ProcessOptions::default()).unwrap();
    process.checkpoint(&mut writer).unwrap();
    std::thread::sleep(Duration::from_millis(30));
    let manifest = process.checkpoint(&mut writer).unwrap();
    let mut image = store.image(manifest.number).unwrap();
    image.export_core(out).unwrap();
    assert!(
        image.export_core(out).is_err(),
        "a file that exists is not replaced"
    );
    let mode = std::fs::metadata(out).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    manifest
}

fn gdb(executable: &str, core: &Path, commands: &[String]) -> String {
    let mut gdb = Command::new("gdb");
    gdb.args(["-nx", "-batch", "-iex", "set debuginfod enabled off"]);
    for command in commands {
        gdb.arg("-ex").arg(command);
    }
    let output = gdb
        .arg(executable)
        .arg(core)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text + &String::from_utf8_lossy(&output.stderr)
}

/// How many frames the backtraces have, by thread.
fn frames(text: &str) -> Vec<usize> {
    let mut frames = Vec::new();
    for line in text.lines() {
        if line.starts_with("Thread ") {
            frames.push(0);
        } else if line.starts_with('#') && !frames.is_empty() {
            *frames.last_mut().unwrap() += 1;
        }
    }
    frames
}

/// gdb commands that look for bytes in all writable memory.
fn search(manifest: &Manifest, text: &str) -> Vec<String> {
    let pattern: Vec<String> = text.bytes().map(|byte| byte.to_string()).collect();
    let writable = manifest
        .mappings
        .iter()
        .filter(|m| m.saved && m.permissions.write);
    writable
        .map(|mapping| {
            let (start, last) = (mapping.range.start(), mapping.range.end() - 1);
            format!("find /b1 {start:#x}, {last:#x}, {}", pattern.join(", "))
        })
        .collect()
}

const SCRIPT: &str = "
import sqlite3, ctypes, sys, threading, time
known = ctypes.create_string_buffer(b'known value 4711', 64)
db = sqlite3.connect(':memory:')
db.execute('create table t (k integer primary key, v text)')
db.execute(\"insert into t values (1, 'a row that ' || 'sqlite holds')\")
threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
print(ctypes.addressof(known), flush=True)
n = 2
while True:
    db.execute('insert or replace into t values (?, ?)', (n % 5000 + 2, str(n)))
    n += 1
";

#[test]
fn python_with_sqlite_opens_in_gdb() {
    let subject = "core of Python with SQLite";
    if !have(subject, &["gdb", "python3"]) {
        return;
    }
    let mut command = Command::new("python3");
    command.args(["-c", SCRIPT]).stdout(Stdio::piped());
    let mut python = Program(command.spawn().unwrap());
    let mut line = String::new();
    BufReader::new(python.0.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    let Ok(address) = line.trim().parse::<u64>() else {
        row(
            subject,
            "any",
            "absent",
            "this python3 has no sqlite3 or ctypes",
        );
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("core");
    let manifest = core(python.0.id(), &out);
    let executable = &manifest.process.as_ref().unwrap().executable;
    let mut commands = vec![
        "thread apply all bt".to_owned(),
        format!("x/s {address:#x}"),
    ];
    commands.extend(search(&manifest, "a row that sqlite holds"));
    let text = gdb(executable, &out, &commands);
    let frames = frames(&text);
    assert!(
        frames.len() == 2 && frames.iter().all(|&count| count > 2),
        "{text}"
    );
    assert!(text.contains("known value 4711"), "{text}");
    assert!(text.contains("1 pattern found"), "{text}");
    assert!(python.0.try_wait().unwrap().is_none(), "Python goes on");
    row(subject, "any", "works", "");
}

#[test]
fn redis_under_load_opens_in_gdb() {
    let subject = "core of Redis under load";
    if !have(subject, &["gdb", "redis-server", "redis-benchmark"]) {
        return;
    }
    let port = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let dir = tempfile::tempdir().unwrap();
    let mut server = Command::new("redis-server");
    server
        .args([
            "--port",
            &port.to_string(),
            "--save",
            "",
            "--appendonly",
            "no",
        ])
        .args(["--bind", "127.0.0.1", "--dir"])
        .arg(dir.path())
        .stdout(Stdio::null());
    let mut server = Program(server.spawn().unwrap());
    let deadline = Instant::now() + Duration::from_secs(120);
    let mut stream = loop {
        match TcpStream::connect(("127.0.0.1", port)) {
            Ok(stream) => break stream,
            Err(error) => assert!(Instant::now() < deadline, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    let value = "a-value-that-redis-holds-4711";
    let mut answer = [0; 5];
    stream
        .write_all(format!("SET known {value}\r\n").as_bytes())
        .unwrap();
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"+OK\r\n");
    let mut load = Command::new("redis-benchmark");
    load.args([
        "-p",
        &port.to_string(),
        "-n",
        "100000000",
        "-q",
        "-r",
        "10000",
        "-t",
        "set,lpush",
    ]);
    let _load = Program(load.stdout(Stdio::null()).spawn().unwrap());
    std::thread::sleep(Duration::from_millis(300));
    let out = dir.path().join("core");
    let manifest = core(server.0.id(), &out);
    let process = manifest.process.as_ref().unwrap();
    let mut commands = vec!["thread apply all bt".to_owned()];
    commands.extend(search(&manifest, value));
    let text = gdb(&process.executable, &out, &commands);
    let frames = frames(&text);
    assert_eq!(frames.len(), process.threads.len(), "{text}");
    assert!(frames.iter().all(|&count| count > 1), "{text}");
    assert!(text.contains("1 pattern found"), "{text}");
    stream.write_all(b"GET known\r\n").unwrap();
    let mut answer = vec![0; value.len()];
    stream.read_exact(&mut answer[..5]).unwrap();
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(answer, value.as_bytes(), "Redis goes on");
    assert!(server.0.try_wait().unwrap().is_none());
    row(subject, "any", "works", "");
}
