//! The generators: patterns, and the dispatch to [`programs`].

use std::iter::once;

use super::random::{Random, Zipf};
use super::{Op, Workload, WorkloadKind, programs};
use crate::machine::PAGE_BYTES;

/// More than any machine has: the program then fails at its first step, not in here.
const PAGES_MAX: u64 = 1 << 40;

/// The area of a program that has one.
const AREA: u32 = 0;

pub(super) fn ops(workload: &Workload) -> Box<dyn Iterator<Item = Op>> {
    let pages = workload.bytes.div_ceil(PAGE_BYTES).clamp(1, PAGES_MAX);
    let rounds = workload.rounds;
    let random = Random::new(workload.seed);
    match workload.kind {
        WorkloadKind::Listing1 => tracked(
            pages,
            (0..rounds).flat_map(move |_| (0..pages).map(write_page).chain(once(Op::Round))),
        ),
        WorkloadKind::Zipf => tracked(pages, zipf(pages, rounds, random)),
        WorkloadKind::HotSet => tracked(pages, hot_set(pages, rounds, random)),
        WorkloadKind::MemoryMotion => Box::new(memory_motion(pages, rounds)),
        WorkloadKind::GcBench => tracked(pages, programs::gcbench(pages, rounds, random)),
        WorkloadKind::KeyValue => tracked(pages, programs::key_value(pages, rounds, random)),
        WorkloadKind::KeyValueTree => {
            tracked(pages, programs::key_value_tree(pages, rounds, random))
        }
        WorkloadKind::Histogram => tracked(pages, programs::histogram(pages, rounds, random)),
        WorkloadKind::KMeans => tracked(pages, programs::kmeans(pages, rounds, random)),
        WorkloadKind::MatrixMultiply => {
            tracked(pages, programs::matrix_multiply(pages, rounds, random))
        }
        WorkloadKind::Pca => tracked(pages, programs::pca(pages, rounds, random)),
        WorkloadKind::StringMatch => tracked(pages, programs::string_match(pages, rounds, random)),
        WorkloadKind::WordCount => tracked(pages, programs::word_count(pages, rounds, random)),
    }
}

fn write_page(page: u64) -> Op {
    Op::Write {
        area: AREA,
        offset: page * PAGE_BYTES,
    }
}

/// A process with one area, every page of which it writes once before the tracker starts (Listing 1
/// pins its pages; a warm program is what trackers attach to), and then `body`.
fn tracked(pages: u64, body: impl Iterator<Item = Op> + 'static) -> Box<dyn Iterator<Item = Op>> {
    let setup = [
        Op::Spawn { process: 0 },
        Op::Switch { process: 0 },
        Op::Map {
            area: AREA,
            bytes: pages * PAGE_BYTES,
        },
    ];
    Box::new(
        setup
            .into_iter()
            .chain((0..pages).map(write_page))
            .chain(once(Op::Start))
            .chain(body),
    )
}

/// `per_round` steps of `step` for each round, which it is given.
pub(super) fn rounds_of(
    rounds: u32,
    per_round: u64,
    mut step: impl FnMut(u32, u64) -> Op,
) -> impl Iterator<Item = Op> {
    let mut at = (0, 0);
    std::iter::from_fn(move || {
        let (round, i) = at;
        if round == rounds {
            return None;
        }
        if i == per_round {
            at = (round + 1, 0);
            return Some(Op::Round);
        }
        at.1 += 1;
        Some(step(round, i))
    })
}

pub(super) fn access(write: bool, offset: u64) -> Op {
    if write {
        Op::Write { area: AREA, offset }
    } else {
        Op::Read { area: AREA, offset }
    }
}

/// Spreads ranks over pages, so that popular pages are not neighbours.
fn scatter(rank: u64, pages: u64) -> u64 {
    // A prime larger than any number of pages, so that no two ranks meet.
    (u128::from(rank) * 0xffff_ffff_ffff_ffc5 % u128::from(pages)) as u64
}

fn zipf(pages: u64, rounds: u32, mut random: Random) -> impl Iterator<Item = Op> {
    // Made when it is first asked for, which is after the step that may find the memory too large.
    let mut law = None;
    rounds_of(rounds, pages, move |_, _| {
        let law = law.get_or_insert_with(|| Zipf::new(pages));
        let page = scatter(law.rank(&mut random), pages);
        let bits = random.next();
        access(bits & 1 == 0, page * PAGE_BYTES + (bits >> 1) % PAGE_BYTES)
    })
}

fn hot_set(pages: u64, rounds: u32, mut random: Random) -> impl Iterator<Item = Op> {
    let hot = (pages / 10).max(1);
    rounds_of(rounds, pages, move |round, _| {
        let start = u64::from(round) * hot;
        let page = if random.below(10) < 9 {
            (start + random.below(hot)) % pages
        } else {
            random.below(pages)
        };
        let bits = random.next();
        access(bits & 1 == 0, page * PAGE_BYTES + (bits >> 1) % PAGE_BYTES)
    })
}

fn memory_motion(pages: u64, processes: u32) -> impl Iterator<Item = Op> {
    (0..processes).flat_map(move |process| {
        let start = [
            Op::Spawn { process },
            Op::Switch { process },
            Op::Map {
                area: AREA,
                bytes: pages * PAGE_BYTES,
            },
        ];
        let end = [Op::Unmap { area: AREA }, Op::Exit { process }];
        start
            .into_iter()
            .chain((0..pages).map(write_page))
            .chain(end)
    })
}
