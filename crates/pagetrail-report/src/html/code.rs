//! Which code wrote what a heatmap shows: page writes by cell and call stack, for the page's
//! scripts, by which the flame graph and the heatmap select each other.
//!
//! The counts are bounded, however long the recording was: where there are too many, several rows
//! or columns of the heatmap are one cell here, and stacks that wrote least are joined. No sampled
//! page of the heatmap is left out of the sums.

use std::collections::{BTreeMap, HashMap};

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use pagetrail::PageRange;
use pagetrail_stacks::Symbolizer;
use pagetrail_trail::{Heatmap, Trail};
use serde::Serialize;

use super::data::Numbers;
use crate::bands::Band;
use crate::words::{self, printable};
use crate::writers;

/// Functions of a stack that are kept, the outermost.
const DEPTH_MAX: usize = 200;
const NAME_CHARS_MAX: usize = 160;
/// Functions in their stacks on a page.
const NODES_MAX: usize = 8000;
/// Counts of page writes on a page; each takes a few bytes.
const COUNTS_MAX: usize = 60_000;
/// Cells become larger before there are fewer stacks than that.
const STACKS_LEAST: usize = 32;
/// What the stacks are called that wrote least.
const REST: &str = "[other stacks]";

/// Page writes of stacks, as `code.js` reads them.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Code {
    names: Vec<String>,
    /// All stacks as one tree: the number of each node's parent, which is less than its own, and
    /// the number of its name. The first node is the root, and its own parent.
    parents: Vec<u32>,
    functions: Vec<u32>,
    /// The innermost function of each stack: a node.
    stacks: Vec<u32>,
    /// How many columns and rows of the heatmap are a cell here. A cell has rows of one band.
    columns_per_cell: usize,
    rows_per_cell: usize,
    /// Pairs of LEB128 numbers, as the heatmap's cells: numbers to skip, page writes of the next.
    /// Consecutive numbers are the rows of a column, then the columns of a stack, then the stacks.
    counts: String,
    /// The longest sample period.
    period: u32,
}

/// Page writes by stack, column and row.
type Counts = BTreeMap<(usize, usize, usize), f64>;

impl Code {
    /// Counts what was sampled; `None` where nothing was. `maps` share the page.
    pub(super) fn of(trail: &Trail, heat: &Heatmap, bands: &[Band], maps: usize) -> Option<Self> {
        let attributions = trail.rounds.iter().filter_map(|r| r.attribution.as_ref());
        let period = attributions.map(|attribution| attribution.period).max()?;
        if bands.is_empty() {
            return None;
        }
        let (paths, counts) = written(trail, heat, bands);
        let maps = maps.max(1);
        let mut stacks = Tree::room_for(&paths, NODES_MAX / maps);
        let mut grid = Grid::of(heat, bands);
        let counts_max = COUNTS_MAX / maps;
        let mut cells = grid.cells(&counts, stacks);
        while cells.len() > counts_max && stacks > 0 {
            // A few stacks for each cell, then fewer stacks, and at last larger cells again.
            let is_fine = grid.width() * grid.height() > counts_max / 4;
            if !((is_fine || stacks <= STACKS_LEAST) && grid.coarsen()) {
                stacks /= 2;
            }
            cells = grid.cells(&counts, stacks);
        }
        let mut tree = Tree::default();
        let mut innermost: Vec<u32> = paths[..stacks].iter().map(|path| tree.add(path)).collect();
        if stacks < paths.len() {
            innermost.push(tree.add(&[REST.to_owned()]));
        }
        let mut packed = Numbers::default();
        let mut next = 0;
        for ((stack, column, row), pages) in cells {
            let number = (stack * grid.width() + column) * grid.height() + row;
            packed.push((number - next) as u64);
            packed.push((pages.round() as u64).max(1));
            next = number + 1;
        }
        Some(Self {
            names: tree.names,
            parents: tree.parents,
            functions: tree.functions,
            stacks: innermost,
            columns_per_cell: grid.columns_per_cell,
            rows_per_cell: grid.rows_per_cell,
            counts: BASE64.encode(packed.bytes),
            period,
        })
    }
}

impl Code {
    /// What the page has below the map.
    pub(super) fn section(&self) -> String {
        let mut out = Vec::new();
        let template = include_str!("code.html");
        super::fill(template, &mut out, |name| match name {
            "period" => match self.period {
                0 | 1 => "Every page fault was sampled.".into(),
                n => format!(
                    "Down to one of {} page faults was sampled; pages count that often.",
                    words::count(n.into())
                )
                .into(),
            },
            other => unreachable!("the template names {other}"),
        })
        .expect("a Vec takes all");
        String::from_utf8(out).expect("templates and data are UTF-8")
    }
}

/// All stacks, those that wrote most first, and what each wrote in the cells of the heatmap. Rows
/// are counted as the bands have them.
fn written(trail: &Trail, heat: &Heatmap, bands: &[Band]) -> (Vec<Vec<String>>, Counts) {
    let rows = bands.iter().flat_map(|band| &band.rows);
    let rows: Vec<PageRange> = rows.map(|row| heat.rows[*row].range).collect();
    let mut symbolizer = Symbolizer::new(&trail.stacks);
    let mut numbers = HashMap::<Vec<String>, usize>::new();
    let mut known = HashMap::<(u32, u32), usize>::new();
    let mut counts = Counts::new();
    for (index, column) in heat.columns.iter().enumerate() {
        for round in &trail.rounds[column.first_round..][..column.rounds] {
            let Some(attribution) = &round.attribution else {
                continue;
            };
            let weight = attribution.weight(round.written.page_count()).mean();
            for writes in &attribution.writers {
                let key = (writes.stack, writes.thread);
                let stack = *known.entry(key).or_insert_with(|| {
                    let path = writers::path(trail, &mut symbolizer, key.0, key.1);
                    let next = numbers.len();
                    *numbers.entry(shortened(path)).or_insert(next)
                });
                for range in writes.pages.ranges() {
                    let first = rows.partition_point(|row| row.end() <= range.start());
                    let rows = rows.iter().enumerate().skip(first);
                    for (row, place) in rows.take_while(|(_, row)| row.start() < range.end()) {
                        let start = place.start().max(range.start());
                        let bytes = place.end().min(range.end()) - start;
                        let pages = bytes as f64 / trail.header.page_size.max(1) as f64;
                        *counts.entry((stack, index, row)).or_default() += pages * weight;
                    }
                }
            }
        }
    }
    let mut sums = vec![0.0; numbers.len()];
    for ((stack, ..), pages) in &counts {
        sums[*stack] += pages;
    }
    let mut paths: Vec<_> = numbers.into_iter().collect();
    paths.sort_by(|a, b| sums[b.1].total_cmp(&sums[a.1]).then(a.0.cmp(&b.0)));
    let mut place_of = vec![0; paths.len()];
    for (place, (_, number)) in paths.iter().enumerate() {
        place_of[*number] = place;
    }
    let counts = counts.into_iter();
    let counts = counts.map(|((stack, column, row), n)| ((place_of[stack], column, row), n));
    let counts = counts.collect();
    (paths.into_iter().map(|(path, _)| path).collect(), counts)
}

fn shortened(path: Vec<String>) -> Vec<String> {
    let path = path.into_iter().take(DEPTH_MAX);
    let short = |name: String| printable(&name).chars().take(NAME_CHARS_MAX).collect();
    path.map(short).collect()
}

/// Cells of several rows and columns of the heatmap.
struct Grid {
    columns: usize,
    /// Rows of each band.
    bands: Vec<usize>,
    columns_per_cell: usize,
    rows_per_cell: usize,
}

impl Grid {
    /// As fine as the heatmap.
    fn of(heat: &Heatmap, bands: &[Band]) -> Self {
        Self {
            columns: heat.columns.len(),
            bands: bands.iter().map(|band| band.rows.len()).collect(),
            columns_per_cell: 1,
            rows_per_cell: 1,
        }
    }

    fn width(&self) -> usize {
        self.columns.div_ceil(self.columns_per_cell)
    }

    fn height(&self) -> usize {
        let cells = |rows: &usize| rows.div_ceil(self.rows_per_cell);
        self.bands.iter().map(cells).sum()
    }

    /// Doubles the larger side of all cells, or says that a band is one cell already.
    fn coarsen(&mut self) -> bool {
        let is_flat = self.height() == self.bands.len();
        match self.width() > 1 && (is_flat || self.width() >= self.height()) {
            true => self.columns_per_cell *= 2,
            false if is_flat => return false,
            false => self.rows_per_cell *= 2,
        }
        true
    }

    /// What was written in each cell; from stack number `stacks` on they are one.
    fn cells(&self, counts: &Counts, stacks: usize) -> Counts {
        let mut cell_of = Vec::new();
        let mut next = 0;
        for rows in &self.bands {
            cell_of.extend((0..*rows).map(|row| next + row / self.rows_per_cell));
            next += rows.div_ceil(self.rows_per_cell);
        }
        let mut cells = Counts::new();
        for ((stack, column, row), pages) in counts {
            let column = column / self.columns_per_cell;
            let cell = ((*stack).min(stacks), column, cell_of[*row]);
            *cells.entry(cell).or_default() += pages;
        }
        cells
    }
}

/// Stacks as a tree.
struct Tree {
    names: Vec<String>,
    numbers: HashMap<String, u32>,
    parents: Vec<u32>,
    functions: Vec<u32>,
    nodes: HashMap<(u32, u32), u32>,
}

impl Default for Tree {
    fn default() -> Self {
        Self {
            names: vec!["all".into()],
            numbers: HashMap::from([("all".into(), 0)]),
            parents: vec![0],
            functions: vec![0],
            nodes: HashMap::new(),
        }
    }
}

impl Tree {
    /// How many of the first stacks have no more nodes than that, beside the root and the rest.
    fn room_for(paths: &[Vec<String>], nodes_max: usize) -> usize {
        let mut tree = Self::default();
        let fits = |path: &&Vec<String>| {
            tree.add(path);
            tree.parents.len() < nodes_max
        };
        paths.iter().take_while(fits).count()
    }

    /// The node of the innermost function of a stack.
    fn add(&mut self, path: &[String]) -> u32 {
        let mut node = 0;
        for name in path {
            let next = self.names.len() as u32;
            let number = *self.numbers.entry(name.clone()).or_insert_with(|| {
                self.names.push(name.clone());
                next
            });
            let next = self.parents.len() as u32;
            let parent = node;
            node = *self.nodes.entry((parent, number)).or_insert_with(|| {
                self.parents.push(parent);
                self.functions.push(number);
                next
            });
        }
        node
    }
}

#[cfg(test)]
mod tests;
