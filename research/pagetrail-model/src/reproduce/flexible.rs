//! Lu et al.: figures 6 and 7 have numbers; figures 8 to 11 are charts without, and what the text
//! says of them is checked. What the sub-page allocator measured natively stands beside them.

use super::recording::{Pick, Recording};
use super::{Claim, Printed, Row, Statement, Table};
use crate::technique::TechniqueKind;
use crate::workload::{Workload, WorkloadKind};
use crate::{Report, RunConfig, RunError, run};

/// A store of small records under incremental checkpoints, at `parts` to a page.
fn checkpoints(parts: u32, dynamic: bool) -> Result<Report, RunError> {
    let store = Workload {
        kind: WorkloadKind::KeyValue,
        bytes: 16 << 20,
        rounds: 12,
        seed: 1,
    };
    // Requests enough to write some parts of most pages between two checkpoints.
    run(
        &RunConfig::new(TechniqueKind::Lu { parts, dynamic }),
        store.ops(),
    )
}

/// Faults for tracking, and bytes that a checkpoint copies, over all rounds.
fn faults_and_bytes(report: &Report) -> (u64, u64) {
    let units: u64 = report.rounds.iter().map(|round| round.reported).sum();
    (report.monitor().ept_write_faults, units * report.unit_bytes)
}

/// Figures 9 to 11: faults and checkpoint data with whole pages, 2 and 4 parts, static and dynamic.
pub fn figures9_to_11() -> Result<Table, RunError> {
    let [page, two, four] = [1, 2, 4].map(|parts| checkpoints(parts, false));
    let [two_dynamic, four_dynamic] = [2, 4].map(|parts| checkpoints(parts, true));
    let (page, two, four) = (
        faults_and_bytes(&page?),
        faults_and_bytes(&two?),
        faults_and_bytes(&four?),
    );
    let (two_dynamic, four_dynamic) = (
        faults_and_bytes(&two_dynamic?),
        faults_and_bytes(&four_dynamic?),
    );
    let statements = vec![
        Statement::modelled(
            "2 parts fault less than 4 parts",
            two.0 < four.0,
            format!(
                "{} against {} faults ({} with whole pages)",
                two.0, four.0, page.0
            ),
        ),
        Statement::modelled(
            "the dynamic strategy faults less than the static one",
            two_dynamic.0 < two.0 && four_dynamic.0 < four.0,
            format!(
                "{} against {} with 2 parts, {} against {} with 4",
                two_dynamic.0, two.0, four_dynamic.0, four.0
            ),
        ),
        Statement::modelled(
            "4 parts copy less than 2 parts, and these less than whole pages",
            four.1 < two.1 && two.1 < page.1,
            format!("{}, {} and {} KiB", four.1 >> 10, two.1 >> 10, page.1 >> 10),
        ),
        Statement::modelled(
            "the dynamic strategy reduces the volume of checkpoint data",
            two_dynamic.1 < two.1 && four_dynamic.1 < four.1,
            format!(
                "{} against {} KiB with 2 parts, {} against {} with 4",
                two_dynamic.1 >> 10,
                two.1 >> 10,
                four_dynamic.1 >> 10,
                four.1 >> 10
            ),
        ),
        Statement::modelled(
            "for the same number of checkpoints, merging copies more than not merging",
            two_dynamic.1 >= two.1 && four_dynamic.1 >= four.1,
            format!(
                "{} against {} KiB with 2 parts, {} against {} with 4",
                two_dynamic.1 >> 10,
                two.1 >> 10,
                four_dynamic.1 >> 10,
                four.1 >> 10
            ),
        ),
    ];
    Ok(Table {
        name: "Figures 9 to 11",
        absent: None,
        claims: Vec::new(),
        about: "A store of 256-byte records, 12 checkpoints. Not modelled: that fewer faults make for fewer checkpoints, from which \
                the paper's smaller volume comes.",
        rows: Vec::new(),
        statements,
    })
}

/// A chart without a number for this value.
const CHART: Option<Printed> = None;

/// Programs on the sub-page allocator, in the recordings.
const STORES: [&str; 3] = [
    "Tokyo Cabinet, 64 B",
    "Tokyo Cabinet, 128 B",
    "Tokyo Cabinet, 1 KiB",
];

const NATIVE_WHY: &str =
    "natively, without a virtual machine, on heaps 25 times smaller; parts are static";

/// What a program takes with its pages in `parts`, over what `base` takes.
fn programs(what: String, path: &str, parts: u32, base: &str, store: &str) -> Row {
    let of = format!("results[program={store}].");
    let pick = Pick::new(
        Recording::SubpagePrograms,
        format!("{of}variants[parts={parts}].{path}"),
    );
    Row::recorded(what, "times", CHART, pick.over(format!("{of}{base}"))).note(NATIVE_WHY)
}

/// Figure 6: programs of STAMP, and our kernels after them.
pub fn figure6() -> Result<Table, RunError> {
    let programs = [
        ("bayes", 48_441_744.0, 1.34),
        ("intruder", 14_990_453.0, 0.62),
        ("vacation", 11_487_872.0, 0.43),
        ("genome", 16_957_591.0, 0.78),
    ];
    let rows = programs.into_iter().flat_map(|(name, objects, gb)| {
        let pick = |field: &str| Pick::new(Recording::SubpageScale, at_scale(name, field));
        let each = pick("asked.bytes").over(at_scale(name, "asked.objects"));
        let rows = [
            ("objects", "", objects, pick("asked.objects")),
            ("allocated", "GB", gb, pick("asked.bytes").times(1e-9)),
            ("allocated per object", "bytes", gb * 1e9 / objects, each),
        ];
        rows.map(|(what, unit, paper, pick)| {
            Row::recorded(format!("{name}, {what}"), unit, Printed(paper), pick).note(KERNELS_WHY)
        })
    });
    Ok(Table {
        name: "Figure 6",
        about: "Objects and memory of four programs of STAMP; measured, kernels of our own after them.",
        rows: rows.collect(),
        ..Table::default()
    })
}

const KERNELS_WHY: &str = "kernels of our own after STAMP's (its sources are in no package), with the sizes that STAMP recommends \
                           but for fewer tasks of bayes and vacation: what malloc is asked for, by cargo xtask bench subpage scale";

/// Tokyo Cabinet as in figure 7, and what the paper says of it.
const AT_SCALE: [(&str, f64, f64); 3] = [
    ("10M @ 64B", 10_000_021.0, 1.28),
    ("5M @ 128B", 5_000_021.0, 0.96),
    ("1M @ 1024B", 1_000_021.0, 1.09),
];

/// A figure of a store with the paper's records.
fn at_scale(store: &str, field: &str) -> String {
    format!("results[program={store}].{field}")
}

/// Figure 7: Tokyo Cabinet.
pub fn figure7() -> Result<Table, RunError> {
    let rows = AT_SCALE.into_iter().flat_map(|(store, objects, gb)| {
        let row = |what: &str, unit, paper: f64, field, scale| {
            let pick = Pick::new(Recording::SubpageScale, at_scale(store, field)).times(scale);
            Row::recorded(format!("{store}, {what}"), unit, Printed(paper), pick).note(AT_SCALE_WHY)
        };
        let [libc, heap] = ["libc.memory_kib", "heaps[parts=4].memory_kib"];
        [
            row("objects", "", objects, "asked.objects", 1.0),
            row("allocated", "GB", gb, "asked.bytes", 1e-9),
            row("memory held, libc", "GB", gb, libc, 1.024e-6),
            row("memory held, mapped 4 times", "GB", gb, heap, 1.024e-6),
        ]
    });
    Ok(Table {
        name: "Figure 7",
        about: "Objects and memory of Tokyo Cabinet: what malloc is asked for, and what the process holds then, malloc's own \
                words included.",
        rows: rows.collect(),
        ..Table::default()
    })
}

const AT_SCALE_WHY: &str = "as many records as in the paper; the paper names what is allocated, and not what the process holds";

/// Figure 9 as measured: static parts, tracked.
pub fn figure9() -> Result<Table, RunError> {
    let rows = STORES.into_iter().flat_map(|store| {
        [2, 4].map(|parts| {
            let what = format!("{store}, static, {parts} parts over whole pages");
            programs(
                what,
                "tracked.ms",
                parts,
                "variants[parts=1].tracked.ms",
                store,
            )
        })
    });
    let faults = STORES.into_iter().flat_map(|store| {
        [2, 4].map(|parts| {
            let what = format!("{store}, static, faults of {parts} parts over whole pages");
            programs(
                what,
                "tracked.faults",
                parts,
                "variants[parts=1].tracked.faults",
                store,
            )
        })
    });
    Ok(Table {
        name: "Figure 9, measured",
        about: "Processor time and faults of programs whose heaps are tracked, by parts of a page.",
        rows: rows.chain(faults).collect(),
        claims: vec![Claim::less(
            "2 parts are faster and fault less than 4 parts",
            "2 parts",
            "4 parts",
        )],
        ..Table::default()
    })
}

/// Figure 10 as measured: what checkpoints of such heaps store, and what they take.
pub fn figure10() -> Result<Table, RunError> {
    let stores = [
        "Tokyo Cabinet, 64 B, 400 updates in 20 ms",
        "Tokyo Cabinet, 64 B, 10000 updates in 20 ms",
        "Tokyo Cabinet, 128 B, 400 updates in 20 ms",
        "Tokyo Cabinet, 1 KiB, 400 updates in 20 ms",
    ];
    let rows = stores.into_iter().flat_map(|store| {
        let row = move |unit: &str, field: &str| {
            let of =
                |parts: u32| format!("results[program={store}].variants[parts={parts}].{field}");
            let pick = Pick::new(Recording::SubpageCheckpoints, of(4)).over(of(1));
            let what = format!("{store}, {unit}, 4 parts over whole pages");
            Row::recorded(what, "times", CHART, pick).note(NATIVE_WHY)
        };
        [row("stored", "stored_bytes"), row("time", "total_ms")]
    });
    Ok(Table {
        name: "Figure 10, measured",
        about: "What increments of a store hold, and what they take, by parts of a page. Two parts are not recorded.",
        rows: rows.collect(),
        claims: vec![Claim::at_most(
            "4 parts store less than whole pages",
            "stored",
            1.0,
        )],
        ..Table::default()
    })
}

/// Figure 11 as measured: by the interval between checkpoints.
pub fn figure11() -> Result<Table, RunError> {
    let stores = ["Tokyo Cabinet, 64 B", "tkrzw, 64 B", "C++ map, 64 B"];
    let rows = stores.into_iter().flat_map(|store| {
        [50, 1000].map(|interval| {
            let of = |parts: u32, field: &str| {
                format!(
                    "results[program={store}].variants[parts={parts}].other_intervals[interval_ms={interval}]\
                     .written.{field}"
                )
            };
            let pick = Pick::new(Recording::SubpagePrograms, of(8, "unit_bytes"));
            let what = format!("{store}, every {interval} ms, 8 parts over whole pages");
            Row::recorded(what, "times", CHART, pick.over(of(1, "page_bytes"))).note(GENOME_WHY)
        })
    });
    Ok(Table {
        name: "Figure 11, measured",
        about: "Bytes that a checkpoint would copy, by its interval. The paper: the longer the interval, the smaller \
                the gain.",
        rows: rows.collect(),
        claims: vec![Claim::less(
            "the longer the interval, the smaller the gain",
            "every 50 ms",
            "every 1000 ms",
        )],
        ..Table::default()
    })
}

const GENOME_WHY: &str =
    "other programs than STAMP's genome, and 8 parts, for which alone intervals are recorded";

/// Figure 8: more windows need more of the TLB.
pub fn figure8() -> Result<Table, RunError> {
    let misses = |parts| -> Result<f64, RunError> {
        let report = checkpoints(parts, false)?;
        let events = report.monitor();
        Ok(events.tlb_misses as f64 / events.accesses as f64)
    };
    let [one, two, four] = [misses(1)?, misses(2)?, misses(4)?];
    let rows = STORES.into_iter().flat_map(|store| {
        [1, 2, 4].map(|parts| {
            let what = format!("{store}, mapped {parts} times, over libc");
            programs(what, "mapped.ms", parts, "libc.ms", store)
        })
    });
    let rows = rows.collect();
    Ok(Table {
        name: "Figure 8",
        absent: None,
        claims: vec![Claim::at_most("at most twice the time", "mapped", 2.0)],
        about: "TLB misses per access of the same store; measured, the processor time of programs whose heaps are \
                mapped once per part, over libc's malloc. The paper: at most twice.",
        rows,
        statements: vec![Statement::modelled(
            "dividing pages costs TLB misses",
            one < two && two < four,
            format!("{one:.3} with whole pages, {two:.3} with 2 parts, {four:.3} with 4"),
        )],
    })
}
