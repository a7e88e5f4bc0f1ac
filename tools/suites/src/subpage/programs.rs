//! `cargo xtask bench subpage programs`: databases and trees without tracking, with it, and what
//! they wrote, by parts of a page (figures 8, 9 and 11 of Lu et al.).

use anyhow::Result;
use serde_json::{Value, json};

use super::kit::{Heap, Kit, WORKLOADS, Workload, median};

/// Parts that are measured; the first is what the others are compared with.
const PARTS: [&str; 5] = ["1", "2", "4", "8", "16"];

/// Time between rounds: the paper's interval, scaled to programs of seconds.
const INTERVAL_MS: u32 = 200;

/// The sweep over the interval: others than that one, for some of the parts, and the programs with
/// the smallest records.
const OTHER_INTERVALS_MS: [u32; 2] = [50, 1000];
const SWEEP_PARTS: [&str; 3] = ["1", "8", "16"];
const SWEEP_BYTES: u32 = 64;

/// What is said of a run, besides its time.
const COUNTS: [&str; 4] = [
    "fill_faults",
    "update_faults",
    "memory_kib",
    "page_tables_kib",
];

/// Measures each program; runs of all variants take turns, so that a busy machine is busy for all
/// of them.
pub(super) fn measure(kit: &Kit, rounds: usize) -> Result<Vec<Value>> {
    let of = |workload| of_program(kit, workload, rounds);
    WORKLOADS.iter().map(of).collect()
}

fn of_program(kit: &Kit, workload: &Workload, rounds: usize) -> Result<Value> {
    println!("== {}", workload.name);
    let words = kit.words(workload);
    let mut libc = Vec::new();
    let mut mapped: Vec<Vec<Value>> = vec![Vec::new(); PARTS.len()];
    let mut tracked = mapped.clone();
    let mut volumes = mapped.clone();
    for _ in 0..rounds {
        libc.push(kit.run(&words, Heap::Libc)?);
        for (index, parts) in PARTS.iter().enumerate() {
            mapped[index].push(kit.run(&words, Heap::Parts(parts))?);
            let (run, volume) = kit.record(&words, parts, INTERVAL_MS)?;
            tracked[index].push(run);
            volumes[index].push(volume);
        }
    }
    let libc = took(&libc)?;
    let mut first: Option<[Value; 3]> = None;
    let mut variants = Vec::new();
    for (index, parts) in PARTS.iter().enumerate() {
        let mapped = took(&mapped[index])?;
        let tracked = took(&tracked[index])?;
        let written = json!({
            "page_bytes": median(&volumes[index], "page_bytes")?,
            "unit_bytes": median(&volumes[index], "unit_bytes")?,
        });
        let one = first.get_or_insert_with(|| [mapped.clone(), tracked.clone(), written.clone()]);
        println!(
            "{parts:>3} parts: mapped {:.2}x, tracked {:.2}x with {:.2}x the faults, memory {:.2}x of libc's; \
             written {:.1} MB, {:.2} of pages",
            ratio(&mapped, &one[0], "ms"),
            ratio(&tracked, &one[1], "ms"),
            ratio(&tracked, &one[1], "faults"),
            ratio(&mapped, &libc, "memory_kib"),
            number(&written, "unit_bytes") / 1e6,
            ratio(&written, &one[2], "unit_bytes"),
        );
        variants.push(json!({
            "parts": parts,
            "mapped": mapped,
            "tracked": tracked,
            "written": written,
            "other_intervals": sweep(kit, workload, &words, parts)?,
        }));
    }
    Ok(json!({
        "program": workload.name,
        "records": workload.records,
        "record_bytes": workload.bytes,
        "updates": workload.updates,
        "interval_ms": INTERVAL_MS,
        "libc": libc,
        "variants": variants,
    }))
}

/// One recording with each other interval; null where there is no sweep.
fn sweep(kit: &Kit, workload: &Workload, words: &[String], parts: &str) -> Result<Value> {
    if workload.bytes != SWEEP_BYTES || !SWEEP_PARTS.contains(&parts) {
        return Ok(Value::Null);
    }
    let sweep = OTHER_INTERVALS_MS.iter().map(|&interval_ms| {
        let (run, written) = kit.record(words, parts, interval_ms)?;
        let tracked = took(&[run])?;
        Ok(json!({"interval_ms": interval_ms, "tracked": tracked, "written": written}))
    });
    sweep.collect()
}

/// Medians of what runs say of themselves.
fn took(runs: &[Value]) -> Result<Value> {
    let mut out = json!({});
    for part in ["fill_ms", "update_ms"].iter().chain(&COUNTS) {
        out[*part] = median(runs, part)?.into();
    }
    for (sum, parts) in [
        ("ms", ["fill_ms", "update_ms"]),
        ("faults", ["fill_faults", "update_faults"]),
    ] {
        let parts = parts.map(|part| number(&out, part));
        out[sum] = parts.iter().sum::<f64>().into();
    }
    Ok(out)
}

fn number(of: &Value, key: &str) -> f64 {
    of[key].as_f64().unwrap_or(f64::NAN)
}

fn ratio(of: &Value, to: &Value, key: &str) -> f64 {
    number(of, key) / number(to, key)
}
