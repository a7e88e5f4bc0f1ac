//! Threads write rising stamps to random pages while rounds are collected; each stamp must be in
//! this round or the next.
//!
//! A writer publishes a stamp on a board after its write has completed. The collector copies the
//! board, collects, and reads the stamps of the reported pages from memory. A stamp that was on the
//! board before a collect must be known after the next collect: a page that was written and not
//! reported in two rounds keeps an older stamp, which shows.
//!
//! Reads leave no stamp in memory. For techniques that detect them ([`touches`]), threads count
//! their touches of a page on the board, before and after each: a touch that began and ended
//! between two copies of the board must be in the round before or after the second copy.
//!
//! `PAGETRAIL_STRESS_SECONDS` (2) is the time per technique and target; `PAGETRAIL_SEED` repeats a
//! run.
#![allow(clippy::print_stdout, reason = "this program is its own test runner")]

mod board;
#[path = "../support/harness.rs"]
mod harness;
mod touches;
mod writers;

use harness::Selection;
use libtest_mimic::Completion;
use pagetrail::{Capabilities, Error, PageRange, Status, Target, Technique, Watch, page_size};
use std::process::ExitCode;
use std::time::{Duration, Instant};
use writers::{Doing, Place, Writers};

/// With fewer writes the trial would prove nothing.
const ROUNDS_MIN: u64 = 5;
/// For so long a machine may take for these, whatever else it does.
const ROUNDS_TIMEOUT: Duration = Duration::from_secs(300);

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [word, path, seed, doing] = arguments.as_slice()
        && word == writers::PUPPET
    {
        writers::be_puppet(path, seed.parse().expect("a number"), doing);
        return ExitCode::SUCCESS;
    }
    let selection = Selection::of(std::env::args().collect());
    let seconds = number("PAGETRAIL_STRESS_SECONDS").unwrap_or(2);
    let seed = number("PAGETRAIL_SEED").unwrap_or_else(|| fastrand::u64(..));
    if !selection.arguments.list {
        println!("seed {seed} (repeat with PAGETRAIL_SEED={seed}), {seconds} s each");
    }
    let mut trials = Vec::new();
    for technique in Technique::ALL {
        for place in [Place::Here, Place::Elsewhere] {
            let time = Duration::from_secs(seconds);
            let mut kinds: Vec<(&str, Trial)> = vec![("", run)];
            if technique == Technique::AccessScan {
                kinds.push((", reads", touches::run));
            }
            for (what, trial) in kinds {
                let name = format!("{technique}, {place}{what}");
                trials.push(libtest_mimic::Trial::ignorable_test(name, move || {
                    let outcome = match Capabilities::probe().status(technique) {
                        Status::Works => trial(technique, place, seed, time),
                        status => Err(Failure::NotHere(status.to_string())),
                    };
                    match outcome {
                        Ok(summary) => {
                            println!("{summary}");
                            Ok(Completion::Completed)
                        }
                        Err(Failure::NotHere(why)) => Ok(Completion::ignored_with(why)),
                        Err(Failure::Broken(what)) => {
                            // At once: a run that hangs has no end, where the harness says why.
                            println!("{what}");
                            Err(what.into())
                        }
                    }
                }));
            }
        }
    }
    libtest_mimic::run(&selection.arguments, selection.among(trials)).exit_code()
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

/// A trial of a technique for a time, with a seed.
type Trial = fn(Technique, Place, u64, Duration) -> Result<String, Failure>;

enum Failure {
    NotHere(String),
    Broken(String),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        match error {
            Error::WrongTarget { .. } => Self::NotHere(error.to_string()),
            error => Self::Broken(error.to_string()),
        }
    }
}

fn run(technique: Technique, place: Place, seed: u64, time: Duration) -> Result<String, Failure> {
    if technique == Technique::SoftDirty && place == Place::Here {
        return Err(Failure::NotHere(
            "the caller of soft-dirty on its own process stops the world".into(),
        ));
    }
    let mut writers = Writers::start(place, Doing::Writing, seed);
    let target = match place {
        Place::Here => Target::ranges(writers.memory().map(|(range, _)| range)),
        Place::Elsewhere => Target::process(writers.pid())?,
    };
    let mut watch = Watch::builder()
        .target(target)
        .technique(technique)
        .start()?;
    let pages: Vec<u64> = writers
        .memory()
        .flat_map(|(range, _)| (range.start()..range.end()).step_by(page_size() as usize))
        .collect();
    // Stamps from before the start need not be in its rounds.
    let mut known: Vec<u64> = pages.iter().map(|page| writers.stamp(*page)).collect();
    let mut before: Vec<u64> = vec![0; pages.len()];
    let mut rounds = 0u64;
    let mut reported = 0u64;
    let mut random = fastrand::Rng::with_seed(seed ^ 1);
    let start = Instant::now();
    // A slow machine still gets a few rounds.
    while start.elapsed() < time || (rounds < ROUNDS_MIN && start.elapsed() < ROUNDS_TIMEOUT) {
        let now = writers.board().copy();
        let round = watch.collect()?;
        for (index, page) in pages.iter().enumerate() {
            if round.dirty().contains(*page) {
                known[index] = known[index].max(writers.stamp(*page));
                reported += 1;
            }
        }
        // Every tenth round is dropped: its pages come back with the next, and are checked twice.
        if random.u8(..10) != 0 {
            round.commit();
        }
        if let Some(index) = (0..pages.len()).find(|&index| known[index] < before[index]) {
            let (page, known, stamp) = (pages[index], known[index], before[index]);
            return Err(Failure::Broken(format!(
                "stamp {stamp} on page {page:#x} was there before round {} and is in neither it nor the next; known is {known}",
                rounds.saturating_sub(1),
            )));
        }
        before = now;
        rounds += 1;
        std::thread::sleep(Duration::from_micros(random.u64(..3000)));
    }
    let written = writers.board().total();
    writers.stop();
    if written == 0 || rounds < ROUNDS_MIN {
        return Err(Failure::Broken(format!(
            "nothing was tried: {written} writes, {rounds} rounds"
        )));
    }
    Ok(format!(
        "{written} writes, {rounds} rounds, {reported} pages reported"
    ))
}

/// A piece of memory to which writers write, and its first slot on the board.
pub(crate) type Piece = (PageRange, usize);

const _: () = assert!(board::SLOTS >= writers::PAGES as usize);
