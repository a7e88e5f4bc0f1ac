//! `cargo xtask bench subpage throughput`: the allocator beside libc's and three that are made for
//! speed, by patterns of allocation.

use std::env::consts::ARCH;
use std::path::PathBuf;

use anyhow::Result;
use serde_json::{Map, Value, json};

use super::kit::{Heap, Kit, median};
use pagetrail_steps::steps::NotHere;

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

/// Other allocators, as Debian has them: names, packages and libraries.
const PEERS: [(&str, &str, &str); 3] = [
    ("jemalloc", "libjemalloc2", "libjemalloc.so.2"),
    ("mimalloc", "libmimalloc2.0", "libmimalloc.so.2"),
    (
        "tcmalloc",
        "libtcmalloc-minimal4",
        "libtcmalloc_minimal.so.4",
    ),
];

/// Parts of a page with ours.
const PARTS: [&str; 2] = ["1", "8"];

/// Nanoseconds of processor time per object, and memory: with one thread, while its objects are
/// there; else the most that was resident, which says nothing of 8 parts, since it counts a page
/// once for each of its addresses.
pub(super) fn measure(kit: &Kit, rounds: usize) -> Result<Vec<Value>> {
    let peers = peers()?;
    let mut heaps = vec![("libc", Heap::Libc)];
    heaps.extend(peers.iter().map(|(name, path)| (*name, Heap::Peer(path))));
    heaps.extend(PARTS.map(|parts| (parts, Heap::Parts(parts))));
    let mut results = Vec::new();
    for (pattern, threads) in PATTERNS {
        let binary = kit.programs.join("patterns").display().to_string();
        let words = [binary, (*pattern).to_owned(), (*threads).to_owned()];
        let mut runs = vec![Vec::new(); heaps.len()];
        for _ in 0..rounds {
            for (runs, (_, heap)) in runs.iter_mut().zip(&heaps) {
                runs.push(kit.run(&words, *heap)?);
            }
        }
        let medians = |key: &str| -> Result<Map<String, Value>> {
            let named = heaps.iter().zip(&runs);
            named
                .map(|((name, _), runs)| Ok(((*name).to_owned(), median(runs, key)?.into())))
                .collect()
        };
        let ns = medians("ns")?;
        let mut peak = medians("peak_kib")?;
        peak.remove("8");
        let memory = medians("memory_kib").ok();
        println!("{pattern:>9} x{threads}: {}", beside_libc(&ns, "ns"));
        println!("{:>12} {}", "", beside_libc(&peak, "KiB at most"));
        if let Some(memory) = &memory {
            println!("{:>12} {}", "", beside_libc(memory, "KiB with its objects"));
        }
        results.push(json!({
            "pattern": pattern,
            "threads": threads,
            "ns": ns,
            "peak_kib": peak,
            "memory_kib": memory,
        }));
    }
    Ok(results)
}

/// The libraries of the peers.
fn peers() -> Result<Vec<(&'static str, PathBuf)>> {
    let libraries = PathBuf::from(format!("/usr/lib/{ARCH}-linux-gnu"));
    let mut found = Vec::new();
    let mut missing = Vec::new();
    for (name, package, library) in PEERS {
        let path = libraries.join(library);
        match path.exists() {
            true => found.push((name, path)),
            false => missing.push(package),
        }
    }
    if !missing.is_empty() {
        let packages = missing.join(" ");
        return Err(NotHere::error(&format!("apt-get install {packages}")));
    }
    Ok(found)
}

/// What libc takes, and how many times that each other one does.
fn beside_libc(values: &Map<String, Value>, unit: &str) -> String {
    let number = |value: &Value| value.as_f64().unwrap_or(f64::NAN);
    let libc = values.get("libc").map_or(f64::NAN, number);
    let others = values.iter().filter(|(name, _)| *name != "libc");
    let others = others.map(|(name, value)| match name.as_str() {
        "1" => format!("1 part {:.2}x", number(value) / libc),
        parts if parts.parse::<u32>().is_ok() => {
            format!("{parts} parts {:.2}x", number(value) / libc)
        }
        peer => format!("{peer} {:.2}x", number(value) / libc),
    });
    let others: Vec<_> = others.collect();
    format!("libc {libc:.1} {unit}, {}", others.join(", "))
}
