//! The grid of every picture of a trail: addresses from top to bottom, time from left to right.
//!
//! [`Heatmap::of`] is a pure function from a [`Trail`] to numbers. The terminal, HTML and PNG
//! renderers share it and add colours and labels. The address axis is compact: it has only *blocks*
//! of pages that were written at some time, in ascending order, each within one mapping. A gap
//! between two blocks is one separator row, unless separators would take more than a quarter of the
//! rows. A gap within a mapping separates two blocks if it is longer than all written pages
//! together, so that the picture of a sparse mapping of 64 GiB shows its written pages.

use pagetrail::{PageRange, PageSet};

use crate::pages::{Cover, Covers, Pages, Run, seek};
use crate::{Round, Trail};

/// One row of the grid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// The addresses of the row, from its first to its last byte; for a separator, those of the
    /// gap.
    pub range: PageRange,
    /// Number of pages in the row; 0 for a separator. It is less than the pages in `range` if one
    /// row holds several blocks, because there are more blocks than rows.
    pub pages: u64,
    /// Index of the row's mapping in [`Trail::mappings`]: the newest if several mappings had these
    /// addresses, that of the largest block if the row holds several blocks. `None` for separators
    /// and for pages outside all mappings.
    pub mapping: Option<usize>,
    /// Whether the row is a separator between two blocks; all its cells are 0.
    pub separator: bool,
}

/// One column of the grid: one round or several consecutive ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Column {
    /// Position in [`Trail::rounds`] of the first round.
    pub first_round: usize,
    /// Number of rounds in the column, at least 1.
    pub rounds: usize,
    /// Beginning of the first round, in nanoseconds since the start of the recording.
    pub start_ns: u64,
    /// End of the last round, in nanoseconds since the start of the recording.
    pub end_ns: u64,
}

/// The grid of a picture. A cell is the fraction of the row's pages that a round of the column
/// wrote, as the mean over these rounds: 0 means never, 1 every page in every round. The pages of
/// new mappings count as written.
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
    /// Computes the grid with at most `max_rows` rows and `max_columns` columns, fewer if the trail
    /// has fewer pages or rounds. The grid is empty if either bound is 0 or nothing was written.
    pub fn of(trail: &Trail, max_rows: usize, max_columns: usize) -> Self {
        let blocks = blocks(trail);
        if blocks.is_empty() || max_rows == 0 || max_columns == 0 {
            return Self::default();
        }
        let axis = Axis::of(&blocks, max_rows, Pages::of(trail));
        let columns = columns(&trail.rounds, max_columns);
        let cells = cells(trail, &axis, &columns);
        Self {
            rows: axis.rows,
            columns,
            cells,
        }
    }

    /// Returns the cell in `row` and `column`; 0 outside the grid.
    pub fn cell(&self, row: usize, column: usize) -> f32 {
        self.row(row).get(column).copied().unwrap_or(0.0)
    }

    /// Returns the cells of one row from left to right; empty outside the grid.
    pub fn row(&self, row: usize) -> &[f32] {
        let width = self.columns.len();
        let cells = row
            .checked_mul(width)
            .and_then(|start| self.cells.get(start..));
        cells.map_or(&[], |cells| &cells[..width.min(cells.len())])
    }

    /// Returns the largest cell, for scaling colours; 0 if the grid is empty.
    pub fn max(&self) -> f32 {
        self.cells.iter().copied().fold(0.0, f32::max)
    }
}

/// Consecutive pages of one mapping that the picture shows without a gap.
struct Block {
    run: Run,
    mapping: Option<usize>,
}

impl Block {
    fn pages(&self) -> u64 {
        self.run.end - self.run.start
    }
}

/// Blocks of pages written at some time, in ascending order, split at long gaps.
fn blocks(trail: &Trail) -> Vec<Block> {
    let pages = Pages::of(trail);
    let written = union(trail.rounds.iter().map(|round| &round.written));
    let written_pages: u64 = pages.runs(&written).map(|run| run.end - run.start).sum();
    let mut blocks: Vec<Block> = Vec::new();
    written_cover(trail).split(pages.runs(&written), |run, mapping| {
        match blocks.last_mut() {
            // A longer gap would take more rows than all written pages.
            Some(last) if last.mapping == mapping && run.start - last.run.end <= written_pages => {
                last.run.end = run.end;
            }
            _ => blocks.push(Block { run, mapping }),
        }
    });
    blocks
}

/// Maps each page to the newest mapping that covered it and was written at some time.
fn written_cover(trail: &Trail) -> Cover {
    let pages = Pages::of(trail);
    let mut written = vec![false; trail.mappings.len()];
    let mut covers = Covers::of(trail);
    for round in &trail.rounds {
        covers
            .advance(round.index)
            .split(pages.runs(&round.written), |_, mapping| {
                if let Some(mapping) = mapping {
                    written[mapping] = true;
                }
            });
    }
    let mut cover = Cover::default();
    for (index, mapping) in trail.mappings.iter().enumerate() {
        if written[index] {
            cover.paint(pages.run(mapping.range), index);
        }
    }
    cover
}

/// Union of all sets. Sets of similar size are merged first, so that each range is copied few
/// times.
fn union<'a>(sets: impl Iterator<Item = &'a PageSet>) -> PageSet {
    let mut stack: Vec<PageSet> = Vec::new();
    for set in sets {
        let mut set = set.clone();
        while let Some(below) = stack.pop_if(|below| below.ranges().len() <= 2 * set.ranges().len())
        {
            set.union_with(&below);
        }
        stack.push(set);
    }
    let mut all = PageSet::new();
    while let Some(set) = stack.pop() {
        all.union_with(&set);
    }
    all
}

/// The address axis.
struct Axis {
    rows: Vec<Row>,
    /// Runs of pages and the row that shows each, ascending and disjoint.
    extents: Vec<(Run, usize)>,
}

impl Axis {
    fn of(blocks: &[Block], max_rows: usize, pages: Pages) -> Self {
        if blocks.len() > max_rows {
            Self::grouped(blocks, max_rows, pages)
        } else {
            Self::spread(blocks, max_rows, pages)
        }
    }

    /// Builds the axis with several blocks in a row.
    fn grouped(blocks: &[Block], max_rows: usize, pages: Pages) -> Self {
        let mut axis = Self {
            rows: Vec::with_capacity(max_rows),
            extents: Vec::with_capacity(blocks.len()),
        };
        for row in 0..max_rows {
            let group =
                &blocks[part(blocks.len(), row, max_rows)..part(blocks.len(), row + 1, max_rows)];
            let (Some(first), Some(last)) = (group.first(), group.last()) else {
                continue;
            };
            let largest = group.iter().max_by_key(|block| block.pages());
            axis.extents
                .extend(group.iter().map(|block| (block.run.clone(), row)));
            axis.rows.push(Row {
                range: pages.range(&(first.run.start..last.run.end)),
                pages: group.iter().map(Block::pages).sum(),
                mapping: largest.and_then(|block| block.mapping),
                separator: false,
            });
        }
        axis
    }

    /// Builds the axis with one or more rows for each block, and separators between blocks.
    fn spread(blocks: &[Block], max_rows: usize, pages: Pages) -> Self {
        let gaps = blocks
            .windows(2)
            .map(|two| two[0].run.end..two[1].run.start);
        let separators = gaps.filter(|gap| !gap.is_empty()).count();
        // More separators would fill the picture and say nothing.
        let separate = separators <= (max_rows / 4).min(max_rows - blocks.len());
        let available = max_rows - if separate { separators } else { 0 };
        let mut axis = Self {
            rows: Vec::new(),
            extents: Vec::new(),
        };
        let mut previous_end = None;
        for (block, rows) in blocks.iter().zip(allot(blocks, available)) {
            let gap = previous_end.unwrap_or(block.run.start)..block.run.start;
            if separate && !gap.is_empty() {
                axis.rows.push(Row {
                    range: pages.range(&gap),
                    pages: 0,
                    mapping: None,
                    separator: true,
                });
            }
            for row in 0..rows {
                let start = block.run.start + share(block.pages(), row, rows);
                let run = start..block.run.start + share(block.pages(), row + 1, rows);
                axis.rows.push(Row {
                    range: pages.range(&run),
                    pages: run.end - run.start,
                    mapping: block.mapping,
                    separator: false,
                });
                axis.extents.push((run, axis.rows.len() - 1));
            }
            previous_end = Some(block.run.end);
        }
        axis
    }
}

/// Number of rows for each block: in proportion to the square root of its pages, so that small
/// blocks stay visible next to large ones; at least 1 and at most its number of pages.
fn allot(blocks: &[Block], available: usize) -> Vec<u64> {
    let weight = |block: &Block| (block.pages() as f64).sqrt();
    let mut weights: f64 = blocks.iter().map(weight).sum();
    let mut left = available as u64;
    let mut rows = vec![0; blocks.len()];
    let mut ascending: Vec<usize> = (0..blocks.len()).collect();
    ascending.sort_by_key(|index| blocks[*index].pages());
    // The smallest first: rows that they cannot use are left for larger blocks.
    for (done, index) in ascending.into_iter().enumerate() {
        let block = &blocks[index];
        let others = (blocks.len() - done - 1) as u64;
        let fair = (left as f64 * weight(block) / weights).round() as u64;
        rows[index] = fair.clamp(1, (left - others).min(block.pages()));
        left -= rows[index];
        weights -= weight(block);
    }
    rows
}

fn columns(rounds: &[Round], max_columns: usize) -> Vec<Column> {
    let count = rounds.len().min(max_columns);
    let column = |index| {
        let (first, end) = (
            part(rounds.len(), index, count),
            part(rounds.len(), index + 1, count),
        );
        let last = &rounds[end - 1];
        Column {
            first_round: first,
            rounds: end - first,
            start_ns: rounds[first].start_ns,
            end_ns: last.start_ns.saturating_add(last.duration_ns),
        }
    };
    (0..count).map(column).collect()
}

fn cells(trail: &Trail, axis: &Axis, columns: &[Column]) -> Vec<f32> {
    let pages = Pages::of(trail);
    let mut cells = vec![0.0; axis.rows.len() * columns.len()];
    let mut written = vec![0_u64; axis.rows.len()];
    for (index, column) in columns.iter().enumerate() {
        written.fill(0);
        for round in &trail.rounds[column.first_round..][..column.rounds] {
            let mut from = 0;
            for run in pages.runs(&round.written) {
                from = seek(&axis.extents, from, |(extent, _)| extent.end <= run.start);
                for (extent, row) in &axis.extents[from..] {
                    if extent.start >= run.end {
                        break;
                    }
                    let overlap = run.end.min(extent.end) - run.start.max(extent.start);
                    written[*row] = written[*row].saturating_add(overlap);
                }
            }
        }
        for (position, row) in axis.rows.iter().enumerate() {
            if written[position] > 0 {
                let all = row.pages as f64 * column.rounds as f64;
                cells[position * columns.len() + index] = (written[position] as f64 / all) as f32;
            }
        }
    }
    cells
}

/// Where part `index` begins when `whole` things are divided into `parts` of equal size.
fn part(whole: usize, index: usize, parts: usize) -> usize {
    share(whole as u64, index as u64, parts as u64) as usize
}

fn share(whole: u64, index: u64, parts: u64) -> u64 {
    (u128::from(whole) * u128::from(index) / u128::from(parts)) as u64
}
