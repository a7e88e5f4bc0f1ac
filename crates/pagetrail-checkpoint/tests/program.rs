//! Checkpoints in one's own program: what comes back after a restart, after a failure, after `kill
//! -9`, and after a reset.

#![allow(clippy::print_stdout, reason = "tests print what they did")]

#[path = "common/faulty.rs"]
mod faulty;

use faulty::{Fault, Faulty};
use pagetrail_checkpoint::storage::InMemory;
use pagetrail_checkpoint::{Arena, Checkpointer, Snapshot, Store};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

#[test]
fn regions_come_back_by_name_also_when_they_grow() {
    let memory = InMemory::new();
    let open = || Checkpointer::builder_on(Store::create_on(Arc::new(memory.clone())));
    let mut kept = open()
        .region("a", 10_000)
        .region("b", 5000)
        .start()
        .unwrap();
    let mut random = fastrand::Rng::with_seed(1);
    let mut oracle = (vec![0; 10_000], vec![0; 5000]);
    for round in 0..200 {
        for _ in 0..random.u32(0..5) {
            let (at, value) = (random.usize(0..5000), random.u8(..));
            kept.region_mut("b")[at] = value;
            oracle.1[at] = value;
            kept.region_mut("a")[2 * at] = value;
            oracle.0[2 * at] = value;
        }
        kept.checkpoint().unwrap();
        if round % 10 == 0 {
            // Lost.
            kept.region_mut("a").fill(7);
            drop(kept);
            kept = open()
                .region("b", 5000)
                .region("a", 10_000)
                .start()
                .unwrap();
        }
        assert!(
            kept.region("a") == oracle.0 && kept.region("b") == oracle.1,
            "round {round}"
        );
    }
    drop(kept);
    let kept = open()
        .region("new", 10)
        .region("b", 50_000)
        .start()
        .unwrap();
    assert_eq!(kept.region("b")[..5000], oracle.1);
    assert!(
        kept.region("b")[5000..]
            .iter()
            .chain(kept.region("new"))
            .all(|&byte| byte == 0)
    );
}

#[test]
fn a_region_that_is_left_out_or_shrunk_is_lost_only_when_asked() {
    let memory = InMemory::new();
    let open = || Checkpointer::builder_on(Store::create_on(Arc::new(memory.clone())));
    let mut kept = open().region("t", 8192).region("u", 4096).start().unwrap();
    kept.region_mut("t").fill(7);
    kept.region_mut("u").fill(9);
    kept.checkpoint().unwrap();
    drop(kept);
    let refused = open().region("t", 4096).start().unwrap_err().to_string();
    assert!(refused.contains("\"t\" has 8192 bytes"), "{refused}");
    let refused = open().region("x", 1).region("x", 2).start().unwrap_err();
    assert!(refused.to_string().contains("two regions"), "{refused}");
    // Left out for a while, among others that come.
    for _ in 0..3 {
        let mut kept = open().region("t", 8192).region("new", 100).start().unwrap();
        assert!(kept.region("t").iter().all(|&byte| byte == 7));
        kept.region_mut("new").fill(1);
        kept.checkpoint().unwrap();
    }
    let kept = open().region("u", 4096).region("t", 8192).start().unwrap();
    assert!(kept.region("t").iter().all(|&byte| byte == 7));
    assert!(kept.region("u").iter().all(|&byte| byte == 9));
    drop(kept);
    let mut kept = open()
        .shrunk_region("t", 4096)
        .without_region("u")
        .start()
        .unwrap();
    assert!(kept.region("t").iter().all(|&byte| byte == 7));
    kept.checkpoint().unwrap();
    drop(kept);
    let kept = open().region("t", 8192).region("u", 4096).start().unwrap();
    assert!(
        kept.region("t")[4096..]
            .iter()
            .chain(kept.region("u"))
            .all(|&byte| byte == 0)
    );
}

#[test]
fn a_failed_checkpoint_is_made_up_for() {
    for step in 0..60 {
        let memory = InMemory::new();
        let faulty = Faulty::new(memory.clone(), step, Fault::Once);
        let store = Store::create_on(Arc::new(faulty));
        let Ok(mut kept) = Checkpointer::builder_on(store).region("r", 1 << 16).start() else {
            continue;
        };
        for n in 0..8 {
            kept.region_mut("r")[n * 5000] = n as u8 + 1;
            let _ = kept.checkpoint();
        }
        kept.checkpoint().unwrap();
        drop(kept);
        let store = Store::create_on(Arc::new(memory));
        let kept = Checkpointer::builder_on(store)
            .region("r", 1 << 16)
            .start()
            .unwrap();
        assert!(
            (0..8).all(|n| kept.region("r")[n * 5000] == n as u8 + 1),
            "step {step}"
        );
    }
}

struct Kv {
    child: Child,
    answers: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Kv {
    fn start(program: &Path, store: &Path) -> (Self, String) {
        let mut child = Command::new(program)
            .arg(store)
            .arg("50")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut answers = BufReader::new(child.stdout.take().unwrap()).lines();
        let hello = answers.next().unwrap().unwrap();
        (Self { child, answers }, hello)
    }

    fn ask(&mut self, line: &str) -> String {
        writeln!(self.child.stdin.as_mut().unwrap(), "{line}").unwrap();
        self.answers.next().unwrap().unwrap()
    }
}

impl Drop for Kv {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Cargo builds examples before it runs all tests of a package, and not before a single one.
fn example(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let target = test.parent().unwrap().parent().unwrap();
    let path = target.join("examples").join(name);
    assert!(path.exists(), "cargo build --examples first");
    path
}

#[test]
fn the_key_value_store_survives_kill() {
    let program = example("kv");
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("kv");
    let mut random = fastrand::Rng::with_seed(4);
    let (mut next, mut kills) = (0u64, 0);
    // When each key was set.
    let mut set: Vec<Instant> = Vec::new();
    while kills < 10 {
        let (mut kv, hello) = Kv::start(&program, &store);
        assert!(
            hello == "empty" || hello.starts_with("restored checkpoint"),
            "{hello}"
        );
        let there: u64 = kv.ask("count").parse().unwrap();
        assert!(there <= next);
        // The last ones, and some of the others.
        let some = (0..there).step_by(there as usize / 100 + 1);
        for key in some.chain(there.saturating_sub(100)..there) {
            assert_eq!(kv.ask(&format!("get key{key}")), format!("value {key}"));
        }
        // What is lost was set in the last interval before the kill, however long a checkpoint
        // took.
        if let (Some(lost), Some(last)) = (set.get(there as usize), set.last()) {
            println!("lost {} keys of {next}, {:?}", next - there, *last - *lost);
            assert!(
                *last - *lost < Duration::from_secs(60),
                "more than an interval is lost"
            );
        }
        next = there;
        set.truncate(there as usize);
        let until = Instant::now() + Duration::from_millis(random.u64(50..300));
        while Instant::now() < until {
            assert_eq!(kv.ask(&format!("set key{next} value {next}")), "ok");
            set.push(Instant::now());
            next += 1;
        }
        drop(kv);
        kills += 1;
    }
    assert!(next > 100, "{next}");
    assert!(Store::open(&store).unwrap().verify().unwrap().is_sound());
}

#[test]
fn a_snapshot_comes_back_whatever_was_written() {
    let mut random = fastrand::Rng::with_seed(2);
    let mut arena = Arena::new(1 << 20).unwrap();
    arena.iter_mut().for_each(|byte| *byte = random.u8(..));
    let then = arena.to_vec();
    let mut snapshot = Snapshot::take(arena).unwrap();
    let (mut whole, mut partial) = (0, 0);
    for round in 0..600 {
        // Phases: little is written, then much, then little.
        let writes = if (200..400).contains(&round) { 2000 } else { 5 };
        for _ in 0..writes {
            let at = random.usize(0..snapshot.len());
            snapshot[at] = snapshot[at].wrapping_add(1);
        }
        let reset = snapshot.reset().unwrap();
        whole += u32::from(reset.whole);
        partial += u32::from(!reset.whole);
        assert!(snapshot[..] == then, "round {round}");
    }
    println!("{whole} whole, {partial} partial");
    assert!(whole > 150 && partial > 200);
    assert!(snapshot.into_arena()[..] == then);
}
