//! `cargo xtask posix`: the Open POSIX Test Suite, natively and while its programs are tracked.
//!
//! Its programs try what POSIX says of signals, timers, waits, message queues, asynchronous I/O,
//! mappings and threads, and their exit status is the result. (LTP contains a later version, but
//! Debian has LTP in no release any more; this suite it has.) A test that passes natively must pass
//! while its program is attached to and detached from every few milliseconds, while checkpoints of
//! it are made, and when a tracker starts it.
//!
//! A test that does not is tried again, natively as well, since some count on times. It fails the
//! suite when it fails again, though it passes natively each time.

mod programs;
mod tracked;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use pagetrail_steps::repo::Repo;
use pagetrail_steps::steps::Outcome;
use programs::Program;
use tracked::{Disturbed, End, Scratch, Way};

/// Interfaces whose tests are part of the test of everything: they wait, or are interrupted.
const SHORT: &[&str] = &[
    "aio_suspend",
    "clock_nanosleep",
    "lio_listio",
    "mq_timedreceive",
    "mq_timedsend",
    "nanosleep",
    "pthread_cancel",
    "pthread_cond_timedwait",
    "pthread_kill",
    "sem_timedwait",
    "sigsuspend",
    "sigtimedwait",
    "sigwait",
    "timer_getoverrun",
    "timer_settime",
];

/// All that the long form has: what a process does with its memory, signals, time and threads.
const LONG: &[&str] = &[
    "aio_cancel",
    "aio_error",
    "aio_fsync",
    "aio_read",
    "aio_return",
    "aio_write",
    "fork",
    "kill",
    "killpg",
    "mlock",
    "mmap",
    "mq_close",
    "mq_getattr",
    "mq_notify",
    "mq_open",
    "mq_receive",
    "mq_send",
    "mq_setattr",
    "munlock",
    "munmap",
    "pthread_atfork",
    "pthread_barrier_wait",
    "pthread_cond_broadcast",
    "pthread_cond_signal",
    "pthread_cond_wait",
    "pthread_create",
    "pthread_detach",
    "pthread_exit",
    "pthread_join",
    "pthread_mutex_lock",
    "pthread_mutex_timedlock",
    "pthread_once",
    "pthread_rwlock_timedrdlock",
    "pthread_rwlock_timedwrlock",
    "pthread_rwlock_wrlock",
    "pthread_sigmask",
    "raise",
    "sem_post",
    "sem_wait",
    "shm_open",
    "sigaction",
    "sigaltstack",
    "sighold",
    "signal",
    "sigpause",
    "sigpending",
    "sigprocmask",
    "sigqueue",
    "sigset",
    "sigwaitinfo",
    "timer_create",
    "timer_delete",
    "timer_gettime",
];

/// How much of the suite is run.
#[derive(Clone, Copy, Debug)]
struct Form {
    interfaces: &'static [&'static [&'static str]],
    /// A test that takes longer than that natively is left out.
    native: Duration,
}

/// Tests that a target can fail, as the book says ("What a target can still notice"): stopped more
/// often than its timeout, `sigtimedwait` does not time out.
const KNOWN: &[&str] = &["sigtimedwait/1-1", "sigtimedwait/6-1"];

/// How often a test is tried again that fails while it is tracked.
const AGAIN: u32 = 3;

/// How many programs run at once; most of them sleep.
const AT_ONCE: usize = 12;

/// The short form: part of the test of everything.
pub fn test(repo: &Repo) -> Result<Outcome> {
    let form = Form {
        interfaces: &[SHORT],
        native: Duration::from_millis(2500),
    };
    run(repo, form).map(Outcome::of)
}

/// The long form: true if nothing failed.
pub fn long(repo: &Repo) -> Result<bool> {
    let form = Form {
        interfaces: &[SHORT, LONG],
        native: Duration::from_secs(30),
    };
    run(repo, form)
}

fn run(repo: &Repo, form: Form) -> Result<bool> {
    let source = pagetrail_rig::posix::fetch_sources()?;
    let built = repo.target.join("posix");
    let mut programs = Vec::new();
    for interface in form.interfaces.iter().flat_map(|group| group.iter()) {
        programs.extend(programs::of(&source, &built, interface)?);
    }
    let compiled = each(&programs, |program| program.compile());
    let mut not_built = 0;
    for compiles in compiled {
        not_built += usize::from(!compiles?);
    }
    // Most others tell of functions and constants that this libc does not have any more.
    ensure!(
        not_built * 10 <= programs.len(),
        "{not_built} of {} do not compile",
        programs.len()
    );
    programs.retain(Program::exists);
    let scratch = Scratch::create(&repo.target.join("posix-scratch"))?;
    let native = each(&programs, |program| {
        tracked::run(program, scratch.path(), Way::Natively, form.native)
    });
    let mut passing = Vec::new();
    let mut ends: BTreeMap<String, u32> = BTreeMap::new();
    for (program, ran) in programs.iter().zip(native) {
        match ran?.end {
            End::Passed => passing.push(program),
            end => *ends.entry(end.to_string()).or_default() += 1,
        }
    }
    println!(
        "{} tests pass natively; left out: {not_built} do not compile, {ends:?}",
        passing.len()
    );
    ensure!(
        passing.len() >= 40,
        "{} tests are too few to say anything",
        passing.len()
    );
    let mut fine = true;
    for way in [Way::Attached, Way::Checkpointed, Way::Started] {
        let began = Instant::now();
        let failures = Mutex::new(Vec::new());
        let tried: Vec<_> = passing
            .iter()
            .filter(|program| !program.is_known(way))
            .collect();
        let results: Vec<Result<Disturbed>> = each(&tried, |program| {
            let ran = tracked::run(program, scratch.path(), way, form.limit())?;
            if ran.end != End::Passed {
                let first = ran.end.to_string();
                let mut failures = failures.lock().unwrap_or_else(|e| e.into_inner());
                failures.push((**program, first));
            }
            Ok(ran.disturbed)
        });
        let mut disturbed = Disturbed::default();
        for result in results {
            disturbed.add(result?);
        }
        println!("{way}: {disturbed}, {:.1} s", began.elapsed().as_secs_f64());
        // A tracker that reaches nobody harms nobody.
        ensure!(
            disturbed.done >= passing.len() as u64 / 2,
            "{way}: {disturbed} only"
        );
        for (program, first) in failures.into_inner().unwrap_or_else(|e| e.into_inner()) {
            fine &= is_fine_again(program, &first, scratch.path(), way, form)?;
        }
    }
    Ok(fine)
}

impl Program {
    fn is_known(&self, way: Way) -> bool {
        matches!(way, Way::Attached | Way::Checkpointed) && KNOWN.contains(&&*self.name)
    }
}

impl Form {
    /// Only a hang takes longer.
    fn limit(self) -> Duration {
        self.native * 10 + Duration::from_secs(20)
    }
}

/// Whether a test that failed while it was tracked passes now, or fails natively as well.
fn is_fine_again(
    program: &Program,
    first: &str,
    scratch: &Path,
    way: Way,
    form: Form,
) -> Result<bool> {
    let (mut tracked_ends, mut native_ends) = (Vec::new(), Vec::new());
    for _ in 0..AGAIN {
        native_ends.push(tracked::run(program, scratch, Way::Natively, form.limit())?.end);
        tracked_ends.push(tracked::run(program, scratch, way, form.limit())?.end);
    }
    let all_pass = |ends: &[End]| ends.iter().all(|end| *end == End::Passed);
    let fine = all_pass(&tracked_ends) || !all_pass(&native_ends);
    let text = |ends: &[End]| -> Vec<String> { ends.iter().map(End::to_string).collect() };
    println!(
        "{}: {} {way}: {first}, again {:?}; natively {:?}",
        if fine { "once" } else { "FAILED" },
        program.name,
        text(&tracked_ends),
        text(&native_ends)
    );
    Ok(fine)
}

/// Applies `run` to all, [`AT_ONCE`] at a time; the results are in their order.
fn each<T: Sync, R: Send>(items: &[T], run: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let results = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(item) = items.get(index) else { break };
                    let result = run(item);
                    let mut results = results.lock().unwrap_or_else(|e| e.into_inner());
                    results.push((index, result));
                }
            });
        }
    });
    let mut results = results.into_inner().unwrap_or_else(|e| e.into_inner());
    results.sort_by_key(|(index, _)| *index);
    results.into_iter().map(|(_, result)| result).collect()
}
