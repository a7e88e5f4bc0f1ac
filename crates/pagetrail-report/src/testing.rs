//! Synthetic trails for tests: fixed, so that their reports can be compared to the letter.

use pagetrail::{AccessKind, PageRange, PageSet};
use pagetrail_trail::{
    Attribution, End, Event, Frame, Header, Mapping, Module, Overhead, Predicted, Round, Stack,
    StackTable, StackWrites, Thread, Trail,
};

const PAGE: u64 = 4096;

/// Fails if a page of HTML refers to anything but itself, or a part of its template was not filled.
///
/// # Panics
///
/// When it does.
pub fn assert_self_contained(page: &str) {
    for foreign in [
        "http://", "https://", "src=", "href=", "@import", "url(", "{{",
    ] {
        assert!(!page.contains(foreign), "found {foreign}");
    }
}

/// `pages` pages from page `first` of the mapping that starts at `base`.
pub fn pages(base: u64, first: u64, pages: u64) -> PageRange {
    let start = base + first * PAGE;
    PageRange::new(start, start + pages * PAGE).expect("test ranges are not empty")
}

/// A mapping that exists from `first_round` on.
pub fn mapping(range: PageRange, name: &str, first_round: u32) -> Mapping {
    Mapping {
        range,
        name: name.into(),
        permissions: "rw-p".into(),
        untracked: None,
        shared: None,
        first_round,
        last_round: None,
    }
}

const DATA: u64 = 0x55d0_c21a_4000;
const HEAP: u64 = 0x55d0_c3b1_0000;
const NURSERY: u64 = 0x7f21_8000_0000;
const LATE: u64 = 0x7f21_a400_0000;
const LIBC: u64 = 0x7f21_b5e1_0000;
const STACK: u64 = 0x7ffd_0a3c_0000;

/// A program with a garbage-collected heap: a nursery that is filled again and again, a heap that
/// is written at random, a buffer that appears halfway, a stack that is written always; it has a
/// child, one mapping that is not tracked, and exits in the end.
pub fn program(rounds: u32) -> Trail {
    let mut random = fastrand::Rng::with_seed(7);
    let halfway = rounds / 2;
    let mut trail = Trail {
        header: Header {
            command: vec![
                "./interpreter".into(),
                "life.py".into(),
                "--size=64 k".into(),
            ],
            pid: 4711,
            page_size: PAGE,
            technique: "pagemap-scan".into(),
            reason: "the kernel tracks writes itself (PAGEMAP_SCAN, Linux 6.7)".into(),
            interval_ms: 100,
            started_unix_ms: 1_767_225_600_000,
            attach_stopped_ns: 1_240_000,
        },
        mappings: vec![
            mapping(pages(DATA, 0, 12), "/usr/bin/interpreter", 0),
            mapping(pages(HEAP, 0, 640), "[heap]", 0),
            mapping(pages(NURSERY, 0, 2048), "", 0),
            mapping(pages(LIBC, 0, 4), "/usr/lib/x86_64-linux-gnu/libc.so.6", 0),
            mapping(pages(STACK, 0, 33), "[stack]", 0),
            mapping(pages(LATE, 0, 512), "/dev/shm/results (deleted)", halfway),
            Mapping {
                untracked: Some("the program uses its own userfaultfd there".into()),
                ..mapping(pages(0x7f21_c000_0000, 0, 256), "", 0)
            },
        ],
        end: Some(End::Exited(0)),
        ..Trail::default()
    };
    let mut start_ns = 0;
    for index in 0..rounds {
        let mut ranges = vec![pages(STACK, 30, 2), pages(LIBC, 1, 1)];
        if index % 3 == 0 {
            ranges.push(pages(DATA, u64::from(index / 3 % 10), 2));
        }
        let busy = if index % 40 < 28 { 30 } else { 6 };
        for _ in 0..busy {
            let spread = random.u64(0..640).min(random.u64(0..640));
            ranges.push(pages(HEAP, spread, 1));
        }
        let step = 64;
        let from = u64::from(index) * step % 2048;
        ranges.push(pages(NURSERY, from, step));
        if from == 0 && index > 0 {
            // The survivors of a collection go to the heap's end.
            ranges.push(pages(HEAP, 560 + u64::from(index / 32) * 8 % 72, 8));
        }
        let mut fresh = PageSet::new();
        if index == halfway {
            fresh.insert(pages(LATE, 0, 512));
            ranges.push(pages(LATE, 0, 512));
        } else if index > halfway {
            let at = u64::from(index - halfway) * 512 / u64::from(rounds - halfway);
            ranges.push(pages(LATE, at.min(508), 4));
        }
        let duration_ns = 100_000_000 + random.u64(0..3_000_000);
        trail.rounds.push(Round {
            index,
            start_ns,
            duration_ns,
            collect_ns: 180_000 + random.u64(0..240_000),
            stopped_ns: 0,
            blind_ns: 0,
            access_kind: AccessKind::Writes,
            predicted: None,
            faults: Some(ranges.iter().map(|range| range.bytes() / PAGE).sum()),
            written: ranges.into_iter().collect(),
            newly_mapped: fresh,
            events: if index == 3 {
                vec![Event::Children(1)]
            } else {
                Vec::new()
            },
            subpages: None,
            attribution: None,
            overhead: None,
        });
        start_ns += duration_ns;
    }
    trail
}

/// A program whose writing code was sampled: a recursive function, and a system call that every
/// second fault of a round was sampled for.
pub fn program_with_stacks(rounds: u32) -> Trail {
    let mut trail = program(rounds);
    let frame = |address, function: &str| Frame {
        module: Some(0),
        address,
        function: function.into(),
    };
    let stack = |in_kernel, frames: &[u32]| Stack {
        in_kernel,
        frames: frames.into(),
    };
    trail.stacks = StackTable {
        modules: vec![Module::default()],
        frames: vec![frame(0x1000, "start"), frame(0x2000, "recurse")],
        stacks: vec![stack(false, &[1, 1, 0]), stack(true, &[0])],
        threads: vec![Thread {
            id: 4711,
            name: "life".into(),
        }],
    };
    for round in &mut trail.rounds {
        let writes = |stack, first, count| StackWrites {
            stack,
            thread: 4711,
            pages: [pages(
                NURSERY,
                u64::from(round.index) * 64 % 2048 + first,
                count,
            )]
            .into_iter()
            .collect(),
        };
        round.attribution = Some(match round.index % 2 {
            0 => Attribution {
                period: 2,
                lost: 0,
                writers: vec![writes(0, 0, 5), writes(1, 8, 1)],
            },
            _ => Attribution {
                period: 1,
                lost: 1,
                writers: vec![writes(0, 0, 2)],
            },
        });
    }
    trail
}

/// A program that was recorded within a budget: in the first of its rounds, it was too dear.
pub fn program_within_budget(rounds: u32) -> Trail {
    let mut trail = program(rounds);
    trail.header.technique = "adaptive".into();
    for round in &mut trail.rounds {
        let is_kept = round.index >= rounds / 10;
        round.overhead = Some(Overhead {
            allowed_ppm: 30_000,
            cost_ppm: if is_kept { 21_000 } else { 70_000 },
            faults: round.faults.unwrap_or(0),
            is_kept,
        });
        round.predicted = Some(Predicted {
            pages: 40,
            faults_avoided: 25,
            false_positives: 15,
            memory_bytes: 1 << 16,
        });
    }
    trail
}

/// A program that is recorded in turns: in every second round its accesses, which are its writes
/// and a table that it reads.
pub fn program_in_turns(rounds: u32) -> Trail {
    let mut trail = program(rounds);
    trail.header.technique = "access-scan".into();
    let table = trail.mappings.len();
    trail.mappings.push(Mapping {
        permissions: "r--p".into(),
        ..mapping(pages(0x7f22_0000_0000, 0, 64), "", 0)
    });
    let table = trail.mappings[table].range;
    for round in trail.rounds.iter_mut().skip(1).step_by(2) {
        round.access_kind = AccessKind::Accesses;
        let first = u64::from(round.index) % 32;
        round.written.insert(pages(table.start(), first, 32));
    }
    for round in &mut trail.rounds {
        round.blind_ns = 250_000;
        round.faults = None;
    }
    trail
}
