//! Turns a recording by Valgrind's lackey into a trace:
//! `cargo run --release --example import_lackey -- RECORDING TRACE [ACCESSES_PER_ROUND]`. With the last
//! argument, only what a round first reads and writes of each page is kept.

#![allow(clippy::print_stdout, reason = "the result of an example")]

use std::fs::File;
use std::io::{BufReader, BufWriter};

use pagetrail_model::trace;
use pagetrail_model::trace::lackey::{LackeyOptions, import};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (recording, to, rest) = match arguments.as_slice() {
        [recording, to, rest @ ..] if rest.len() < 2 => (recording, to, rest),
        _ => return Err("expected RECORDING TRACE [ACCESSES_PER_ROUND]".into()),
    };
    let mut options = LackeyOptions::default();
    if let [round_every] = rest {
        options.round_every = round_every.parse()?;
        options.once_per_round = true;
    }
    let ops = import(BufReader::new(File::open(recording)?), options)?;
    let steps = trace::write(ops, BufWriter::new(File::create(to)?))?;
    println!("{steps} steps, {} bytes", std::fs::metadata(to)?.len());
    Ok(())
}
