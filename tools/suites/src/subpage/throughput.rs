//! `cargo xtask bench subpage throughput`: the allocator beside libc's, by patterns of allocation.

use anyhow::Result;
use serde_json::{Value, json};

use super::kit::{Kit, median};

/// Patterns of allocation, and in how many threads.
const PATTERNS: &[(&str, &str)] = &[
    ("pair", "1"),
    ("pair", "2"),
    ("bulk", "1"),
    ("bulk", "2"),
    ("mixed", "1"),
    ("mixed", "2"),
    ("large", "1"),
    ("large", "2"),
    ("handover", "2"),
];

/// What is compared, libc's allocator first.
const VARIANTS: [Option<&str>; 3] = [None, Some("1"), Some("8")];

/// Nanoseconds of processor time per object, and memory: with one thread, while its objects are
/// there; else the most that was resident, which says nothing of 8 parts, since it counts a page
/// once for each of its addresses.
pub(super) fn measure(kit: &Kit, rounds: usize) -> Result<Vec<Value>> {
    let mut results = Vec::new();
    for (pattern, threads) in PATTERNS {
        let binary = kit.programs.join("patterns").display().to_string();
        let words = [binary, (*pattern).to_owned(), (*threads).to_owned()];
        let mut runs: [Vec<Value>; 3] = Default::default();
        for _ in 0..rounds {
            for (runs, parts) in runs.iter_mut().zip(VARIANTS) {
                runs.push(kit.run(&words, parts)?);
            }
        }
        let of =
            |key: &str| -> Result<Vec<f64>> { runs.iter().map(|runs| median(runs, key)).collect() };
        let (ns, peak) = (of("ns")?, of("peak_kib")?);
        let memory = of("memory_kib").ok();
        println!(
            "{pattern:>9} x{threads}: libc {:.1} ns, 1 part {:.2}x, 8 parts {:.2}x; memory {:.2}x{}",
            ns[0],
            ns[1] / ns[0],
            ns[2] / ns[0],
            peak[1] / peak[0],
            memory.as_ref().map_or(String::new(), |kib| format!(
                ", with its objects {:.2}x, {:.2}x",
                kib[1] / kib[0],
                kib[2] / kib[0]
            )),
        );
        results.push(json!({
            "pattern": pattern,
            "threads": threads,
            "ns": {"libc": ns[0], "1": ns[1], "8": ns[2]},
            "peak_kib": {"libc": peak[0], "1": peak[1]},
            "memory_kib": memory.map(|kib| json!({"libc": kib[0], "1": kib[1], "8": kib[2]})),
        }));
    }
    Ok(results)
}
