//! Puts a guest back to earlier instants: memory, registers of all threads, and calls that were
//! under way.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Stdio;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use serde_json::Value;

use crate::common::guest::{compiled, no_guest};
use crate::common::running::Running;
use crate::common::{number, pagetrail, run};

/// Far more than anything here takes on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(240);
/// How often the guest is put back.
const REWINDS: u64 = 6;

/// Where `rewound` has its pages, and how many each of its threads has.
const BASE: &str = "100000000000";
const PAGE: usize = 4096;
const THREADS: usize = 3;
const PAGES: usize = 128;

/// The next checkpoint.
fn next(taken: &Receiver<Value>) -> Value {
    taken.recv_timeout(TIMEOUT).expect("another checkpoint")
}

/// Fails unless the pages in a checkpoint are of one instant. Returns how far each thread was.
fn progress(directory: &Path, checkpoint: u64) -> Vec<u64> {
    let (at, raw) = (checkpoint.to_string(), format!("raw.{checkpoint}"));
    let export = run(directory, &["export", "st", "--raw", &raw, "--at", &at]);
    assert_eq!(export.status.code(), Some(0), "{export:?}");
    let index = fs::read_to_string(directory.join(format!("{raw}.map"))).expect("an index");
    let line = index.lines().find(|line| line.starts_with(BASE));
    let offset = line.and_then(|line| line.split(' ').nth(2));
    let offset = u64::from_str_radix(offset.expect("its memory"), 16).expect("hexadecimal");
    let mut memory = vec![0; THREADS * PAGES * PAGE];
    let file = File::open(directory.join(raw)).expect("the contents");
    file.read_exact_at(&mut memory, offset).expect("all of it");
    let word = |page: usize| {
        let bytes = memory[page * PAGE..page * PAGE + 8].try_into();
        bytes.map_or(0, u64::from_le_bytes)
    };
    let threads = (0..THREADS).map(|thread| {
        let stamps: Vec<u64> = (0..PAGES).map(|page| word(thread * PAGES + page)).collect();
        let done = stamps.iter().take_while(|stamp| **stamp == stamps[0]);
        let done = done.count();
        let expected = |page| stamps[0] - u64::from(page >= done);
        let is_one = (0..PAGES).all(|page| stamps[page] == expected(page));
        assert!(
            is_one,
            "checkpoint {checkpoint}, thread {thread}: {stamps:?}"
        );
        stamps[0] * PAGES as u64 + done as u64
    });
    threads.collect()
}

#[test]
fn a_guest_goes_on_from_any_instant() {
    if no_guest() {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let here = directory.path();
    let program = compiled(here, "rewound.c", &["-pthread"]);
    let stop = here.join("stop");
    let mut command = pagetrail(here, &["checkpoint", "--vm", "--store", "st", "--json"]);
    command
        .args(["--every", "200ms", "--"])
        .arg(&program)
        .arg(&stop);
    let mut recorder = command.stdout(Stdio::piped()).spawn().expect("checkpoint");
    let lines = BufReader::new(recorder.stdout.take().expect("it is piped")).lines();
    let mut recorder = Running(recorder);
    let (sender, taken) = channel();
    let reader = thread::spawn(move || {
        for line in lines.map_while(Result::ok) {
            let document = serde_json::from_str(&line).expect("JSON");
            let _ = sender.send(document);
        }
    });
    // When the first is taken, the program may not have begun.
    let documents: Vec<Value> = (0..5).map(|_| next(&taken)).collect();
    let pid = number(&documents[0]["pid"]).to_string();
    let numbers: Vec<u64> = documents[2..]
        .iter()
        .map(|document| number(&document["number"]))
        .collect();
    let then: Vec<Vec<u64>> = numbers
        .iter()
        .map(|number| progress(here, *number))
        .collect();
    let mut pages = 0;
    for turn in 0..REWINDS {
        let to = numbers[turn as usize % numbers.len()];
        let then = then[turn as usize % numbers.len()].clone();
        let to = to.to_string();
        let rewound = run(here, &["rewind", "-p", &pid, "st", "--to", &to, "--json"]);
        assert_eq!(rewound.status.code(), Some(0), "to {to}: {rewound:?}");
        let document: Value = serde_json::from_slice(&rewound.stdout).expect("JSON");
        pages += number(&document["pages"]);
        // Of these, one at least was begun after that.
        while taken.try_recv().is_ok() {}
        next(&taken);
        let now = progress(here, number(&next(&taken)["number"]));
        let forth = then.iter().zip(&now).all(|(then, now)| then <= now);
        assert!(forth, "{then:?} {now:?}");
        let ended = recorder.0.try_wait().expect("a process");
        assert_eq!(ended, None, "after a rewind to {to}");
    }
    assert!(pages > 0, "no rewind had anything to do");
    File::create(&stop).expect("a file");
    assert_eq!(recorder.0.wait().expect("it is ours").code(), Some(0));
    reader.join().expect("all lines");
    let verified = run(here, &["verify", "st"]);
    assert_eq!(verified.status.code(), Some(0), "{verified:?}");
}
