//! A cost table of this machine, from the document of `pagetrail bench --json`.
//!
//! Measured are the kernel's faults, the tracker's, and what soft-dirty and userfaultfd do to whole
//! address spaces, as far as they work here. What no benchmark of a stock kernel can see (anything
//! of a hypervisor, for one) is taken from the OoH paper and marked as assumed.

use std::path::Path;

use anyhow::{Context, Result, bail};
use pagetrail_model::cost::{Cost, CostTable, Metric};
use serde::Deserialize;

use pagetrail_bench::infile;

/// More bytes than any benchmark writes.
const BYTES_MAX: u64 = 16 << 20;

/// The document of `pagetrail bench --json`, as far as it is used here.
#[derive(Deserialize)]
pub(crate) struct Results {
    schema: u32,
    pub(crate) kernel: String,
    pub(crate) results: Vec<Measured>,
}

/// One technique at one size.
#[derive(Deserialize)]
pub(crate) struct Measured {
    pub(crate) technique: String,
    pub(crate) tracked: String,
    pub(crate) size_bytes: u64,
    pub(crate) pages_written: u64,
    pub(crate) untracked_pass_ns: Spread,
    pub(crate) tracked_pass_ns: Spread,
    pub(crate) overhead_on_tracked_percent: Spread,
    pub(crate) overhead_on_tracker_percent: Spread,
    pub(crate) steps: Steps,
}

#[derive(Deserialize)]
pub(crate) struct Steps {
    pub(crate) arm_ns: Spread,
    pub(crate) attach_stopped_ns: Spread,
    pub(crate) collect_ns: Spread,
    clean_collect_ns: Spread,
    pub(crate) fault: Option<Fault>,
}

#[derive(Deserialize)]
pub(crate) struct Fault {
    pub(crate) ns_per_page: Spread,
}

#[derive(Deserialize)]
pub(crate) struct Spread {
    pub(crate) median: f64,
}

impl Results {
    /// Reads a document.
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let text = infile::text(path, "result of a benchmark", BYTES_MAX)?;
        Self::parse(&text).with_context(|| path.display().to_string())
    }

    /// Reads a document's text.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let results: Self =
            serde_json::from_str(text).context("not what pagetrail bench --json writes")?;
        match results.schema {
            // What is read here has the same names in both.
            1 | 2 => Ok(results),
            other => bail!("of schema {other}, and 1 and 2 are known here"),
        }
    }
}

/// The cost table of the machine where `path`, a document of `pagetrail bench --json`, was made.
/// Fails where it is none, and where it has no technique that the model knows.
pub fn table(path: &Path) -> Result<CostTable> {
    calibrate(&Results::read(path)?).with_context(|| path.display().to_string())
}

/// The costs that a benchmark measured, and the paper's for the rest.
pub(crate) fn calibrate(results: &Results) -> Result<CostTable> {
    let paper = CostTable::ooh_paper();
    // The paper splits a fault into the way into the kernel (M1) and the rest; a benchmark sees
    // both together.
    let entry = paper.at(Metric::ContextSwitch, 0).unwrap_or(0.0);
    let whole_fault = |technique: &str| {
        points(results, technique, |m| {
            Some(m.steps.fault.as_ref()?.ns_per_page.median * m.pages_written as f64)
        })
    };
    let kernel = ["soft-dirty", "pagemap-scan"]
        .into_iter()
        .map(&whole_fault)
        .find(|points| !points.is_empty())
        .unwrap_or_default();
    let pages = |bytes: u64| (bytes / pagetrail_model::machine::PAGE_BYTES) as f64;
    let kernel: Vec<_> = less(&kernel, |bytes| Some(entry * pages(bytes)));
    // The tracker's part of a fault is what it takes longer than one that the kernel resolves
    // alone.
    let user = less(&whole_fault("userfaultfd"), |bytes| {
        let at = kernel.iter().find(|&&(size, _)| size == bytes)?;
        Some(at.1 + entry * pages(bytes))
    });
    let measured = [
        (Metric::FaultKernel, kernel),
        (Metric::FaultUser, user),
        (
            Metric::UfdWriteProtect,
            points(results, "userfaultfd", |m| Some(m.steps.arm_ns.median)),
        ),
        (
            Metric::ClearRefs,
            points(results, "soft-dirty", |m| Some(m.steps.arm_ns.median)),
        ),
        (
            Metric::PagemapWalk,
            points(results, "soft-dirty", |m| {
                Some(m.steps.clean_collect_ns.median)
            }),
        ),
    ];
    let measured: Vec<(String, Cost)> = measured
        .into_iter()
        .filter(|(_, points)| !points.is_empty())
        .map(|(metric, points)| {
            let whole = points.into_iter().map(|(size, ns)| (size, ns.ceil()));
            (metric.name().to_owned(), Cost::BySize(whole.collect()))
        })
        .collect();
    if measured.is_empty() {
        bail!("it has no technique whose costs the model knows");
    }
    let assumed = paper
        .iter()
        .filter(|(metric, _)| !measured.iter().any(|(name, _)| name == metric.name()))
        .map(|(metric, cost)| (metric.name().to_owned(), cost.clone()))
        .collect::<Vec<_>>();
    let name = format!("pagetrail bench, Linux {}", results.kernel);
    Ok(CostTable::new(name, measured)?.assume(assumed)?)
}

/// A figure of a technique in its own process, by size. Noise that is not above zero is no cost.
fn points(
    results: &Results,
    technique: &str,
    figure: impl Fn(&Measured) -> Option<f64>,
) -> Vec<(u64, f64)> {
    let own = |m: &&Measured| m.technique == technique && m.tracked == "own";
    let measured = results.results.iter().filter(own);
    let mut points: Vec<(u64, f64)> = measured
        .filter_map(|m| Some((m.size_bytes, figure(m)?)))
        .filter(|&(_, ns)| ns > 0.0)
        .collect();
    points.sort_by_key(|&(size, _)| size);
    points.dedup_by_key(|&mut (size, _)| size);
    points
}

/// Points with a part taken off; those of which nothing is left are left out.
fn less(points: &[(u64, f64)], part: impl Fn(u64) -> Option<f64>) -> Vec<(u64, f64)> {
    let points = points.iter();
    points
        .filter_map(|&(size, ns)| Some((size, ns - part(size)?)))
        .filter(|&(_, ns)| ns > 0.0)
        .collect()
}

#[cfg(test)]
mod tests {
    use pagetrail_bench::testing;

    use super::*;

    #[test]
    fn what_was_measured_is_there_and_the_rest_is_marked() {
        let mut results = testing::results();
        for measured in &mut results.results {
            measured.technique = match measured.technique {
                "compare" => "userfaultfd",
                other => other,
            };
        }
        let text = serde_json::to_string(&results).unwrap();
        let table = calibrate(&Results::parse(&text).unwrap()).unwrap();
        let size = results.results[0].size_bytes;
        let fault = &results.results[0].steps.fault.as_ref().unwrap().ns_per_page;
        let expected = (fault.median - 315.0) * (size / 4096) as f64;
        let kernel = table.at(Metric::FaultKernel, size).unwrap();
        assert!((kernel - expected).abs() <= 1.0, "{kernel}");
        assert!(!table.is_assumed(Metric::FaultKernel));
        for metric in [Metric::Vmread, Metric::ReverseMapping, Metric::ClearRefs] {
            assert!(table.is_assumed(metric), "{metric}");
        }
    }

    #[test]
    fn the_recorded_benchmark_can_be_read() {
        let text = include_str!("../recordings/bench.json");
        let table = calibrate(&Results::parse(text).unwrap()).unwrap();
        for metric in [
            Metric::FaultKernel,
            Metric::FaultUser,
            Metric::UfdWriteProtect,
        ] {
            assert!(!table.is_assumed(metric), "{metric}");
        }
        assert!(table.is_assumed(Metric::ClearRefs));
        let read = crate::costs::parse(&crate::costs::render(&table), "x");
        assert_eq!(read.unwrap(), table);
    }

    #[test]
    fn other_documents_are_refused() {
        let table = |text: &str| calibrate(&Results::parse(text)?);
        let refused = |text: &str| format!("{:#}", table(text).unwrap_err());
        assert!(refused("").contains("not what pagetrail bench --json writes"));
        assert!(refused("{\"schema\": 1}").contains("not what pagetrail bench"));
        assert!(refused("{\"schema\": 3, \"kernel\": \"\", \"results\": []}").contains("schema 3"));
        assert!(
            refused("{\"schema\": 1, \"kernel\": \"\", \"results\": []}").contains("no technique")
        );
        assert!(
            refused("{\"schema\": 2, \"kernel\": \"\", \"results\": []}").contains("no technique")
        );
    }

    #[test]
    fn fuzz() {
        let good = include_str!("../recordings/bench.json");
        crate::fuzzing::for_seeds(500, |random| {
            let mut text = good.as_bytes().to_vec();
            crate::fuzzing::mutate(random, &mut text);
            let outcome = Results::parse(&String::from_utf8_lossy(&text));
            if let Err(error) = outcome.and_then(|results| calibrate(&results)) {
                assert_eq!(format!("{error:#}").lines().count(), 1, "{error:#}");
            }
        });
    }
}
