//! The OoH paper's figures 5 to 9 and table IVa beside what real machines take.
//!
//! The paper's techniques are not among those that were measured: its `/proc` is, by the kernel's
//! soft-dirty bits or by those of `libpagetrail_softdirty`, and libgc's own `mprotect`.

use super::recording::{Pick, Recording};
use super::{Claim, Printed, Quantity, Row, Table};
use crate::RunError;
use crate::cost::{CostTable, Metric};
use crate::workload::PAPER_SIZES;

/// A chart without a number for this value.
const CHART: Option<Printed> = None;
const SIZES: [(&str, u32); 3] = [("small", 1), ("medium", 2), ("large", 3)];
/// Programs by their names in the paper and in the recordings.
pub(super) const COLLECTED: [(&str, &str); 7] = [
    ("gcbench", "gcbench"),
    ("histogram", "histogram"),
    ("kmeans", "kmeans"),
    ("matrix-multiply", "matmul"),
    ("pca", "pca"),
    ("string-match", "stringmatch"),
    ("word-count", "wordcount"),
];
const MODES: [(&str, &str); 3] = [
    ("pagetrail", "soft-dirty bits of pagetrail"),
    ("pagetrail for collectors", "those, for collectors"),
    ("mprotect", "mprotect"),
];

/// Table IVa: costs that do not depend on a program's memory.
pub fn table4a() -> Result<Table, RunError> {
    let table = CostTable::ooh_paper();
    let metrics = [
        Metric::ContextSwitch,
        Metric::StartIoctl,
        Metric::StopIoctl,
        Metric::Vmread,
        Metric::Vmwrite,
        Metric::InitPml,
        Metric::InitShadowing,
        Metric::StopPml,
        Metric::StopShadowing,
        Metric::EnableLogging,
    ];
    let rows = metrics.into_iter().filter_map(|metric| {
        let number = metric.in_ooh_paper()?;
        let ns = table.at(metric, 0)?;
        let row = Row::input(format!("M{number}, {metric}"), "us", Printed(ns / 1e3));
        Some(match metric {
            Metric::ContextSwitch => row.measurable(Quantity::Figure(
                Pick::new(Recording::Metrics, "metrics[metric=context-switch].ns").times(1e-3),
            )),
            Metric::StartIoctl => module(row, "arm_ns"),
            Metric::StopIoctl => module(row, "disarm_ns"),
            _ => row.note(HYPERVISOR_WHY),
        })
    });
    let sizes = [1, 10, 50, 100, 250, 500, 1024];
    let disable = sizes.into_iter().filter_map(|mib: u64| {
        let ns = table.at(Metric::DisableLogging, mib << 20)?;
        let what = format!("M14, {}, {mib}MB", Metric::DisableLogging);
        Some(Row::input(what, "us", Printed(ns / 1e3)).note(HYPERVISOR_WHY))
    });
    Ok(Table {
        name: "IVa",
        about: "Costs that do not depend on a program's memory, and M14 of table IVb: the model is given them.",
        rows: rows.chain(disable).collect(),
        ..Table::default()
    })
}

/// A step of our own module, which has no hypervisor below.
fn module(row: Row, step: &str) -> Row {
    let path =
        format!("listing1[technique=epml;tracked=own;size_bytes=1048576].steps.{step}.median");
    let pick = Pick::new(Recording::OohGuest, path).times(1e-3);
    row.measurable(Quantity::Figure(pick)).note(MODULE_WHY)
}

const MODULE_WHY: &str = "ours: starting and ending 'epml' by our own module, which opens its device and maps its ring, \
                          and calls no hypervisor; a nanosecond of the guest's clock is an \
                          instruction";

const HYPERVISOR_WHY: &str = "not measured: the hypervisor of the paper, and its extension of the processor, are on no stock machine";

/// Figures 5 and 6 as measured: libgc's time, and what it adds to the program.
pub fn figures5_6() -> Result<Table, RunError> {
    let mut rows = Vec::new();
    for (name, program) in COLLECTED {
        for (words, size) in SIZES {
            let of = |mode: &str, field: &str| {
                format!("results[program={program};size={size};mode={mode}].{field}")
            };
            for (mode, by) in MODES {
                let time = Pick::new(Recording::Collector, of(mode, "gc_ms"));
                rows.push(Row::recorded(
                    format!("5: {name}, {words}, collector's time by {by}"),
                    "ms",
                    CHART,
                    time,
                ));
            }
            for (mode, by) in MODES {
                let impact = Pick::new(Recording::Collector, of(mode, "run_ms"));
                let impact = impact.over(of("off", "run_ms")).times(100.0).plus(-100.0);
                rows.push(
                    Row::recorded(
                        format!("6: {name}, {words}, run by {by}, over full collections"),
                        "%",
                        CHART,
                        impact,
                    )
                    .note("the paper's base is the program alone; here it is libgc without incremental collection"),
                );
            }
        }
    }
    Ok(Table {
        name: "Figures 5 and 6, measured",
        about: "Unmodified libgc on programs after the Phoenix suite, by how it learns of writes. The programs are ours \
                and the heaps smaller than the paper's.",
        rows,
        ..Table::default()
    })
}

/// Figures 7 to 9 as measured: CRIU's phases.
pub fn figures7_9() -> Result<Table, RunError> {
    let mut rows = Vec::new();
    let figures = [
        ("7: memory write", "memwrite_us"),
        ("8: whole phase", "ms"),
        ("8: memory dump in it", "memdump_us"),
        ("9: target frozen", "frozen_us"),
    ];
    for (what, field) in figures {
        for mib in [64, 512] {
            for (bits, by) in [("kernel", "/proc"), ("ours", "pagetrail's soft-dirty bits")] {
                for phase in ["pre-dump", "dump"] {
                    let path =
                        format!("runs[mebibytes={mib};bits={bits}].phases[phase={phase}].{field}");
                    let scale = if field == "ms" { 1.0 } else { 1e-3 };
                    rows.push(Row::recorded(
                        format!("{what}, {mib} MiB by {by}, first {phase}"),
                        "ms",
                        CHART,
                        Pick::new(Recording::Checkpointer, path).times(scale),
                    ));
                }
            }
        }
    }
    Ok(Table {
        name: "Figures 7 to 9, measured",
        about: "Unmodified CRIU: two pre-dumps and a dump of a program that writes a hundredth of its memory in \
                between. SPML and EPML are on no machine here.",
        rows,
        ..Table::default()
    })
}

/// Figures 7 to 9 as measured of tkrzw's engines, in the paper's configurations.
pub fn engines7_9() -> Result<Table, RunError> {
    let mut rows = Vec::new();
    let phases = [
        ("7: memory write", "pre-dump", "memwrite_us", 1e-3),
        ("8: whole pre-dump", "pre-dump", "ms", 1.0),
        ("8: memory dump in it", "pre-dump", "memdump_us", 1e-3),
        ("8: whole dump", "dump", "ms", 1.0),
        ("8: memory dump of that", "dump", "memdump_us", 1e-3),
    ];
    let engines = PAPER_SIZES.into_iter().skip(COLLECTED.len());
    for engine in engines.map(|paper| paper.application) {
        for (size, _) in SIZES {
            let of = |field: &str| format!("engines[engine={engine};configuration={size}].{field}");
            let pick = |field: &str| Pick::new(Recording::CheckpointerEngines, of(field));
            for (what, phase, field, scale) in phases {
                let time = pick(&format!("phases[phase={phase}].{field}")).times(scale);
                let what = format!("{what}, {engine}, {size}");
                rows.push(Row::recorded(what, "ms", CHART, time));
            }
            let overhead = pick("checkpointed_ms").over(of("alone_ms"));
            rows.push(
                Row::recorded(
                    format!("9: overhead, {engine}, {size}"),
                    "%",
                    CHART,
                    overhead.times(100.0).plus(-100.0),
                )
                .note(ENGINES_WHY),
            );
        }
    }
    Ok(Table {
        name: "Figures 7 to 9, tkrzw's engines",
        about: "Unmodified CRIU on tkrzw's engines in the configurations of table II: a pre-dump at a third of the run \
                and a dump of what was written since at two thirds, by pagetrail's soft-dirty bits for /proc. The text \
                has the largest values of /proc, of all programs: 5.7 s of memory write, 102% of overhead.",
        rows,
        claims: vec![
            Claim::at_most(
                "CRIU's memory write by /proc takes at most 5.7 s",
                "7: memory write",
                5700.0,
            ),
            Claim::at_most(
                "CRIU by /proc costs the program at most 102%",
                "9: overhead",
                102.0,
            ),
        ],
        ..Table::default()
    })
}

const ENGINES_WHY: &str =
    "two checkpoints in a run of seconds; the paper does not say how many of its runs have";
