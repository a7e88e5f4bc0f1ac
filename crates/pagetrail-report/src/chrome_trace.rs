//! The rounds of a recording as a trace in Chrome's format (JSON), which Perfetto and
//! `chrome://tracing` show: counters of the pages written, in all and for the mappings written
//! most, the collects as slices, and events of the program.
//!
//! The format is the document "Trace Event Format" of the Chromium project. Times are microseconds
//! since the recording began.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::io::{self, Write};

use pagetrail_trail::{Event, Round, Trail, for_each_part};
use serde::Serialize;

use super::words;

/// Mappings that have a counter of their own; more are not legible.
const COUNTERS_MAX: usize = 20;

#[derive(Serialize)]
struct TraceEvent<'a> {
    name: &'a str,
    /// `C`: counter; `X`: slice; `i`: instant; `M`: metadata.
    ph: &'static str,
    ts: f64,
    pid: u32,
    tid: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    dur: Option<f64>,
    /// Of an instant: that of the whole process.
    #[serde(skip_serializing_if = "Option::is_none")]
    s: Option<&'static str>,
    args: BTreeMap<&'a str, serde_json::Value>,
}

/// Writes the trace of these processes, an event a line, each with the time at which it was
/// attached to, in ns since the recording began.
pub(crate) fn write(processes: &[(u64, &Trail)], out: &mut dyn Write) -> io::Result<()> {
    out.write_all(b"{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n")?;
    for ((appeared_ns, trail), at) in processes.iter().zip(0..) {
        if at > 0 {
            out.write_all(b",\n")?;
        }
        let command = words::command(&trail.header.command);
        let name = args([("name", command.into())]);
        put(
            out,
            &event("process_name", "M", 0.0, trail.header.pid, name),
        )?;
        write_rounds(*appeared_ns, trail, out)?;
    }
    out.write_all(b"\n]}\n")
}

fn write_rounds(appeared_ns: u64, trail: &Trail, out: &mut dyn Write) -> io::Result<()> {
    let pid = trail.header.pid;
    let counted = counted(trail);
    let mut pages = vec![BTreeMap::<&str, u64>::new(); trail.rounds.len()];
    for_each_part(trail, |part| {
        let name = part.mapping.map_or("", |index| &trail.mappings[index].name);
        if let Some(name) = counted.get_key_value(name) {
            let sum = pages[part.round].entry(name.1).or_default();
            *sum = sum.saturating_add(part.pages);
        }
    });
    let nothing = BTreeMap::new();
    let before = std::iter::once(&nothing).chain(&pages);
    for ((round, pages), before) in trail.rounds.iter().zip(&pages).zip(before) {
        let start_ns = appeared_ns.saturating_add(round.start_ns);
        let kind = words::terms(round.access_kind).written;
        let all = args([(kind, round_pages(round, trail).into())]);
        write_round(round, start_ns, pid, all, out)?;
        // A counter that stays 0 needs no event.
        let is_used = |name: &&String| {
            let has = |pages: &BTreeMap<&str, u64>| pages.contains_key(name.as_str());
            has(pages) || has(before)
        };
        for name in counted.values().filter(is_used) {
            let pages = pages.get(name.as_str()).copied().unwrap_or(0);
            let arguments = args([(kind, pages.into())]);
            put_next(out, &event(name, "C", us(start_ns), pid, arguments))?;
        }
    }
    Ok(())
}

fn write_round(
    round: &Round,
    start_ns: u64,
    pid: u32,
    pages: BTreeMap<&str, serde_json::Value>,
    out: &mut dyn Write,
) -> io::Result<()> {
    let start = us(start_ns);
    put_next(out, &event("pages in a round", "C", start, pid, pages))?;
    let end = us(start_ns.saturating_add(round.duration_ns));
    let collect = us(round.collect_ns);
    let arguments = args([
        ("round", round.index.into()),
        ("stopped_us", us(round.stopped_ns).into()),
    ]);
    let slice = event("collect", "X", (end - collect).max(0.0), pid, arguments);
    let slice = TraceEvent {
        dur: Some(collect),
        ..slice
    };
    put_next(out, &slice)?;
    for happened in &round.events {
        let text = match happened {
            Event::Exec(command) => format!("executed {command}"),
            Event::Children(count) => format!("{count} child processes so far"),
            Event::Note(note) => note.clone(),
        };
        let text = words::printable(&text).into_owned();
        let instant = TraceEvent {
            s: Some("p"),
            ..event(&text, "i", start, pid, BTreeMap::new())
        };
        put_next(out, &instant)?;
    }
    Ok(())
}

/// Names of the mappings that have a counter, and what it is called.
fn counted(trail: &Trail) -> BTreeMap<&str, String> {
    let mut sums = BTreeMap::<&str, u64>::new();
    for_each_part(trail, |part| {
        let name = part.mapping.map_or("", |index| &trail.mappings[index].name);
        let sum = sums.entry(name).or_default();
        *sum = sum.saturating_add(part.pages);
    });
    let mut names: Vec<_> = sums.into_iter().collect();
    names.sort_by_key(|(_, pages)| Reverse(*pages));
    let names = names.into_iter().take(COUNTERS_MAX);
    names
        .map(|(name, _)| {
            let label = match name {
                "" => "anonymous".into(),
                name => words::printable(name).into_owned(),
            };
            (name, format!("pages: {label}"))
        })
        .collect()
}

fn round_pages(round: &Round, trail: &Trail) -> u64 {
    let page = trail.header.page_size.max(1);
    let ranges = round.written.ranges().iter();
    let pages = ranges.map(|range| (range.end() - 1) / page - range.start() / page + 1);
    pages.fold(0, u64::saturating_add)
}

fn event<'a>(
    name: &'a str,
    ph: &'static str,
    ts: f64,
    pid: u32,
    args: BTreeMap<&'a str, serde_json::Value>,
) -> TraceEvent<'a> {
    TraceEvent {
        name,
        ph,
        ts,
        pid,
        tid: pid,
        dur: None,
        s: None,
        args,
    }
}

fn args<const N: usize>(
    pairs: [(&'static str, serde_json::Value); N],
) -> BTreeMap<&'static str, serde_json::Value> {
    pairs.into_iter().collect()
}

fn put(out: &mut dyn Write, event: &TraceEvent<'_>) -> io::Result<()> {
    Ok(serde_json::to_writer(out, event)?)
}

fn put_next(out: &mut dyn Write, event: &TraceEvent<'_>) -> io::Result<()> {
    out.write_all(b",\n")?;
    put(out, event)
}

fn us(ns: u64) -> f64 {
    ns as f64 / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn counters_add_up_to_the_pages_written() {
        let trail = testing::program(20);
        let mut out = Vec::new();
        write(&[(0, &trail)], &mut out).expect("a Vec takes all");
        let document: serde_json::Value = serde_json::from_slice(&out).expect("JSON");
        let events = document["traceEvents"].as_array().expect("a list");
        let sum = |is: &dyn Fn(&str) -> bool| -> u64 {
            let events = events.iter().filter(|event| event["ph"] == "C");
            let events = events.filter(|event| is(event["name"].as_str().expect("a text")));
            events
                .filter_map(|event| event["args"]["written"].as_u64())
                .sum()
        };
        let all = sum(&|name| name == "pages in a round");
        assert_eq!(all, pagetrail_trail::Analysis::of(&trail).page_writes);
        assert_eq!(all, sum(&|name| name.starts_with("pages: ")));
        let slices = events.iter().filter(|event| event["ph"] == "X");
        assert_eq!(slices.count(), 20);
        assert!(events.iter().any(|event| event["ph"] == "i"));
    }
}
