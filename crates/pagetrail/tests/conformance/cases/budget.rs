//! A budget for what tracking may cost: whatever it steers, every round is a superset.

use super::{Outcome, Trial, broken, pages};
use pagetrail::{PageSet, Technique, page_size};
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

pub(super) const INTERVALS: RangeInclusive<Duration> =
    Duration::from_millis(2)..=Duration::from_millis(5);

/// The budget cannot be kept, since the rounds follow each other at once: everything that can be
/// predicted is, and the interval is the longest. Then nothing is written, and soon nothing is
/// reported.
pub(super) fn kept_or_not(t: &mut Trial<'_>) -> Outcome {
    let p = page_size();
    let count = 1024;
    t.max_overhead = Some(0.0001);
    let start = t.map("anon", count)?;
    let memory = pages(start, count);
    t.actor.act(&format!("fill {start} {count} 1"));
    t.begin(&[memory])?;
    let mut random = fastrand::Rng::with_seed(5);
    for round in 0..40u64 {
        let mut written: Vec<u64> = (0..12).map(|i| start + i * 5 * p).collect();
        // Half of these are written in a round, and a sweep goes through the rest.
        written.extend(
            (100..140)
                .filter(|_| random.bool())
                .map(|page| start + page * p),
        );
        written.extend((0..8).map(|page| start + (512 + (round * 8 + page) % 512) * p));
        t.write_all(&written);
        t.expect(&written, memory)?;
        let due = t.watch().next_collect();
        let Some(due) = due.map(|due| due.saturating_duration_since(Instant::now())) else {
            return broken("a watch with a budget does not say when the next round is due");
        };
        if due > *INTERVALS.end() {
            return broken(format!("the next round is due in {due:?}"));
        }
    }
    if t.technique == Technique::None {
        return Ok(());
    }
    let of_memory = PageSet::from_iter([memory]);
    let sentinels = match t.technique {
        // It writes to a few pages itself.
        Technique::SoftDirty => 4,
        _ => 0,
    };
    let mut quiet = 0;
    while t.collect()?.intersection(&of_memory).page_count() > sentinels {
        quiet += 1;
        if quiet > 90 {
            return broken("nothing is written any more, but pages are still reported");
        }
    }
    Ok(())
}
