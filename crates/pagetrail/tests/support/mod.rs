//! Shared parts of the tests on running programs: building and starting victims, ending them in any
//! case, finding traces of the tracker in them, and rows for the table of `cargo xtask test`.

#![allow(dead_code, reason = "each test uses its part")]
#![allow(clippy::print_stdout, reason = "tests print what they did")]

use pagetrail::{Capabilities, Target, Technique, Watch};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// How long a victim may take to start or to end; only a hang takes as long.
const TIMEOUT: Duration = Duration::from_secs(90);

/// Whether `program` is in `PATH`.
pub(crate) fn has(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(program).is_file())
}

/// Whether this process is root.
pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// The number of repetitions: `long` with `PAGETRAIL_LONG=1`, an eighth with `PAGETRAIL_SHORT=1`,
/// which is for a second run where only the surroundings differ.
pub(crate) fn times(default: u32, long: u32) -> u32 {
    let is_set = |variable| std::env::var_os(variable).is_some_and(|value| value == "1");
    match (is_set("PAGETRAIL_LONG"), is_set("PAGETRAIL_SHORT")) {
        (true, _) => long,
        (false, true) => default.div_ceil(8),
        (false, false) => default,
    }
}

/// Writes a row for the table, and prints it. Where there is nothing for `any` technique, the test
/// is skipped.
#[track_caller]
pub(crate) fn row(subject: &str, technique: &str, status: &str, reason: &str) {
    println!("{subject} x {technique}: {status} {reason}");
    if (technique, status) == ("any", "absent") {
        pagetrail_skips::not_here(format!("{subject}: {reason}"));
    }
    let Some(dir) = std::env::var_os("PAGETRAIL_ROWS") else {
        return;
    };
    let place = std::env::var("PAGETRAIL_WHERE").unwrap_or_else(|_| "this machine".into());
    let quoted = |text: &str| format!("{text:?}");
    let line = format!(
        "{{\"where\":{},\"subject\":{},\"technique\":{},\"status\":{},\"reason\":{}}}\n",
        quoted(&place),
        quoted(subject),
        quoted(technique),
        quoted(status),
        quoted(reason)
    );
    let file = Path::new(&dir).join(format!("living-{}", std::process::id()));
    let opened = fs::OpenOptions::new().create(true).append(true).open(file);
    opened.unwrap().write_all(line.as_bytes()).unwrap();
}

/// The techniques that work here; writes a row for each of the others. Where none works, the test
/// is skipped.
pub(crate) fn working(subject: &str, techniques: &[Technique]) -> Vec<Technique> {
    let capabilities = Capabilities::probe();
    let works = |technique: &Technique| match capabilities.status(*technique).reason() {
        None => true,
        Some(reason) => {
            row(subject, technique.name(), "absent", reason);
            false
        }
    };
    let working: Vec<_> = techniques.iter().copied().filter(works).collect();
    if working.is_empty() && !techniques.is_empty() {
        row(subject, "any", "absent", "none of its techniques works");
    }
    working
}

/// The program of `tests/victims/NAME.c`, compiled if it is missing or older; `None` without a C
/// compiler.
pub(crate) fn victim_program(name: &str) -> Option<PathBuf> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(|e| e.into_inner());
    if !has("cc") {
        row(
            name,
            "any",
            "absent",
            "no C compiler (cc) for tests/victims",
        );
        return None;
    }
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/victims");
    let source = sources.join(format!("{name}.c"));
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join("victims");
    let program = out.join(name);
    let changed = |path: &Path| fs::metadata(path).and_then(|m| m.modified()).ok();
    let newest = changed(&source).max(changed(&sources.join("victim.h")));
    if changed(&program) <= newest {
        fs::create_dir_all(&out).unwrap();
        // Another test may be executing the old one, or compiling it as well.
        let fresh = out.join(format!(".{name}.{}", std::process::id()));
        let status = Command::new("cc")
            .args(["-O2", "-Wall", "-Werror", "-pthread", "-o"])
            .args([&fresh, &source])
            .status()
            .unwrap();
        assert!(status.success(), "{} does not compile", source.display());
        fs::rename(&fresh, &program).unwrap();
    }
    Some(program)
}

/// A program that checks itself; it is killed when dropped.
pub(crate) struct Victim {
    child: Child,
    name: String,
    /// The lines printed before `ready`.
    pub(crate) said: Vec<String>,
    paddings: Vec<(u64, Vec<u8>)>,
}

impl Victim {
    /// Starts a victim of `tests/victims` and waits until it is ready; `None` if it cannot run
    /// here.
    pub(crate) fn start(name: &str, arguments: &[&str]) -> Option<Self> {
        let program = victim_program(name)?;
        let mut command = Command::new(program);
        command.args(arguments);
        Self::of(name, &mut command)
    }

    /// Starts any program that prints `ready`, and waits for that. Exit code 77 before that means
    /// that it cannot run here.
    pub(crate) fn of(name: &str, command: &mut Command) -> Option<Self> {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        let mut victim = Self {
            child,
            name: name.into(),
            said: Vec::new(),
            paddings: Vec::new(),
        };
        loop {
            let mut line = String::new();
            if lines.read_line(&mut line).unwrap() == 0 {
                let (status, message) = victim.outcome();
                if status.code() == Some(77) {
                    row(name, "any", "absent", message.trim());
                    return None;
                }
                panic!("{name} did not get ready: {status}: {message}");
            }
            if line.trim_end() == "ready" {
                break;
            }
            victim.said.push(line.trim_end().into());
        }
        victim.child.stdout = Some(lines.into_inner());
        victim.paddings = paddings(victim.pid());
        Some(victim)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_raw(self.pid() as i32).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Whether it ends within a moment.
    pub(crate) fn is_ending(&mut self) -> bool {
        let deadline = Instant::now() + Duration::from_secs(3);
        while self.is_running() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
        !self.is_running()
    }

    /// Fails the test because attaching failed; if the victim has ended, its output is the reason.
    pub(crate) fn blame(&mut self, error: &pagetrail::Error) -> ! {
        let doing = describe(self.pid());
        let deadline = Instant::now() + Duration::from_secs(3);
        while self.is_running() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(20));
        }
        if self.is_running() {
            panic!("{}: {error}\n{doing}", self.name);
        }
        let (status, text) = self.outcome();
        panic!("{}: {error}; it broke: {status}: {text}", self.name);
    }

    fn outcome(&mut self) -> (ExitStatus, String) {
        let deadline = Instant::now() + TIMEOUT;
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(
                Instant::now() < deadline,
                "{} does not come to its end:\n{}",
                self.name,
                describe(self.pid())
            );
            std::thread::sleep(Duration::from_millis(5));
        };
        let mut text = String::new();
        if let Some(mut stdout) = self.child.stdout.take() {
            let _ = stdout.read_to_string(&mut text);
        }
        if let Some(mut stderr) = self.child.stderr.take() {
            let _ = stderr.read_to_string(&mut text);
        }
        (status, text)
    }

    /// Asserts that no trace of a tracker is left. `code`: executable memory must be unchanged,
    /// too.
    pub(crate) fn is_clean(&self, code: bool) {
        // A thread whose tracker was killed must run to finish the injected call.
        let deadline = Instant::now() + Duration::from_secs(120);
        loop {
            let traces = traces(self.pid(), if code { &self.paddings } else { &[] });
            if traces.is_empty() {
                return;
            }
            assert!(Instant::now() < deadline, "{}: {traces:?}", self.name);
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits for it to end by itself, and checks its verdict.
    pub(crate) fn ends(mut self) -> String {
        let (status, text) = self.outcome();
        assert!(status.success(), "{} broke: {status}: {text}", self.name);
        text
    }

    /// Makes it end, and checks its verdict on itself.
    pub(crate) fn finish(mut self) -> String {
        if self.is_running() {
            self.signal(rustix::process::Signal::TERM);
        }
        let (status, text) = self.outcome();
        assert!(status.success(), "{} broke: {status}: {text}", self.name);
        text
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The state of a process and its threads, for messages.
pub(crate) fn describe(pid: u32) -> String {
    let tasks = fs::read_dir(format!("/proc/{pid}/task"))
        .into_iter()
        .flatten();
    tasks
        .flatten()
        .map(|task| {
            let read = |name| fs::read_to_string(task.path().join(name)).unwrap_or_default();
            let status = read("status");
            let state = status
                .lines()
                .find(|l| l.starts_with("State"))
                .unwrap_or("");
            format!(
                "{:?}: {state}, {}\n",
                task.file_name(),
                read("syscall").trim()
            )
        })
        .collect()
}

/// The last page of each executable mapping, where a tracker may have injected code.
fn paddings(pid: u32) -> Vec<(u64, Vec<u8>)> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    maps.lines()
        .filter(|line| line.contains(" r-xp ") && !line.contains("[vsyscall]"))
        .filter_map(|line| {
            let (_, end) = line.split(' ').next()?.split_once('-')?;
            let at = u64::from_str_radix(end, 16).ok()? - 4096;
            Some((at, read_memory(pid, at)?))
        })
        .collect()
}

fn read_memory(pid: u32, at: u64) -> Option<Vec<u8>> {
    use std::os::unix::fs::FileExt;
    let mut bytes = vec![0; 4096];
    let memory = fs::File::open(format!("/proc/{pid}/mem")).ok()?;
    memory.read_exact_at(&mut bytes, at).ok()?;
    Some(bytes)
}

/// The PID of the tracer of any thread, or 0.
pub(crate) fn tracer(pid: u32) -> u32 {
    let tasks = fs::read_dir(format!("/proc/{pid}/task"))
        .into_iter()
        .flatten();
    let tracers = tasks.flatten().filter_map(|task| {
        let status = fs::read_to_string(task.path().join("status")).ok()?;
        status
            .lines()
            .find_map(|l| l.strip_prefix("TracerPid:"))?
            .trim()
            .parse()
            .ok()
    });
    tracers.max().unwrap_or(0)
}

/// The state letter of a process.
pub(crate) fn state(pid: u32) -> char {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("State:"));
    line.and_then(|state| state.trim().chars().next())
        .unwrap_or('?')
}

/// Whether signals are pending for the process.
pub(crate) fn is_pending(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let masks = status
        .lines()
        .filter_map(|l| l.strip_prefix("SigPnd:").or(l.strip_prefix("ShdPnd:")));
    masks
        .map(str::trim)
        .any(|mask| mask.bytes().any(|digit| digit != b'0'))
}

/// Whether any mapping is registered with a userfaultfd.
pub(crate) fn is_registered(pid: u32) -> bool {
    let smaps = fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap_or_default();
    smaps.lines().any(|line| {
        line.strip_prefix("VmFlags:").is_some_and(|flags| {
            flags
                .split_whitespace()
                .any(|flag| flag == "uw" || flag == "um")
        })
    })
}

/// Traces that a tracker has left in a process.
fn traces(pid: u32, paddings: &[(u64, Vec<u8>)]) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(format!("/proc/{pid}/fd"))
        .into_iter()
        .flatten()
        .flatten()
    {
        let link = fs::read_link(entry.path()).unwrap_or_default();
        if link.as_os_str() == "anon_inode:[userfaultfd]" {
            found.push(format!(
                "descriptor {:?} is a userfaultfd",
                entry.file_name()
            ));
        }
    }
    match tracer(pid) {
        0 => {}
        tracer => found.push(format!("process {tracer} traces it")),
    }
    if is_registered(pid) {
        found.push("mappings are registered with a userfaultfd".into());
    }
    for (at, before) in paddings {
        let now = read_memory(pid, *at).unwrap_or_else(|| before.clone());
        let bytes = || now.iter().zip(before);
        if let Some(first) = bytes().position(|(now, before)| now != before) {
            let last = bytes().rposition(|(now, before)| now != before);
            let now = &now[first..=last.unwrap_or(first)];
            let at = at + first as u64;
            found.push(format!("code at {at:#x} has changed: it is {now:02x?}"));
        }
    }
    found
}

/// Attaches, collects some rounds, and returns the watch, which detaches when dropped.
pub(crate) fn attach_once(
    pid: u32,
    technique: Technique,
    rounds: u32,
    pause: Duration,
) -> Result<Watch, pagetrail::Error> {
    let target = Target::process(pid)?;
    let mut watch = Watch::builder()
        .target(target)
        .technique(technique)
        .start()?;
    for _ in 0..rounds {
        std::thread::sleep(pause);
        watch.collect()?.commit();
    }
    Ok(watch)
}

/// A random source whose seed `PAGETRAIL_SEED` sets; prints the seed.
pub(crate) fn random(what: &str) -> fastrand::Rng {
    let given = std::env::var("PAGETRAIL_SEED")
        .ok()
        .and_then(|text| text.parse().ok());
    let seed = given.unwrap_or_else(|| fastrand::u64(..));
    println!("{what}: PAGETRAIL_SEED={seed}");
    fastrand::Rng::with_seed(seed)
}
