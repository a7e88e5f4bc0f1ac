//! What sampling call stacks adds to a program that is recorded.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::{Bench, run, spread};

/// Name, passes over 20,000 pages, and steps of computing after each page.
const WORKLOADS: [(&str, u32, u32); 3] = [
    ("writes only", 2000, 0),
    ("1 us of work a page", 50, 1500),
    ("20 us of work a page", 3, 30_000),
];

/// Ways of sampling, by the flag; the first is without.
const WAYS: [(&str, Option<&str>); 3] = [
    ("none", None),
    ("fp", Some("--stacks=fp")),
    ("dwarf", Some("--stacks=dwarf")),
];

/// Processor time of the program's work beside the same work recorded without stacks.
pub(super) fn measure(bench: &Bench) -> Result<Vec<Value>> {
    let mut results = Vec::new();
    for (name, passes, steps) in WORKLOADS {
        let mut ratios = [const { Vec::new() }; WAYS.len()];
        let mut shares = [const { Vec::new() }; WAYS.len()];
        for _ in 0..bench.rounds {
            let mut plain = 0.0;
            for (way, (_, flag)) in WAYS.iter().enumerate() {
                let (ns, often) = work(bench, passes, steps, *flag)?;
                if way == 0 {
                    plain = ns;
                }
                ratios[way].push(ns / plain);
                shares[way].extend(often);
            }
        }
        for (way, (way_name, _)) in WAYS.iter().enumerate().skip(1) {
            let (ratio, share) = (spread(&ratios[way]), spread(&shares[way]));
            println!(
                "sampling, {name}, {way_name} / none (goal 1.05): {}; {} of the pages by `often`, which wrote 0.8",
                ratio["median"], share["median"]
            );
            results.push(json!({
                "workload": name,
                "stacks": way_name,
                "goal": 1.05,
                "ratio": ratio,
                "share_of_often": share,
            }));
        }
    }
    Ok(results)
}

/// Records the program; its processor time, and the share of the pages that were attributed of
/// which its function `often` is said to have written, which must lie at what is true.
fn work(bench: &Bench, passes: u32, steps: u32, flag: Option<&str>) -> Result<(f64, Option<f64>)> {
    let trail = bench.trail("sampling.trail");
    let mut record = bench.record(&trail, &[]);
    record.args(flag).arg("--").arg(bench.victim("callers"));
    let output = run(record.args(["600", &passes.to_string(), &steps.to_string()]))?;
    let said = String::from_utf8_lossy(&output.stdout);
    let ns = said.lines().find_map(|line| line.parse().ok());
    let ns = ns.context("it does not say its time")?;
    if flag.is_none() {
        return Ok((ns, None));
    }
    let report = bench.report(&trail)?;
    let functions = report["writers"]["functions"].as_array();
    let of = |name: &str| {
        let mut functions = functions.into_iter().flatten();
        let found = functions.find(|function| function["function"] == name);
        found.and_then(|function| function["page_writes"].as_f64())
    };
    let often = of("often").context("nothing is attributed to `often`")?;
    let share = often / (often + of("seldom").unwrap_or(0.0));
    ensure!(
        (0.6..0.95).contains(&share),
        "`often` has a share of {share}"
    );
    Ok((ns, Some(share)))
}
