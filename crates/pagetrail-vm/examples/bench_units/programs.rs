//! The programs, with arguments for runs of seconds on an emulated processor.

use std::path::Path;

/// A program of `tests/subpage`.
pub(crate) struct Program {
    pub(crate) name: &'static str,
    file: &'static str,
    /// Its size, and the number of changes between two rounds.
    pub(crate) arguments: [u32; 4],
    /// Other numbers of changes, for rounds after fewer and more.
    pub(crate) intervals: &'static [u32],
}

const fn program(name: &'static str, file: &'static str, arguments: [u32; 4]) -> Program {
    Program {
        name,
        file,
        arguments,
        intervals: &[],
    }
}

/// No limit on what a program does.
const ALL: u32 = u32::MAX;

pub(crate) const PROGRAMS: &[Program] = &[
    program("GCBench", "gcbench", [13, 0, 4, 6_000]),
    program("sweep", "sweep", [20_000, 64, 200_000, 5_000]),
    program("Tokyo Cabinet, 64 B", "tokyo", [20_000, 64, 20_000, 400]),
    program("vacation", "vacation", [4_096, 10, 20_000, 500]),
    program("intruder", "intruder", [6_000, 128, ALL, 1_000]),
    Program {
        intervals: &[500, 1_000, 4_000, 8_000],
        ..program("genome", "genome", [16_384, 64, 40_000, 2_000])
    },
    program("bayes", "bayes", [2_048, 16, 4_000, 400]),
    program(
        "Tokyo Cabinet, 64 B, most records",
        "tokyo",
        [20_000, 64, 200_000, 20_000],
    ),
    program("Tokyo Cabinet, 128 B", "tokyo", [10_000, 128, 20_000, 400]),
    program("Tokyo Cabinet, 1 KiB", "tokyo", [2_000, 1024, 5_000, 100]),
];

impl Program {
    /// This program with so many changes between two rounds; with 0 it requests none.
    pub(crate) fn with_rounds_of(&self, changes: u32) -> Self {
        let [a, b, c, _] = self.arguments;
        Self {
            arguments: [a, b, c, changes],
            ..*self
        }
    }

    /// The words that start it.
    pub(crate) fn words(&self, directory: &Path) -> Vec<String> {
        let mut words = vec![directory.join(self.file).display().to_string()];
        words.extend(self.arguments.map(|number| number.to_string()));
        words
    }
}
