//! Probes on this machine's kernel, held against calls whose number and time is known.
#![allow(unsafe_code, reason = "a call that rustix refuses in PID namespaces")]

use std::process::Command;
use std::thread;
use std::time::Duration;

use pagetrail_probes::{Error, Found, Interval, Probes, Settings};

const GETPGID: &str = "__x64_sys_getpgid";
const SLEEP: &str = "do_nanosleep";

fn getpgid() {
    // SAFETY: the call takes a number and only returns one.
    unsafe { libc::getpgid(0) };
}

fn probes(functions: &[&str], interval: Interval) -> Option<Probes> {
    let settings = Settings {
        functions: functions.iter().map(|name| (*name).into()).collect(),
        interval,
        seed: 7,
    };
    match Probes::attach(&settings) {
        Ok(probes) => Some(probes),
        Err(Error::NotHere(reason)) => {
            pagetrail_skips::not_here(format!("probes: {reason}"));
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// What is found of work in a thread of its own.
fn found_of(probes: &mut Probes, work: impl FnOnce() + Send) -> Found {
    probes.begin().expect("it can begin");
    thread::scope(|scope| scope.spawn(work).join().expect("the work is done"));
    probes.found().expect("it can be read")
}

#[test]
fn every_call_is_counted_and_samples_fit_the_interval() {
    const CALLS: u64 = 100_000;
    let interval = Interval::new(20, 40).expect("it is one");
    let Some(mut probes) = probes(&[GETPGID], interval) else {
        return;
    };
    let work = || {
        for _ in 0..CALLS {
            getpgid();
        }
    };
    let found = found_of(&mut probes, work);
    let function = &found.functions[0];
    // What was missed is known, and is of the whole machine.
    assert!(function.calls <= CALLS, "{function:?}");
    assert!(function.calls + function.missed >= CALLS, "{function:?}");
    // A thread that moves to another processor meets another countdown there.
    let (least, most) = (function.calls / 41 - 64, function.calls / 20 + 1);
    assert!((least..=most).contains(&function.samples), "{function:?}");
    assert!(found.timer_ns > 0.0);

    // Nothing is left of it, and what this thread itself does does not count.
    probes.begin().expect("it can begin");
    work();
    let found = probes.found().expect("it can be read");
    assert_eq!(
        (found.functions[0].calls, found.functions[0].samples),
        (0, 0)
    );
}

#[test]
fn times_are_those_of_the_function() {
    const SLEEPS: u64 = 20;
    let Some(mut probes) = probes(&[SLEEP, GETPGID], Interval::EVERY) else {
        return;
    };
    let found = found_of(&mut probes, || {
        (0..SLEEPS).for_each(|_| thread::sleep(Duration::from_millis(2)));
    });
    let function = &found.functions[0];
    assert_eq!(
        (function.calls, function.samples),
        (SLEEPS, SLEEPS),
        "{function:?}"
    );
    let least = 2e6 - found.timer_ns;
    assert!(
        function.least_ns >= least && function.mean_ns >= function.least_ns,
        "{function:?}"
    );
    assert!(function.most_ns >= function.mean_ns, "{function:?}");
    assert_eq!(found.functions[1].calls, 0);
}

#[test]
fn children_count_and_strangers_do_not() {
    let Some(mut probes) = probes(&[SLEEP], Interval::EVERY) else {
        return;
    };
    let sleeps = |times: u32| {
        let script = format!("for i in $(seq {times}); do sleep 0.001; done");
        let mut command = Command::new("sh");
        command.args(["-c", &script]);
        command
    };
    // Threads that were there before are strangers.
    let (go, come) = std::sync::mpsc::channel::<()>();
    let stranger = thread::spawn(move || {
        come.recv().expect("it is sent");
        assert!(sleeps(3).status().expect("sh runs").success());
    });
    probes.begin().expect("it can begin");
    go.send(()).expect("the stranger waits");
    assert!(sleeps(5).status().expect("sh runs").success());
    stranger.join().expect("the stranger ends");
    let found = probes.found().expect("it can be read");
    assert_eq!(found.functions[0].calls, 5);
}

#[test]
fn intervals_follow_from_the_seed() {
    let interval = Interval::new(50, 99).expect("it is one");
    let Some(mut probes) = probes(&[GETPGID], interval) else {
        return;
    };
    // On one processor, so that there is one countdown.
    let mut samples = || {
        let work = || {
            let mut one = rustix::thread::CpuSet::new();
            one.set(0);
            rustix::thread::sched_setaffinity(None, &one).expect("there is a processor 0");
            for _ in 0..10_000 {
                getpgid();
            }
        };
        let found = found_of(&mut probes, work).functions.remove(0);
        (found.samples, found.missed)
    };
    let (first, second) = (samples(), samples());
    if (first.1, second.1) == (0, 0) {
        assert_eq!(first, second);
    }
    assert!((10_000 / 99..=10_000 / 50).contains(&first.0), "{first:?}");
}

#[test]
fn events_are_those_of_the_threads_that_were_started() {
    const CALLS: u64 = 20_000;
    let Some(mut probes) = probes(&[], Interval::EVERY) else {
        return;
    };
    let calls = |found: &Found| {
        let mut events = found.events.iter();
        let calls = events.find(|event| event.name == "raw_syscalls:sys_enter");
        calls.map_or(0, |event| event.count)
    };
    let work = || {
        for _ in 0..CALLS {
            getpgid();
        }
    };
    // A thread begins and ends with some calls of its own.
    let count = calls(&found_of(&mut probes, work));
    assert!((CALLS..CALLS + 200).contains(&count), "{count}");
    // So does a child of the thread's.
    let count = calls(&found_of(&mut probes, || {
        thread::scope(|scope| {
            scope.spawn(work).join().expect("the work is done");
        })
    }));
    assert!((CALLS..CALLS + 400).contains(&count), "{count}");

    probes.begin().expect("it can begin");
    work();
    assert_eq!(calls(&probes.found().expect("it can be read")), 0);

    let touched = found_of(&mut probes, || {
        let mut memory = vec![0u8; 8 << 20];
        memory.iter_mut().step_by(4096).for_each(|byte| *byte = 1);
        std::hint::black_box(memory);
    });
    let faults = touched.events.iter();
    let faults = faults.filter(|event| event.name == "exceptions:page_fault_user");
    // Huge pages take one for 512.
    assert!(
        faults.map(|event| event.count).sum::<u64>() >= 4,
        "{touched:?}"
    );
}

#[test]
fn probes_do_not_outlive_their_descriptors() {
    for _ in 0..3 {
        let Some(mut probes) = probes(&[], Interval::EVERY) else {
            return;
        };
        let found = found_of(&mut probes, || {
            getpgid();
        });
        assert!(!found.events.is_empty());
    }
}

#[test]
fn what_cannot_be_probed_is_named() {
    let Some(_) = probes(&[GETPGID], Interval::EVERY) else {
        return;
    };
    let settings = Settings {
        functions: vec!["no_such_function".into()],
        interval: Interval::EVERY,
        seed: 1,
    };
    let error = Probes::attach(&settings)
        .expect_err("there is none")
        .to_string();
    assert!(
        error.starts_with("no_such_function: this kernel has no function"),
        "{error}"
    );
}
