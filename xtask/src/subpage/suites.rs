//! `cargo xtask subpage suites`: programs' own tests on the sub-page allocator, for every number of parts.
//!
//! Python's are where its interpreter is; Redis' come with its sources, which Debian's mirror has (`apt-get source`).

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::repo::{Repo, program};
use crate::steps::{NotHere, Outcome, Steps};

const ALL_PARTS: [&str; 7] = ["1", "2", "4", "8", "16", "32", "64"];

/// Python's tests of what allocates most, and of threads and forks.
const PYTHON: [&str; 6] = [
    "test_dict",
    "test_list",
    "test_json",
    "test_sqlite3",
    "test_threading",
    "test_fork1",
];

/// Of these, what fits into the test of everything.
const PYTHON_SHORT: [&str; 3] = ["test_dict", "test_json", "test_fork1"];

/// Redis' tests that need one server, which runs on our allocator, and no other program.
const REDIS: [&str; 11] = [
    "unit/keyspace",
    "unit/expire",
    "unit/sort",
    "unit/bitops",
    "unit/type/string",
    "unit/type/incr",
    "unit/type/list",
    "unit/type/list-2",
    "unit/type/set",
    "unit/type/zset",
    "unit/type/hash",
];

/// All of it; true if nothing failed.
pub(crate) fn run(repo: &Repo) -> Result<bool> {
    let library = library(repo)?;
    let mut steps = Steps::default();
    for parts in ALL_PARTS {
        steps.run(&format!("Python, {parts} parts"), || {
            python(&library, parts, &PYTHON)
        });
        steps.run(&format!("Redis, {parts} parts"), || {
            redis(repo, &library, parts)
        });
    }
    Ok(steps.finish())
}

/// What is part of the test of everything.
pub(crate) fn short(repo: &Repo) -> Result<Outcome> {
    python(&library(repo)?, "8", &PYTHON_SHORT)
}

fn library(repo: &Repo) -> Result<PathBuf> {
    let mut cargo = repo.cargo(&["build", "--quiet", "--package", "pagetrail-alloc-preload"]);
    ensure!(cargo.status()?.success(), "the library does not build");
    Ok(repo.target.join("debug/libpagetrail_alloc.so"))
}

fn python(library: &Path, parts: &str, tests: &[&str]) -> Result<Outcome> {
    let python = ["python3", "/usr/bin/python3"].into_iter().find(|python| {
        let mut has = Command::new(python);
        has.args(["-c", "import test.test_dict, test.test_sqlite3, sqlite3"]);
        let has = has.stdout(Stdio::null()).stderr(Stdio::null());
        has.status().is_ok_and(|status| status.success())
    });
    let Some(python) = python else {
        return Err(NotHere::error("apt-get install libpython3-testsuite"));
    };
    let mut command = Command::new(python);
    command
        .args(["-m", "test", "--timeout", "1200"])
        .args(tests)
        .env("PYTHONMALLOC", "malloc")
        .env("LD_PRELOAD", library)
        .env("PAGETRAIL_PARTS", parts);
    Ok(Outcome::of(command.status()?.success()))
}

/// The server, gone with this.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn redis(repo: &Repo, library: &Path, parts: &str) -> Result<Outcome> {
    if program("tclsh").is_none() || program("redis-server").is_none() {
        return Err(NotHere::error("apt-get install tcl redis-server"));
    }
    let sources = redis_sources(repo)?;
    let (server, port) = start_redis(repo, library, parts)?;
    let mut command = Command::new("tclsh");
    command
        .args(["tests/test_helper.tcl", "--host", "127.0.0.1", "--port"])
        .arg(port.to_string())
        .args([
            "--clients",
            "1",
            "--singledb",
            "--tags",
            "-needs:debug -slow",
        ])
        .args(REDIS.iter().flat_map(|test| ["--single", test]))
        .current_dir(sources);
    let passed = command.status()?.success();
    // What has crashed is no success of those that came before.
    let mut server = server;
    let is_alive = server.0.try_wait()?.is_none();
    Ok(Outcome::of(passed && is_alive))
}

/// Starts a server at a port that is free.
fn start_redis(repo: &Repo, library: &Path, parts: &str) -> Result<(Server, u16)> {
    let dir = repo.target.join("subpage/redis-data");
    fs::create_dir_all(&dir)?;
    let port = std::net::TcpListener::bind("127.0.0.1:0")?
        .local_addr()?
        .port();
    let mut command = Command::new("redis-server");
    command
        .args(["--port", &port.to_string(), "--save", "", "--dir"])
        .arg(&dir)
        .args(["--enable-debug-command", "yes", "--daemonize", "no"])
        .env("LD_PRELOAD", library)
        .env("PAGETRAIL_PARTS", parts)
        .stdout(Stdio::piped());
    let mut server = Server(command.spawn()?);
    let stdout = server.0.stdout.take().context("no standard output")?;
    let mut lines = BufReader::new(stdout).lines();
    let ready = lines.find(|line| {
        let line = line.as_deref().unwrap_or_default();
        line.contains("Ready to accept connections")
    });
    ensure!(ready.is_some(), "redis-server does not start");
    // It goes on talking, and must not wait for somebody to listen.
    std::thread::spawn(move || lines.for_each(drop));
    Ok((server, port))
}

/// The sources of Redis, from Debian's mirror.
fn redis_sources(repo: &Repo) -> Result<PathBuf> {
    let dir = repo.target.join("subpage/redis-sources");
    let found = || -> Option<PathBuf> {
        let entries = fs::read_dir(&dir).ok()?.flatten();
        let mut paths = entries.map(|entry| entry.path());
        paths.find(|path| path.join("tests/test_helper.tcl").exists())
    };
    if let Some(found) = found() {
        return Ok(found);
    }
    fs::create_dir_all(&dir)?;
    let mut command = Command::new("apt-get");
    command
        .args(["source", "--quiet", "redis"])
        .current_dir(&dir)
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let _ = command.status();
    found().ok_or_else(|| {
        NotHere::error("apt-get source redis does not work (a deb-src line for apt, and dpkg-dev)")
    })
}
