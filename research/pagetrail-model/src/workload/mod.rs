//! Programs, as sequences of [`Op`]s.
//!
//! A generator yields what a program does and when its tracker acts; [`run`](crate::run()) executes
//! it, and a [trace](crate::trace) stores it. All generators are deterministic: same kind, size,
//! rounds and seed, same sequence on every machine (no floating point).

mod generators;
mod programs;
mod random;

use std::fmt;
use std::str::FromStr;

/// One step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// A process comes to life. Process 0 is the one that gets tracked.
    Spawn {
        /// A number of the program's choice, not in use.
        process: u32,
    },
    /// A process ends, and its areas with it.
    Exit {
        /// Which.
        process: u32,
    },
    /// A process runs from here on.
    Switch {
        /// Which.
        process: u32,
    },
    /// The running process gets an area.
    Map {
        /// A number of the program's choice, not in use.
        area: u32,
        /// Its size.
        bytes: u64,
    },
    /// The running process gives an area of its own back.
    Unmap {
        /// Which.
        area: u32,
    },
    /// The running process reads from an area of its own.
    Read {
        /// Which.
        area: u32,
        /// Where in it, in bytes.
        offset: u64,
    },
    /// The running process writes to an area of its own.
    Write {
        /// Which.
        area: u32,
        /// Where in it, in bytes.
        offset: u64,
    },
    /// The tracker starts to track process 0.
    Start,
    /// The tracker collects a round.
    Round,
}

/// The generators, by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum WorkloadKind {
    /// The OoH paper's Listing 1: one write to each page of an array, in order, each round.
    Listing1,
    /// Accesses whose popularity falls with the rank (Zipf's law, exponent 1), half of them writes.
    Zipf,
    /// 9 accesses of 10 to a tenth of the memory, which moves on each round; half of them writes.
    HotSet,
    /// The Xen study's MemoryMotion: one process after the other allocates, writes and frees. Not
    /// tracked.
    MemoryMotion,
    /// Like GCBench: long-lived data with a few changes, a nursery filled again and again; a round
    /// for each collection of it.
    GcBench,
    /// Like tkrzw: set requests on a hash table in memory.
    KeyValue,
    /// Like tkrzw's ordered engines: set requests on a tree of pages.
    KeyValueTree,
    /// Like Phoenix's histogram: a pass over a file in memory, with counts kept in a few pages.
    Histogram,
    /// Like Phoenix's kmeans: points are read, and a tenth of the memory is written.
    KMeans,
    /// Like Phoenix's matrix-multiply: two matrices are read, a third is written.
    MatrixMultiply,
    /// Like Phoenix's pca: a matrix is read in order and at random, a quarter is written.
    Pca,
    /// Like Phoenix's string-match: a file is read, and hardly anything written.
    StringMatch,
    /// Like Phoenix's word-count: a file is read, and counts of words in half of the memory
    /// written.
    WordCount,
}

impl WorkloadKind {
    /// All of them.
    pub const ALL: [Self; 13] = [
        Self::Listing1,
        Self::Zipf,
        Self::HotSet,
        Self::MemoryMotion,
        Self::GcBench,
        Self::KeyValue,
        Self::KeyValueTree,
        Self::Histogram,
        Self::KMeans,
        Self::MatrixMultiply,
        Self::Pca,
        Self::StringMatch,
        Self::WordCount,
    ];

    /// Its name on a command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Listing1 => "listing1",
            Self::Zipf => "zipf",
            Self::HotSet => "hot-set",
            Self::MemoryMotion => "memory-motion",
            Self::GcBench => "gcbench",
            Self::KeyValue => "key-value",
            Self::KeyValueTree => "key-value-tree",
            Self::Histogram => "histogram",
            Self::KMeans => "kmeans",
            Self::MatrixMultiply => "matrix-multiply",
            Self::Pca => "pca",
            Self::StringMatch => "string-match",
            Self::WordCount => "word-count",
        }
    }
}

impl fmt::Display for WorkloadKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Why a name is not that of a workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownWorkload(String);

impl fmt::Display for UnknownWorkload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unknown workload {:?}: expected one of", self.0)?;
        WorkloadKind::ALL
            .iter()
            .try_for_each(|kind| write!(f, " {kind}"))
    }
}

impl std::error::Error for UnknownWorkload {}

impl FromStr for WorkloadKind {
    type Err = UnknownWorkload;

    fn from_str(name: &str) -> Result<Self, UnknownWorkload> {
        let kind = Self::ALL.into_iter().find(|kind| kind.name() == name);
        kind.ok_or_else(|| UnknownWorkload(name.to_owned()))
    }
}

/// A generator with its parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Workload {
    /// Which generator.
    pub kind: WorkloadKind,
    /// Memory of the program (of each process, for [`WorkloadKind::MemoryMotion`]).
    pub bytes: u64,
    /// Rounds (processes, for [`WorkloadKind::MemoryMotion`]).
    pub rounds: u32,
    /// Of the random numbers.
    pub seed: u64,
}

impl Workload {
    /// The program.
    pub fn ops(&self) -> Box<dyn Iterator<Item = Op>> {
        generators::ops(self)
    }
}

/// Memory consumption of an application in the OoH paper's table II.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PaperSize {
    /// Name of the application.
    pub application: &'static str,
    /// The generator that stands for it.
    pub kind: WorkloadKind,
    /// Bytes in the configurations small, medium and large.
    pub bytes: [u64; 3],
}

const fn sizes(
    application: &'static str,
    kind: WorkloadKind,
    hundredths_of_mb: [u64; 3],
) -> PaperSize {
    let [small, medium, large] = hundredths_of_mb;
    let mib = 1 << 20;
    PaperSize {
        application,
        kind,
        bytes: [small * mib / 100, medium * mib / 100, large * mib / 100],
    }
}

/// Table II of the OoH paper. (A GB of the table counts as 1024 MB here.)
pub const PAPER_SIZES: [PaperSize; 12] = [
    sizes("gcbench", WorkloadKind::GcBench, [1507, 6776, 22341]),
    sizes("histogram", WorkloadKind::Histogram, [10227, 44128, 152576]),
    sizes("kmeans", WorkloadKind::KMeans, [426, 1641, 19564]),
    sizes(
        "matrix-multiply",
        WorkloadKind::MatrixMultiply,
        [556, 1621, 4733],
    ),
    sizes("pca", WorkloadKind::Pca, [812, 9785, 19550]),
    sizes(
        "string-match",
        WorkloadKind::StringMatch,
        [5640, 10614, 21209],
    ),
    sizes("word-count", WorkloadKind::WordCount, [10065, 14399, 20588]),
    sizes("baby", WorkloadKind::KeyValueTree, [25364, 42148, 84856]),
    sizes("cache", WorkloadKind::KeyValue, [21821, 36191, 72146]),
    sizes("stdhash", WorkloadKind::KeyValue, [35864, 59580, 120832]),
    sizes(
        "stdtree",
        WorkloadKind::KeyValueTree,
        [41512, 69407, 141312],
    ),
    sizes("tiny", WorkloadKind::KeyValue, [68135, 97766, 130048]),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn workload(kind: WorkloadKind) -> Workload {
        Workload {
            kind,
            bytes: 3 << 20,
            rounds: 4,
            seed: 1,
        }
    }

    #[test]
    fn the_same_parameters_give_the_same_program() {
        for kind in WorkloadKind::ALL {
            let ops = |seed| {
                Workload {
                    seed,
                    ..workload(kind)
                }
                .ops()
                .collect::<Vec<_>>()
            };
            assert_eq!(ops(1), ops(1), "{kind}");
            let random = !matches!(kind, WorkloadKind::Listing1 | WorkloadKind::MemoryMotion);
            assert_eq!(ops(1) != ops(2), random, "{kind}");
        }
    }

    #[test]
    fn small_programs_stay_inside_as_well() {
        for kind in WorkloadKind::ALL {
            for pages in 1..40 {
                let small = Workload {
                    kind,
                    bytes: pages * 4096,
                    rounds: 2,
                    seed: pages,
                };
                for op in small.ops() {
                    if let Op::Read { offset, .. } | Op::Write { offset, .. } = op {
                        assert!(offset < pages * 4096, "{kind}, {pages} pages: {offset:#x}");
                    }
                }
            }
        }
    }

    #[test]
    fn accesses_stay_inside_of_their_areas_and_cover_the_memory_asked_for() {
        for kind in WorkloadKind::ALL {
            let mut sizes = std::collections::HashMap::new();
            let mut largest = 0;
            for op in workload(kind).ops() {
                match op {
                    Op::Map { area, bytes } => {
                        assert!(sizes.insert(area, bytes).is_none(), "{kind}");
                        largest = largest.max(sizes.values().sum());
                    }
                    Op::Unmap { area } => drop(sizes.remove(&area).unwrap()),
                    Op::Read { area, offset } | Op::Write { area, offset } => {
                        assert!(offset < sizes[&area], "{kind}");
                    }
                    _ => {}
                }
            }
            assert!((2 << 20..=3 << 20).contains(&largest), "{kind}: {largest}");
        }
    }

    #[test]
    fn zipf_is_zipf() {
        let mut counts = std::collections::HashMap::new();
        let program = Workload {
            bytes: 4096 * 1000,
            rounds: 50,
            ..workload(WorkloadKind::Zipf)
        };
        for op in program.ops().skip_while(|op| *op != Op::Start) {
            if let Op::Read { offset, .. } | Op::Write { offset, .. } = op {
                *counts.entry(offset / 4096).or_insert(0_u64) += 1;
            }
        }
        let mut counts: Vec<u64> = counts.into_values().collect();
        counts.sort_unstable_by(|a, b| b.cmp(a));
        // The first rank is ten times as popular as the tenth, within the noise of 50,000 accesses.
        assert!(
            (8..13).contains(&(counts[0] / counts[9])),
            "{:?}",
            &counts[..10]
        );
    }
}
