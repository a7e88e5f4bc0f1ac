//! [`recorded`]: a recording of a real program as a program on a simulated machine.
//!
//! A recording does not count accesses: it has the pages that were touched in a round. A page in a
//! round of writes counts as one write. A page in a round of accesses counts as one read, unless
//! the round of writes beside it has it. What is used again within a round costs nothing, as if it
//! stayed in the processor's cache.

use pagetrail::{AccessKind, PageSet};
use pagetrail_trail::Trail;

use super::program::{Accesses, Recorded};

/// Makes a program of a recording whose rounds are of writes and of accesses in turns. A window is
/// `rounds` rounds of either kind.
///
/// Its pages are those that were touched, in the order of their addresses. What is reported only
/// because its mapping is new is no access. Rounds at the end that make no whole window are left
/// out.
pub fn recorded(trail: &Trail, rounds: usize) -> Recorded {
    let page_bytes = trail.header.page_size;
    let touched = |round: &pagetrail_trail::Round| round.written.difference(&round.newly_mapped);
    let mut all = PageSet::new();
    for round in &trail.rounds {
        all.union_with(&touched(round));
    }
    let addresses: Vec<u64> = all.iter_units(page_bytes).collect();
    let windows = trail.rounds.chunks_exact(rounds.max(1)).map(|window| {
        let mut made = Accesses {
            reads: vec![0; addresses.len()],
            writes: vec![0; addresses.len()],
        };
        let mut written = PageSet::new();
        for round in window {
            let pages = touched(round);
            let (counts, pages) = match round.access_kind {
                AccessKind::Writes => {
                    written = pages.clone();
                    (&mut made.writes, pages)
                }
                AccessKind::Accesses => (&mut made.reads, pages.difference(&written)),
            };
            for address in pages.iter_units(page_bytes) {
                if let Ok(page) = addresses.binary_search(&address) {
                    counts[page] += 1;
                }
            }
        }
        made
    });
    Recorded::new(addresses.len(), windows.collect())
}

#[cfg(test)]
mod tests {
    use pagetrail::PageRange;
    use pagetrail_trail::{Header, Round};

    use super::super::program::Program;
    use super::*;

    const PAGE: u64 = 4096;

    fn pages(pages: &[u64]) -> PageSet {
        let range = |page: &u64| PageRange::new(page * PAGE, (page + 1) * PAGE);
        pages.iter().filter_map(range).collect()
    }

    #[test]
    fn rounds_in_turns_become_reads_and_writes() {
        let round = |access_kind, written: &[u64], fresh: &[u64]| Round {
            access_kind,
            written: pages(written),
            newly_mapped: pages(fresh),
            ..Round::default()
        };
        let trail = Trail {
            header: Header {
                page_size: PAGE,
                ..Header::default()
            },
            rounds: vec![
                round(AccessKind::Writes, &[3, 70, 99], &[99]),
                round(AccessKind::Accesses, &[3, 5], &[]),
                round(AccessKind::Writes, &[], &[]),
                round(AccessKind::Accesses, &[3, 5], &[]),
                round(AccessKind::Writes, &[70], &[]),
            ],
            ..Trail::default()
        };
        let mut program = recorded(&trail, 2);
        // The pages 3, 5 and 70.
        assert_eq!((program.pages(), program.windows()), (3, 2));
        let first = program.run().unwrap();
        assert_eq!((first.reads, first.writes), (vec![0, 1, 0], vec![1, 0, 1]));
        let second = program.run().unwrap();
        assert_eq!((second.reads, second.writes), (vec![1, 1, 0], vec![0; 3]));
    }
}
