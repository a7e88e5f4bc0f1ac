//! `report --private-since-fork` of a parent and its worker.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::{error_line, number, pagetrail, run};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// A process that ends with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn compiled(directory: &Path) -> std::path::PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/worker.c");
    let program = directory.join("worker");
    let mut compile = Command::new("cc");
    let compile = compile.arg("-O1").arg("-o").arg(&program).arg(source);
    assert!(compile.status().is_ok_and(|status| status.success()));
    program
}

#[test]
fn a_worker_has_what_it_wrote_to_itself() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let here = directory.path();
    let mut parent = Command::new(compiled(here));
    let parent = parent.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let mut parent = Running(parent.expect("it starts"));
    let mut said = BufReader::new(parent.0.stdout.take().expect("it is piped")).lines();
    let worker: u64 = said
        .next()
        .expect("a line")
        .expect("text")
        .parse()
        .expect("a PID");

    let pid = parent.0.id().to_string();
    let mut recorder = pagetrail(here, &["record", "--interval", "20ms", "-p", &pid]);
    let recorder = recorder.stderr(Stdio::piped()).spawn();
    let mut recorder = Running(recorder.expect("it starts"));
    let mut messages = BufReader::new(recorder.0.stderr.take().expect("it is piped")).lines();
    let first = messages.next().expect("a line").expect("text");
    assert!(first.contains("and 1 more"), "{first}");
    let mut stdin = parent.0.stdin.take().expect("it is piped");
    stdin.write_all(b"x").expect("the worker listens");
    let written = said.next().expect("a line").expect("text");
    assert_eq!(written, "written");
    // Before its first round it does not listen to signals; the last round is taken at the signal.
    let trail = here.join("pagetrail.trail");
    let has_begun = || std::fs::metadata(&trail).is_ok_and(|trail| trail.len() > 0);
    let deadline = Instant::now() + Duration::from_secs(120);
    while !has_begun() {
        assert!(Instant::now() < deadline, "no round is recorded");
        std::thread::sleep(Duration::from_millis(5));
    }
    let pid = Pid::from_raw(recorder.0.id() as i32).expect("a PID");
    kill_process(pid, Signal::INT).expect("it runs");
    let ended = recorder.0.wait().expect("it ends");
    assert!(ended.success(), "{:?}", messages.collect::<Vec<_>>());

    let output = run(here, &["report", "--private-since-fork", "--json"]);
    if !output.status.success() {
        let line = error_line(&output, 2);
        assert!(line.contains("CAP_SYS_ADMIN"), "{line}");
        pagetrail_skips::not_here("page frames are not shown: no CAP_SYS_ADMIN");
        return;
    }
    let document: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let row = &document["private_since_fork"][0];
    assert_eq!(number(&row["pid"]), worker);
    assert!(number(&row["inherited_pages"]) >= 512, "{row}");
    // Its stack and its library's data, too.
    assert!((100..150).contains(&number(&row["copied_pages"])), "{row}");
    let mappings = document["mappings"].as_array().expect("a list");
    let memory = mappings
        .iter()
        .find(|mapping| mapping["name"] == "anonymous");
    let pages = number(&memory.expect("its memory has no name")["pages"]);
    assert!((100..120).contains(&pages), "{document}");
    let output = run(here, &["report", "--private-since-fork"]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.starts_with("private since fork: "), "{text}");
}
