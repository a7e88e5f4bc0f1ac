//! What recordings say beside a paper's values: files that the user names, and those that the
//! command brings along.

mod document;
mod listing;
mod pick;

use std::path::PathBuf;

use anyhow::{Context, Result};
use pagetrail_model::cost::Metric;
use pagetrail_model::reproduce::recording::Recording;
use pagetrail_model::reproduce::{Measurement, Quantity};

use self::document::{Beside, Contents, Document};

/// Recordings, of which the first that has a value gives it.
#[derive(Default)]
pub(super) struct Recordings {
    documents: Vec<Document>,
}

/// A file of `bench/results`, by its name there.
macro_rules! recorded {
    ($($name:literal)+) => {
        &[$(($name, include_str!(concat!("../../../recordings/", $name)))),+]
    };
}

/// The recordings that the command brings along: those that a table shows, where they were made. Of
/// two of a kind, which are of other programs each, the first that has a value gives it.
const BROUGHT: &[(&str, &str)] = recorded!(
    "bench.json"
    "metrics.json"
    "guest-6.12.json"
    "collector.json"
    "collector_programs.json"
    "collector_guest.json"
    "programs_memory.json"
    "checkpointer_guest.json"
    "checkpointer_engines.json"
    "subpage_programs.json"
    "subpage_checkpoints.json"
    "subpage_scale.json"
    "units.json"
    "tier.json"
    "tier_programs.json"
    "tier_guest_faults.json"
    "vm.json"
    "ooh_guest.json"
    "compare_guest.json"
    "kvm_paging.json"
);

impl Recordings {
    /// Reads the user's files.
    pub(super) fn read(paths: &[PathBuf]) -> Result<Self> {
        let documents = paths.iter().map(|path| Document::read(path));
        let documents = documents
            .collect::<Result<_>>()
            .context("--measured takes documents of pagetrail bench and of cargo xtask bench")?;
        Ok(Self { documents })
    }

    /// Adds what was measured just now, before all others.
    pub(super) fn measured_now(&mut self, texts: &[String]) -> Result<()> {
        for text in texts.iter().rev() {
            let document = Document::parse(text, "", &Beside::default())?;
            self.documents.insert(0, document);
        }
        Ok(())
    }

    /// Adds the recordings that the command brings along, after all others.
    pub(super) fn with_brought(mut self) -> Result<Self> {
        let beside = include_str!("../../../recordings/provenance.json");
        let beside = Beside::parse(beside);
        for (name, text) in BROUGHT {
            let document = Document::parse(text, name, &beside);
            self.documents.push(document.context(*name)?);
        }
        Ok(self)
    }

    /// The recorded value of a quantity.
    pub(super) fn measurement(&self, quantity: &Quantity) -> Option<Measurement> {
        let wanted = quantity.recordings();
        let documents = self.documents.iter();
        documents
            .filter(|document| wanted.contains(&document.recording))
            .find_map(|document| document.measurement(quantity))
    }
}

impl Document {
    fn measurement(&self, quantity: &Quantity) -> Option<Measurement> {
        Some(Measurement {
            value: self.value(quantity).filter(|value| value.is_finite())?,
            source: self.source.clone(),
        })
    }

    fn value(&self, quantity: &Quantity) -> Option<f64> {
        match &self.contents {
            Contents::Other(value) => match quantity {
                Quantity::Figure(pick) if pick.recording == self.recording => {
                    pick::figure(value, pick)
                }
                Quantity::Cost(metric, bytes) if self.recording == Recording::Metrics => {
                    Some(metric_ns(value, *metric, *bytes)? / 1e6)
                }
                Quantity::ReverseMappingShare(bytes) if self.recording == Recording::Metrics => {
                    let ns = |metric| metric_ns(value, metric, *bytes);
                    let reverse = ns(Metric::ReverseMapping)?;
                    let all = reverse + ns(Metric::PagemapWalk)? + ns(Metric::RingCopy)?;
                    Some(reverse / all * 100.0)
                }
                _ => None,
            },
            Contents::Bench(results, costs) => match *quantity {
                Quantity::OverheadOnTracked(kind, bytes) => {
                    listing::overhead_on_tracked(results, kind, bytes)
                }
                Quantity::OverheadOnTracker(kind, bytes) => {
                    listing::overhead_on_tracker(results, kind, bytes)
                }
                Quantity::Slowdown(kind, bytes) => listing::slowdown(results, kind, bytes),
                Quantity::UntrackedPass(bytes) => listing::untracked_pass(results, bytes),
                Quantity::TrackerFormula(kind, bytes) => {
                    listing::tracker_formula(results, kind, bytes)
                }
                Quantity::TrackedFormula(kind, bytes) => {
                    listing::tracked_formula(results, kind, bytes)
                }
                Quantity::Cost(metric, bytes) => {
                    let costs = costs.as_ref()?;
                    // Between measured sizes a cost is an estimate, no measurement.
                    let is_measured = !costs.is_assumed(metric)
                        && results.results.iter().any(|m| m.size_bytes == bytes);
                    let cost = costs.at(metric, bytes).filter(|_| is_measured);
                    cost.map(|ns| ns / 1e6)
                }
                _ => None,
            },
        }
    }
}

/// What a metric costs at a size, in nanoseconds.
fn metric_ns(document: &serde_json::Value, metric: Metric, bytes: u64) -> Option<f64> {
    let path = format!("metrics[metric={metric};size_bytes={bytes}].ns");
    pick::find(document, &path)?.as_f64()
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagetrail_model::reproduce::catalog::Paper;
    use pagetrail_model::reproduce::recording::Origin;
    use pagetrail_model::technique::TechniqueKind;
    use std::collections::BTreeSet;

    fn results(name: &str) -> PathBuf {
        let here = concat!(env!("CARGO_MANIFEST_DIR"), "/recordings/");
        PathBuf::from(here).join(name)
    }

    #[test]
    fn a_value_is_that_of_the_recording() {
        let file = results("bench.json");
        let recordings = Recordings::read(std::slice::from_ref(&file)).unwrap();
        let value = |quantity| recordings.measurement(&quantity).map(|found| found.value);
        let text = std::fs::read_to_string(file).unwrap();
        let document: serde_json::Value = serde_json::from_str(&text).unwrap();
        let results = document["results"].as_array().unwrap();
        let expected = results.iter().find(|result| {
            result["technique"] == "userfaultfd"
                && result["tracked"] == "own"
                && result["size_bytes"] == 1 << 20
        });
        let expected = expected.unwrap()["overhead_on_tracked_percent"]["median"].as_f64();
        let ufd = TechniqueKind::Userfaultfd;
        assert_eq!(value(Quantity::OverheadOnTracked(ufd, 1 << 20)), expected);
        let slowdown = value(Quantity::Slowdown(ufd, 1 << 20)).unwrap();
        let overhead = expected.unwrap() / 100.0;
        assert!(
            (slowdown / (1.0 + overhead) - 1.0).abs() < 0.1,
            "{slowdown}"
        );
        // Nobody measured soft-dirty there, a size between, or a hypervisor.
        let soft_dirty = TechniqueKind::SoftDirty;
        assert_eq!(
            value(Quantity::OverheadOnTracked(soft_dirty, 1 << 20)),
            None
        );
        assert_eq!(value(Quantity::OverheadOnTracked(ufd, 3 << 20)), None);
        assert_eq!(value(Quantity::Cost(Metric::FaultKernel, 3 << 20)), None);
        assert_eq!(value(Quantity::Cost(Metric::ReverseMapping, 1 << 20)), None);
        // The formulas are no tautology: another process is not the own one.
        for bytes in [1_u64 << 20, 1 << 30] {
            let accuracy = value(Quantity::TrackedFormula(ufd, bytes)).unwrap();
            assert!((0.0..100.0).contains(&accuracy), "{accuracy}");
        }
    }

    /// What the recordings lack that the command brings along: sizes that
    /// an emulated guest would take hours for, and engines that were not measured yet.
    const LACKING: [&str; 8] = [
        "soft-dirty",
        "baby, medium",
        "cache, medium",
        "cache, large",
        "stdhash, ",
        "stdtree, medium",
        "stdtree, large",
        "tiny, medium",
    ];

    #[test]
    fn what_tables_look_up_is_recorded_or_named_here() {
        let recordings = Recordings::default().with_brought().unwrap();
        let documents = recordings.documents.iter();
        let brought: BTreeSet<Recording> = documents.map(|document| document.recording).collect();
        let mut missing = Vec::new();
        let mut found = 0;
        for paper in Paper::ALL {
            for entry in paper.entries().iter().filter(|entry| !entry.runs) {
                let table = entry.make().unwrap();
                for row in &table.rows {
                    let Some(quantity) = &row.quantity else {
                        continue;
                    };
                    match recordings.measurement(quantity) {
                        Some(value) => {
                            assert!(value.value.is_finite(), "{}", row.what);
                            found += 1;
                        }
                        None => missing.push((row.what.clone(), quantity.recordings())),
                    }
                }
            }
        }
        assert!(found > 200, "{found}");
        missing.retain(|(what, wanted)| {
            let is_there = wanted.iter().any(|recording| brought.contains(recording));
            is_there && !LACKING.iter().any(|part| what.contains(part))
        });
        assert!(missing.is_empty(), "{missing:#?}");
    }

    #[test]
    fn all_that_is_brought_along_says_where_it_is_from() {
        let recordings = Recordings::default().with_brought().unwrap();
        let mut seen = BTreeSet::new();
        for (document, (name, _)) in recordings.documents.iter().zip(BROUGHT) {
            match *name {
                // A second one of its kind.
                "collector_programs.json" => {
                    assert_eq!(document.recording, Recording::Collector);
                    assert!(seen.contains(&Recording::Collector));
                }
                name => assert_eq!(document.recording.file(), name),
            }
            let source = &document.source;
            for said in [
                &source.machine,
                &source.kernel,
                &source.date,
                &source.command,
            ] {
                assert!(!said.contains("not recorded"), "{name}: {source:?}");
            }
            let emulators = ["QEMU", "Bochs"];
            assert_eq!(
                source.origin == Origin::Emulated,
                emulators.iter().any(|name| source.machine.contains(name)),
                "{name}"
            );
            seen.insert(document.recording);
        }
        assert_eq!(seen.len(), BROUGHT.len() - 1);
    }
}
