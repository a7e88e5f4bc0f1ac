//! `cargo xtask bench subpage scale`: Tokyo Cabinet with as many records as in Lu et al. (figure
//! 7), and our kernels after four programs of STAMP (figure 6): what they ask malloc for, and what
//! memory they then hold, on libc's allocator and on ours.

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
/// The sizes that STAMP recommends for runs on real machines, or of its many tasks what takes a
/// minute: they change little of what there is.
const KERNELS: [Workload; 4] = [
    workload("bayes", "bayes", 4096, 32, 300_000, 0),
    workload("intruder", "intruder", 262_144, 128, u32::MAX, 0),
    workload("vacation", "vacation", 1 << 20, 4, 2_000_000, 0),
    workload("genome", "genome", 16_384, 64, 1 << 24, 0),
];
/// How often our allocator maps a page of small objects.
const PARTS: [&str; 2] = ["1", "4"];

/// Measures each store once: what is counted here does not differ from run to run.
pub(super) fn measure(kit: &Kit) -> Result<Vec<Value>> {
    let stores = WORKLOADS.iter().map(|store| of_store(kit, store));
    let kernels = KERNELS.iter().map(|kernel| of_kernel(kit, kernel));
    stores.chain(kernels).collect()
}

/// A kernel, whose runs are longer: twice in all.
fn of_kernel(kit: &Kit, kernel: &Workload) -> Result<Value> {
    let (asked, said) = asked(kit, kernel)?;
    let parts = PARTS[1];
    let heap = kit.run(&kit.words(kernel), Heap::Parts(parts))?["memory_kib"].take();
    let result = json!({
        "program": kernel.name,
        "arguments": kit.words(kernel)[1..],
        "asked": asked,
        "libc": {"memory_kib": said["memory_kib"]},
        "heaps": [{"parts": parts, "memory_kib": heap}],
    });
    println!("{result}");
    Ok(result)
}

fn of_store(kit: &Kit, store: &Workload) -> Result<Value> {
    let words = kit.words(store);
    let (asked, _) = asked(kit, store)?;
    let objects = asked["objects"].as_u64().unwrap_or(0);
    ensure!(
        objects >= u64::from(store.records),
        "{objects} objects are fewer than the records"
    );
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

/// What a program asks malloc for, libc's, and what it says of itself.
fn asked(kit: &Kit, workload: &Workload) -> Result<(Value, Value)> {
    let words = kit.words(workload);
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]);
    command.env("LD_PRELOAD", kit.programs.join("libcounted.so"));
    let output = command.output()?;
    ensure!(output.status.success(), "{command:?}: {}", output.status);
    let asked = serde_json::from_slice(&output.stderr).context("nothing was counted")?;
    Ok((asked, serde_json::from_slice(&output.stdout)?))
}
