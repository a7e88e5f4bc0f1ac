//! Reads and writes, counted by the threads that make them: each must be in its round.

use super::writers::{Doing, Place, Writers};
use super::{Failure, ROUNDS_MIN, ROUNDS_TIMEOUT};
use pagetrail::{PageSet, Target, Technique, Watch, page_size};
use std::time::{Duration, Instant};

/// A copy of the board.
struct Look {
    begun: Vec<u64>,
    done: Vec<u64>,
}

impl Look {
    /// Whether no thread was between the beginning and the end of a touch of the page.
    fn is_quiet(&self, index: usize) -> bool {
        self.begun[index] == self.done[index]
    }
}

pub(super) fn run(
    technique: Technique,
    place: Place,
    seed: u64,
    time: Duration,
) -> Result<String, Failure> {
    let mut writers = Writers::start(place, Doing::Touching, seed);
    let pages: Vec<u64> = writers
        .memory()
        .flat_map(|(range, _)| (range.start()..range.end()).step_by(page_size() as usize))
        .collect();
    let target = match place {
        Place::Here => Target::ranges(writers.memory().map(|(range, _)| range)),
        Place::Elsewhere => Target::process(writers.pid())?,
    };
    let mut watch = Watch::builder()
        .target(target)
        .technique(technique)
        .start()?;
    let memory: PageSet = writers.memory().map(|(range, _)| range).collect();
    let look = |writers: &Writers| {
        // In this order: a touch that ends meanwhile appears as still going on.
        let done = writers.board().copy();
        Look {
            begun: writers.board().copy_begun(),
            done,
        }
    };
    let mut random = fastrand::Rng::with_seed(seed ^ 2);
    let mut last: Option<(Look, PageSet)> = None;
    let (mut rounds, mut checked, mut reported) = (0u64, 0u64, 0u64);
    let start = Instant::now();
    while start.elapsed() < time || (rounds < ROUNDS_MIN && start.elapsed() < ROUNDS_TIMEOUT) {
        let now = look(&writers);
        let round = watch.collect()?;
        let found = round.dirty().intersection(&memory);
        if random.u8(..10) != 0 {
            round.commit();
        }
        reported += found.page_count();
        if let Some((before, found_before)) = &last {
            for (index, page) in pages.iter().enumerate() {
                // It began after the last copy, when none was going on, and has ended by now.
                if !before.is_quiet(index) || now.done[index] == before.done[index] {
                    continue;
                }
                checked += 1;
                if !found.contains(*page) && !found_before.contains(*page) {
                    return Err(Failure::Broken(format!(
                        "touch {} of page {page:#x} happened between the copies before rounds {} and {rounds} and is in neither",
                        now.done[index],
                        rounds - 1,
                    )));
                }
            }
        }
        last = Some((now, found));
        rounds += 1;
        std::thread::sleep(Duration::from_micros(random.u64(..3000)));
    }
    writers.stop();
    if checked == 0 || rounds < ROUNDS_MIN {
        return Err(Failure::Broken(format!(
            "nothing was tried: {checked} touches, {rounds} rounds"
        )));
    }
    Ok(format!(
        "{checked} touches checked, {rounds} rounds, {reported} pages reported"
    ))
}
