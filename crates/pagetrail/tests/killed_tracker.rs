//! `kill -9` of the tracker at random moments: the tracked program finishes correctly, at full
//! speed, not stopped, and with no descriptor left in it.
//!
//! The tracker is this test binary again; an environment variable makes it attach, collect and
//! detach for ever.

#![allow(clippy::print_stdout, reason = "tests print what they did")]

mod support;

use pagetrail::Hold;
use pagetrail::Technique::{self, PagemapScan, Userfaultfd};
use rustix::process::{Pid, Signal};
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use support::{Victim, attach_once, random, row, times, working};

const ROLE: &str = "PAGETRAIL_TEST_TRACKER";

/// The tracker that is killed; not a test by itself.
#[test]
fn tracker() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    let (pid, what) = role.split_once(' ').unwrap();
    let pid: u32 = pid.parse().unwrap();
    // The time to the kill is counted from here.
    println!("tracking");
    let Ok(technique) = what.parse::<Technique>() else {
        loop {
            let hold = Hold::process(pid).unwrap();
            std::thread::sleep(Duration::from_micros(300));
            hold.release();
        }
    };
    loop {
        // Half of the time is spent on attaching, where a kill matters most.
        match attach_once(pid, technique, 1, Duration::from_micros(300)) {
            // Some threads of some victims stay stopped for as long as it takes to find that out.
            Ok(_) | Err(pagetrail::Error::Seccomp { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

/// Kills trackers of one victim.
fn survives_kills(name: &str, arguments: &[&str], kills: u32) {
    survives_kills_of(&[PagemapScan, Userfaultfd], name, arguments, kills);
}

/// Kills trackers of one victim that use these techniques.
fn survives_kills_of(techniques: &[Technique], name: &str, arguments: &[&str], kills: u32) {
    let subject = format!("killed tracker: {name}");
    for technique in working(&subject, techniques) {
        let Some(mut victim) = Victim::start(name, arguments) else {
            return;
        };
        survives(&mut victim, technique.name(), name, kills);
        victim.finish();
        row(&subject, technique.name(), "works", "");
    }
}

/// Kills trackers that do this to a victim, over and over.
fn survives(victim: &mut Victim, what: &str, name: &str, kills: u32) {
    let mut random = random(&format!("killed tracker: {name}"));
    let (mut stopped, mut registered, began) = (0, 0, Instant::now());
    for _ in 0..kills {
        let mut tracker = Command::new(std::env::current_exe().unwrap())
            .args(["tracker", "--exact", "--nocapture", "--quiet"])
            .env(ROLE, format!("{} {what}", victim.pid()))
            .process_group(0)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        wait_for(&mut tracker, "tracking");
        std::thread::sleep(Duration::from_micros(random.u64(0..6000)));
        // Only a snapshot: at the time of the kill the tracker may be at another step.
        match support::tracer(victim.pid()) {
            0 => registered += u32::from(support::is_registered(victim.pid())),
            _ => stopped += 1,
        }
        // With all that a shell or a terminal would kill.
        let group = Pid::from_raw(tracker.id() as i32).unwrap();
        rustix::process::kill_process_group(group, Signal::KILL).unwrap();
        let status = tracker.wait().unwrap();
        if status.code().is_some() {
            let mut text = String::new();
            let _ = tracker.stderr.take().unwrap().read_to_string(&mut text);
            assert!(victim.is_running(), "{}", support::describe(victim.pid()));
            panic!("the tracker ended by itself: {text}");
        }
        if !victim.is_running() {
            break; // Its verdict says why.
        }
    }
    println!(
        "{kills} kills of a {what} tracker of {name} in {:?}: {stopped} while a thread was traced, \
         {registered} while memory was watched",
        began.elapsed()
    );
    // Registrations end with the last reference to the descriptor, which may take a moment.
    let deadline = Instant::now() + Duration::from_secs(120);
    while support::is_registered(victim.pid()) && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(10));
    }
    // Injected code may be left in padding, which is never executed; nothing else may.
    victim.is_clean(false);
    // The agent of the last tracker may only now stop the threads, and let them go at once.
    while "tT".contains(support::state(victim.pid())) {
        assert!(
            Instant::now() < deadline,
            "stopped: {}",
            support::describe(victim.pid())
        );
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Reads the tracker's output up to a line that ends with `word`.
fn wait_for(tracker: &mut std::process::Child, word: &str) {
    let mut seen = Vec::new();
    let mut byte = [0];
    let stdout = tracker.stdout.as_mut().unwrap();
    while !seen.ends_with(word.as_bytes()) {
        if stdout.read(&mut byte).unwrap() == 0 {
            panic!(
                "the tracker ended at once: {}",
                String::from_utf8_lossy(&seen)
            );
        }
        seen.push(byte[0]);
    }
}

#[test]
fn computing_threads_continue() {
    survives_kills("threads", &[], times(200, 1000));
}

#[test]
fn sleeping_threads_continue() {
    survives_kills("sleeper", &[], times(100, 500));
}

#[test]
fn futex_waits_continue() {
    survives_kills("futexer", &[], times(100, 500));
}

#[test]
fn changing_mappings_keep_their_contents() {
    survives_kills("mapper", &[], times(100, 500));
}

#[test]
fn descriptors_keep_their_numbers() {
    for how in ["thread", "process", "full", "queue"] {
        survives_kills("descriptors", &["600", how], times(50, 500));
    }
}

/// What seccomp forbids stays forbidden after the tracker is gone, and a call that must not be
/// restarted is not, although its stop asks for that.
#[test]
fn programs_under_seccomp_continue() {
    for how in ["all", "thread", "strict", "restart"] {
        survives_kills("seccomp", &["600", how], times(50, 500));
    }
}

/// All threads work, those that are stopped as well: a call that a stop has interrupted is whole
/// although the tracker is killed before it could see to that. Not under `userfaultfd`, where
/// joining a thread may hang, as its documentation says.
#[test]
fn random_programs_at_work_continue() {
    let seed = random("killed tracker: chaos").u64(..).to_string();
    println!("the program: chaos 600 {seed} 0");
    survives_kills_of(
        &[PagemapScan],
        "chaos",
        &["600", &seed, "0"],
        times(60, 1000),
    );
}

/// As above, with all threads stopped each time, and for those transfers that a stop would cut
/// short most often.
#[test]
fn held_programs_at_work_continue() {
    let seed = random("killed tracker: held chaos").u64(..).to_string();
    for (name, arguments) in [
        ("chaos", vec!["600", &seed, "0"]),
        ("transfers", vec!["600", "pipe"]),
        ("transfers", vec!["600", "sendmmsg"]),
    ] {
        println!("the program: {name} {arguments:?}");
        let Some(mut victim) = Victim::start(name, &arguments) else {
            return;
        };
        survives(&mut victim, "hold", name, times(60, 1000));
        victim.finish();
    }
}
