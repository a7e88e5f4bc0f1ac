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

/// Table V: which of the tracker's steps grow with the memory that is tracked.
pub fn table5() -> Result<Table, RunError> {
    let mut rows = Vec::new();
    for (paper, technique) in TECHNIQUES {
        for (what, step) in [
            ("start", "arm_ns"),
            ("collect", "collect_ns"),
            ("collect with nothing written", "clean_collect_ns"),
            ("end", "disarm_ns"),
        ] {
            let of = |bytes: u64| {
                format!(
                    "listing1[technique={technique};size_bytes={bytes};tracked=own].steps.{step}.median"
                )
            };
            rows.push(Row::recorded(
                format!("{what}, by {paper}"),
                "times",
                CHART,
                pick(of(10 << 20)).over(of(1 << 20)),
            ));
        }
    }
    Ok(Table {
        name: "Table V, by a log",
        about: "Which of the tracker's steps grow with the memory tracked: instructions of each with 10 MiB over those with \
                1 MiB. The paper says that M18 alone, the copy of the ring, grows for EPML, and M14, M16, M17 and M18 for \
                SPML: the end of logging, a search through the page tables, the reverse mapping, and that copy.",
        rows,
        claims: vec![
            Claim::at_most(
                "EPML's start does not grow with memory",
                "start, by EPML",
                1.05,
            ),
            Claim::at_most("EPML's end does not grow with memory", "end, by EPML", 1.05),
            Claim::less(
                "EPML's collect with nothing written grows less than SPML's",
                "nothing written, by EPML",
                "nothing written, by SPML",
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

/// Figures 7 to 9: tkrzw's engines under CRIU, with fewer records than in the paper.
pub fn engines() -> Result<Table, RunError> {
    const ENGINES: [&str; 5] = ["baby", "cache", "stdhash", "stdtree", "tiny"];
    let mut rows = Vec::new();
    for engine in ENGINES {
        for (by, name) in CHECKPOINTERS {
            let of = |field: &str| format!("engines[engine={engine};bits={name}].{field}");
            let time = |phase: &str, field: &str| {
                pick(of(&format!("phases[phase={phase}].{field}"))).times(1e-3)
            };
            for (what, phase, field) in [
                ("8: memory dump, of all", "pre-dump", "memdump_us"),
                ("8: memory dump, of what was written", "dump", "memdump_us"),
                (
                    "7: memory write, of what was written",
                    "dump",
                    "memwrite_us",
                ),
            ] {
                let what = format!("{what}, by {by}, {engine}");
                rows.push(Row::recorded(what, "M instr.", CHART, time(phase, field)));
            }
            let pages = pick(of("phases[phase=dump].pages_written"));
            let what = format!("pages of the dump, by {by}, {engine}");
            rows.push(Row::recorded(what, "pages", CHART, pages));
            let overhead = pick(of("checkpointed_instructions")).over(of("alone_instructions"));
            rows.push(
                Row::recorded(
                    format!("9: overhead, by {by}, {engine}"),
                    "%",
                    CHART,
                    overhead.times(100.0).plus(-100.0),
                )
                .note(ENGINES_WHY),
            );
        }
    }
    Ok(Table {
        name: "Figures 7 to 9, tkrzw's engines by a log",
        about: "Unmodified CRIU on tkrzw's engines: a pre-dump at a third of the run and a dump at two thirds. Each thread \
                adds 60,000 records in baby and cache, 200,000 in stdhash (7,000 buckets) and stdtree, and 400,000 in tiny \
                (2.4 million buckets); in the paper it is 3 to 5 million.",
        rows,
        claims: vec![
            Claim::less(
                "EPML's memory dumps take less than SPML's",
                "8: memory dump, of what was written, by EPML",
                "8: memory dump, of what was written, by SPML",
            ),
            Claim::less(
                "EPML's memory dumps take less than /proc's",
                "8: memory dump, of what was written, by EPML",
                "8: memory dump, of what was written, by /proc",
            ),
            Claim::at_most(
                "EPML costs the program at most 14%",
                "9: overhead, by EPML",
                14.0,
            ),
        ],
        ..Table::default()
    })
}

const ENGINES_WHY: &str = "CRIU's own start and end are in it, twice, in a run of a second";

/// Bytes: of the log, and of what the tracker reads by system calls, `pagemap` among it.
pub fn bytes() -> Result<Table, RunError> {
    let mut rows = Vec::new();
    for (by, technique) in TECHNIQUES {
        for (size, bytes) in [("1MB", 1 << 20), ("10MB", 10 << 20)] {
            let of = format!("listing1[technique={technique};size_bytes={bytes};tracked=own].run");
            rows.extend(kilobytes(4, &format!("Listing 1, {size}, by {by}"), &of));
        }
    }
    for (paper, program) in COLLECTED {
        for (by, name) in COLLECTORS {
            let of = format!("collector[program={program};by={name}]");
            rows.extend(kilobytes(5, &format!("libgc, {paper}, by {by}"), &of));
        }
    }
    for (by, name) in CHECKPOINTERS {
        let of = format!("checkpointer[bits={name}].phases[phase=dump]");
        rows.extend(kilobytes(8, &format!("CRIU's dump, by {by}"), &of));
    }
    Ok(Table {
        name: "Bytes of a log",
        about: "Of whole runs, that of `pagetrail bench` for Listing 1: 8 bytes for each entry of the log, and all that is \
                read by system calls, among it 8 bytes of pagemap for each page that is looked at. PAGEMAP_SCAN and \
                userfaultfd's events are not among the bytes read.",
        rows,
        ..Table::default()
    })
}

/// The bytes of a run, and those of its log if it reads one.
fn kilobytes(figure: u32, what: &str, of: &str) -> Vec<Row> {
    let row = |kind: &str, field: &str| {
        let kilobytes = pick(format!("{of}.{field}")).times(1e-3);
        Row::recorded(format!("{figure}: {kind}, {what}"), "KB", CHART, kilobytes)
    };
    let mut rows = vec![row("read", "read_bytes")];
    if what.ends_with("PML") {
        rows.push(row("log", "log_bytes"));
    }
    rows
}

/// Figures 10 and 11: guests of KVM at once, each tracked by a log of its own.
pub fn figures10_11() -> Result<Table, RunError> {
    let mut rows = Vec::new();
    for log in ["bitmap", "bitmap, manual protection", "ring"] {
        for (whose, field) in [
            ("10: tracker", "tracker_instructions"),
            ("11: tracked guest", "guest_instructions"),
        ] {
            let of = |guests: u32| format!("guests[log={log};guests={guests}].{field}");
            for guests in 2..=5 {
                rows.push(
                    Row::recorded(
                        format!("{whose}, {log}, {guests} at once, relative to 1"),
                        "times",
                        Printed(1.0),
                        pick(of(guests)).over(of(1)),
                    )
                    .note(AT_ONCE_WHY),
                );
            }
        }
    }
    Ok(Table {
        name: "Figures 10 and 11, by KVM's logs",
        about: "Instructions of a guest that writes 400 pages in each of eight rounds, and of its tracker, while others do \
                the same: KVM with nested paging on an emulated processor, by its bitmap and its dirty ring. The paper has libgc on \
                histogram in each.",
        rows,
        claims: vec![Claim::at_most(
            "tracking one machine costs the same (within 5%) whatever the number of machines",
            "at once",
            1.05,
        )],
        ..Table::default()
    })
}

const AT_ONCE_WHY: &str = "of one thread's own time, in instructions: what machines take from each other's caches and memory bandwidth is \
                           in no count";
