//! [`History`]: what is kept of a process for the page: a bounded number of windows, and heat by
//! address.

use std::collections::{BTreeMap, VecDeque};

use pagetrail_tier::{Plan, TierLoop, WindowReport};

/// Windows that are kept.
const WINDOWS_MAX: usize = 2000;
/// Columns of heat; between them windows are left out.
const COLUMNS_MAX: usize = 240;
/// Rows of heat before neighbours are put together.
const ROWS_MAX: usize = 512;
/// The smallest row is so many bytes, as a power of two.
const SHIFT_MIN: u32 = 14;

/// What a process did.
#[derive(Debug, Default)]
pub(crate) struct History {
    /// Of the monitor of a virtual machine: the name of its guest, empty if it has none.
    pub(crate) guest: Option<String>,
    pub(crate) windows: VecDeque<WindowReport>,
    pub(crate) heat: Heat,
    /// At the end: bytes by degree in fast and in slow memory.
    pub(crate) fast: Vec<u64>,
    pub(crate) slow: Vec<u64>,
    /// From which degree on a page should be in fast memory.
    pub(crate) cut: u16,
}

/// Mean degrees by address, window by window.
#[derive(Debug)]
pub(crate) struct Heat {
    /// Bytes of a row, as a power of two.
    pub(crate) shift: u32,
    pub(crate) columns: Vec<Column>,
    /// Every so many windows is a column.
    every: u64,
}

/// A window: by row (address shifted), the sum of degrees times bytes, and bytes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Column {
    pub(crate) window: u64,
    pub(crate) rows: BTreeMap<u64, (u64, u64)>,
}

impl Default for Heat {
    fn default() -> Self {
        Self {
            shift: SHIFT_MIN,
            columns: Vec::new(),
            every: 1,
        }
    }
}

impl History {
    /// Takes a window.
    pub(crate) fn add(&mut self, tier_loop: &mut TierLoop, report: &WindowReport) {
        if self.windows.len() == WINDOWS_MAX {
            self.windows.pop_front();
        }
        self.windows.push_back(report.clone());
        self.cut = report.cut;
        self.note(tier_loop);
        if report.index.is_multiple_of(self.heat.every) {
            self.heat.add(tier_loop, report.index);
        }
    }

    /// The picture of a plan, which moves nothing.
    pub(crate) fn add_plan(&mut self, tier_loop: &mut TierLoop, plan: &Plan) {
        self.cut = plan.cut;
        self.note(tier_loop);
    }

    fn note(&mut self, tier_loop: &mut TierLoop) {
        let histogram = tier_loop.histogram();
        self.fast.clone_from(&histogram.fast);
        self.slow.clone_from(&histogram.slow);
    }
}

impl Heat {
    fn add(&mut self, tier_loop: &mut TierLoop, window: u64) {
        let mut column = Column {
            window,
            ..Column::default()
        };
        let shift = self.shift;
        tier_loop.policy().for_each(|address, bytes, rank, _| {
            let row = column.rows.entry(address >> shift).or_default();
            row.0 += u64::from(rank) * bytes;
            row.1 += bytes;
        });
        self.columns.push(column);
        while self
            .columns
            .last()
            .is_some_and(|column| column.rows.len() > ROWS_MAX)
        {
            self.coarsen();
        }
        if self.columns.len() > COLUMNS_MAX {
            self.every *= 2;
            let every = self.every;
            self.columns
                .retain(|column| column.window.is_multiple_of(every));
        }
    }

    /// Puts two rows into one.
    fn coarsen(&mut self) {
        self.shift += 1;
        for column in &mut self.columns {
            let mut rows = BTreeMap::<u64, (u64, u64)>::new();
            for (row, (heat, bytes)) in &column.rows {
                let sum = rows.entry(row >> 1).or_default();
                *sum = (sum.0 + heat, sum.1 + bytes);
            }
            column.rows = rows;
        }
    }
}
