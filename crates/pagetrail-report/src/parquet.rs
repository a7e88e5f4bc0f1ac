//! A recording as an Apache Parquet file, for DuckDB, Spark, pandas and what else reads it: a row
//! for each range of pages that was written in a round.
//!
//! Only what such a table needs of the format is written, in [`file`]; the crate `parquet` would
//! bring seven crates that nothing else here needs. Text of the recording is written as it is: a
//! reader must take it for what a program says.

mod file;
mod thrift;

use std::collections::HashMap;
use std::io::{self, Write};
use std::rc::Rc;

use pagetrail::PageSet;
use pagetrail_trail::{Trail, for_each_part};

use self::file::{Column, File, Kind};
use crate::words;
use crate::writers::Stacks;

/// Rows that are held in memory at once.
const ROWS_MAX: usize = 128 << 10;

/// The columns, in their order.
const COLUMNS: [(&str, Kind); 11] = [
    ("round", Kind::Int32),
    ("time", Kind::TimestampMicros),
    ("offset_ns", Kind::Int64),
    ("duration_ns", Kind::Int64),
    ("process", Kind::Int32),
    ("kind", Kind::Text),
    ("start", Kind::UInt64),
    ("pages", Kind::Int64),
    ("mapping", Kind::Text),
    ("thread", Kind::OptionalInt32),
    ("stack", Kind::OptionalText),
];

/// What a row has beside its round.
struct Row<'a> {
    first_page: u64,
    pages: u64,
    mapping: &'a str,
    /// Thread and stack, where a sample attributes the pages.
    writer: Option<(u32, &'a str)>,
}

/// Writes the table of these processes, each with the time at which it was attached to, in ns since
/// the recording began. The first says what holds for the recording.
pub(crate) fn write(processes: &[(u64, &Trail)], out: &mut dyn Write) -> io::Result<()> {
    let mut file = File::create(out, COLUMNS.map(|(name, kind)| Column::new(name, kind)))?;
    for (appeared_ns, trail) in processes {
        add(&mut file, *appeared_ns, trail)?;
    }
    let metadata = processes.first().map(|(_, trail)| metadata(trail));
    file.finish(&metadata.unwrap_or_default())
}

/// Adds the rows of a process.
fn add(file: &mut File<'_>, appeared_ns: u64, trail: &Trail) -> io::Result<()> {
    let mut stacks = Stacks::of(trail);
    let mut failed = Ok(());
    let mut writers = RoundWriters::default();
    for_each_part(trail, |part| {
        if failed.is_err() {
            return;
        }
        if writers.round != Some(part.round) {
            writers = RoundWriters::of(trail, part.round, &mut stacks);
        }
        let mapping = match part.mapping {
            Some(index) => trail.mappings[index].name.as_str(),
            None => "",
        };
        failed = writers.split(part.first_page, part.pages, |first_page, pages, writer| {
            let row = Row {
                first_page,
                pages,
                mapping,
                writer,
            };
            put(file, trail, appeared_ns, part.round, &row)
        });
    });
    failed
}

fn put(
    file: &mut File<'_>,
    trail: &Trail,
    appeared_ns: u64,
    position: usize,
    row: &Row<'_>,
) -> io::Result<()> {
    let (header, round) = (&trail.header, &trail.rounds[position]);
    let began_us = header.started_unix_ms.saturating_mul(1000);
    let [
        number,
        time,
        offset,
        duration,
        process,
        kind,
        start,
        pages,
        mapping,
        thread,
        stack,
    ] = &mut file.columns;
    number.number(round.index.into());
    time.number(began_us.saturating_add(round.start_ns / 1000));
    offset.number(appeared_ns.saturating_add(round.start_ns));
    duration.number(round.duration_ns);
    process.number(header.pid.into());
    kind.text(words::terms(round.access_kind).writes);
    start.number(row.first_page.saturating_mul(header.page_size));
    pages.number(row.pages);
    mapping.text(row.mapping);
    match row.writer {
        Some((id, frames)) => {
            thread.number(id.into());
            stack.text(frames);
        }
        None => {
            thread.null();
            stack.null();
        }
    }
    file.end_row(ROWS_MAX)
}

/// What holds for the whole recording, as keys and values of the file.
fn metadata(trail: &Trail) -> Vec<(&'static str, String)> {
    let header = &trail.header;
    vec![
        ("pagetrail.command", words::command(&header.command)),
        ("pagetrail.page_size", header.page_size.to_string()),
        ("pagetrail.technique", header.technique.clone()),
        ("pagetrail.interval_ms", header.interval_ms.to_string()),
        (
            "pagetrail.started_unix_ms",
            header.started_unix_ms.to_string(),
        ),
    ]
}

/// The attributed pages of one round, ascending.
#[derive(Default)]
struct RoundWriters {
    round: Option<usize>,
    /// First page, the one after the last, thread and stack; disjoint.
    pieces: Vec<(u64, u64, u32, Rc<str>)>,
}

impl RoundWriters {
    fn of(trail: &Trail, position: usize, stacks: &mut Stacks<'_>) -> Self {
        let mut pieces = Vec::new();
        let page = trail.header.page_size.max(1);
        let attribution = trail.rounds[position].attribution.iter();
        for writes in attribution.flat_map(|attribution| &attribution.writers) {
            let text = stacks.folded(writes.stack);
            let pages: &PageSet = &writes.pages;
            for range in pages.ranges() {
                let (first, last) = (range.start() / page, (range.end() - 1) / page);
                pieces.push((first, last + 1, writes.thread, text.clone()));
            }
        }
        pieces.sort_unstable();
        Self {
            round: Some(position),
            pieces,
        }
    }

    /// Divides pages where their writer changes.
    fn split(
        &self,
        first: u64,
        pages: u64,
        mut take: impl FnMut(u64, u64, Option<(u32, &str)>) -> io::Result<()>,
    ) -> io::Result<()> {
        let end = first.saturating_add(pages);
        let mut at = first;
        let from = self.pieces.partition_point(|piece| piece.1 <= first);
        for (start, stop, thread, stack) in &self.pieces[from..] {
            let (start, stop) = ((*start).max(at), (*stop).min(end));
            if start >= end {
                break;
            }
            if start >= stop {
                continue;
            }
            if at < start {
                take(at, start - at, None)?;
            }
            take(start, stop - start, Some((*thread, stack)))?;
            at = stop;
        }
        match at < end {
            true => take(at, end - at, None),
            false => Ok(()),
        }
    }
}

/// Numbers of texts, in the order of their first use.
#[derive(Default)]
struct Dictionary {
    numbers: HashMap<String, u32>,
    texts: Vec<String>,
}

impl Dictionary {
    fn number(&mut self, text: &str) -> u32 {
        if let Some(number) = self.numbers.get(text) {
            return *number;
        }
        let number = self.texts.len() as u32;
        self.numbers.insert(text.into(), number);
        self.texts.push(text.into());
        number
    }
}

#[cfg(test)]
mod tests;
