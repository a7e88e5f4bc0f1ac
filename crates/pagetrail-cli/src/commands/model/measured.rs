//! What recordings of `pagetrail bench --json` say beside a paper's values.

use std::path::PathBuf;

use anyhow::{Context, Result};
use pagetrail_model::cost::CostTable;
use pagetrail_model::reproduce::{Measurement, Quantity};
use pagetrail_model::technique::TechniqueKind;

use super::calibrate::{self, Measured, Results};

/// What an older recording does not say.
const NOT_RECORDED: &str = "not recorded";

/// Recordings, of which the first that has a value gives it.
#[derive(Default)]
pub(super) struct Recordings {
    recordings: Vec<Recording>,
}

struct Recording {
    results: Results,
    /// Its costs; `None` where it measured none that the model knows.
    costs: Option<CostTable>,
}

impl Recordings {
    /// Reads the documents.
    pub(super) fn read(paths: &[PathBuf]) -> Result<Self> {
        let recordings = paths.iter().map(|path| {
            let results = Results::read(path)?;
            let costs = calibrate::calibrate(&results).ok();
            Ok(Recording { results, costs })
        });
        let recordings = recordings
            .collect::<Result<_>>()
            .context("--measured takes documents of pagetrail bench --json")?;
        Ok(Self { recordings })
    }

    /// The measured value of a quantity.
    pub(super) fn measurement(&self, quantity: Quantity) -> Option<Measurement> {
        let mut recordings = self.recordings.iter();
        recordings.find_map(|recording| recording.measurement(quantity))
    }
}

impl Recording {
    fn measurement(&self, quantity: Quantity) -> Option<Measurement> {
        let text = |part: &Option<String>| part.clone().unwrap_or_else(|| NOT_RECORDED.to_owned());
        Some(Measurement {
            value: self.value(quantity)?,
            machine: text(&self.results.machine),
            kernel: format!("Linux {}", self.results.kernel),
            date: text(&self.results.date),
            command: self
                .results
                .command
                .clone()
                .unwrap_or_else(|| "pagetrail bench --json".to_owned()),
        })
    }

    fn value(&self, quantity: Quantity) -> Option<f64> {
        match quantity {
            Quantity::OverheadOnTracked(kind, bytes) => {
                let measured = self.of(kind, bytes)?;
                Some(measured.overhead_on_tracked_percent.median)
            }
            Quantity::OverheadOnTracker(kind, bytes) => {
                let measured = self.of(kind, bytes)?;
                Some(measured.overhead_on_tracker_percent.median)
            }
            Quantity::Slowdown(kind, bytes) => {
                let measured = self.of(kind, bytes)?;
                Some(measured.tracked_pass_ns.median / measured.untracked_pass_ns.median)
            }
            Quantity::UntrackedPass(bytes) => {
                let all = self.results.results.iter();
                let mut of_size = all.filter(|measured| measured.size_bytes == bytes);
                Some(of_size.next()?.untracked_pass_ns.median / 1e6)
            }
            Quantity::Cost(metric, bytes) => {
                let costs = self.costs.as_ref()?;
                let is_measured = !costs.is_assumed(metric);
                let cost = costs.at(metric, bytes).filter(|_| is_measured);
                cost.map(|ns| ns / 1e6)
            }
            _ => None,
        }
        .filter(|value| value.is_finite())
    }

    /// A technique at a size, on a writer in the tracker's process before one in another.
    fn of(&self, kind: TechniqueKind, bytes: u64) -> Option<&Measured> {
        let name = kind.to_string();
        let all = self.results.results.iter();
        all.filter(|measured| measured.technique == name && measured.size_bytes == bytes)
            .min_by_key(|measured| measured.tracked != "own")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagetrail_model::cost::Metric;

    #[test]
    fn a_value_is_that_of_the_recording() {
        let file = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../bench/results/bench.json"
        );
        let recordings = Recordings::read(&[file.into()]).unwrap();
        let value = |quantity| recordings.measurement(quantity).map(|found| found.value);
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
        assert_eq!(
            value(Quantity::OverheadOnTracked(
                TechniqueKind::SoftDirty,
                1 << 20
            )),
            None
        );
        assert_eq!(value(Quantity::OverheadOnTracked(ufd, 3 << 20)), None);
        assert_eq!(value(Quantity::Cost(Metric::ReverseMapping, 1 << 20)), None);
    }
}
