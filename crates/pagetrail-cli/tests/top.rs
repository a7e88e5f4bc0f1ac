//! `pagetrail top` on a terminal that goes away.

mod common;

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use common::running::Running;
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

/// Its terminal is one of `script(1)`; when that is killed, reads fail at once, again and again. A
/// program started by nohup(1) hears no SIGHUP besides.
#[test]
fn it_ends_with_its_terminal() {
    let sleeper = Command::new("sleep").arg("1000").spawn();
    let sleeper = Running(sleeper.expect("it starts"));
    for before in ["", "trap '' HUP; "] {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let place = |name: &str| -> PathBuf { directory.path().join(name) };
        let program = env!("CARGO_BIN_EXE_pagetrail");
        let command = format!(
            "{before}echo $$ > pid.new; mv pid.new pid; exec '{program}' top --interval 20ms -p {}",
            sleeper.0.id()
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
        let Ok(script) = script else {
            return pagetrail_skips::not_here("top without its terminal: there is no script(1)");
        };
        let script = Running(script);
        wait_until("top is started", || place("pid").exists());
        let pid = fs::read_to_string(place("pid")).expect("a PID");
        let pid = pid.trim().parse().ok().and_then(Pid::from_raw);
        let top = Other(pid.expect("a PID"));
        wait_until("top has the screen", || {
            let screen = fs::read(place("screen")).unwrap_or_default();
            String::from_utf8_lossy(&screen).contains("\x1b[?1049h")
        });
        drop(script);
        wait_until("top ends", || top.has_ended());
    }
}
