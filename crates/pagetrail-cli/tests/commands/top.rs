//! `pagetrail top` on a terminal: keys while it collects, and a terminal that goes away.

use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::common::cgroup::Cgroup;
use crate::common::running::Running;
use rustix::process::{Pid, Signal, kill_process};

/// For what takes milliseconds on a machine that is not busy.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Waits for the end of a process that is not a child of this one.
struct Other(Pid);

impl Other {
    /// Whether it has ended, or is about to: a zombie has.
    fn has_ended(&self) -> bool {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.0.as_raw_nonzero()));
        let state = stat.ok().and_then(|stat| {
            let (_, rest) = stat.rsplit_once(") ")?;
            rest.chars().next()
        });
        state.is_none_or(|state| matches!(state, 'Z' | 'X'))
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        if !self.has_ended() {
            let _ = kill_process(self.0, Signal::KILL);
        }
    }
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !is_so() {
        assert!(Instant::now() < deadline, "waited too long: {what}");
        sleep(Duration::from_millis(5));
    }
}

/// `pagetrail top` on a terminal of `script(1)`.
struct Top {
    script: Running,
    process: Other,
    directory: tempfile::TempDir,
}

impl Top {
    /// The live view of what `target` names, started by a shell after the commands `before`, once
    /// it has the screen; `None` where there is no script(1).
    fn start(before: &str, target: &str) -> Option<Self> {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let program = env!("CARGO_BIN_EXE_pagetrail");
        let command = format!(
            "{before}stty rows 30 columns 120; echo $$ > pid.new; mv pid.new pid; exec '{program}' top --interval 20ms {target}"
        );
        let script = Command::new("script")
            .args(["-qfec", &command, "screen"])
            .current_dir(directory.path())
            .env("SHELL", "/bin/sh")
            .env("TERM", "xterm")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let script = Running(script.ok()?);
        let pid = directory.path().join("pid");
        wait_until("top is started", || pid.exists());
        let pid = fs::read_to_string(pid).expect("a PID");
        let pid = pid.trim().parse().ok().and_then(Pid::from_raw);
        let top = Self {
            script,
            process: Other(pid.expect("a PID")),
            directory,
        };
        top.wait_for("\x1b[?1049h");
        Some(top)
    }

    /// Waits until these bytes have come to the screen. Blank cells are jumped over at first, so
    /// that words come one by one.
    fn wait_for(&self, bytes: &str) {
        let screen = self.directory.path().join("screen");
        wait_until(bytes, || {
            let screen = fs::read(&screen).unwrap_or_default();
            String::from_utf8_lossy(&screen).contains(bytes)
        });
    }

    fn press(&mut self, key: u8) {
        let keyboard = self.script.0.stdin.as_mut().expect("a pipe");
        keyboard.write_all(&[key]).expect("script reads");
        keyboard.flush().expect("script reads");
    }

    /// Ends it by a key.
    fn quit(mut self) {
        self.press(b'q');
        let status = self.script.0.wait().expect("a child");
        assert!(status.success(), "{status}");
    }
}

/// A thread that stands still, as in a collect that takes long.
struct Still(libc::pid_t);

impl Still {
    fn new(thread: Pid) -> Self {
        let thread = thread.as_raw_nonzero().get();
        let none = std::ptr::null_mut::<libc::c_void>();
        let mut status = 0;
        // SAFETY: the calls write to `status` alone.
        unsafe {
            assert_eq!(libc::ptrace(libc::PTRACE_SEIZE, thread, none, none), 0);
            assert_eq!(libc::ptrace(libc::PTRACE_INTERRUPT, thread, none, none), 0);
            assert_eq!(libc::waitpid(thread, &raw mut status, libc::__WALL), thread);
        }
        assert!(libc::WIFSTOPPED(status), "{status:#x}");
        Self(thread)
    }

    fn let_go(self) {
        let none = std::ptr::null_mut::<libc::c_void>();
        // SAFETY: the call writes to no memory of ours.
        let outcome = unsafe { libc::ptrace(libc::PTRACE_DETACH, self.0, none, none) };
        assert_eq!(outcome, 0);
    }
}

fn sleeper() -> Running {
    let sleeper = Command::new("sleep").arg("1000").spawn();
    Running(sleeper.expect("it starts"))
}

/// When script(1) is killed, reads of its terminal fail at once, again and again. A program started
/// by nohup(1) hears no SIGHUP besides.
#[test]
fn it_ends_with_its_terminal() {
    let sleeper = sleeper();
    let target = format!("-p {}", sleeper.pid());
    for before in ["", "trap '' HUP; "] {
        let Some(top) = Top::start(before, &target) else {
            return pagetrail_skips::not_here("top without its terminal: there is no script(1)");
        };
        drop(top.script);
        wait_until("top ends", || top.process.has_ended());
    }
}

/// The thread that collects is the first one. While it stands still, a key changes what is shown,
/// and another gives the terminal back; then it goes on to the end of the command.
#[test]
fn no_key_waits_for_a_collect() {
    let mut sleeper = sleeper();
    let Some(mut top) = Top::start("", &format!("-p {}", sleeper.pid())) else {
        return pagetrail_skips::not_here("keys of top: there is no script(1)");
    };
    top.wait_for("sort:");
    let still = Still::new(top.process.0);
    top.press(b's');
    // What differs between "last round" and "rounds in view".
    top.wait_for("rounds i");
    top.press(b'q');
    top.wait_for("\x1b[?1049l");
    assert!(!top.process.has_ended());
    still.let_go();
    let status = top.script.0.wait().expect("a child");
    assert!(status.success(), "{status}");
    assert!(sleeper.is_alive());
}

#[test]
fn several_processes_and_a_control_group() {
    // It ends after the processes, which are in it.
    let group = Cgroup::new();
    let sleepers = [sleeper(), sleeper()];
    let [first, second] = sleepers.each_ref().map(Running::pid);
    let Some(top) = Top::start("", &format!("-p {first} -p {second}")) else {
        return pagetrail_skips::not_here("targets of top: there is no script(1)");
    };
    top.wait_for("processes");
    top.quit();
    let Some(group) = &group else {
        return pagetrail_skips::not_here("top of a control group: none can be made");
    };
    let top = Top::start("", &format!("--cgroup {}", group.path().display()));
    let top = top.expect("there is script(1)");
    // The group has no process yet, and gets one after the other.
    group.take(sleepers[0].0.id());
    top.wait_for("sort:");
    group.take(sleepers[1].0.id());
    top.wait_for("processes");
    top.quit();
}
