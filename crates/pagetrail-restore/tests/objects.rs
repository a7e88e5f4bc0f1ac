//! Shared memory, pipes and pairs of sockets come back with what they hold, at random instants and
//! through increments; what cannot come back is refused by its name.

#![cfg(target_arch = "x86_64")]
#![allow(clippy::print_stdout, reason = "tests print what they did")]
#![allow(
    clippy::zombie_processes,
    reason = "`Program` waits for its process by the PID"
)]

mod program;
#[path = "../../pagetrail/tests/support/mod.rs"]
mod support;

use pagetrail_checkpoint::storage::InMemory;
use pagetrail_checkpoint::{
    Change, ProcessCheckpointer, ProcessOptions, Store, WriterOptions, check_restartable,
};
use pagetrail_restore::{restore, restore_lazily};
use program::{Program, checkpoint, may_choose_pids, options};
use std::fs::File;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;
use support::{random, times};

fn started() -> Option<Program> {
    may_choose_pids().then(|| Program::of_victim("objects", &[]))?
}

/// It is at work, and comes to its end by itself.
fn ends_well(running: &Program) {
    std::thread::sleep(Duration::from_millis(5));
    running.assert_running();
    File::create(running.directory.path().join("stop")).unwrap();
    running.ends_clean();
}

#[test]
fn what_objects_hold_comes_back_at_any_instant() {
    let Some(running) = started() else {
        return;
    };
    let mut random = random("objects");
    let rounds = times(30, 300);
    for _ in 0..rounds {
        std::thread::sleep(Duration::from_micros(random.u64(0..20_000)));
        running.assert_running();
        let mut image = checkpoint(running.pid());
        running.kill();
        match random.bool() {
            true => assert_eq!(restore(&mut image, &options()).unwrap().lost, [""; 0]),
            false => {
                let (restored, pager) = restore_lazily(image, &options()).unwrap();
                assert_eq!(restored.lost, [""; 0]);
                pager.finish().unwrap();
            }
        }
    }
    ends_well(&running);
    println!("{rounds} restores");
}

#[test]
fn increments_have_what_no_mapping_shows() {
    let Some(running) = started() else {
        return;
    };
    let mut random = random("increments of objects");
    let store = Store::create_on(Arc::new(InMemory::new())).unwrap();
    let mut writer = store.writer(WriterOptions::default()).unwrap();
    let wanted = ProcessOptions {
        restartable: true,
        ..ProcessOptions::default()
    };
    let mut process = ProcessCheckpointer::attach(running.pid(), wanted).unwrap();
    for _ in 0..8 {
        std::thread::sleep(Duration::from_micros(random.u64(0..20_000)));
        let manifest = process.checkpoint(&mut writer).unwrap();
        let all = manifest.mappings.len();
        assert!(manifest.process_mappings().count() < all, "{manifest:?}");
    }
    drop(process);
    running.kill();
    // The process goes back, and forth, and has at each instant what it had there. Its PID and
    // descriptors are free again each time.
    for number in [3, 8, 1, 5] {
        let mut image = store.image(number).unwrap();
        restore(&mut image, &options()).unwrap();
        std::thread::sleep(Duration::from_millis(3));
        running.assert_running();
        running.kill();
    }
    restore(&mut store.image(6).unwrap(), &options()).unwrap();
    ends_well(&running);
}

#[test]
fn sockets_with_a_peer_elsewhere_or_with_messages_are_refused_by_their_number() {
    let (mine, _other) = std::os::unix::net::UnixStream::pair().unwrap();
    let mut command = Command::new("sleep");
    command.arg("1000");
    let child = command
        .stdin(std::os::fd::OwnedFd::from(mine))
        .spawn()
        .unwrap();
    let running = Program {
        pid: rustix::process::Pid::from_raw(child.id() as i32).unwrap(),
        directory: tempfile::tempdir().unwrap(),
    };
    let comm = || std::fs::read_to_string(format!("/proc/{}/comm", running.pid()));
    while comm().unwrap() != "sleep\n" {
        std::thread::yield_now();
    }
    let message = check_restartable(running.pid()).unwrap_err().to_string();
    assert!(message.contains("descriptor 0 is a socket"), "{message}");
}

#[test]
fn a_write_to_memory_that_no_mapping_shows_is_a_change() {
    if !support::has("python3") {
        pagetrail_skips::not_here("no python3 to make a memfd without a mapping");
        return;
    }
    let text = "import os, signal\n\
        file = os.memfd_create('apart')\n\
        os.ftruncate(file, 16384)\n\
        print('ready', file, flush=True)\n\
        signal.pause()";
    let mut command = Command::new("python3");
    command.args(["-c", text]);
    // Into such an area the kernel writes by itself on which processor the thread runs (rseq(2)).
    command.env("GLIBC_TUNABLES", "glibc.pthread.rseq=0");
    let running = Program::start(&mut command, tempfile::tempdir().unwrap());
    running.await_output("ready");
    // Nothing else is written from here on.
    let call = || std::fs::read_to_string(format!("/proc/{}/syscall", running.pid()));
    while !call().unwrap().starts_with("34 ") {
        running.assert_running();
        std::thread::yield_now();
    }
    let output = running.text("output");
    let number = output.trim().rsplit(' ').next().unwrap().to_owned();
    let image = checkpoint(running.pid());
    assert_eq!(image.change_since(running.pid()).unwrap(), None);
    let memory = format!("/proc/{}/fd/{number}", running.pid());
    let memory = File::options().write(true).open(memory).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&memory, b"new", 9000).unwrap();
    let change = image.change_since(running.pid()).unwrap();
    assert!(matches!(change, Some(Change::Page(_))), "{change:?}");
    let image = checkpoint(running.pid());
    assert_eq!(image.change_since(running.pid()).unwrap(), None);
    memory.set_len(20000).unwrap();
    let change = image.change_since(running.pid()).unwrap();
    assert!(matches!(change, Some(Change::Mapping(_))), "{change:?}");
}
