//! [`Workload`]: programs that know what they touch.
//!
//! HMM-V, section 5: random accesses of which 90% go to a hot set, fixed or moving in four stages; a hot window that
//! walks through memory; and Zipf's law. Everything is drawn from a seed.

use fastrand::Rng;

/// What kind of program.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum WorkloadKind {
    /// 90% of accesses to a fixed part of the pages, scattered over all, the rest to any.
    Fixed {
        /// The hot part.
        hot_percent: u32,
    },
    /// The same, but every so many windows the hot part is another one, drawn anew.
    Moving {
        /// The hot part.
        hot_percent: u32,
        /// How long it stays.
        windows: u64,
    },
    /// A fifth of memory from one end to the other, which every so many windows is the next fifth.
    Sequential {
        /// How long it stays.
        windows: u64,
    },
    /// The k-th page is touched in proportion to 1/k.
    Zipf,
}

/// The accesses of a window, page by page.
#[derive(Clone, Debug, Default)]
pub struct Accesses {
    /// Reads of each page.
    pub reads: Vec<u32>,
    /// Writes of each page.
    pub writes: Vec<u32>,
}

/// A program.
#[derive(Clone, Debug)]
pub struct Workload {
    kind: WorkloadKind,
    pages: usize,
    /// Accesses in a window.
    accesses: u64,
    /// Every so many accesses is a write; 0 for none.
    write_every: u64,
    random: Rng,
    /// All pages, in the order of a draw: the first are hot.
    order: Vec<u32>,
    window: u64,
    /// Of Zipf's law: the sum up to each rank.
    sums: Vec<f64>,
}

/// Of 100 accesses, how many are to the hot part.
const HOT_ACCESSES: u64 = 90;

impl Workload {
    /// A program of so many pages, which makes one and a half accesses for each in a window, half of them writes: what the
    /// paper's random access makes of 16 GB in 600 ms.
    pub fn new(kind: WorkloadKind, pages: usize, seed: u64) -> Self {
        let mut random = Rng::with_seed(seed);
        let mut order: Vec<u32> = (0..pages as u32).collect();
        if !matches!(kind, WorkloadKind::Sequential { .. }) {
            random.shuffle(&mut order);
        }
        let mut sums = Vec::new();
        if kind == WorkloadKind::Zipf {
            let mut sum = 0.0;
            sums.extend((1..=pages).map(|rank| {
                sum += 1.0 / rank as f64;
                sum
            }));
        }
        Self {
            kind,
            pages,
            accesses: pages as u64 * 3 / 2,
            write_every: 2,
            random,
            order,
            window: 0,
            sums,
        }
    }

    /// With another number of accesses in a window.
    #[must_use]
    pub fn accesses(mut self, accesses: u64) -> Self {
        self.accesses = accesses;
        self
    }

    /// Every so many accesses is a write; 0 for none.
    #[must_use]
    pub fn write_every(mut self, accesses: u64) -> Self {
        self.write_every = accesses;
        self
    }

    /// How many pages it has.
    pub fn pages(&self) -> usize {
        self.pages
    }

    /// Whether the hot set is another one in the next window.
    pub fn moves_next(&self) -> bool {
        match self.kind {
            WorkloadKind::Moving { windows, .. } | WorkloadKind::Sequential { windows } => {
                self.window > 0 && self.window.is_multiple_of(windows)
            }
            _ => false,
        }
    }

    /// The pages that are hot in the window that was run last, ascending; for Zipf's law a fifth of all.
    pub fn hot(&self) -> Vec<u32> {
        let mut hot = self.order[self.hot_span()].to_vec();
        hot.sort_unstable();
        hot
    }

    /// All pages, those that are used most in the window that was run last in front.
    pub fn hottest_first(&self) -> Vec<u32> {
        let hot = self.hot_span();
        let (before, behind) = (&self.order[..hot.start], &self.order[hot.end..]);
        [&self.order[hot.clone()], before, behind].concat()
    }

    fn hot_span(&self) -> std::ops::Range<usize> {
        let fifth = self.pages / 5;
        match self.kind {
            WorkloadKind::Fixed { hot_percent } | WorkloadKind::Moving { hot_percent, .. } => {
                0..self.pages * hot_percent as usize / 100
            }
            WorkloadKind::Sequential { windows } => {
                let stage = (self.window.saturating_sub(1) / windows % 5) as usize;
                stage * fifth..(stage + 1) * fifth
            }
            WorkloadKind::Zipf => 0..fifth,
        }
    }

    /// Runs a window.
    pub fn run(&mut self) -> Accesses {
        if self.moves_next() && matches!(self.kind, WorkloadKind::Moving { .. }) {
            self.random.shuffle(&mut self.order);
        }
        self.window += 1;
        let mut made = Accesses {
            reads: vec![0; self.pages],
            writes: vec![0; self.pages],
        };
        let hot = self.hot_span();
        for access in 0..self.accesses {
            let page = match self.kind {
                WorkloadKind::Zipf => {
                    let most = self.sums.last().copied().unwrap_or_default();
                    let drawn = self.random.f64() * most;
                    self.order[self
                        .sums
                        .partition_point(|sum| *sum < drawn)
                        .min(self.pages - 1)]
                }
                _ if self.random.u64(0..100) >= HOT_ACCESSES => {
                    self.random.u32(0..self.pages as u32)
                }
                WorkloadKind::Sequential { .. } => {
                    self.order[hot.start + access as usize % hot.len()]
                }
                _ => self.order[self.random.usize(hot.clone())],
            };
            let list = match self.write_every > 0 && access % self.write_every == 0 {
                true => &mut made.writes,
                false => &mut made.reads,
            };
            list[page as usize] += 1;
        }
        made
    }
}
