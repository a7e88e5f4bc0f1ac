//! [`Together`]: a barrier of threads that all end when one of them panics. At `std::sync::Barrier`
//! the others would wait for ever, and the test with them.

use std::sync::{Condvar, Mutex, PoisonError};

#[derive(Default)]
struct Meeting {
    waiting: usize,
    /// How often all have met.
    met: u64,
    is_broken: bool,
}

pub(crate) struct Together {
    threads: usize,
    meeting: Mutex<Meeting>,
    changed: Condvar,
}

/// One of the threads. A panic while it has this ends the others.
pub(crate) struct Member<'a>(&'a Together);

impl Together {
    pub(crate) fn of(threads: usize) -> Self {
        Self {
            threads,
            meeting: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    pub(crate) fn member(&self) -> Member<'_> {
        Member(self)
    }
}

impl Member<'_> {
    /// Waits until all threads are here.
    pub(crate) fn wait(&self) {
        let Together {
            threads,
            meeting,
            changed,
        } = self.0;
        let mut meeting = meeting.lock().unwrap_or_else(PoisonError::into_inner);
        meeting.waiting += 1;
        if meeting.waiting == *threads {
            meeting.waiting = 0;
            meeting.met += 1;
            changed.notify_all();
        }
        let met = meeting.met;
        // Who was the last to come does not wait.
        let is_last = meeting.waiting == 0;
        while !is_last && meeting.met == met && !meeting.is_broken {
            let woken = changed.wait(meeting);
            meeting = woken.unwrap_or_else(PoisonError::into_inner);
        }
        let has_met = is_last || meeting.met != met;
        drop(meeting);
        assert!(has_met, "another thread has panicked");
    }
}

impl Drop for Member<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let meeting = self.0.meeting.lock();
            meeting.unwrap_or_else(PoisonError::into_inner).is_broken = true;
            self.0.changed.notify_all();
        }
    }
}

#[test]
fn a_thread_that_panics_ends_those_that_wait_for_it() {
    let all = Together::of(3);
    let ends: Vec<bool> = std::thread::scope(|scope| {
        let run = |number| {
            let all = &all;
            scope.spawn(move || {
                let member = all.member();
                member.wait();
                assert!(number != 1, "this one is meant to panic");
                member.wait();
            })
        };
        let threads = [0, 1, 2].map(run);
        threads.into_iter().map(|it| it.join().is_ok()).collect()
    });
    assert_eq!(ends, [false; 3]);
}
