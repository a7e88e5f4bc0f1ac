//! Promise 3 as a whole: a random program that checks what comes of each of its calls
//! (`tests/victims/chaos.c`) finds nothing wrong, whatever is done to track it.
//!
//! `PAGETRAIL_SEED` repeats a program, `PAGETRAIL_SEEDS` sets their number.

#![allow(clippy::print_stdout, reason = "tests print what they did")]

mod support;

use pagetrail::Technique::{self, Adaptive, Compare, PagemapScan, SoftDirty};
use pagetrail::{AtExit, Ended, Hold, State, Target, Watch};
use std::process::{Command, Stdio};
use std::time::Duration;
use support::{Victim, attach_once, random, row, times, victim_program, working};

/// Not `userfaultfd`: under it the kernel cannot clear a thread's word at its end, so joining it
/// may hang, as its documentation says.
const ALL: &[Technique] = &[PagemapScan, Adaptive, Compare, SoftDirty];

/// How many checks each thread of a program makes.
const STEPS: &str = "200";

/// The seeds of the programs to run.
fn seeds(what: &str) -> Vec<u64> {
    let count = std::env::var("PAGETRAIL_SEEDS").ok();
    let count = count.and_then(|count| count.parse().ok());
    let mut random = random(what);
    // A given seed is that of the first program.
    let first = std::env::var("PAGETRAIL_SEED").ok();
    let first = first.and_then(|seed| seed.parse().ok());
    let rest = std::iter::repeat_with(|| random.u64(..));
    let seeds = first.into_iter().chain(rest);
    seeds
        .take(count.unwrap_or_else(|| times(6, 100) as usize))
        .collect()
}

/// Runs programs, while `disturb` is done to each of them over and over; it may fail once a program
/// has ended.
fn finds_nothing(
    what: &str,
    technique: Technique,
    how: &[&str],
    mut disturb: impl FnMut(u32) -> Result<(), pagetrail::Error>,
) {
    let subject = format!("transparency: {what}");
    for seed in seeds(&subject) {
        println!("{subject}, {technique}: PAGETRAIL_SEED={seed}");
        let seed = seed.to_string();
        let arguments = [&["600", &seed, STEPS], how].concat();
        let Some(mut victim) = Victim::start("chaos", &arguments) else {
            return;
        };
        while victim.is_running() {
            match disturb(victim.pid()) {
                Ok(()) => {}
                // On a machine that has too much to do; the program must notice nothing of that.
                Err(pagetrail::Error::NotStopping { .. }) => {}
                Err(error) if victim.is_ending() && is_end(&error) => {}
                Err(error) => victim.blame(&error),
            }
        }
        victim.ends();
    }
    row(&subject, technique.name(), "works", "");
}

fn is_end(error: &pagetrail::Error) -> bool {
    use pagetrail::Error::{Gone, NoSuchProcess};
    matches!(error, Gone { .. } | NoSuchProcess { .. })
}

#[test]
fn untracked() {
    let what = "transparency: untracked";
    for seed in seeds(what) {
        let Some(victim) = Victim::start("chaos", &["600", &seed.to_string(), STEPS]) else {
            return;
        };
        victim.ends();
    }
    row(what, "none", "works", "");
}

#[test]
fn attached_and_detached_over_and_over() {
    let what = "attached over and over";
    for technique in working(what, &[PagemapScan]) {
        finds_nothing(what, technique, &[], |pid| {
            attach_once(pid, technique, 1, Duration::from_millis(2))?;
            std::thread::sleep(Duration::from_millis(8));
            Ok(())
        });
    }
}

#[test]
fn recorded() {
    let what = "recorded";
    for technique in working(what, ALL) {
        finds_nothing(what, technique, &[], |pid| {
            let mut watch = attach_once(pid, technique, 0, Duration::ZERO)?;
            loop {
                watch.collect()?.commit();
                std::thread::sleep(Duration::from_millis(3));
            }
        });
    }
}

#[test]
fn held_over_and_over() {
    finds_nothing("held over and over", Technique::None, &[], |pid| {
        hold_once(pid)?;
        // Longer than waits that begin anew after each stop (docs/book, "Attaching to a process").
        std::thread::sleep(Duration::from_millis(12));
        Ok(())
    });
}

fn hold_once(pid: u32) -> Result<(), pagetrail::Error> {
    let held = Hold::process(pid)?;
    std::thread::sleep(Duration::from_micros(200));
    held.release();
    Ok(())
}

/// A filter that kills for what attaching needs is respected: by the technique that was asked for,
/// and by the automatic choice, which finds another.
#[test]
fn under_a_seccomp_filter() {
    let what = "under a seccomp filter";
    let techniques = working(what, &[PagemapScan]);
    finds_nothing(what, Compare, &["all", "filtered"], |pid| {
        for technique in &techniques {
            match attach_once(pid, *technique, 1, Duration::from_millis(1)) {
                Err(pagetrail::Error::Seccomp { .. }) => {}
                Err(error) => return Err(error),
                Ok(watch) => panic!("{watch:?} where the filter kills"),
            }
        }
        hold_once(pid)?;
        let mut watch = Watch::builder().target(Target::process(pid)?).start()?;
        std::thread::sleep(Duration::from_millis(2));
        watch.collect()?.commit();
        Ok(())
    });
}

#[test]
fn started() {
    let what = "transparency: started";
    for technique in working(what, &[PagemapScan, Compare]) {
        for (seed, at_exit) in seeds(what)
            .into_iter()
            .zip([AtExit::Run, AtExit::Hold].iter().cycle())
        {
            println!("{what}, {technique}: PAGETRAIL_SEED={seed}");
            let Some(program) = victim_program("chaos") else {
                return;
            };
            let mut command = Command::new(program);
            command.args(["600", &seed.to_string(), STEPS]);
            command.stdin(Stdio::null()).stdout(Stdio::null());
            let watch = Watch::builder().target(Target::command(command));
            let mut watch = watch
                .technique(technique)
                .at_exit(*at_exit)
                .start()
                .unwrap();
            let ended = loop {
                match watch.wait(Duration::from_millis(3)) {
                    State::Ended(ended) => break ended,
                    State::Exiting => watch.release_exit(),
                    _ => match watch.collect() {
                        Ok(round) => round.commit(),
                        Err(error) => assert!(is_end(&error), "{technique}: {error}"),
                    },
                }
            };
            assert_eq!(ended, Some(Ended::Exited(0)), "{technique}");
        }
        row(what, technique.name(), "works", "");
    }
}
