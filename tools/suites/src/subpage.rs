//! The sub-page allocator on real programs: what its parts save and cost (figures 8 to 11 of Lu et
//! al.), its throughput and memory beside libc's, and their own tests on it.
//!
//! Programs do a fixed amount of work and say what processor time it took, the kernel's faults
//! included; runs of all variants take turns, so that a busy machine is busy for all of them.

mod areas;
mod checkpoints;
mod kit;
mod programs;
mod reads;
mod scale;
pub mod suites;
mod throughput;

use std::fs;

use anyhow::{Result, bail};
use serde_json::json;

use kit::Kit;
use pagetrail_steps::recordings::{self, Place};
use pagetrail_steps::repo::Repo;

/// What can be measured, and in how many rounds if nobody says otherwise: each within six minutes.
/// A round is a run of each variant, or, in them, a checkpoint or a collect.
const BENCHES: [(&str, usize); 6] = [
    ("programs", 2),
    ("throughput", 3),
    ("checkpoints", 7),
    ("reads", 21),
    ("scale", 1),
    ("areas", 60),
];

/// Measures everything or one of `BENCHES`, so many times, prints tables, and replaces the recorded
/// results.
pub fn bench(repo: &Repo, asked: &[String]) -> Result<()> {
    let only = asked.first().map(String::as_str);
    let rounds = asked.get(1).map(|rounds| rounds.parse::<usize>());
    let rounds = match rounds {
        Some(Ok(rounds)) if rounds > 0 => Some(rounds),
        Some(_) => bail!("the number of rounds must be 1 or more"),
        None => None,
    };
    let wanted = |name: &str| only.is_none_or(|only| only == name);
    if !BENCHES.iter().any(|(name, _)| wanted(name)) {
        let names = BENCHES.map(|(name, _)| name).join(", ");
        bail!(
            "bench subpage takes one of {names}, not '{}'",
            only.unwrap_or_default()
        );
    }
    // What counts memory alone runs no command of ours, which takes minutes to build.
    let packages = match only {
        Some("scale") => &["pagetrail-alloc-preload"][..],
        _ => &["pagetrail-cli", "pagetrail-alloc-preload"],
    };
    let kit = Kit::build(repo, packages)?;
    let release = fs::read_to_string("/proc/sys/kernel/osrelease")?;
    for (name, default) in BENCHES.into_iter().filter(|(name, _)| wanted(name)) {
        let rounds = rounds.unwrap_or(default);
        let results = match name {
            "programs" => programs::measure(&kit, rounds)?,
            "throughput" => throughput::measure(&kit, rounds)?,
            "checkpoints" => checkpoints::measure(repo, &kit, rounds)?,
            "scale" => scale::measure(&kit)?,
            "areas" => areas::measure(repo, rounds)?,
            _ => reads::measure(repo, rounds)?,
        };
        let results = json!({
            "schema": 2,
            "kernel": release.trim(),
            "rounds": rounds,
            "results": results,
        });
        let text = serde_json::to_string_pretty(&results)? + "\n";
        let command = format!("cargo xtask bench subpage {name}");
        let name = format!("subpage_{name}.json");
        recordings::keep(repo, &name, text.as_bytes(), Place::Here, &command)?;
    }
    Ok(())
}
