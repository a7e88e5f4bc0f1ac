//! The grid as the data block of the page: compact, and safe inside a `script` element.

use std::borrow::Cow;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use pagetrail_trail::{Analysis, Heatmap, Trail};
use serde::Serialize;

use super::code::Code;
use crate::{bands, pages_written, palette, words};

/// What `chart.js` reads; see there for how the cells are packed.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Data {
    page_size: u64,
    /// What happened to the pages: "written" or "accessed".
    done: &'static str,
    /// Boundaries of the columns in milliseconds, one more than columns.
    edges: Vec<f64>,
    rounds_in: Vec<usize>,
    /// Page writes of each column, all mappings together.
    written: Vec<u64>,
    bands: Vec<BandData>,
    cells: String,
    /// Red, green and blue of the 256 levels.
    scale: String,
    /// Which code wrote, if that was sampled.
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<Code>,
}

#[derive(Serialize)]
struct BandData {
    label: String,
    name: String,
    pages: u64,
    /// Of all page writes, from 0 to 1.
    share: f64,
    /// Start address, length in bytes, pages that it stands for.
    rows: Vec<(String, u64, u64)>,
}

/// The data block for a page that shows `heat`.
pub(super) fn json(
    trail: &Trail,
    analysis: &Analysis,
    heat: &Heatmap,
    bands: Vec<bands::Band>,
    code: Option<Code>,
    done: &'static str,
) -> String {
    let total: f64 = bands.iter().map(|band| written_in(heat, band)).sum();
    let edge = |ns: u64| (ns as f64 / 1e3).round() / 1e3;
    let starts = heat.columns.iter().map(|column| edge(column.start_ns));
    let end = heat.columns.last().map(|column| edge(column.end_ns));
    let written = heat.columns.iter();
    let data = Data {
        page_size: trail.header.page_size,
        done,
        edges: starts.chain(end).collect(),
        rounds_in: heat.columns.iter().map(|column| column.rounds).collect(),
        written: written
            .map(|column| pages_written(analysis, column))
            .collect(),
        cells: BASE64.encode(pack(heat, &bands)),
        scale: BASE64.encode((0..=255).flat_map(palette::colour).collect::<Vec<_>>()),
        code,
        bands: bands
            .into_iter()
            .map(|band| BandData {
                share: written_in(heat, &band) / total.max(1.0),
                name: band
                    .mapping
                    .map_or(Cow::Borrowed(band.label.as_str()), |i| {
                        words::mapping(&trail.mappings[i])
                    })
                    .into_owned(),
                pages: band.pages,
                rows: band
                    .rows
                    .iter()
                    .map(|&row| {
                        let row = heat.rows[row];
                        let start = format!("{:#x}", row.range.start());
                        (start, row.range.bytes(), row.pages)
                    })
                    .collect(),
                label: band.label,
            })
            .collect(),
    };
    let json = serde_json::to_string(&data).expect("plain data serializes");
    script_safe(&json)
}

/// Page writes in all cells of a band.
fn written_in(heat: &Heatmap, band: &bands::Band) -> f64 {
    let of_row = |row: usize| {
        let cells = heat.row(row).iter().zip(&heat.columns);
        let shares = cells.map(|(share, column)| f64::from(*share) * column.rounds as f64);
        shares.sum::<f64>() * heat.rows[row].pages as f64
    };
    band.rows.iter().map(|&row| of_row(row)).sum()
}

/// All cells, row by row in the order of the bands, as pairs of LEB128 numbers: cells to skip, page
/// writes in the cell after them.
fn pack(heat: &Heatmap, bands: &[bands::Band]) -> Vec<u8> {
    let mut out = Numbers::default();
    let mut skipped = 0;
    for &row in bands.iter().flat_map(|band| &band.rows) {
        let pages = heat.rows[row].pages as f64;
        for (share, column) in heat.row(row).iter().zip(&heat.columns) {
            if *share > 0.0 {
                out.push(skipped);
                let count = f64::from(*share) * pages * column.rounds as f64;
                out.push((count.round() as u64).max(1));
                skipped = 0;
            } else {
                skipped += 1;
            }
        }
    }
    out.bytes
}

/// LEB128 numbers.
#[derive(Default)]
pub(super) struct Numbers {
    pub(super) bytes: Vec<u8>,
}

impl Numbers {
    pub(super) fn push(&mut self, mut n: u64) {
        while n >= 128 {
            self.bytes.push(n as u8 | 128);
            n >>= 7;
        }
        self.bytes.push(n as u8);
    }
}

/// JSON made safe inside a `script` element: nothing in it can look like a tag or a comment.
fn script_safe(json: &str) -> String {
    json.replace('<', "\\u003c")
        .replace('>', "\\u003e")
        .replace('&', "\\u0026")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    /// The numbers that `chart.js` reads back.
    fn unpack(bytes: &[u8]) -> Vec<u64> {
        let mut numbers = vec![];
        let (mut value, mut shift) = (0, 0);
        for byte in bytes {
            value |= u64::from(byte & 127) << shift;
            shift += 7;
            if byte & 128 == 0 {
                numbers.push(value);
                (value, shift) = (0, 0);
            }
        }
        numbers
    }

    #[test]
    fn the_data_holds_every_page_write() {
        let trail = testing::program(60);
        let heat = Heatmap::of(&trail, 300, 40);
        let numbers = unpack(&pack(&heat, &bands::bands(&trail, &heat)));
        let written: u64 = numbers.iter().skip(1).step_by(2).sum();
        assert_eq!(written, Analysis::of(&trail).page_writes);
    }
}
