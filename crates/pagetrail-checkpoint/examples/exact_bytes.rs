//! How many bytes differ between each checkpoint of a store and the one before, byte by byte,
//! beside what was stored: JSON.
//!
//! `cargo run --release -p pagetrail-checkpoint --example exact_bytes STORE`

#![allow(clippy::print_stdout, reason = "an example talks to its user")]

use pagetrail::{PageRange, PageSet};
use pagetrail_checkpoint::{Result, Store};
use serde_json::json;
use std::path::Path;

fn main() -> Result<()> {
    let place = std::env::args_os().nth(1).unwrap_or_default();
    let store = Store::open(Path::new(&place))?;
    let mut increments = Vec::new();
    for pair in store.numbers()?.windows(2) {
        let (mut before, mut after) = (store.image(pair[0])?, store.image(pair[1])?);
        let differing = store.diff(pair[0], pair[1])?;
        let pages: PageSet = differing
            .iter()
            .flat_map(|mapping| mapping.pages.ranges().iter().copied())
            .collect();
        let (mut bytes, mut old, mut new) = (0, Vec::new(), Vec::new());
        let ranges = pages.ranges().iter();
        for range in ranges.flat_map(|range| pieces(*range)) {
            old.resize(range.bytes() as usize, 0);
            new.resize(range.bytes() as usize, 0);
            before.read(range, &mut old)?;
            after.read(range, &mut new)?;
            bytes += old.iter().zip(&new).filter(|(old, new)| old != new).count();
        }
        increments.push(json!({
            "number": pair[1],
            "exact_bytes": bytes,
            "page_bytes": pages.bytes(),
            "stored_bytes": after.manifest().cost.stored_bytes,
            "pause_ns": after.manifest().cost.pause_ns,
            "total_ns": after.manifest().cost.total_ns,
        }));
    }
    println!("{}", json!({ "schema": 1, "increments": increments }));
    Ok(())
}

/// A range in pieces of a mebibyte.
fn pieces(range: PageRange) -> impl Iterator<Item = PageRange> {
    let starts = (range.start()..range.end()).step_by(1 << 20);
    starts.filter_map(move |start| PageRange::new(start, range.end().min(start + (1 << 20))))
}
