//! Lu et al.'s figures 8 to 11 from programs that are guests of `pagetrail vm`, on an emulated
//! processor: parts of pages as they are, and merged while the program runs.
//!
//! The paper draws charts without numbers, so that what its text says is checked.

use super::recording::{Pick, Recording};
use super::{Claim, Row, Table};
use crate::RunError;

/// Tokyo Cabinet, and kernels of our own after four programs of STAMP.
const PROGRAMS: [&str; 5] = [
    "Tokyo Cabinet, 64 B",
    "bayes",
    "intruder",
    "vacation",
    "genome",
];
const WHY: &str = "small programs of our own, as large as an emulator runs in seconds; instructions are those of the \
                   process, its kernel and KVM included, the recorder's not";
/// How parts are merged, in the recording, and the paper's word.
const STRATEGIES: [(&str, &str); 2] = [("static", "static"), ("adaptive", "dynamic")];

/// A field of a program over another one.
fn row(what: String, program: &str, field: &str, over: &str) -> Row {
    let of = |field: &str| format!("guest.programs[program={program}].{field}");
    let pick = Pick::new(Recording::Units, of(field)).over(of(over));
    Row::recorded(what, "times", None, pick).note(WHY)
}

/// Rows of one figure of protected programs: each strategy by parts, over another run.
fn protected(figure: &str, field: &str, over: &str) -> Vec<Row> {
    let rows = PROGRAMS.into_iter().flat_map(|program| {
        STRATEGIES.into_iter().flat_map(move |(units, word)| {
            [2, 4].map(move |parts| {
                let what = format!("{program}, {word}, {figure}, {parts} parts");
                let run = format!("runs[subpages={parts};units={units}].{field}");
                row(what, program, &run, over)
            })
        })
    });
    rows.collect()
}

/// Figure 8: what it costs to be a guest whose heap is mapped once per part, without protection.
pub fn figure8() -> Result<Table, RunError> {
    let rows = PROGRAMS.into_iter().flat_map(|program| {
        [1, 2, 4].map(|parts| {
            let what = format!("{program}, virtualised, mapped {parts} times, over native");
            let run = format!("unprotected[where=guest;subpages={parts}].instructions");
            let native = "unprotected[where=natively].instructions";
            row(what, program, &run, native)
        })
    });
    Ok(Table {
        name: "Figure 8, as guests",
        about: "Instructions of programs that are guests, mapped once per part and not tracked, over the same natively on \
                libc's malloc. The paper: at most twice the time.",
        rows: rows.collect(),
        claims: vec![
            Claim::at_most("at most twice the instructions", "mapped", 2.0),
            Claim::less("2 parts cost less than 4", "mapped 2", "mapped 4"),
        ],
        ..Table::default()
    })
}

/// Figure 9: what it costs to be tracked, with parts that stay and parts that merge.
pub fn figure9() -> Result<Table, RunError> {
    let native = "unprotected[where=natively].instructions";
    let mut rows = protected("instructions over native", "instructions", native);
    let pages = "runs[subpages=1;units=static].faults";
    rows.extend(protected("faults over whole pages", "faults", pages));
    Ok(Table {
        name: "Figure 9, as guests",
        about: "Instructions and faults of programs that are guests and tracked, in rounds after the same changes each.",
        rows,
        claims: vec![
            Claim::less("2 parts cost less than 4", "2 parts", "4 parts"),
            Claim::less(
                "the dynamic strategy faults less than the static one",
                "dynamic, faults",
                "static, faults",
            ),
            Claim::less(
                "the dynamic strategy takes fewer instructions than the static one",
                "dynamic, instructions",
                "static, instructions",
            ),
        ],
        ..Table::default()
    })
}

/// Figure 10: what checkpoints of them hold, and what collecting their rounds takes.
pub fn figure10() -> Result<Table, RunError> {
    let pages = |field: &str| format!("runs[subpages=1;units=static].{field}");
    let mut rows = protected(
        "volume over whole pages",
        "volume_bytes",
        &pages("volume_bytes"),
    );
    rows.extend(protected(
        "collects over whole pages",
        "collects_ms",
        &pages("collects_ms"),
    ));
    Ok(Table {
        name: "Figure 10, as guests",
        about: "Bytes of dirty parts in all rounds, which checkpoints would hold, and what the recorder's collects take, in \
                instructions.",
        rows,
        claims: vec![
            Claim::at_most("parts have less volume than whole pages", "volume", 1.0),
            Claim::less(
                "the dynamic strategy reduces the volume of checkpoint data",
                "dynamic, volume",
                "static, volume",
            ),
        ],
        ..Table::default()
    })
}

/// Figure 11: the volume by the changes between two rounds, of our kernel after STAMP's genome.
pub fn figure11() -> Result<Table, RunError> {
    let rows = STRATEGIES.into_iter().flat_map(|(units, word)| {
        ["500", "1000", "4000", "8000"].map(|changes| {
            let what = format!("genome, every {changes} steps, {word}, 4 parts over whole pages");
            let of = |variant: &str| {
                format!("intervals[changes={changes}].runs[{variant}].volume_bytes")
            };
            let run = of(&format!("subpages=4;units={units}"));
            row(what, "genome", &run, &of("subpages=1;units=static"))
        })
    });
    Ok(Table {
        name: "Figure 11, as guests",
        about: "Bytes of dirty parts in all rounds, by the steps between two. The paper: the longer the interval, the smaller \
                the gain.",
        rows: rows.collect(),
        claims: vec![
            Claim::less(
                "the longer the interval, the smaller the gain: 500 to 1,000 steps",
                "every 500 ",
                "every 1000 ",
            ),
            Claim::less(
                "the longer the interval, the smaller the gain: 1,000 to 4,000 steps",
                "every 1000 ",
                "every 4000 ",
            ),
            Claim::less(
                "the longer the interval, the smaller the gain: 4,000 to 8,000 steps",
                "every 4000 ",
                "every 8000 ",
            ),
        ],
        ..Table::default()
    })
}
