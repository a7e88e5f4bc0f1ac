//! Every way to write a "4" to another process's `clear_refs` clears, or fails and says so.

#![allow(clippy::print_stdout, reason = "tests print what they did")]

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// The library, which cargo has built beside this test.
fn library() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    // Not the copy one directory up, which only `cargo build` renews.
    let library = test.with_file_name("libpagetrail_softdirty.so");
    assert!(library.exists(), "{} is missing", library.display());
    library
}

fn under_library(program: &str) -> Command {
    let mut command = Command::new(program);
    command
        .env("LD_PRELOAD", library())
        .env("PAGETRAIL_SOFTDIRTY", "always")
        .stdin(Stdio::null());
    command
}

/// A process without the library that writes four pages for every line that it reads.
struct Target {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    address: u64,
}

impl Target {
    /// `None` without Python.
    fn start() -> Option<Self> {
        let script = "
import ctypes, mmap, sys
m = mmap.mmap(-1, 4 * 4096)
print(ctypes.addressof(ctypes.c_char.from_buffer(m)), flush=True)
for line in sys.stdin:
    m[:] = b'x' * len(m)
    print('written', flush=True)
";
        let child = Command::new("python3")
            .args(["-c", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        let Ok(mut child) = child else {
            pagetrail_skips::not_here("no python3");
            return None;
        };
        let stdin = child.stdin.take().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let mut target = Self {
            child,
            stdin,
            stdout,
            address: 0,
        };
        target.address = target.line().parse().unwrap();
        Some(target)
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        line.trim().to_owned()
    }

    fn write_all_pages(&mut self) {
        self.stdin.write_all(b"again\n").unwrap();
        assert_eq!(self.line(), "written");
    }

    fn pagemap(&self) -> String {
        format!("/proc/{}/pagemap", self.child.id())
    }

    /// How many of its four pages the library calls soft-dirty.
    fn dirty(&self) -> usize {
        let file = format!("open('{}', 'rb', buffering=0)", self.pagemap());
        self.dirty_by(&file, &mut under_library("python3"))
    }

    /// How many it calls soft-dirty to a program that has got the descriptor from the one that
    /// started it.
    fn dirty_by_inherited(&self) -> usize {
        let pagemap = std::fs::File::open(self.pagemap()).unwrap();
        let mut python = under_library("python3");
        self.dirty_by("open(0, 'rb', buffering=0)", python.stdin(pagemap))
    }

    fn dirty_by(&self, file: &str, python: &mut Command) -> usize {
        let script = format!(
            "
import struct
f = {file}
f.seek({} // 4096 * 8)
print(sum(entry >> 55 & 1 for entry in struct.unpack('4Q', f.read(32))))
",
            self.address
        );
        let output = python.args(["-c", &script]).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8_lossy(&output.stdout)
            .trim()
            .parse()
            .unwrap()
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn can_answer() -> bool {
    let works = pagetrail::Capabilities::probe_one(pagetrail::Technique::PagemapScan);
    let has_small_pages = pagetrail::page_size() == 4096;
    if *works != pagetrail::Status::Works {
        pagetrail_skips::not_here(format!("pagemap-scan {works}"));
    } else if !has_small_pages {
        pagetrail_skips::not_here("pages are not of 4096 bytes");
    }
    *works == pagetrail::Status::Works && has_small_pages
}

/// Runs `script` with the path of the target's `clear_refs` as its first argument: whether it
/// succeeded, and what it said. `None` without the program.
fn run(program: &str, script: &str, target: &Target) -> Option<(bool, String)> {
    let path = format!("/proc/{}/clear_refs", target.child.id());
    let output = under_library(program)
        .args(["-c", script])
        .args(if program == "python3" {
            None
        } else {
            Some("sh")
        })
        .arg(path)
        .output();
    let Ok(output) = output else {
        pagetrail_skips::not_here(format!("no {program}"));
        return None;
    };
    let said = String::from_utf8_lossy(&[&*output.stdout, &*output.stderr].concat()).into_owned();
    Some((output.status.success(), said))
}

#[test]
fn a_clear_by_a_shell_or_a_program_that_it_starts_clears() {
    let Some(mut target) = Target::start().filter(|_| can_answer()) else {
        return;
    };
    let four = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("four-{}", std::process::id()));
    std::fs::write(&four, "4\n").unwrap();
    let cat = format!("cat {} > $1", four.display());
    for (program, script) in [
        ("bash", "echo 4 > $1"),
        ("bash", "printf '4\\n' > $1"),
        ("bash", "(echo 4 > $1)"),
        ("bash", "exec 7> $1; echo 4 >&7"),
        ("bash", "/bin/echo 4 > $1"),
        ("bash", "exec 7> $1; /bin/echo 4 >&7"),
        ("bash", "exec /bin/echo 4 > $1"),
        ("bash", &cat),
        ("dash", "echo 4 > $1"),
        ("dash", "/bin/echo 4 > $1"),
        (
            "python3",
            "import subprocess, sys\nsubprocess.check_call(['/bin/echo', '4'], stdout=open(sys.argv[1], 'w'))",
        ),
    ] {
        target.write_all_pages();
        assert_eq!(target.dirty(), 4, "before {program}: {script}");
        let Some((success, said)) = run(program, script, &target) else {
            continue;
        };
        assert!(success, "{program}: {script}: {said}");
        assert_eq!(target.dirty(), 0, "after {program}: {script}: {said}");
    }
    std::fs::remove_file(&four).unwrap();
}

#[test]
fn a_clear_that_the_library_cannot_see_fails() {
    let Some(mut target) = Target::start().filter(|_| can_answer()) else {
        return;
    };
    let begin = "
import ctypes, os, sys
libc = ctypes.CDLL(None)
libc.fopen.restype = libc.freopen.restype = ctypes.c_void_p
fd = os.open(sys.argv[1], os.O_WRONLY)
";
    for script in [
        "sys.exit(libc.dprintf(fd, b'4') < 0)",
        "sys.exit(libc.syscall(1, fd, b'4', 1) < 0 if os.uname().machine == 'x86_64' else True)",
        "
stream = ctypes.c_void_p(libc.fopen(b'/dev/null', b'w'))
stream = ctypes.c_void_p(libc.freopen(sys.argv[1].encode(), b'w', stream))
libc.fputs(b'4', stream)
sys.exit(libc.fflush(stream) != 0)
",
    ] {
        target.write_all_pages();
        let Some((success, said)) = run("python3", &format!("{begin}{script}"), &target) else {
            return;
        };
        assert!(!success, "{script}: {said}");
        assert!(!said.contains("Traceback"), "{script}: {said}");
        assert_eq!(target.dirty(), 4, "{script}");
    }
    // Nor does a program without the library clear in silence: it inherits what cannot be written.
    let shell = "LD_PRELOAD= /bin/echo 4 > $1";
    if let Some((success, said)) = run("bash", shell, &target) {
        assert!(!success && said.contains("write error"), "{said}");
    }
}

#[test]
fn what_is_not_a_clear_reaches_the_kernel() {
    let Some(target) = Target::start().filter(|_| can_answer()) else {
        return;
    };
    for (text, expected) in [("1", true), ("3", true), ("9", false), ("four", false)] {
        for script in [
            format!("echo {text} > $1"),
            format!("/bin/echo {text} > $1"),
        ] {
            if let Some((success, said)) = run("bash", &script, &target) {
                assert_eq!(success, expected, "{script}: {said}");
            }
        }
    }
}

#[test]
fn a_stream_over_pagemap_by_freopen_is_refused() {
    if !can_answer() {
        return;
    }
    let script = "
import ctypes, sys
libc = ctypes.CDLL(None)
libc.fopen.restype = libc.freopen.restype = ctypes.c_void_p
stream = ctypes.c_void_p(libc.fopen(b'/dev/null', b'r'))
sys.exit(libc.freopen(b'/proc/self/pagemap', b'r', stream) is not None)
";
    match under_library("python3").args(["-c", script]).output() {
        Ok(output) => assert!(output.status.success(), "{output:?}"),
        Err(_) => pagetrail_skips::not_here("no python3"),
    }
}

#[test]
fn an_inherited_pagemap_is_answered() {
    let Some(mut target) = Target::start().filter(|_| can_answer()) else {
        return;
    };
    target.write_all_pages();
    assert_eq!(
        run("bash", "echo 4 > $1", &target),
        Some((true, String::new()))
    );
    assert_eq!((target.dirty(), target.dirty_by_inherited()), (0, 0));
    target.write_all_pages();
    assert_eq!((target.dirty(), target.dirty_by_inherited()), (4, 4));
}

/// How many sockets of a target's holder there are: one, or none.
fn holders(pid: u32) -> usize {
    let sockets = std::fs::read_to_string("/proc/net/unix").unwrap();
    sockets
        .matches(&format!("@pagetrail-softdirty/{pid}/"))
        .count()
}

#[test]
fn a_watch_ends_with_the_process_for_which_it_is_held() {
    if !can_answer() {
        return;
    }
    let Some(target) = Target::start() else {
        return;
    };
    let mut owner = Command::new("sleep").arg("1000").spawn().unwrap();
    let script = "echo 4 > /proc/$1/clear_refs";
    let pid = target.child.id();
    let mut clear = under_library("sh");
    clear.args(["-c", script, "sh", &pid.to_string()]);
    clear.env("PAGETRAIL_SOFTDIRTY_HELD_FOR", owner.id().to_string());
    let cleared = clear.status().unwrap().success();
    let held = holders(pid);
    owner.kill().unwrap();
    owner.wait().unwrap();
    assert!(cleared);
    assert_eq!(held, 1);
    while holders(pid) > 0 {
        std::thread::yield_now();
    }
}
