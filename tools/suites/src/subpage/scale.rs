//! `cargo xtask bench subpage scale`: Tokyo Cabinet with as many records as in Lu et al. (figure
//! 7): what it asks malloc for, and what memory it then holds, on libc's allocator and on ours.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::kit::{Heap, Kit, Workload, workload};

/// The paper's records, which are inserted and not changed.
const WORKLOADS: [Workload; 3] = [
    workload("10M @ 64B", "tokyo", 10_000_000, 64, 0, 0),
    workload("5M @ 128B", "tokyo", 5_000_000, 128, 0, 0),
    workload("1M @ 1024B", "tokyo", 1_000_000, 1024, 0, 0),
];
/// How often our allocator maps a page of small objects.
const PARTS: [&str; 2] = ["1", "4"];

/// Measures each store once: what is counted here does not differ from run to run.
pub(super) fn measure(kit: &Kit) -> Result<Vec<Value>> {
    WORKLOADS.iter().map(|store| of_store(kit, store)).collect()
}

fn of_store(kit: &Kit, store: &Workload) -> Result<Value> {
    let words = kit.words(store);
    let asked = asked(kit, store)?;
    let memory = |parts| Ok::<_, anyhow::Error>(kit.run(&words, parts)?["memory_kib"].take());
    let mut variants = Vec::new();
    for parts in PARTS {
        variants.push(json!({"parts": parts, "memory_kib": memory(Heap::Parts(parts))?}));
    }
    let result = json!({
        "program": store.name,
        "records": store.records,
        "record_bytes": store.bytes,
        "asked": asked,
        "libc": {"memory_kib": memory(Heap::Libc)?},
        "heaps": variants,
    });
    println!("{result}");
    Ok(result)
}

/// What filling it asks malloc for.
fn asked(kit: &Kit, store: &Workload) -> Result<Value> {
    let words = kit.words(store);
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]);
    command.env("LD_PRELOAD", kit.programs.join("libcounted.so"));
    let output = command.output()?;
    ensure!(output.status.success(), "{command:?}: {}", output.status);
    let asked: Value = serde_json::from_slice(&output.stderr).context("nothing was counted")?;
    let objects = asked["objects"].as_u64().unwrap_or(0);
    ensure!(
        objects >= u64::from(store.records),
        "{objects} objects are fewer than the records"
    );
    Ok(asked)
}
