//! [`Workload`]: programs that know what they touch.
//!
//! HMM-V, section 5: random accesses of which 90% go to a hot set, fixed or moving in four stages;
//! a hot window that walks through memory; all memory alike; and Zipf's law. Everything is drawn
//! from a seed.

use fastrand::Rng;

use super::program::{Accesses, Program};

/// What kind of program.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum WorkloadKind {
    /// 90% of accesses to a fixed part of the pages, scattered over all, the rest to any.
    Fixed {
        /// The hot part.
        hot_percent: u32,
    },
    /// A hot part as above, but every so many windows the hot part is another one, drawn anew.
    Moving {
        /// The hot part.
        hot_percent: u32,
        /// How long it stays.
        windows: u64,
    },
    /// A fifth of memory from one end to the other, again and again, which every so many windows is
    /// the next fifth.
    Sequential {
        /// How long it stays.
        windows: u64,
    },
    /// All pages one after the other, again and again.
    Sweep,
    /// The k-th page is touched in proportion to 1/k.
    Zipf,
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
    /// A program of so many pages, which makes one and a half accesses for each in a window, half
    /// of them writes: what the paper's random access makes of 16 GB in 600 ms.
    pub fn new(kind: WorkloadKind, pages: usize, seed: u64) -> Self {
        let mut random = Rng::with_seed(seed);
        let mut order: Vec<u32> = (0..pages as u32).collect();
        if !matches!(kind, WorkloadKind::Sequential { .. } | WorkloadKind::Sweep) {
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
            WorkloadKind::Sweep => 0..self.pages,
            WorkloadKind::Zipf => 0..fifth,
        }
    }

    /// The page of the next access.
    fn draw(&mut self, access: u64, hot: &std::ops::Range<usize>) -> u32 {
        match self.kind {
            WorkloadKind::Zipf => {
                let most = self.sums.last().copied().unwrap_or_default();
                let drawn = self.random.f64() * most;
                let rank = self.sums.partition_point(|sum| *sum < drawn);
                self.order[rank.min(self.pages - 1)]
            }
            WorkloadKind::Sequential { .. } | WorkloadKind::Sweep => {
                self.order[hot.start + access as usize % hot.len()]
            }
            _ if self.random.u64(0..100) >= HOT_ACCESSES => self.random.u32(0..self.pages as u32),
            _ => self.order[self.random.usize(hot.clone())],
        }
    }
}

impl Program for Workload {
    fn pages(&self) -> usize {
        self.pages
    }

    fn moves_next(&self) -> bool {
        match self.kind {
            WorkloadKind::Moving { windows, .. } | WorkloadKind::Sequential { windows } => {
                self.window > 0 && self.window.is_multiple_of(windows)
            }
            _ => false,
        }
    }

    /// For Zipf's law a fifth of all.
    fn hot(&self) -> Vec<u32> {
        let mut hot = self.order[self.hot_span()].to_vec();
        hot.sort_unstable();
        hot
    }

    fn hottest_first(&self) -> Vec<u32> {
        let hot = self.hot_span();
        let (before, behind) = (&self.order[..hot.start], &self.order[hot.end..]);
        [&self.order[hot.clone()], before, behind].concat()
    }

    fn run(&mut self) -> Option<Accesses> {
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
            let page = self.draw(access, &hot);
            // Who goes through memory again and again does not write the same pages each time.
            let turn = access + access / hot.len().max(1) as u64;
            let list = match self.write_every > 0 && turn.is_multiple_of(self.write_every) {
                true => &mut made.writes,
                false => &mut made.reads,
            };
            list[page as usize] += 1;
        }
        Some(made)
    }
}
