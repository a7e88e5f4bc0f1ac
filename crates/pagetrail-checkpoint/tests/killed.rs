//! The checkpointer killed at every step to the store and at random moments, and a store on a disk
//! that fills: the store verifies, the newest checkpoint is whole, the next one complete, and the
//! process lives.
//!
//! The checkpointer is this test binary once more, which an environment variable controls.

#![allow(clippy::print_stdout, reason = "tests print what they did")]

mod common;
#[path = "common/faulty.rs"]
mod faulty;
#[path = "common/stamps.rs"]
mod stamps;
#[path = "../../pagetrail/tests/support/mod.rs"]
mod support;

use faulty::{Fault, Faulty};
use pagetrail_checkpoint::storage::Directory;
use pagetrail_checkpoint::{
    ProcessCheckpointer, ProcessOptions, Store, WorldWritable, WriterOptions,
};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use support::{Victim, random, row, times};

const ROLE: &str = "PAGETRAIL_TEST_CHECKPOINTER";

/// Not a test of its own: the checkpointer that is killed.
#[test]
fn checkpointer() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    let mut words = role.splitn(4, ' ');
    let mut number = || words.next().unwrap().parse::<u64>().unwrap();
    let (pid, step, count) = (number(), number(), number());
    let directory =
        Directory::create(Path::new(words.next().unwrap()), WorldWritable::Allow).unwrap();
    let store = Store::create_on(Arc::new(Faulty::new(directory, step, Fault::Kill))).unwrap();
    let mut writer = store.writer(WriterOptions::default()).unwrap();
    let options = ProcessOptions::default();
    let mut process = ProcessCheckpointer::attach(pid as u32, options).unwrap();
    for _ in 0..count {
        process.checkpoint(&mut writer).unwrap();
        writer.prune(2).unwrap();
    }
}

fn start(victim: &Victim, step: u64, count: u64, path: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["checkpointer", "--exact", "--quiet"])
        .env(
            ROLE,
            format!("{} {step} {count} {}", victim.pid(), path.display()),
        )
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

/// The store is whole, its newest checkpoint of one instant, and the victim runs.
fn examine(victim: &mut Victim, path: &Path) {
    assert!(victim.is_running(), "the victim died");
    let Ok(store) = Store::open(path) else {
        return;
    };
    let verified = store.verify().unwrap();
    assert!(verified.is_sound(), "{:?}", verified.damages);
    if let Ok(newest) = store.newest() {
        stamps::check(&mut store.image(newest).unwrap());
    }
}

fn scratch() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    (dir, path)
}

#[test]
fn killed_at_every_step_to_the_store() {
    let Some(mut victim) = stamps::start(2, 256, 1000) else {
        return;
    };
    let mut step = 0;
    loop {
        // Anew, so that the first steps are seen as well; then over what the last one left.
        let (_dir, path) = scratch();
        let first = start(&victim, step, 3, &path).wait().unwrap();
        examine(&mut victim, &path);
        let second = start(&victim, step, 3, &path).wait().unwrap();
        examine(&mut victim, &path);
        assert!(start(&victim, u64::MAX, 1, &path).wait().unwrap().success());
        examine(&mut victim, &path);
        step += 1;
        if first.success() && second.success() {
            break;
        }
    }
    println!("killed at {step} steps");
    assert!(step > 25);
    victim.is_clean(false);
    victim.finish();
    row("killed checkpointer: every step", "any", "works", "");
}

#[test]
fn killed_at_random_moments() {
    let Some(mut victim) = stamps::start(4, 256, 500) else {
        return;
    };
    let mut random = random("killed checkpointer");
    let (_dir, path) = scratch();
    let kills = times(150, 3000);
    let mut traced = 0;
    for _ in 0..kills {
        let mut child = start(&victim, u64::MAX, u64::MAX, &path);
        std::thread::sleep(Duration::from_micros(random.u64(2000..60_000)));
        traced += u32::from(support::tracer(victim.pid()) != 0);
        child.kill().unwrap();
        assert!(child.wait().unwrap().code().is_none(), "it ended by itself");
        examine(&mut victim, &path);
    }
    let newest = Store::open(&path).unwrap().newest().unwrap();
    println!("{kills} kills, {traced} while a thread was traced; {newest} checkpoints");
    assert!(newest > u64::from(kills) / 30, "{newest}");
    let deadline = Instant::now() + Duration::from_secs(120);
    while support::is_registered(victim.pid()) && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(10));
    }
    victim.is_clean(false);
    victim.finish();
    row("killed checkpointer: random moments", "any", "works", "");
}

/// A file system of a few megabytes, unmounted when dropped.
struct Small(tempfile::TempDir);

impl Small {
    fn mount() -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=3m,mode=0700", "none"])
            .arg(dir.path())
            .stderr(Stdio::null())
            .status();
        mounted
            .is_ok_and(|status| status.success())
            .then_some(Self(dir))
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0.path()).status();
    }
}

#[test]
fn a_disk_that_fills_costs_a_checkpoint_and_nothing_else() {
    let subject = "checkpoints on a full disk";
    let Some(small) = Small::mount() else {
        row(subject, "any", "absent", "may not mount a tmpfs here");
        return;
    };
    let Some(mut victim) = stamps::start(2, 512, 200) else {
        return;
    };
    let path = small.0.path().join("store");
    let store = Store::create(&path, WorldWritable::Refuse).unwrap();
    let mut writer = store.writer(WriterOptions::default()).unwrap();
    let options = ProcessOptions::default();
    let mut process = ProcessCheckpointer::attach(victim.pid(), options).unwrap();
    let ballast = small.0.path().join("ballast");
    let mut failures = 0;
    for round in 0..6 {
        process.checkpoint(&mut writer).unwrap();
        // What is left is not enough for the next, sooner or later.
        let filled = std::fs::write(&ballast, vec![1; 4 << 20]);
        assert!(filled.is_err());
        let before = store.numbers().unwrap();
        let error = process.checkpoint(&mut writer).unwrap_err();
        assert!(error.to_string().contains("No space left"), "{error}");
        failures += 1;
        assert_eq!(store.numbers().unwrap(), before, "round {round}");
        examine(&mut victim, &path);
        std::fs::remove_file(&ballast).unwrap();
        let manifest = process.checkpoint(&mut writer).unwrap();
        stamps::check(&mut store.image(manifest.number).unwrap());
        writer.prune(1).unwrap();
    }
    println!("{failures} failures");
    drop((process, writer));
    victim.is_clean(true);
    victim.finish();
    row(subject, "any", "works", "");
}
