//! [`Document`]: a file of recorded measurements, which one it is, and where it is from.
//!
//! Whatever a file holds, the answer is a document or one line that says what is wrong with it.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, bail};
use pagetrail_bench::infile;
use pagetrail_model::cost::CostTable;
use pagetrail_model::reproduce::Source;
use pagetrail_model::reproduce::recording::Recording;
use serde::Deserialize;
use serde_json::Value;

use super::pick;
use crate::calibrate::{self, Results};

/// More than any recording has.
const BYTES_MAX: u64 = 64 << 20;
/// What an older recording does not say.
const NOT_RECORDED: &str = "not recorded";
/// What the recordings of a folder do not say of themselves, by their names.
const BESIDE: &str = "provenance.json";

/// A recording.
pub(super) struct Document {
    pub(super) recording: Recording,
    pub(super) source: Source,
    pub(super) contents: Contents,
}

/// What a recording holds.
pub(super) enum Contents {
    /// That of `pagetrail bench --json`, with its costs where it measured some that the model
    /// knows.
    Bench(Box<Results>, Option<CostTable>),
    /// Any other.
    Other(Value),
}

/// A file that says where the recordings beside it are from.
#[derive(Default, Deserialize)]
pub(super) struct Beside {
    recordings: BTreeMap<String, Said>,
}

#[derive(Default, Deserialize)]
struct Said {
    machine: Option<String>,
    kernel: Option<String>,
    date: Option<String>,
    command: Option<String>,
    #[serde(default)]
    load: Option<Load>,
}

/// What ran beside it.
#[derive(Deserialize)]
struct Load {
    busy: bool,
}

impl Beside {
    pub(super) fn parse(text: &str) -> Self {
        serde_json::from_str(text).unwrap_or_default()
    }
}

/// A field that each recording has and no other.
const MARKS: &[(Recording, &str)] = &[
    (Recording::OohGuest, "collector[].entries_by_frame"),
    (Recording::Bench, "results[].untracked_pass_ns"),
    (Recording::Metrics, "metrics[].ns"),
    (Recording::CollectorGuest, "results[size=0].collecting_ms"),
    (Recording::Collector, "results[].collecting_ms"),
    (Recording::ProgramsMemory, "programs[].resident_bytes"),
    (Recording::Checkpointer, "runs[].phases"),
    (Recording::CheckpointerEngines, "engines[].alone_ms"),
    (
        Recording::SubpageCheckpoints,
        "results[].variants[].stored_bytes",
    ),
    (Recording::SubpageScale, "results[].asked.objects"),
    (Recording::Units, "guest.programs[].runs[].log_entries"),
    (Recording::SubpagePrograms, "results[].variants[].tracked"),
    (Recording::Tier, "tables_3_and_4"),
    (Recording::TierPrograms, "ours[].figure_6"),
    (
        Recording::TierFaults,
        "designs[].read.faults_per_moved_page",
    ),
    (Recording::Vm, "counted.programs"),
    (Recording::Suites, "suites[].scores"),
    (Recording::KvmPaging, "shadow.suites[].scores"),
];

impl Document {
    /// Reads a file.
    pub(super) fn read(path: &Path) -> Result<Self> {
        let text = infile::text(path, "recording", BYTES_MAX)?;
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        // There need not be one.
        let beside = infile::text(
            &path.with_file_name(BESIDE),
            "list of recordings",
            BYTES_MAX,
        );
        let beside = beside.unwrap_or_default();
        Self::parse(&text, &name, &Beside::parse(&beside))
            .with_context(|| path.display().to_string())
    }

    /// Parses a recording; `name` is its file's.
    pub(super) fn parse(text: &str, name: &str, beside: &Beside) -> Result<Self> {
        let value: Value = serde_json::from_str(text).context("no JSON")?;
        let marks = MARKS.iter();
        let found = marks
            .copied()
            .find(|(_, mark)| pick::find(&value, mark).is_some());
        let Some((recording, _)) = found else {
            bail!("no recording that is known here");
        };
        let said = beside.recordings.get(name);
        let own = |key: &str| pick::find(&value, key).and_then(Value::as_str);
        let of = |own: Option<&str>, said: Option<&String>| {
            let text = own.or(said.map(String::as_str)).unwrap_or(NOT_RECORDED);
            // What a file says must not break the line that shows it.
            text.replace(char::is_control, " ")
        };
        let mut machine = of(own("machine"), said.and_then(|said| said.machine.as_ref()));
        let load = said.and_then(|said| said.load.as_ref());
        if load.is_some_and(|load| load.busy) {
            machine.push_str(" with other work on it");
        }
        let kernel = ["kernel", "counted.kernel"].into_iter().find_map(own);
        let kernel = of(kernel, said.and_then(|said| said.kernel.as_ref()));
        let recording = match recording {
            Recording::Bench if machine.contains("QEMU") => Recording::BenchGuest,
            other => other,
        };
        let source = Source {
            origin: recording.origin(),
            machine,
            kernel: match kernel.as_str() {
                NOT_RECORDED => "kernel not recorded".to_owned(),
                kernel => format!("Linux {}", kernel.trim_start_matches("Linux ")),
            },
            date: of(own("date"), said.and_then(|said| said.date.as_ref())),
            command: match (own("command"), said.and_then(|said| said.command.as_ref())) {
                (None, None) => recording.command().to_owned(),
                (own, said) => of(own, said),
            },
        };
        let contents = match recording {
            Recording::Bench | Recording::BenchGuest => {
                let results = Results::parse(text)?;
                let costs = calibrate::calibrate(&results).ok();
                Contents::Bench(Box::new(results), costs)
            }
            _ => Contents::Other(value),
        };
        Ok(Self {
            recording,
            source,
            contents,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_says_where_it_is_from_or_that_it_does_not() {
        let text = r#"{"schema": 1, "metrics": [{"metric": "x", "ns": 1}], "kernel": "6.1"}"#;
        let source = |name: &str, beside: &str| {
            let document = Document::parse(text, name, &Beside::parse(beside)).unwrap();
            assert_eq!(document.recording, Recording::Metrics);
            document.source
        };
        let beside = r#"{"recordings": {"m.json": {"machine": "A\nprocessor", "kernel": "6.2", "date": "today"}}}"#;
        let said = source("m.json", beside);
        assert_eq!(
            (&*said.machine, &*said.kernel, &*said.date),
            ("A processor", "Linux 6.1", "today")
        );
        assert_eq!(said.command, Recording::Metrics.command());
        let busy = r#"{"recordings": {"m.json": {"machine": "A", "load": {"busy": true}}}}"#;
        assert_eq!(source("m.json", busy).machine, "A with other work on it");
        for (name, beside) in [("n.json", beside), ("m.json", ""), ("m.json", "[]")] {
            assert_eq!(source(name, beside).machine, NOT_RECORDED);
        }
    }

    #[test]
    fn whatever_a_file_holds_the_answer_is_one_line() {
        let good = [
            include_str!("../../../recordings/checkpointer_guest.json"),
            include_str!("../../../recordings/bare_loop.json"),
            include_str!("../../../recordings/tier_guest_faults.json"),
        ];
        crate::fuzzing::for_seeds(500, |random| {
            let mut text = good[random.usize(0..good.len())].as_bytes().to_vec();
            crate::fuzzing::mutate(random, &mut text);
            let text = String::from_utf8_lossy(&text);
            if let Err(error) = Document::parse(&text, "x", &Beside::default()) {
                assert_eq!(format!("{error:#}").lines().count(), 1, "{error:#}");
            }
        });
    }
}
