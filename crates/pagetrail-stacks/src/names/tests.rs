//! Names of memory that is made up; the tests of the command have real programs.

use std::collections::BTreeMap;

use pagetrail::{PageRange, Permissions};

use super::*;

/// Memory that is zero but for some words.
#[derive(Default)]
struct Made(BTreeMap<u64, u64>);

impl Made {
    fn put(&mut self, at: u64, words: &[u64]) {
        let places = (at..).step_by(8);
        self.0.extend(places.zip(words.iter().copied()));
    }
}

impl Memory for Made {
    fn read(&self, address: u64, into: &mut [u8]) -> Option<()> {
        for (at, bytes) in (address..).step_by(8).zip(into.chunks_mut(8)) {
            let word = self.0.get(&at).copied().unwrap_or(0);
            bytes.copy_from_slice(&word.to_ne_bytes()[..bytes.len()]);
        }
        Some(())
    }
}

fn region(start: u64, bytes: u64) -> Region {
    let permissions = Permissions {
        read: true,
        write: true,
        execute: false,
        shared: false,
    };
    Region::new(
        PageRange::new(start, start + bytes).expect("not empty"),
        permissions,
    )
}

fn name(region: &Region, memory: &Made) -> Option<String> {
    let programs = Programs {
        java: false,
        python: true,
        go: false,
    };
    contents(region, memory, &programs, None)
}

const BASE: u64 = 0x7f00_0000_0000;

#[test]
fn heaps_are_known_by_what_they_begin_with() {
    let is = |region: &Region, memory: &Made, expected: Option<&str>| {
        assert_eq!(name(region, memory).as_deref(), expected, "{region}");
    };
    let mut arena = Made::default();
    arena.put(BASE, &[BASE + 0x30, 0, 0x21000, 0x21000]);
    is(&region(BASE, 0x21000), &arena, Some("[malloc arena]"));
    // A second heap of the same arena, and none: it would be its own predecessor.
    arena.put(BASE + (64 << 20), &[BASE + 0x30, BASE, 0x1000, 0x1000]);
    is(
        &region(BASE + (64 << 20), 0x1000),
        &arena,
        Some("[malloc arena]"),
    );
    arena.put(BASE, &[BASE + 0x30, BASE, 0x21000, 0x21000]);
    is(&region(BASE, 0x21000), &arena, None);

    let mut blocks = Made::default();
    blocks.put(BASE, &[0, 0x4002]);
    blocks.put(BASE + 0x4000, &[0, 0x2002]);
    is(
        &region(BASE, 0x6000),
        &blocks,
        Some("[malloc large blocks]"),
    );
    is(&region(BASE, 0x7000), &blocks, None);
    is(&region(BASE, 0x5000), &blocks, None);

    let mut jemalloc = Made::default();
    let free = 0x8a400;
    jemalloc.put(
        BASE + (2 << 20),
        &[2 << 20, 0, 7, BASE + (2 << 20) + free, (2 << 20) - free],
    );
    is(&region(BASE, 4 << 20), &jemalloc, Some("[jemalloc]"));
    is(&region(BASE, 2 << 20), &jemalloc, None);

    let mut v8 = Made::default();
    v8.put(BASE, &[0x40000, 0x12, 5, BASE + 0x1148, BASE + 0x40000]);
    is(&region(BASE, 0x40000), &v8, Some("[v8 heap]"));
    v8.put(BASE, &[0x40000, 0x12, 5, BASE + 0x1148, BASE + 0x30000]);
    is(&region(BASE, 0x40000), &v8, None);

    let mut python = Made::default();
    let pool = |class: u64| {
        let next_max = 0x4000 - (class + 1) * 16;
        [3, 0, 0, 0, class << 32, next_max << 32 | 0x100]
    };
    python.put(BASE, &pool(1));
    python.put(BASE + 0x8000, &pool(31));
    is(&region(BASE, 0x10000), &python, Some("[python objects]"));
    python.put(BASE + 0x4000, &[1]);
    is(&region(BASE, 0x10000), &python, None);

    is(&region(BASE, 0x10000), &Made::default(), None);
}

#[test]
fn no_contents_are_too_strange() {
    let mut random = fastrand::Rng::with_seed(9);
    for _ in 0..5000 {
        let mut memory = Made::default();
        let whole = region(BASE, 1 << random.u32(12..24));
        for at in [0, 0x1000, 0x4000, 0x40000, 2 << 20] {
            let words: Vec<u64> = (0..8)
                .map(|_| match random.u8(0..4) {
                    0 => random.u64(..),
                    1 => u64::MAX << random.u32(0..64),
                    2 => BASE + (random.u64(..) >> random.u32(32..64)),
                    _ => 1 << random.u32(0..64),
                })
                .collect();
            memory.put(BASE + at, &words);
        }
        name(&whole, &memory);
    }
}

#[test]
fn mappings_are_examined_less_and_less_until_they_have_a_name() {
    let mut names = MemoryNames::new(std::process::id());
    let regions = [region(BASE, 0x1000)];
    let due: Vec<_> = (0..10)
        .filter(|_| {
            let is_due = names.update(&regions);
            if let Some(known) = names.known.get_mut(&BASE)
                && is_due
            {
                known.looks += 1;
                known.wait = 1 << (known.looks - 1);
            }
            is_due
        })
        .collect();
    assert_eq!(due, [0, 1, 3, 7]);
    if let Some(known) = names.known.get_mut(&BASE) {
        known.name = Some("[mine]".into());
    }
    assert_eq!(names.name(&regions[0]), "[mine]");
    assert_eq!(names.name(&region(BASE, 0x2000)), "");
    let mut file = region(BASE, 0x1000);
    file.name = "/lib/x".into();
    assert_eq!(names.name(&file), "/lib/x");
    // Another mapping at the same place begins anew.
    assert!(names.update(&[region(BASE, 0x2000)]));
    assert_eq!(names.name(&region(BASE, 0x2000)), "");
    assert!(!names.update(&[]));
    assert!(names.known.is_empty());
}
