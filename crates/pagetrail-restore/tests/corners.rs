//! Objects at the edges of what is kept: full buffers and tables, memory that no mapping shows
//! whole, owners, messages; and many copies.

#![cfg(target_arch = "x86_64")]
#![allow(
    clippy::zombie_processes,
    reason = "`Program` waits for its process by the PID"
)]

mod program;
#[path = "../../pagetrail/tests/support/mod.rs"]
mod support;

use pagetrail_checkpoint::storage::InMemory;
use pagetrail_checkpoint::{
    Error, ProcessCheckpointer, ProcessOptions, Store, WriterOptions, check_restartable,
};
use pagetrail_restore::{
    PidChoice, RestoreOptions, Restored, check_lazily, restore, restore_copies, restore_lazily,
};
use program::{Program, checkpoint, may_choose_pids, options};
use rustix::process::{Pid, Resource, Rlimit, getrlimit, setrlimit};
use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

/// `tests/victims/corners.c` with objects of a kind, when they are made.
fn started(kind: &str) -> Option<Program> {
    may_choose_pids().then(|| started_by_anybody(kind))?
}

fn started_by_anybody(kind: &str) -> Option<Program> {
    Program::of_victim("corners", &[kind])
}

fn ends_well(running: &Program) {
    File::create(running.directory.path().join("go")).unwrap();
    running.ends_clean();
}

/// Started anew, it finds what it had.
fn comes_back(kind: &str) {
    let Some(running) = started(kind) else {
        return;
    };
    let mut image = checkpoint(running.pid());
    running.kill();
    let Restored { lost, .. } = restore(&mut image, &options()).unwrap();
    assert_eq!(lost, [""; 0]);
    ends_well(&running);
}

#[test]
fn a_socket_with_a_large_buffer_comes_back_full() {
    comes_back("buffer");
}

#[test]
fn a_full_table_of_descriptors_comes_back() {
    comes_back("table");
}

#[test]
fn memory_and_pipes_belong_to_the_user_of_the_process() {
    comes_back("user");
}

/// Only who is not root needs the rights to open it, so that this can fail only then.
#[test]
fn memory_that_was_opened_before_writing_was_forbidden_comes_back() {
    let Some(mut running) = started_by_anybody("rights") else {
        return;
    };
    let mut image = checkpoint(running.pid());
    running.kill();
    let wanted = RestoreOptions {
        pid: PidChoice::Any,
        ..options()
    };
    let restored = restore(&mut image, &wanted).unwrap();
    running.pid = Pid::from_raw(restored.pid as i32).unwrap();
    ends_well(&running);
}

#[test]
fn memory_that_is_longer_than_its_mapping_comes_back() {
    comes_back("shrunk");
}

#[test]
fn a_call_begins_anew_whose_code_is_lacked() {
    if check_lazily().is_err() {
        return pagetrail_skips::not_here("no process lacks pages here");
    }
    let Some(running) = started("sleeps") else {
        return;
    };
    let image = checkpoint(running.pid());
    running.kill();
    let (_, pager) = restore_lazily(image, &options()).unwrap();
    File::create(running.directory.path().join("go")).unwrap();
    pager.finish().unwrap();
    ends_well(&running);
}

#[test]
fn many_copies_take_few_descriptors() {
    const COPIES: u32 = 30;
    let Some(running) = started("many") else {
        return;
    };
    let mut image = checkpoint(running.pid());
    running.kill();
    assert!(restore_copies(&mut image, &options(), 0).is_err());
    let before = getrlimit(Resource::Nofile);
    let few = Rlimit {
        current: Some(200),
        ..before
    };
    setrlimit(Resource::Nofile, few).unwrap();
    let outcome = restore_copies(&mut image, &options(), COPIES);
    setrlimit(Resource::Nofile, before).unwrap();
    let copies: Vec<Program> = outcome
        .unwrap()
        .iter()
        .map(|copy| Program {
            pid: Pid::from_raw(copy.pid as i32).unwrap(),
            directory: tempfile::tempdir().unwrap(),
        })
        .collect();
    assert_eq!(copies.len() as u32, COPIES);
    File::create(running.directory.path().join("go")).unwrap();
    for copy in &copies {
        assert_eq!(copy.exit_code(), Some(0), "{}", running.text("output"));
    }
}

#[test]
fn messages_are_waited_for_and_refuse_nothing_for_good() {
    for kind in ["packets", "pipe"] {
        let Some(running) = started(kind) else {
            return;
        };
        let looked = check_restartable(running.pid());
        assert!(
            matches!(&looked, Err(Error::NotNow(why)) if why.contains("that nobody has re")),
            "{kind}: {looked:?}"
        );
        File::create(running.directory.path().join("go")).unwrap();
        running.await_output("received");
        check_restartable(running.pid()).unwrap();
        let mut image = checkpoint(running.pid());
        running.kill();
        restore(&mut image, &options()).unwrap();
        File::create(running.directory.path().join("stop")).unwrap();
        assert_eq!(running.exit_code(), Some(0), "{}", running.text("output"));
    }
}

fn restartable() -> ProcessOptions {
    ProcessOptions {
        restartable: true,
        ..ProcessOptions::default()
    }
}

#[test]
fn memory_that_comes_and_goes_refuses_nothing() {
    let Some(running) = started("churn") else {
        return;
    };
    let store = Store::create_on(Arc::new(InMemory::new())).unwrap();
    let mut writer = store.writer(WriterOptions::default()).unwrap();
    let mut process = ProcessCheckpointer::attach(running.pid(), restartable()).unwrap();
    for _ in 0..support::times(40, 400) {
        check_restartable(running.pid()).unwrap();
        process.checkpoint(&mut writer).unwrap();
        std::thread::sleep(Duration::from_micros(300));
    }
    drop(process);
    ends_well(&running);
}

#[test]
fn memory_that_is_written_in_several_ways_is_not_trusted() {
    let Some(running) = started("many") else {
        return;
    };
    let store = Store::create_on(Arc::new(InMemory::new())).unwrap();
    let mut writer = store.writer(WriterOptions::default()).unwrap();
    let wanted = ProcessOptions {
        trust_shared: true,
        ..restartable()
    };
    let mut process = ProcessCheckpointer::attach(running.pid(), wanted).unwrap();
    let outcome = process.checkpoint(&mut writer);
    assert!(
        matches!(&outcome, Err(Error::Refused(why)) if why.contains("one of many")),
        "{outcome:?}"
    );
    drop(process);
    ends_well(&running);
}
