//! [`memory_mode`]: fast memory as a direct-mapped cache of slow memory, as a processor's memory
//! mode has it: nothing is sampled, ranked or moved by software.

use super::price::Bill;
use super::program::{Accesses, Program};

/// Runs a program with a cache of `fast_pages` pages, for so many windows; `frames` says where each
/// page lies in slow memory, which decides on its place in the cache.
///
/// Within a window the order of accesses is not known. Pages that share a place are taken to be
/// accessed in any order: an access finds its page in the cache if the one before it to this place
/// was of the same page, so a page with a part of a place's accesses finds this part of its own. A
/// page that has its place alone misses once at most, which is not counted. A hit is priced as an
/// access to fast memory, a miss as one to slow memory after a look into fast memory: the
/// controller looks there first, and whether a line is cached stands beside the line (Intel's
/// article 000055901 on memory mode). Filling the cache, and writing back what was written, happen
/// meanwhile, and are not priced: where slow memory has no bandwidth to spare, a cache is worse.
pub fn memory_mode(
    program: &mut dyn Program,
    frames: &[u32],
    fast_pages: usize,
    windows: u64,
) -> Bill {
    let mut bill = Bill::default();
    for _ in 0..windows {
        let Some(accesses) = program.run() else {
            break;
        };
        let mut all = [(&accesses, frames, &mut bill)];
        memory_mode_window(&mut all, fast_pages);
    }
    bill
}

/// One window of several programs that share a cache of `fast_pages` pages, as [`memory_mode`] has
/// it for one: the accesses of each, where its pages lie in slow memory, and its bill.
pub fn memory_mode_window(programs: &mut [(&Accesses, &[u32], &mut Bill)], fast_pages: usize) {
    let places = fast_pages.max(1);
    let place = |frame: u32| frame as usize % places;
    let mut sums = vec![0u64; places];
    for (accesses, frames, _) in programs.iter() {
        for ((reads, writes), frame) in pages(accesses, frames) {
            sums[place(frame)] += reads + writes;
        }
    }
    for (accesses, frames, bill) in programs {
        for ((reads, writes), frame) in pages(accesses, frames) {
            let all = sums[place(frame)].max(1);
            let found = |count: u64| {
                (u128::from(count) * u128::from(reads + writes) / u128::from(all)) as u64
            };
            let (read_hits, write_hits) = (found(reads), found(writes));
            bill.reads_fast += read_hits;
            bill.writes_fast += write_hits;
            bill.reads_slow += reads - read_hits;
            bill.writes_slow += writes - write_hits;
            bill.looked_up += reads + writes - read_hits - write_hits;
        }
    }
}

/// Reads and writes of each page, and where it lies.
fn pages<'a>(
    accesses: &'a Accesses,
    frames: &'a [u32],
) -> impl Iterator<Item = ((u64, u64), u32)> + 'a {
    let counts = accesses.reads.iter().zip(&accesses.writes);
    let counts = counts.map(|(reads, writes)| (u64::from(*reads), u64::from(*writes)));
    counts.zip(frames.iter().copied())
}

#[cfg(test)]
mod tests {
    use super::super::price::Prices;
    use super::super::program::Recorded;
    use super::*;

    #[test]
    fn pages_that_share_a_place_drive_each_other_out() {
        let accesses = Accesses {
            reads: vec![100, 100, 30, 0],
            writes: vec![0, 0, 10, 0],
        };
        let run = |frames: &[u32]| {
            let mut program = Recorded::new(4, vec![accesses.clone()]);
            memory_mode(&mut program, frames, 2, 1)
        };
        // Pages 0 and 1 in a place each; 2 with 1, 3 is never used.
        let bill = run(&[0, 1, 3, 2]);
        // 100, 100 * 100 / 140, 30 * 40 / 140; 10 * 40 / 140.
        assert_eq!((bill.reads_fast, bill.writes_fast), (100 + 71 + 8, 2));
        assert_eq!(bill.reads_fast + bill.reads_slow, 230);
        assert_eq!(bill.writes_fast + bill.writes_slow, 10);
        assert_eq!(bill.looked_up, bill.reads_slow + bill.writes_slow);
        // All in one place but one.
        let worse = run(&[0, 2, 4, 1]);
        assert!(worse.reads_fast < bill.reads_fast);
        let all_alone = memory_mode(
            &mut Recorded::new(4, vec![accesses.clone()]),
            &[0, 1, 2, 3],
            4,
            1,
        );
        assert_eq!(all_alone.reads_slow + all_alone.writes_slow, 0);
        // Where nothing is found, it is dearer than slow memory without a cache.
        let prices = Prices::default();
        let uncached = Bill {
            looked_up: 0,
            ..worse
        };
        assert!(worse.performance(&prices) < uncached.performance(&prices));
    }
}
