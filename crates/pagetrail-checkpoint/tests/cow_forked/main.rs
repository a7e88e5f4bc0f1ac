//! Memory that is saved while threads write to it, in a program that forks meanwhile: a child has
//! the descriptors of the snapshot, and no part in it.

mod sys;

use pagetrail_checkpoint::{CowSnapshot, Error};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::fs::{self, File};
use std::sync::mpsc;
use std::time::Duration;
use sys::{Child, Pages};

fn take(pages: Pages) -> Option<CowSnapshot> {
    match CowSnapshot::take(&[pages.range()].into_iter().collect()) {
        Err(Error::Refused(reason)) if reason.contains(" needs ") => {
            pagetrail_skips::not_here(&reason);
            None
        }
        outcome => Some(outcome.expect("a snapshot")),
    }
}

#[test]
fn a_child_is_refused_and_harms_no_snapshot_of_its_parent() {
    let pages = Pages::new(200);
    let Some(mut snapshot) = take(pages) else {
        return;
    };
    let child = Child::fork(|| {
        let read = snapshot.read_next(&mut Vec::new());
        u8::from(!matches!(read, Err(Error::Refused(reason)) if reason.contains("forked")))
    });
    assert_eq!(child.code(), Some(0));
    (0..200).for_each(|page| pages.write(page, 2));
    let mut buffer = Vec::new();
    while snapshot.read_next(&mut buffer).unwrap().is_some() {
        let mut firsts = buffer.iter().step_by(pagetrail::page_size() as usize);
        assert!(firsts.all(|first| *first == 1), "it was torn");
    }
    pages.unmap();
}

#[test]
fn who_writes_once_it_was_dropped_does_not_wait_for_a_child() {
    let pages = Pages::new(3);
    let Some(snapshot) = take(pages) else {
        return;
    };
    // It has the userfaultfd for as long as it lives.
    let child = Child::fork(|| {
        std::thread::sleep(Duration::from_secs(600));
        0
    });
    // A file on a disk cannot be registered: no range with it can be let go whole.
    pages.map_over(1, &File::open(std::env::current_exe().unwrap()).unwrap());
    drop(snapshot);
    let (sender, receiver) = mpsc::channel();
    let writer = std::thread::spawn(move || {
        pages.write(0, 2);
        pages.write(2, 2);
        sender.send(()).unwrap();
    });
    let outcome = receiver.recv_timeout(Duration::from_secs(5));
    drop(child);
    writer.join().unwrap();
    outcome.expect("the writer waits");
    pages.unmap();
}

#[test]
fn one_that_memory_is_too_short_for_leaves_no_thread() {
    const STEP: u64 = 64 << 10;
    const LEFT_A_THREAD: i32 = 3;
    let pages = Pages::new(3);
    if take(pages).is_none() {
        return;
    }
    let range = pages.range();
    let (mut has_failed, mut has_succeeded) = (false, false);
    for step in 0..96 {
        let child = Child::fork(|| {
            let pages = fs::read_to_string("/proc/self/statm").unwrap();
            let pages: u64 = pages.split(' ').next().unwrap().parse().unwrap();
            let before = getrlimit(Resource::As);
            let current = Some(pages * pagetrail::page_size() + step * STEP);
            setrlimit(Resource::As, Rlimit { current, ..before }).unwrap();
            let taken = CowSnapshot::take(&[range].into_iter().collect()).is_ok();
            setrlimit(Resource::As, before).unwrap();
            let threads = fs::read_dir("/proc/self/task").unwrap().count();
            match taken {
                true => 0,
                false if threads > 1 => LEFT_A_THREAD as u8,
                false => 1,
            }
        });
        match child.code() {
            Some(0) => has_succeeded = true,
            Some(1) => has_failed = true,
            // A thread without memory for its stack of signals ends the process.
            None => {}
            code => panic!("{code:?} with {step} steps of {STEP} bytes"),
        }
    }
    assert!(has_failed && has_succeeded);
}
