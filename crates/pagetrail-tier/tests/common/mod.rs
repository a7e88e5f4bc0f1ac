//! The program whose hot set is known, for tests that watch and move it.
#![allow(dead_code, reason = "each test uses a part")]

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// What `hot_set.c` says of itself.
pub(crate) const BASE: u64 = 0x1000_0000_0000;
pub(crate) const STAGES: u64 = 5;
const PASSES: u64 = BASE - (16 << 12);

/// The machine may be busy.
const TIMEOUT: Duration = Duration::from_secs(180);

/// A running `hot_set`, killed when it is dropped.
pub(crate) struct Program(pub(crate) Child);

impl Program {
    /// Starts it with its arguments, and waits until it is ready.
    pub(crate) fn start(directory: &Path, arguments: &[u64]) -> Self {
        let program = directory.join("hot_set");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/hot_set.c");
        let mut cc = Command::new("cc");
        let status = cc.arg("-O1").arg("-o").arg(&program).arg(source).status();
        assert!(status.is_ok_and(|status| status.success()), "cc failed");
        let mut command = Command::new(program);
        command.args(arguments.iter().map(u64::to_string));
        let mut running = Self(command.stdout(Stdio::piped()).spawn().expect("it starts"));
        let stdout = running.0.stdout.as_mut().expect("it is piped");
        let mut line = String::new();
        BufReader::new(stdout)
            .read_line(&mut line)
            .expect("its first line");
        assert_eq!(line, "ready\n");
        running
    }

    pub(crate) fn pid(&self) -> u32 {
        self.0.id()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).expect("it runs");
    }

    /// Waits for some time, and until it has surely gone through all its hot pages in it: on a busy
    /// machine it may not run at all for longer than a window.
    pub(crate) fn run_for(&self, time: Duration) {
        // The first that ends may have begun before, and one before that with what was hot before a
        // signal.
        const ENOUGH: u64 = 3;
        let began = Instant::now();
        let before = self.passes();
        thread::sleep(time);
        while self.passes() < before + ENOUGH {
            assert!(began.elapsed() < TIMEOUT, "the program does not go on");
            thread::sleep(time / 10);
        }
    }

    fn passes(&self) -> u64 {
        let memory = File::open(format!("/proc/{}/mem", self.pid())).expect("its memory");
        let mut bytes = [0; 8];
        memory.read_exact_at(&mut bytes, PASSES).expect("its count");
        u64::from_ne_bytes(bytes)
    }

    /// Has it check its memory, and end.
    pub(crate) fn finish(&mut self) {
        self.signal(Signal::TERM);
        let status = self.0.wait().expect("it ends");
        assert!(
            status.success(),
            "its memory is as it should be: {status:?}"
        );
    }

    /// The arena's pages on node 0, by `/proc/PID/numa_maps`.
    pub(crate) fn on_node_0(&self) -> u64 {
        let text = std::fs::read_to_string(format!("/proc/{}/numa_maps", self.pid()));
        let text = text.expect("numa_maps");
        let line = text
            .lines()
            .find(|line| line.starts_with(&format!("{BASE:x} ")));
        let mut words = line.expect("the arena").split(' ');
        let count = words.find_map(|word| word.strip_prefix("N0="));
        count.map_or(0, |count| count.parse().expect("a number"))
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
