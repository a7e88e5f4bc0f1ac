//! [`Definition`]: what a suite measures, as its file in TOML says it (`bench/definitions/`).

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use pagetrail::Technique;
use serde::{Deserialize, Deserializer, Serialize};

/// A suite.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Definition {
    /// Techniques side by side; those that do not work here are left out, and named.
    #[serde(deserialize_with = "techniques")]
    pub(crate) techniques: Vec<Technique>,
    /// What a page reported in vain costs, in nanoseconds.
    pub(crate) vain_page_ns: u64,
    /// Lengths of rounds, in milliseconds.
    pub(crate) rounds_ms: Vec<u64>,
    /// A round of a workload lasts for so many operations for each of its milliseconds: what a writer does in that time
    /// when it is not tracked and has a processor to itself. So a busy machine writes the same pages, only later.
    pub(crate) operations_per_ms: u64,
    /// So many rounds are measured, for each length.
    pub(crate) rounds: Vec<u32>,
    /// Rounds before the first that is measured.
    pub(crate) warm_up_rounds: u32,
    /// Each technique in turn, so often; the figures are medians.
    pub(crate) runs: u32,
    /// The length of rounds for programs, in milliseconds.
    pub(crate) program_round_ms: u64,
    #[serde(default)]
    pub(crate) workload: Vec<Workload>,
    #[serde(default)]
    pub(crate) program: Vec<Program>,
}

/// Generated writes.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Workload {
    pub(crate) name: String,
    /// Pages of memory.
    pub(crate) pages: u64,
    pub(crate) seed: u64,
    /// What the program does besides between two writes: so many steps of a random generator, of a nanosecond or two each.
    pub(crate) work: u32,
    pub(crate) pattern: Pattern,
}

/// Which pages are written.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) enum Pattern {
    /// Each as often as any other.
    Uniform,
    /// The n-th most frequent one in proportion to `1 / n^exponent`, scattered over the memory.
    Zipf { exponent: f64 },
    /// A share of the pages, scattered, takes all writes but a few in a thousand, which go anywhere.
    Hot {
        share: f64,
        elsewhere_per_mille: f64,
        /// After so many operations another part of the memory is hot.
        #[serde(default)]
        moves_after: Option<u64>,
    },
    /// One page after the other, over and over. (Two arrays of which each is written from the other in turn do the same.)
    Sweep,
    /// A hot share that is written for a while, then nothing for a while.
    IdleBurst {
        share: f64,
        /// Operations.
        burst: u64,
        idle_ms: u64,
    },
}

/// A real program that does a fixed amount of work and ends.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Program {
    pub(crate) name: String,
    /// The command; `{programs}` is replaced by the directory given with `--programs`.
    pub(crate) command: Vec<String>,
    /// Variables that it needs.
    #[serde(default)]
    pub(crate) environment: BTreeMap<String, String>,
    /// A script for `sh` that gives a server its work, and ends it.
    #[serde(default)]
    pub(crate) client: Option<String>,
}

impl Definition {
    /// Reads one from a file.
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let text = fs::read_to_string(path)
            .with_context(|| format!("cannot read the suite {}", path.display()))?;
        Self::parse(&text).with_context(|| format!("{} is no suite", path.display()))
    }

    fn parse(text: &str) -> Result<Self> {
        let definition: Self = toml::from_str(text)?;
        ensure!(!definition.rounds_ms.contains(&0), "rounds of 0 ms");
        ensure!(
            definition.rounds.len() == definition.rounds_ms.len(),
            "rounds needs as many numbers as rounds_ms"
        );
        ensure!(!definition.rounds.contains(&0), "0 rounds");
        ensure!(definition.runs > 0, "no runs");
        for workload in &definition.workload {
            ensure!(
                (2..=1 << 32).contains(&workload.pages),
                "{}: pages must be from 2 to 2^32",
                workload.name
            );
            let share = match workload.pattern {
                Pattern::Hot { share, .. } | Pattern::IdleBurst { share, .. } => share,
                _ => 1.0,
            };
            ensure!(
                share > 0.0 && share <= 1.0,
                "{}: a share is more than 0 and at most 1",
                workload.name
            );
        }
        Ok(definition)
    }
}

fn techniques<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Technique>, D::Error> {
    let names = Vec::<String>::deserialize(from)?;
    let parsed = names.iter().map(|name| name.parse());
    parsed
        .collect::<Result<_, _>>()
        .map_err(serde::de::Error::custom)
}
