//! Attaching 500 times to well-known programs at work does not affect them.

#![allow(clippy::print_stdout, reason = "tests print what they did")]

mod support;

use pagetrail::Technique::PagemapScan;
use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use support::{Victim, attach_once, has, random, row, times, working};

/// A directory for this test, removed when dropped.
struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("pagetrail-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.join(name);
        fs::write(&path, text).unwrap();
        path
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Attaches 500 times to process `pid` (or the victim itself) and checks the victim's verdict.
fn survives(subject: &str, mut victim: Victim, pid: Option<u32>) {
    for technique in working(subject, &[PagemapScan]) {
        let mut random = random(subject);
        for _ in 0..times(500, 2000) {
            let pause = Duration::from_micros(random.u64(0..1000));
            match attach_once(
                pid.unwrap_or(victim.pid()),
                technique,
                random.u32(0..2),
                pause,
            ) {
                Ok(watch) => drop(watch),
                Err(error) => victim.blame(&error),
            }
            std::thread::sleep(Duration::from_micros(random.u64(0..1000)));
        }
        row(subject, technique.name(), "works", "");
    }
    println!("{subject}: {}", victim.finish().trim());
}

const PYTHON: &str = r#"
import ctypes, hashlib, signal, sys, threading, time
ctypes.CDLL(None).prctl(1, 9)
over = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: over.set())
def sleeper():
    while not over.is_set():
        since = time.monotonic()
        time.sleep(0.005)
        assert time.monotonic() - since >= 0.005
thread = threading.Thread(target=sleeper)
thread.start()
print("ready", flush=True)
expected = hashlib.sha256(bytes(1 << 16)).hexdigest()
rounds = 0
while not over.is_set():
    data = [str(i) * 10 for i in range(2000)]
    assert sum(len(d) for d in data) == 68900, "strings"
    if hashlib.sha256(bytes(1 << 16)).hexdigest() != expected: sys.exit("hash")
    rounds += 1
thread.join()
print(rounds, "rounds")
"#;

#[test]
fn python() {
    if !has("python3") {
        return row("python", "any", "absent", "no python3");
    }
    // The interpreter itself: `python3` may be a script.
    let real = Command::new("python3")
        .args(["-c", "import sys; print(sys.executable)"])
        .output()
        .unwrap();
    let real = String::from_utf8(real.stdout).unwrap();
    if let Some(victim) = Victim::of("python", Command::new(real.trim()).args(["-c", PYTHON])) {
        survives("python", victim, None);
    }
}

const GO: &str = r#"
package main

import ("fmt"; "os"; "os/signal"; "runtime"; "syscall"; "time")

func work(seed int, out chan<- int) {
    for {
        m := map[int]int{}
        for i := 0; i < 2000; i++ { m[i*seed] = i }
        sum := 0
        for _, v := range m { sum += v }
        if sum != 1999000 { fmt.Fprintln(os.Stderr, "the sum is", sum); os.Exit(1) }
        out <- 1
    }
}

func main() {
    end := make(chan os.Signal, 1)
    signal.Notify(end, syscall.SIGTERM)
    out := make(chan int)
    for i := 1; i < 9; i++ { go work(i, out) }
    tick := time.Tick(3 * time.Millisecond)
    fmt.Println("ready")
    rounds := 0
    for {
        select {
        case <-end: fmt.Println(rounds, "rounds"); return
        case n := <-out: rounds += n
        case <-tick: runtime.GC()
        }
    }
}
"#;

#[test]
fn go() {
    if !has("go") {
        return row("go", "any", "absent", "no go");
    }
    let directory = Directory::new("go");
    let (source, program) = (directory.file("main.go", GO), directory.0.join("program"));
    let status = Command::new("go")
        .args(["build", "-o"])
        .args([&program, &source])
        .env("GOTOOLCHAIN", "local")
        .env("GOFLAGS", "-mod=mod")
        .env("GOPROXY", "off")
        .status()
        .unwrap();
    assert!(status.success());
    if let Some(victim) = Victim::of("go", &mut Command::new(program)) {
        survives("go", victim, None);
    }
}

const REDIS_CLIENT: &str = r#"
import ctypes, signal, socket, sys
ctypes.CDLL(None).prctl(1, 9)
over = []
signal.signal(signal.SIGTERM, lambda *_: over.append(1))
s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); f = s.makefile("rb")
def ask(*words):
    s.sendall(b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(w), w) for w in words))
    line = f.readline()
    if line[:1] == b"$": return f.read(int(line[1:]) + 2)[:-2]
    return line.strip()
print("ready", flush=True)
n = 0
while not over:
    key, value = b"key%d" % (n % 1000), b"%d" % n * 50
    if ask(b"SET", key, value) != b"+OK": sys.exit("SET")
    if ask(b"GET", key) != value: sys.exit("GET")
    n += 1
for i in range(max(0, n - 1000), n):
    if ask(b"GET", b"key%d" % (i % 1000)) != b"%d" % i * 50: sys.exit("a value is lost")
print(n, "requests")
"#;

/// The server process; it is killed when dropped.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn redis_under_load() {
    if !has("redis-server") || !has("python3") {
        return row(
            "redis",
            "any",
            "absent",
            "no redis-server, or no python3 for the load",
        );
    }
    let directory = Directory::new("redis");
    let socket = directory.0.join("socket");
    let server = Server(
        Command::new("redis-server")
            .args(["--port", "0", "--save", "", "--dir"])
            .arg(&directory.0)
            .arg("--unixsocket")
            .arg(&socket)
            .stdout(Stdio::null())
            .spawn()
            .unwrap(),
    );
    let deadline = Instant::now() + Duration::from_secs(60);
    while !socket.exists() {
        assert!(Instant::now() < deadline, "redis-server does not start");
        std::thread::sleep(Duration::from_millis(20));
    }
    let pid = server.0.id();
    let mut client = Command::new("python3");
    client.args(["-c", REDIS_CLIENT]).arg(&socket);
    if let Some(client) = Victim::of("redis client", &mut client) {
        survives("redis", client, Some(pid));
    }
}
