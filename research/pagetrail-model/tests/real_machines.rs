//! Pages logged and exits for a full log on the model against those of KVM: equal, page tables
//! included.
//!
//! `real/kvm.c` runs a small guest under KVM: on an emulated Intel processor with page-modification
//! logging (`cargo xtask bochs`), and with AMD's nested paging under QEMU (`cargo xtask vm
//! --nested`). What it printed there is recorded in `real/`; `cargo xtask model` makes it anew, and
//! names the directory of the fresh output in `PAGETRAIL_REAL`.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use pagetrail_model::bare::{BareGuest, BareRound, DATA};
use pagetrail_model::machine::{PAGE_BYTES, PML_ENTRIES};

/// The generator of kvm.c.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// A program: pages of the data, and whether each is written.
type Steps = Vec<(u64, bool)>;

fn sequential(_: &mut Random) -> Steps {
    (0..3000).map(|page| (page, true)).collect()
}

fn every_third(_: &mut Random) -> Steps {
    let pages = (0..4096).step_by(3);
    pages
        .flat_map(|page| [(page, false), (page, true), (page, true)])
        .collect()
}

fn at_random(random: &mut Random) -> Steps {
    (0..5000)
        .map(|_| (random.below(4096), random.below(2) == 1))
        .collect()
}

fn reading(_: &mut Random) -> Steps {
    (0..4096).map(|page| (page, false)).collect()
}

type Program = fn(&mut Random) -> Steps;

const PROGRAMS: [(&str, Program); 4] = [
    ("sequential", sequential),
    ("every-third", every_third),
    ("random", at_random),
    ("reading", reading),
];

/// Program, round, exits for a full log where they were counted, and pages.
type Line = (String, u32, Option<u64>, BTreeSet<u64>);

fn on_the_model() -> Vec<(String, u32, BareRound)> {
    let mut guest = BareGuest::new().unwrap();
    let mut run = |steps: Steps| {
        let steps: Vec<_> = steps
            .into_iter()
            .map(|(page, write)| (DATA + page * PAGE_BYTES, write))
            .collect();
        guest.run(&steps).unwrap();
        guest.collect().unwrap()
    };
    // All that the others need, the list of steps included.
    run((0..16384).map(|i| (i % 4096, true)).collect());
    let mut random = Random(1);
    let mut rounds = Vec::new();
    for (name, program) in PROGRAMS {
        for round in 1..=2 {
            rounds.push((name.to_owned(), round, run(program(&mut random))));
        }
    }
    rounds
}

/// What kvm.c printed.
fn parse(text: &str) -> Vec<Line> {
    let lines = text.lines().filter(|line| line.contains(" full="));
    lines
        .map(|line| {
            let (head, ranges) = line.split_once(':').expect(line);
            let mut words = head.split(' ');
            let mut word = || words.next().expect(line);
            let (name, round) = (word().to_owned(), word().parse().expect(line));
            let full = word().strip_prefix("full=").expect(line).parse().ok();
            let count: usize = word()
                .strip_prefix("pages=")
                .expect(line)
                .parse()
                .expect(line);
            let number = |hex| u64::from_str_radix(hex, 16).expect(line);
            let pages: BTreeSet<u64> = ranges
                .split_whitespace()
                .flat_map(|range| {
                    let (first, last) = range.split_once('-').unwrap_or((range, range));
                    number(first)..=number(last)
                })
                .collect();
            assert_eq!(pages.len(), count, "{line}");
            (name, round, full, pages)
        })
        .collect()
}

fn check(text: &str, counts_exits: bool) {
    let real = parse(text);
    let ours = on_the_model();
    assert_eq!(real.len(), ours.len(), "{text}");
    for ((name, round, full, pages), (our_name, our_round, our)) in real.iter().zip(&ours) {
        assert_eq!((name, round), (our_name, our_round));
        assert_eq!(&our.pages, pages, "{name}, round {round}");
        assert_eq!(our.entries as usize, pages.len(), "each page once");
        assert_eq!(full.is_some(), counts_exits);
        if let Some(full) = full {
            assert_eq!(our.full_exits, *full, "{name}, round {round}");
        }
    }
}

const MACHINES: [(&str, bool); 2] = [("pml-bochs.txt", true), ("nested-qemu.txt", false)];

#[test]
fn pages_and_exits_are_those_that_kvm_reports() {
    let recorded = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/real"));
    let fresh = std::env::var_os("PAGETRAIL_REAL").map(Into::<std::path::PathBuf>::into);
    for (file, counts_exits) in MACHINES {
        let text = fs::read_to_string(recorded.join(file)).unwrap();
        check(&text, counts_exits);
        // A machine that could not be started here leaves no file.
        if let Some(Ok(text)) = fresh.as_ref().map(|dir| fs::read_to_string(dir.join(file))) {
            check(&text, counts_exits);
        }
    }
}

#[test]
fn the_programs_fill_logs_and_dirty_page_tables() {
    for (name, round, bare) in on_the_model() {
        let tables = bare.pages.range(..DATA / PAGE_BYTES).count();
        // The root, two below it, and at least the lowest of code, steps and data.
        assert!(tables > 5, "{name}, {round}: {tables}");
        let data = bare.pages.len() - tables;
        assert_eq!(data == 0, name == "reading");
        assert_eq!(bare.full_exits, (bare.entries - 1) / u64::from(PML_ENTRIES));
        assert_eq!(bare.full_exits > 0, name != "reading");
    }
}
