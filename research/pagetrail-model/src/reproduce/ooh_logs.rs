//! The OoH paper's system as it runs on a real kernel: a module drives the log of an emulated
//! processor (EPML) or hypervisor (SPML), beside the kernel's own techniques in the same guest.
//! Times are numbers of instructions.

use super::ooh_machines::COLLECTED;
use super::recording::{Pick, Recording};
use super::{Claim, Printed, Row, Table};
use crate::RunError;

/// A chart without a number for this value, or a value that the paper has not.
const CHART: Option<Printed> = None;
const MILLION: f64 = 1e-6;

/// Techniques as the paper calls them, and as a recording does. The paper's SPML searches the page
/// tables; with owned frames the module asks each frame whose it is.
const TECHNIQUES: [(&str, &str); 6] = [
    ("/proc", "soft-dirty"),
    ("ufd", "userfaultfd"),
    ("pagemap-scan", "pagemap-scan"),
    ("SPML", "spml-search"),
    ("owned SPML", "spml"),
    ("EPML", "epml"),
];
/// How libgc learns what was written.
const COLLECTORS: [(&str, &str); 6] = [
    ("mprotect", "mprotect"),
    ("/proc", "soft-dirty of the kernel"),
    ("pagemap-scan", "pagetrail for collectors"),
    ("SPML", "spml-search"),
    ("owned SPML", "spml"),
    ("EPML", "epml"),
];
/// Whose bits CRIU gets.
const CHECKPOINTERS: [(&str, &str); 5] = [
    ("/proc", "kernel"),
    ("pagemap-scan", "ours"),
    ("SPML", "spml-search"),
    ("owned SPML", "spml"),
    ("EPML", "epml"),
];

fn pick(path: String) -> Pick {
    Pick::new(Recording::OohGuest, path)
}

/// Table I and figure 4: Listing 1 with every technique in one guest.
pub fn listing1() -> Result<Table, RunError> {
    let mut rows = Vec::new();
    for (paper, technique) in TECHNIQUES {
        for (size, bytes) in [("1MB", 1 << 20), ("10MB", 10 << 20)] {
            for (whose, field) in [
                ("tracked", "overhead_on_tracked_percent"),
                ("tracker", "overhead_on_tracker_percent"),
            ] {
                let of = format!("listing1[technique={technique};size_bytes={bytes};tracked=own]");
                let overhead = pick(format!("{of}.{field}.median"));
                let what = format!("on {whose}, by {paper}, {size}");
                rows.push(Row::recorded(what, "%", CHART, overhead));
            }
        }
    }
    Ok(Table {
        name: "Table I and figure 4, by a log",
        about: "Overhead on Listing 1 in instructions, of a program that tracks itself, over an untracked pass. Of the \
                tracker: start, tracked pass and one collect.",
        rows,
        claims: vec![
            Claim::at_most(
                "EPML costs a tracked pass at most 0.6%",
                "on tracked, by EPML",
                0.6,
            ),
            Claim::less(
                "EPML costs the tracker less than SPML",
                "on tracker, by EPML",
                "on tracker, by SPML",
            ),
            Claim::less(
                "EPML costs the tracker less than /proc",
                "on tracker, by EPML",
                "on tracker, by /proc",
            ),
            Claim::less(
                "EPML costs the tracker less than pagemap-scan",
                "on tracker, by EPML",
                "on tracker, by pagemap-scan",
            ),
        ],
        ..Table::default()
    })
}

/// Figures 5 and 6: Boehm's collector, unmodified.
pub fn figures5_6() -> Result<Table, RunError> {
    let mut rows = Vec::new();
    for (paper, program) in COLLECTED {
        for (by, name) in COLLECTORS {
            let of = |field: &str| format!("collector[program={program};by={name}].{field}");
            let collecting = pick(of("collecting_instructions")).times(MILLION);
            rows.push(Row::recorded(
                format!("5: collections by {by}, {paper}"),
                "M instr.",
                CHART,
                collecting,
            ));
            rows.push(Row::recorded(
                format!("6: page faults by {by}, {paper}"),
                "faults",
                CHART,
                pick(of("faults")),
            ));
        }
        let entries =
            |by: &str, of: &str| format!("collector[program={program};by={by}].entries_{of}");
        let ratio = pick(entries("spml-search", "by_frame")).over(entries("epml", "by_address"));
        rows.push(
            Row::recorded(
                format!("N of SPML over N of EPML, {paper}"),
                "times",
                CHART,
                ratio,
            )
            .note(N_WHY),
        );
    }
    Ok(Table {
        name: "Figures 5 and 6, by a log",
        about: "Unmodified libgc on our programs in their smallest size: instructions within collections, and page \
                faults of the whole run. The collector reads its bits several times in each collection, and each \
                read ends a round of the log.",
        rows,
        claims: vec![
            Claim::less(
                "EPML's collections take less than SPML's",
                "5: collections by EPML",
                "5: collections by SPML",
            ),
            Claim::less(
                "EPML's collections take less than /proc's",
                "5: collections by EPML",
                "5: collections by /proc",
            ),
            Claim::less(
                "EPML has fewer page faults than /proc",
                "6: page faults by EPML",
                "6: page faults by /proc",
            ),
        ],
        ..Table::default()
    })
}

const N_WHY: &str = "SPML's log has all stores of the guest; EPML has a second log, of the kernel's own stores by page frame";

/// Figures 7 to 9: CRIU, unmodified.
pub fn figures7_to_9() -> Result<Table, RunError> {
    let mut rows = Vec::new();
    for (by, name) in CHECKPOINTERS {
        let of = |field: &str| pick(format!("checkpointer[bits={name}].{field}"));
        for (what, phase, field) in [
            ("8: memory dump, of all", "pre-dump", "memdump_us"),
            ("8: memory dump, of what was written", "dump", "memdump_us"),
            (
                "7: memory write, of what was written",
                "dump",
                "memwrite_us",
            ),
        ] {
            let time = of(&format!("phases[phase={phase}].{field}")).times(1e-3);
            rows.push(Row::recorded(
                format!("{what}, by {by}"),
                "M instr.",
                CHART,
                time,
            ));
        }
        let pages = of("phases[phase=dump].pages_written");
        rows.push(Row::recorded(
            format!("pages of the last dump, by {by}"),
            "pages",
            CHART,
            pages,
        ));
    }
    Ok(Table {
        name: "Figures 7 to 9, by a log",
        about: "Unmodified CRIU: two pre-dumps and a dump of a program that writes a hundredth of its 16 MiB in between.",
        rows,
        claims: vec![
            Claim::less(
                "EPML's dumps take less than SPML's",
                "of what was written, by EPML",
                "of what was written, by SPML",
            ),
            Claim::less(
                "EPML's dumps take less than /proc's",
                "of what was written, by EPML",
                "of what was written, by /proc",
            ),
        ],
        ..Table::default()
    })
}
