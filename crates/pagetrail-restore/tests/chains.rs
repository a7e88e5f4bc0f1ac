//! Chains of increments that fork: an increment in the middle is restored twice, both processes go
//! on, and every byte is compared. A store without room for the next checkpoint stays whole.

#![cfg(target_arch = "x86_64")]
#![allow(
    clippy::zombie_processes,
    reason = "`Program` waits for its process by the PID"
)]

mod program;
#[path = "../../pagetrail/tests/support/mod.rs"]
mod support;

use pagetrail::{PageRange, PageSet};
use pagetrail_checkpoint::storage::InMemory;
use pagetrail_checkpoint::{
    Image, ProcessCheckpointer, ProcessOptions, Store, WorldWritable, WriterOptions,
};
use pagetrail_restore::{PidChoice, RestoreOptions, restore};
use program::{Program, checkpoint, options};
use rustix::process::{Pid, Signal, kill_process};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

/// A program that waits, and writes to memory of its own and to shared memory for each signal.
fn counting() -> Option<Program> {
    if !support::has("python3") {
        pagetrail_skips::not_here("no python3 to write to memory on a signal");
        return None;
    }
    let text = "import mmap, os, random, signal\n\
        own, shared, count = bytearray(1 << 20), mmap.mmap(-1, 1 << 20), 0\n\
        apart = os.memfd_create('apart')\n\
        def step(*_):\n\
        \x20   global count\n\
        \x20   count += 1\n\
        \x20   numbers = random.Random(count)\n\
        \x20   for memory in own, shared:\n\
        \x20       for _ in range(50):\n\
        \x20           memory[numbers.randrange(1 << 20)] = count\n\
        \x20   os.pwrite(apart, bytes([count]) * 5000, count * 3000)\n\
        signal.signal(signal.SIGUSR1, step)\n\
        print('ready', flush=True)\n\
        while True: signal.pause()";
    let mut command = Command::new("python3");
    command.args(["-c", text]);
    // Into such an area the kernel writes by itself on which processor the thread runs (rseq(2)).
    command.env("GLIBC_TUNABLES", "glibc.pthread.rseq=0");
    let running = Program::start(&mut command, tempfile::tempdir().unwrap());
    running.await_output("ready");
    await_pause(running.pid());
    Some(running)
}

/// Waits until a program waits for a signal (`pause(2)`).
fn await_pause(pid: u32) {
    let call = || std::fs::read_to_string(format!("/proc/{pid}/syscall"));
    while !call().unwrap().starts_with("34 ") {
        std::thread::yield_now();
    }
}

/// How long the memory is that the program makes longer at the end of each step, in bytes.
fn length(pid: u32) -> u64 {
    let files = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let mut paths = files.map(|entry| entry.unwrap().path());
    let path = paths.find(|path| {
        std::fs::read_link(path).is_ok_and(|link| link.starts_with("/memfd:apart (deleted)"))
    });
    path.map_or(0, |path| std::fs::metadata(path).unwrap().len())
}

fn step(program: &Program) {
    await_pause(program.pid());
    let before = length(program.pid());
    kill_process(program.pid, Signal::USR1).unwrap();
    while length(program.pid()) == before {
        program.assert_running();
        std::thread::yield_now();
    }
    await_pause(program.pid());
}

/// All that images hold but the vDSO, page by page; of what came about by `steps` not the stack
/// either, where the kernel saves registers in which there is something left.
fn assert_same_contents(a: &mut Image, b: &mut Image, steps: bool) {
    let saved = |image: &Image| -> PageSet {
        let mappings = image.manifest().mappings.iter();
        let is_compared = |name: &str| name != "[vdso]" && !(steps && name == "[stack]");
        let saved = mappings.filter(|mapping| mapping.saved && is_compared(&mapping.name));
        saved.map(|mapping| mapping.range).collect()
    };
    assert_eq!(saved(a), saved(b));
    let pages = a.pages().union(&b.pages()).intersection(&saved(a));
    let (mut of_a, mut of_b) = (vec![0; 4096], vec![0; 4096]);
    assert!(pages.page_count() > 300, "{} pages", pages.page_count());
    for range in pages.ranges() {
        for start in (range.start()..range.end()).step_by(4096) {
            let page = PageRange::new(start, start + 4096).unwrap();
            a.read(page, &mut of_a).unwrap();
            b.read(page, &mut of_b).unwrap();
            assert!(of_a == of_b, "{page}");
        }
    }
}

fn copy_of(image: &mut Image) -> Program {
    let restored = restore(
        image,
        &RestoreOptions {
            pid: PidChoice::Any,
            ..options()
        },
    );
    let pid = restored.unwrap().pid;
    await_pause(pid);
    Program {
        pid: Pid::from_raw(pid as i32).unwrap(),
        directory: tempfile::tempdir().unwrap(),
    }
}

fn restartable() -> ProcessOptions {
    ProcessOptions {
        restartable: true,
        ..ProcessOptions::default()
    }
}

#[test]
fn an_increment_is_restored_twice_and_both_go_on() {
    let Some(running) = counting() else {
        return;
    };
    let store = Store::create_on(Arc::new(InMemory::new())).unwrap();
    let mut writer = store.writer(WriterOptions::default()).unwrap();
    let mut process = ProcessCheckpointer::attach(running.pid(), restartable()).unwrap();
    for number in 1..=3 {
        let manifest = process.checkpoint(&mut writer).unwrap();
        assert_eq!(
            (manifest.number, manifest.parent.is_some()),
            (number, number > 1)
        );
        step(&running);
    }
    drop((process, writer));
    running.kill();
    let image = |number| store.image(number).unwrap();
    let copies = [copy_of(&mut image(2)), copy_of(&mut image(2))];
    for copy in &copies {
        assert_same_contents(&mut checkpoint(copy.pid()), &mut image(2), false);
    }
    // The one that goes on becomes what the first process became, and the other stays.
    step(&copies[0]);
    assert_same_contents(&mut checkpoint(copies[0].pid()), &mut image(3), true);
    assert_same_contents(&mut checkpoint(copies[1].pid()), &mut image(2), false);
    step(&copies[1]);
    assert_same_contents(&mut checkpoint(copies[1].pid()), &mut image(3), true);
    // From C, two steps further than from A.
    let last = copy_of(&mut image(3));
    let first = copy_of(&mut image(1));
    step(&first);
    step(&first);
    assert_same_contents(
        &mut checkpoint(first.pid()),
        &mut checkpoint(last.pid()),
        true,
    );
}

#[test]
fn the_next_checkpoint_of_a_restored_process_is_an_increment() {
    let Some(running) = counting() else {
        return;
    };
    let store = Store::create_on(Arc::new(InMemory::new())).unwrap();
    let mut writer = store.writer(WriterOptions::default()).unwrap();
    let mut process = ProcessCheckpointer::attach(running.pid(), restartable()).unwrap();
    let first = process.checkpoint(&mut writer).unwrap();
    step(&running);
    process.checkpoint(&mut writer).unwrap();
    drop((process, writer));
    running.kill();
    let image = |number| store.image(number).unwrap();
    // Not the newest one: the chain forks.
    let copy = copy_of(&mut image(1));
    let mut writer = store.writer(WriterOptions::default()).unwrap();
    let mut process = ProcessCheckpointer::attach(copy.pid(), restartable()).unwrap();
    process.build_on(&mut writer, 1).unwrap();
    let third = process.checkpoint(&mut writer).unwrap();
    assert_eq!(third.parent.map(|parent| parent.number), Some(1));
    // What a start takes: a stack, an address of this machine.
    let stored = third.cost.stored_pages;
    assert!(
        stored < 32 && stored * 20 < first.cost.stored_pages,
        "{stored} pages"
    );
    assert_same_contents(&mut image(3), &mut image(1), false);
    step(&copy);
    let fourth = process.checkpoint(&mut writer).unwrap();
    assert_eq!(fourth.parent.map(|parent| parent.number), Some(3));
    assert_same_contents(&mut image(4), &mut image(2), true);
    assert!(process.build_on(&mut writer, 9).is_err());
    drop((process, writer));
    assert!(store.verify().unwrap().is_sound());
    let last = copy_of(&mut image(4));
    assert_same_contents(&mut checkpoint(last.pid()), &mut image(4), false);
}

#[test]
fn a_full_store_refuses_a_checkpoint_and_stays_whole() {
    if !support::is_root() {
        pagetrail_skips::not_here("a small tmpfs is mounted only by root");
        return;
    }
    let Some(running) = counting() else {
        return;
    };
    let place = tempfile::tempdir().unwrap();
    let small = Mounted::at(place.path());
    let Some(_small) = small else {
        pagetrail_skips::not_here("a tmpfs cannot be mounted");
        return;
    };
    let store = Store::create(&place.path().join("store"), WorldWritable::Refuse).unwrap();
    let mut writer = store.writer(WriterOptions::default()).unwrap();
    let mut process = ProcessCheckpointer::attach(running.pid(), restartable()).unwrap();
    process.checkpoint(&mut writer).unwrap();
    let filler = place.path().join("filler");
    let mut file = std::fs::File::create(&filler).unwrap();
    while std::io::Write::write_all(&mut file, &[1; 4096]).is_ok() {}
    step(&running);
    let error = process.checkpoint(&mut writer).unwrap_err().to_string();
    assert!(error.contains("No space left"), "{error}");
    assert!(!error.contains('\n'), "{error}");
    // It goes on, and what could be restored before can be still.
    step(&running);
    assert_eq!(store.verify().unwrap().damages, [""; 0]);
    let copy = copy_of(&mut store.image(1).unwrap());
    step(&copy);
    copy.assert_running();
    // With room again the next has everything.
    drop(file);
    std::fs::remove_file(filler).unwrap();
    process.checkpoint(&mut writer).unwrap();
    let mut newest = store.newest_image().unwrap();
    assert_same_contents(&mut newest, &mut checkpoint(running.pid()), false);
}

/// A small tmpfs, which goes with this.
struct Mounted<'a>(&'a Path);

impl<'a> Mounted<'a> {
    fn at(path: &'a Path) -> Option<Self> {
        let mut command = Command::new("mount");
        command
            .args(["-t", "tmpfs", "-o", "size=24m,mode=0700", "tmpfs"])
            .arg(path);
        command
            .status()
            .is_ok_and(|status| status.success())
            .then_some(Self(path))
    }
}

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        // Lazily: it goes when its last file is closed.
        let _ = Command::new("umount").arg("-l").arg(self.0).status();
    }
}
