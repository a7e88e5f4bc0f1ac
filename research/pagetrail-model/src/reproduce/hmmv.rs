//! HMM-V (Sha et al.): tables 1 to 5 and figures 2 to 6 and 8; what is of huge pages is in
//! [`hmmv_huge`](super::hmmv_huge).
//!
//! Nothing of it runs here: the policies are simulated by `pagetrail-tier`, at the latencies and
//! bandwidths of table 2, and the faults of moving pages counted in a guest; what comes of both is
//! recorded. Of the charts, the text prints some numbers.

use super::recording::{Pick, Recording};
use super::{Printed, Row, Table};
use crate::RunError;

/// A chart without a number for this value.
const CHART: Option<Printed> = None;

/// The designs that the simulator has, and what the paper's charts call them.
const DESIGNS: [(&str, &str); 5] = [
    ("ours", "ours"),
    ("the paper's policy", "HMM-V"),
    ("full scan, no queue", "+EPT scanner"),
    ("fixed threshold (HeMem)", "+fixed threshold"),
    ("two lists (Nimble)", "Nimble's lists"),
];
const POLICY: &str = "the paper's policy";

pub(super) fn tier(path: impl Into<String>) -> Pick {
    Pick::new(Recording::Tier, path)
}

/// Performance of a design on a workload, all memory fast being 1.
fn performance(figure: &str, workload: &str, fast: u32, design: &str) -> Pick {
    tier(format!(
        "{figure}.ours[workload={workload};fast_percent={fast}].designs[design={design}].performance.latency"
    ))
}

/// Table 1: what earlier designs do, in words.
pub fn table1() -> Result<Table, RunError> {
    Ok(Table {
        name: "1",
        about: "Designs of heterogeneous memory management, compared in words.",
        absent: Some(
            "the table has words and no numbers; what each design does stands in the paper",
        ),
        ..Table::default()
    })
}

/// Table 2: what the two memories take.
pub fn table2() -> Result<Table, RunError> {
    let row = |what: &str, unit, value| Row::input(what, unit, Printed(value));
    Ok(Table {
        name: "2",
        about: "Latency and bandwidth of DRAM and PMem: the simulator's prices.",
        rows: vec![
            row("DRAM, read latency", "ns", 81.0),
            row("DRAM, write latency", "ns", 82.0),
            row("PMem, read latency", "ns", 310.0),
            row("PMem, write latency", "ns", 94.0),
            row("DRAM, read bandwidth", "GB/s", 120.0),
            row("DRAM, write bandwidth", "GB/s", 82.0),
            row("PMem, read bandwidth", "GB/s", 37.0),
            row("PMem, write bandwidth", "GB/s", 13.0),
        ],
        ..Table::default()
    })
}

/// Figure 2: what tracking costs with the queue, beside a scan of everything.
pub fn figure2() -> Result<Table, RunError> {
    let part = |hot: u32| {
        let path = format!("figure_2.ours[hot_percent={hot}].part");
        let what = format!("{hot}% hot, questions with the queue over all questions");
        Row::recorded(what, "of 1", CHART, tier(path))
    };
    let mut rows: Vec<Row> = [10, 20, 40, 60, 80].map(part).into();
    rows.push(
        Row::recorded(
            "Redis, questions with the queue over all questions (paper: at most)",
            "of 1",
            Printed(0.5),
            Pick::new(
                Recording::TierPrograms,
                "ours[program=redis-server].figure_2.part",
            ),
        )
        .note("the paper: tracking is less than half as slow, in the geometric mean"),
    );
    Ok(Table {
        name: "Figure 2",
        about: "Page tracking with the multi-level queue against scanning everything. Ours pays a fault for each \
                question, the paper's an accessed bit: questions are compared, not slowdowns (2.6% against 20% for \
                429.mcf, which is licensed and not run).",
        rows,
        ..Table::default()
    })
}

/// Figure 3: whether the queue keeps the order of pages.
pub fn figure3() -> Result<Table, RunError> {
    let mut rows = Vec::new();
    for (queue, words) in [(true, "with the queue"), (false, "without it")] {
        for which in ["hot", "cold"] {
            let field = format!("mean_degree_of_{which}");
            let path = format!("ours[program=redis-server].figure_3[queue={queue}].{field}");
            rows.push(Row::recorded(
                format!("Redis, degree of {which} pages, {words}"),
                "windows",
                CHART,
                Pick::new(Recording::TierPrograms, path),
            ));
            rows.push(Row::recorded(
                format!("hot fifth, degree of {which} pages, {words}"),
                "windows",
                CHART,
                tier(format!("figure_3.ours[queue={queue}].{field}")),
            ));
        }
    }
    Ok(Table {
        name: "Figure 3",
        about: "Access frequency of hot and cold pages with and without the queue. The paper: the hot fifth stands out \
                with both, a little higher with the queue; that does not come out here.",
        rows,
        ..Table::default()
    })
}

/// The four sizes of tables 3 to 5, in GB.
const SIZES: [u32; 4] = [2, 4, 8, 16];

fn migration(name: &'static str, about: &'static str, access: &str, paper: [[f64; 4]; 4]) -> Table {
    let pick = |field: &str| tier(format!("tables_3_and_4.{access}.{field}"));
    let mut rows = Vec::new();
    for (gib, [slow, linux, protect, logged]) in SIZES.into_iter().zip(paper) {
        rows.push(Row::calibrated(
            format!("{gib} GB, all in slow memory"),
            "%",
            Printed(slow),
            pick("all_slow_percent"),
            "the price of a slow access is the mean of these four rows",
        ));
        rows.push(
            Row::recorded(
                format!("{gib} GB, moved by raw Linux"),
                "%",
                Printed(linux),
                pick("moved_percent"),
            )
            .note(MOVED_WHY),
        );
        for (how, paper) in [("write protection", protect), ("PML", logged)] {
            let what = format!("{gib} GB, moved by {how}");
            rows.push(Row::paper_alone(what, "%", Printed(paper)).note(ALONE_WHY));
        }
        rows.push(
            Row::recorded(
                format!("{gib} GB, moved and tracked by ours"),
                "%",
                CHART,
                pick("tracked_and_moved_percent"),
            )
            .note("the paper tracks by accessed bits of the guest's tables, ours by faults"),
        );
    }
    Table {
        name,
        about,
        rows,
        ..Table::default()
    }
}

const MOVED_WHY: &str = "simulated for one size: an assumed 2 us for each moved page, times a count, for reads and writes \
                         alike";
const ALONE_WHY: &str = "the simulator has one mover, the kernel's";

/// Table 3: what migration costs a program that reads.
pub fn table3() -> Result<Table, RunError> {
    Ok(migration(
        "3",
        "Slowdown of random reads in slow memory, and while their pages move.",
        "random_read",
        [
            [62.8, 6.9, 0.7, 0.1],
            [60.6, 7.0, 2.8, 1.5],
            [72.1, 7.6, 3.1, 1.7],
            [78.0, 8.0, 3.3, 2.2],
        ],
    ))
}

/// Table 4: what migration costs a program that writes.
pub fn table4() -> Result<Table, RunError> {
    Ok(migration(
        "4",
        "Slowdown of random writes in slow memory, and while their pages move.",
        "random_write",
        [
            [188.2, 4.8, 0.7, 0.3],
            [190.6, 5.0, 3.6, 1.8],
            [189.8, 5.4, 5.7, 2.5],
            [183.5, 10.0, 8.4, 3.4],
        ],
    ))
}

/// Table 5: exits for each page that moves. The paper's counts are of 2 GB, over 524,288 pages.
pub fn table5() -> Result<Table, RunError> {
    let faults = |design: &str, access: &str| {
        let path = format!("designs[design={design}].{access}.faults_per_moved_page");
        Pick::new(Recording::TierFaults, path)
    };
    let per_page = |thousands: f64| Printed(thousands * 1000.0) / Printed(524_288.0);
    let mut rows = Vec::new();
    let paper = [
        ("read", [523.0, 526.0, 1.0]),
        ("write", [524.0, 1030.0, 1.0]),
    ];
    for (access, [linux, protect, logged]) in paper {
        rows.push(
            Row::recorded(
                format!("raw Linux, {access}"),
                "per page",
                per_page(linux),
                faults("move_pages, all at once and without asking", access),
            )
            .note(FAULTS_WHY),
        );
        rows.push(
            Row::recorded(
                format!("PML (at most), {access}"),
                "per page",
                per_page(logged),
                faults("move_pages, all at once and without asking", access),
            )
            .note(FAULTS_WHY),
        );
        rows.push(
            Row::recorded(
                format!("write protection, {access}"),
                "per page",
                per_page(protect),
                faults("write-protected and copied, UFFDIO_MOVE", access),
            )
            .note(PROTECTED_WHY),
        );
        for design in [
            "ours (access-scan, move_pages)",
            "numa_balancing=2 with demotion",
        ] {
            rows.push(
                Row::recorded(
                    format!("{design}, {access}"),
                    "per page",
                    CHART,
                    faults(design, access),
                )
                .note("the questions about each page are among the faults"),
            );
        }
    }
    Ok(Table {
        name: "5",
        about: "Exits to the hypervisor for each moved page (of the paper's 2 GB); ours are a process's minor faults, by \
                the kernel's count.",
        rows,
        ..Table::default()
    })
}

const FAULTS_WHY: &str = "there is no hypervisor whose tables forget a page that moves: move_pages(2) maps it anew itself";
const PROTECTED_WHY: &str = "the program replaces its own pages, 64 under protection at once, by UFFDIO_MOVE, which maps the copy itself; a \
                             thread that waits for one of them raises no second fault";

/// Figure 4: what each part of the design brings.
pub fn figure4() -> Result<Table, RunError> {
    let mut rows = Vec::new();
    for (workload, fast, paper) in [
        ("sequential", 22, [0.87, 0.87 / 1.032, 0.87 / 1.65]),
        (
            "breadth-first search",
            20,
            [0.87, 0.87 / 1.039, 0.87 / 1.094],
        ),
    ] {
        let [all, scanner, threshold] = paper.map(|value| Some(Printed(value)));
        let papers = [CHART, all, scanner, threshold, CHART];
        for ((design, name), paper) in DESIGNS.into_iter().zip(papers) {
            let row = Row::recorded(
                format!("{workload}, {name}"),
                "of all fast",
                paper,
                performance("figure_4", workload, fast, design),
            );
            rows.push(match paper {
                Some(_) => row.note(FIGURE4_WHY),
                None => row,
            });
        }
    }
    Ok(Table {
        name: "Figure 4",
        about: "A hot fifth of memory that is gone through and moves every five minutes, and breadth-first search after \
                graph500. The paper's values follow from its text: more than 0.87 of all fast, 3.2% and 3.9% ahead of \
                the scanner, 65% and 9.4% ahead of the fixed threshold. No migration by PML, no NUMA balancing in a \
                guest.",
        rows,
        ..Table::default()
    })
}

const FIGURE4_WHY: &str = "how often the paper's hot set moves and how long a window is then decide; the fixed threshold \
                           of 4 in 8 windows suits ours, and the paper's own policy loses to it";

/// Figure 5: hot sets that stay, and that move.
pub fn figure5() -> Result<Table, RunError> {
    let mut rows = Vec::new();
    for hot in [10, 20, 40, 80] {
        let workload = format!("{hot}% hot");
        for (design, name) in [DESIGNS[0], DESIGNS[1]] {
            let fits = hot <= 40 && design == POLICY;
            let row = Row::recorded(
                format!("fixed, {workload}, {name}"),
                "of all fast",
                fits.then_some(Printed(0.93)),
                performance("figure_5a", &workload, 50, design),
            );
            rows.push(match fits {
                true => row.note(FIGURE5_WHY),
                false => row,
            });
        }
    }
    for (design, name) in [DESIGNS[0], DESIGNS[1]] {
        let row = Row::recorded(
            format!("moving, 25% hot, {name}"),
            "of all fast",
            (design == POLICY).then_some(Printed(0.94)),
            performance("figure_5b", "moving, 25% hot", 50, design),
        );
        rows.push(match design {
            POLICY => row.note(FIGURE5_WHY),
            _ => row,
        });
    }
    Ok(Table {
        name: "Figure 5",
        about: "Random accesses, nine tenths of them to the hot set, half of memory fast. The text: more than 0.93 of \
                all fast while the hot set fits, 0.94 where it moves.",
        rows,
        ..Table::default()
    })
}

const FIGURE5_WHY: &str = "a tenth of the accesses goes anywhere, half of it to slow memory: at the latencies of table 2 \
                           no placement reaches 0.931";

/// Figure 6: by how much memory is fast.
pub fn figure6() -> Result<Table, RunError> {
    let mut rows = Vec::new();
    let graph = [(20, Some(0.79)), (40, None), (60, None), (80, Some(0.90))];
    let rank = [(10, Some(1.0)), (20, Some(1.0)), (40, Some(1.0))];
    let row = |name: &str, fast: u32, paper: Option<f64>, pick| {
        let what = format!("{name}, {fast}% fast");
        let row = Row::recorded(what, "of all fast", paper.map(Printed), pick);
        match paper {
            Some(_) => row.note(FIGURE6_WHY),
            None => row,
        }
    };
    for (fast, paper) in graph {
        let pick = performance("figure_6", "breadth-first search", fast, POLICY);
        rows.push(row("graph500 (breadth-first search)", fast, paper, pick));
    }
    for (fast, paper) in rank {
        let pick = performance("figure_6", "PageRank", fast, POLICY);
        rows.push(row("page rank", fast, paper, pick));
    }
    for (fast, paper) in [(10, Some(0.70)), (20, None), (30, None), (50, None)] {
        let path = format!(
            "ours[program=redis-server].figure_6[fast_percent={fast}].designs[design={POLICY}].performance.latency"
        );
        let pick = Pick::new(Recording::TierPrograms, path);
        rows.push(row("Redis", fast, paper, pick));
    }
    Ok(Table {
        name: "Figure 6",
        about: "The paper's policy by how much memory is fast. 649.fotonik3d_s is licensed and not run.",
        rows,
        ..Table::default()
    })
}

const FIGURE6_WHY: &str = "the programs here are ours or recorded in a guest; PageRank reads every edge in every pass, \
                           the paper's hardly leaves one gigabyte";

/// Figure 8: four programs, islands against a pool.
pub fn figure8() -> Result<Table, RunError> {
    let mut rows = vec![
        Row::recorded(
            "a, pool over islands, geometric mean",
            "times",
            Printed(1.12),
            tier("figure_8.ours.pool_against_islands"),
        )
        .note(
            "the first program's extra 1.9 GB were chosen for the paper's outcome, and it alone is priced by \
             bandwidth; what one program's moves cost the others is not priced",
        ),
        Row::recorded(
            "a, fast memory that the pool uses",
            "of 1",
            Printed(28.5) / Printed(32.0),
            tier("figure_8.ours.fast_memory_used"),
        ),
    ];
    for (program, name) in [
        ("649.fotonik3d_s: streams", "streams for 649.fotonik3d_s"),
        ("graph500", "graph500"),
        ("Redis", "redis"),
        ("PageRank", "page rank"),
    ] {
        for mode in ["island", "pool"] {
            rows.push(Row::recorded(
                format!("a, {name}, {mode}"),
                "of all fast",
                CHART,
                tier(format!("figure_8.ours.programs[program={program}].{mode}")),
            ));
        }
    }
    for (what, times, path, note) in [
        (
            "a, islands over NUMA balancing",
            1.35,
            "figure_8.ours.islands_against_first_touch",
            "in place of NUMA balancing: pages where they were first touched, fast memory first",
        ),
        (
            "a, islands over memory mode",
            1.17,
            "figure_8.ours.islands_against_memory_mode",
            "filling the cache and writing back are not priced",
        ),
    ] {
        rows.push(Row::recorded(what, "times", Printed(times), tier(path)).note(note));
    }
    for (what, times) in [
        ("b, huge pages, islands over memory mode", 1.093),
        ("b, huge pages, pool over memory mode", 1.139),
    ] {
        rows.push(
            Row::paper_alone(what, "times", Printed(times))
                .note("the four programs are simulated in small pages"),
        );
    }
    Ok(Table {
        name: "Figure 8",
        about: "Four programs at once with a share of fast memory each (islands), or by need (a pool).",
        rows,
        ..Table::default()
    })
}
