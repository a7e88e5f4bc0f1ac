//! What the model's techniques report of a program against a real Linux guest: the write sets of
//! each round are equal.
//!
//! `real/stores.c` runs in a guest under QEMU and prints what the kernel's soft-dirty says of each
//! round, while `real/stores_plugin.c` logs its loads and stores, and the kernel's on its behalf,
//! as the emulated processor makes them. The log runs on the model under every technique. Recorded
//! in `real/`; `cargo xtask model` makes it anew.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use pagetrail_model::machine::PAGE_BYTES;
use pagetrail_model::technique::TechniqueKind;
use pagetrail_model::workload::Op;
use pagetrail_model::{RunConfig, run};

const PAGES: u64 = 4096;
const ROUNDS: usize = 4;

/// The plugin's log as a program, and the pages stored to in each round.
fn program(log: &str) -> (Vec<Op>, Vec<BTreeSet<u64>>) {
    let mut ops = vec![
        Op::Spawn { process: 0 },
        Op::Switch { process: 0 },
        Op::Map {
            area: 0,
            bytes: PAGES * PAGE_BYTES,
        },
    ];
    let mut stored = Vec::new();
    for line in log.lines() {
        if line == "R" {
            // The first begins the first round; each further one ends a round.
            ops.push(if stored.is_empty() {
                Op::Start
            } else {
                Op::Round
            });
            stored.push(BTreeSet::new());
            continue;
        }
        let (kind, page) = line.split_once(' ').expect(line);
        let page = u64::from_str_radix(page, 16).expect(line);
        let offset = page * PAGE_BYTES;
        if kind == "S" {
            ops.push(Op::Write { area: 0, offset });
            stored.last_mut().map(|round| round.insert(page));
        } else {
            ops.push(Op::Read { area: 0, offset });
        }
    }
    assert_eq!(stored.pop(), Some(BTreeSet::new()), "after the last round");
    (ops, stored)
}

/// What stores.c printed.
fn soft_dirty(text: &str) -> Vec<BTreeSet<u64>> {
    let lines = text.lines().filter(|line| line.starts_with("round "));
    lines
        .map(|line| {
            let (_, ranges) = line.split_once(':').expect(line);
            let number = |hex| u64::from_str_radix(hex, 16).expect(line);
            ranges
                .split_whitespace()
                .flat_map(|range| {
                    let (first, last) = range.split_once('-').unwrap_or((range, range));
                    number(first)..=number(last)
                })
                .collect()
        })
        .collect()
}

fn check(log: &str, printed: &str) {
    let (ops, stored) = program(log);
    assert_eq!(stored.len(), ROUNDS);
    assert_eq!(stored, soft_dirty(printed), "log of stores and soft-dirty");
    for kind in TechniqueKind::ALL {
        let report = run(&RunConfig::new(kind), ops.iter().copied()).unwrap();
        if report.unit_bytes != PAGE_BYTES {
            continue;
        }
        for (round, stored) in report.rounds.iter().zip(&stored) {
            // All that was stored to, and as many: the same.
            assert_eq!(
                (round.missed, round.reported),
                (0, stored.len() as u64),
                "{kind}"
            );
        }
        assert_eq!(report.rounds.len(), ROUNDS);
    }
}

#[test]
fn write_sets_are_those_of_a_real_guest() {
    let recorded = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/real"));
    let read = |dir: &Path| -> std::io::Result<(String, String)> {
        let file = |name| fs::read_to_string(dir.join(name));
        Ok((file("stores-plugin.txt")?, file("stores-6.12.txt")?))
    };
    let (log, printed) = read(recorded).unwrap();
    check(&log, &printed);
    // A machine that could not be started here leaves no files.
    if let Some(dir) = std::env::var_os("PAGETRAIL_REAL")
        && let Ok((log, printed)) = read(Path::new(&dir))
    {
        check(&log, &printed);
    }
}
