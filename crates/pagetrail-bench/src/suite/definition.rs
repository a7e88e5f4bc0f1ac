//! [`Definition`]: what a suite measures, as its file in TOML says it (`bench/definitions/`).

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Result, ensure};
use pagetrail::{BLOCK_PAGES_MAX, Technique};
use serde::{Deserialize, Deserializer, Serialize};

/// A suite.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Definition {
    /// Techniques side by side; those that do not work here are left out, and named.
    #[serde(deserialize_with = "techniques")]
    pub techniques: Vec<Technique>,
    /// What a false positive costs, in nanoseconds.
    pub(crate) false_positive_ns: u64,
    /// Pages that one fault releases at most, with the technique `userfaultfd`.
    #[serde(default = "one")]
    pub(crate) block_pages: u32,
    /// Lengths of rounds for workloads, and how many of them.
    #[serde(default)]
    pub(crate) length: Vec<Length>,
    /// The programs of the short form, which measures each program once.
    #[serde(default)]
    pub(crate) quick: Vec<Length>,
    /// A round of a workload lasts for so many operations for each of its milliseconds: what a
    /// writer does in that time when it is not tracked and has a processor to itself. So a busy
    /// machine writes the same pages, only later.
    #[serde(default)]
    pub(crate) operations_per_ms: u64,
    /// The length of rounds for programs, in milliseconds.
    #[serde(default = "program_round_ms")]
    pub(crate) program_round_ms: u64,
    /// Each program under each technique in turn, so often.
    #[serde(default = "one")]
    pub(crate) program_runs: u32,
    /// What tracking may cost a program, as a share of its time: rounds are as long as that takes,
    /// up to 10 s.
    #[serde(default)]
    pub max_overhead: Option<f64>,
    /// Measures each program in one run of it, tracked and untracked in turns, instead of in runs
    /// of its own for each technique.
    #[serde(default)]
    pub(crate) turns: Option<Turns>,
    #[serde(default)]
    pub(crate) workload: Vec<Workload>,
    #[serde(default)]
    pub(crate) program: Vec<Program>,
}

/// Rounds of a length.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Length {
    pub(crate) round_ms: u64,
    /// Rounds before the first that is measured.
    pub(crate) warm_up: u32,
    /// Rounds that are measured.
    pub(crate) rounds: u32,
    /// Each technique in turn, so often; the figures are medians.
    pub(crate) runs: u32,
}

/// Tracked and untracked in turns.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Turns {
    /// Before the first turn.
    pub(crate) warm_up_seconds: u32,
    /// Of each turn; it ends with the unit of work that the program is at then.
    pub(crate) seconds: u32,
    /// Turns of each kind.
    pub(crate) pairs: u32,
}

/// Generated writes.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Workload {
    pub(crate) name: String,
    /// Pages of memory.
    pub(crate) pages: u64,
    pub(crate) seed: u64,
    /// What the program does besides between two writes: so many steps of a random generator, of a
    /// nanosecond or two each.
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
    /// A share of the pages, scattered, takes all writes but a few in a thousand, which go
    /// anywhere.
    Hot {
        share: f64,
        elsewhere_per_mille: f64,
        /// After so many operations another part of the memory is hot.
        #[serde(default)]
        moves_after: Option<u64>,
    },
    /// One page after the other, over and over. (Two arrays of which each is written from the other
    /// in turn do the same.)
    Sweep,
    /// A hot share that is written for a while, then nothing for a while.
    IdleBurst {
        share: f64,
        /// Operations.
        burst: u64,
        idle_ms: u64,
    },
}

/// A real program. It does a fixed amount of work and ends; in [`Turns`] it goes on until it is
/// killed, and says how far it is.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Program {
    pub(crate) name: String,
    /// The command. In it and in the scripts `{programs}` is replaced by the directory given with
    /// `--programs`, and `{dir}` by a directory of the program's own.
    pub(crate) command: Vec<String>,
    /// Other programs without which it cannot run.
    #[serde(default)]
    pub(crate) needs: Vec<String>,
    /// A script for `sh` that makes what it needs, once before all runs.
    #[serde(default)]
    pub(crate) prepare: Option<String>,
    /// Whether the processes that it starts count, too.
    #[serde(default)]
    pub(crate) tree: bool,
    /// Variables that it needs.
    #[serde(default)]
    pub(crate) environment: BTreeMap<String, String>,
    /// A script for `sh` that gives a server its work, and ends it.
    #[serde(default)]
    pub(crate) client: Option<String>,
    /// How far it is.
    #[serde(default)]
    pub(crate) progress: Option<Progress>,
    /// A script for `sh` that ends a server, where killing it would leave something behind.
    #[serde(default)]
    pub(crate) end: Option<String>,
}

/// What counts a program's units of work.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Progress {
    /// Its calls that read (`syscr` of `/proc/PID/io`): it reads its work.
    Reads,
    /// Its calls that write (`syscw`): it answers, or writes a byte for each unit of work.
    Writes,
    /// A number that a script for `sh` prints.
    Script(String),
}

impl Program {
    /// The program with directories in the places of their names.
    pub(crate) fn placed(&self, programs: &Path, own: &Path) -> Self {
        let place = |text: &String| {
            text.replace("{programs}", &programs.to_string_lossy())
                .replace("{dir}", &own.to_string_lossy())
        };
        Self {
            command: self.command.iter().map(place).collect(),
            client: self.client.as_ref().map(place),
            prepare: self.prepare.as_ref().map(place),
            end: self.end.as_ref().map(place),
            progress: self.progress.as_ref().map(|progress| match progress {
                Progress::Script(script) => Progress::Script(place(script)),
                other => other.clone(),
            }),
            ..self.clone()
        }
    }
}

impl Definition {
    /// Leaves the short form of it.
    pub fn shorten(&mut self) -> Result<()> {
        let is_in_turns = self.turns.is_some() && self.workload.is_empty();
        ensure!(
            is_in_turns || !self.quick.is_empty(),
            "the suite has no short form"
        );
        self.length = std::mem::take(&mut self.quick);
        self.program_runs = 1;
        if let Some(turns) = &mut self.turns {
            turns.pairs = 1;
        }
        Ok(())
    }

    /// Parses the text of a suite's file.
    pub fn parse(text: &str) -> Result<Self> {
        let definition: Self = toml::from_str(text)?;
        for length in definition.length.iter().chain(&definition.quick) {
            ensure!(length.round_ms > 0, "rounds of 0 ms");
            ensure!(length.rounds > 0, "0 rounds");
            ensure!(length.runs > 0, "no runs");
        }
        ensure!(
            (1..=BLOCK_PAGES_MAX).contains(&definition.block_pages),
            "block_pages must be from 1 to {BLOCK_PAGES_MAX}"
        );
        ensure!(definition.program_runs > 0, "no runs of programs");
        ensure!(
            definition
                .max_overhead
                .is_none_or(|share| share > 0.0 && share <= 1.0),
            "max_overhead is a share, more than 0 and at most 1"
        );
        if let Some(turns) = &definition.turns {
            ensure!(turns.seconds > 0 && turns.pairs > 0, "no turns");
            for program in &definition.program {
                ensure!(
                    program.progress.is_some(),
                    "{}: turns, but nothing says its progress",
                    program.name
                );
            }
        }
        ensure!(
            definition.workload.is_empty() || !definition.length.is_empty(),
            "workloads, but no [[length]] of rounds"
        );
        ensure!(
            definition.workload.is_empty() || definition.operations_per_ms > 0,
            "workloads, but no operations_per_ms"
        );
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

fn one() -> u32 {
    1
}

fn program_round_ms() -> u64 {
    100
}

fn techniques<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Technique>, D::Error> {
    let names = Vec::<String>::deserialize(from)?;
    let parsed = names.iter().map(|name| name.parse());
    parsed
        .collect::<Result<_, _>>()
        .map_err(serde::de::Error::custom)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_recorded_suites_can_be_read() {
        let definitions = concat!(env!("CARGO_MANIFEST_DIR"), "/../../bench/definitions");
        let mut found = 0;
        for file in std::fs::read_dir(definitions).unwrap() {
            let text = std::fs::read_to_string(file.unwrap().path()).unwrap();
            Definition::parse(&text).unwrap();
            found += 1;
        }
        assert!(found >= 3, "{found}");
    }

    #[test]
    fn the_short_form_of_turns_is_one_pair() {
        let text = "techniques = []\nfalse_positive_ns = 1\n[turns]\nwarm_up_seconds = 0\nseconds = 1\npairs = 6\n";
        let mut definition = Definition::parse(text).unwrap();
        definition.shorten().unwrap();
        assert_eq!(definition.turns.unwrap().pairs, 1);
        let mut without = Definition::parse(text.split("[turns]").next().unwrap()).unwrap();
        assert!(without.shorten().is_err());
    }

    #[test]
    fn workloads_need_rounds() {
        let head = "techniques = [\"compare\"]\nfalse_positive_ns = 1\n";
        let workload = "[[workload]]\nname = \"w\"\npages = 2\nseed = 1\nwork = 0\npattern = { kind = \"uniform\" }\n";
        let length = "[[length]]\nround_ms = 1\nwarm_up = 0\nrounds = 1\nruns = 1\n";
        let error = |text: String| Definition::parse(&text).unwrap_err().to_string();
        Definition::parse(head).unwrap();
        assert!(error(format!("{head}{workload}")).contains("[[length]]"));
        assert!(error(format!("{head}{length}{workload}")).contains("operations_per_ms"));
        Definition::parse(&format!("operations_per_ms = 1\n{head}{length}{workload}")).unwrap();
    }
}
