//! HMM-V (Sha et al.): table 6 and figure 7, programs in a machine with huge pages.

use super::hmmv::tier;
use super::{Printed, Row, Table};
use crate::RunError;

/// Table 6: what the programs of figure 7 take.
pub fn table6() -> Result<Table, RunError> {
    let rows = [
        ("PR, 2^27 vertices", 18.0),
        ("PR, 2^29 vertices", 70.0),
        ("BC, 2^27 vertices", 20.0),
        ("BC, 2^29 vertices", 76.0),
        ("graph500, 2^25 vertices", 19.0),
        ("graph500, 2^27 vertices", 76.0),
        ("redis, 8M pairs", 32.0),
        ("redis, 25M pairs", 100.0),
    ];
    Ok(Table {
        name: "6",
        about: "Resident memory of the programs of figure 7. Those of the simulator are some forty huge pages large, and have \
                as much fast memory as 32 GB are of the paper's sizes.",
        rows: rows
            .map(|(what, gib)| Row::input(what, "GB", Printed(gib)))
            .into(),
        ..Table::default()
    })
}

/// A design over pages where they were first touched, which is what the paper's NUMA balancing has
/// of a program that uses all of its memory from the beginning.
fn over_first_touch(program: &str, design: &str) -> super::recording::Pick {
    tier(format!(
        "figure_7.ours[program={program};size=large].over_first_touch.{design}"
    ))
}

/// Figure 7: huge pages.
pub fn figure7() -> Result<Table, RunError> {
    const CACHE: &str = "memory mode, a direct-mapped cache";
    const LISTS: &str = "two lists (Nimble)";
    const POLICY: &str = "the paper's policy";
    const PR: &str = "PageRank";
    const BC: &str = "betweenness centrality";
    const REDIS: &str = "Redis: a fifth of its pages hot, anywhere";
    let large = |program: &str, over: &str| {
        tier(format!(
            "figure_7.ours[program={program};size=large].{over}"
        ))
    };
    let mut rows = vec![
        Row::recorded(
            "what fits, HMM-V over memory mode",
            "times",
            Printed(1.147),
            tier("figure_7.fitting_policy_over_memory_mode"),
        ),
        Row::recorded(
            "PR_L, memory mode over NUMA balancing",
            "times",
            Printed(0.74),
            over_first_touch(PR, CACHE),
        )
        .note(FIRST_TOUCH_WHY),
        Row::recorded(
            "BC_L, Nimble over NUMA balancing",
            "times",
            Printed(1.30),
            over_first_touch(BC, LISTS),
        )
        .note(FIRST_TOUCH_WHY),
        Row::recorded(
            "BC_L, HMM-V over Nimble",
            "times",
            Printed(1.484),
            large(BC, "policy_over_two_lists"),
        )
        .note(LISTS_WHY),
        Row::recorded(
            "BC_L, HMM-V over memory mode",
            "times",
            Printed(1.13),
            large(BC, "policy_over_memory_mode"),
        ),
        Row::recorded(
            "Redis_L, HMM-V over NUMA balancing",
            "times",
            Printed(1.10),
            over_first_touch(REDIS, POLICY),
        )
        .note(REDIS_WHY),
        Row::recorded(
            "Redis_L, Nimble over NUMA balancing",
            "times",
            Printed(0.81),
            over_first_touch(REDIS, LISTS),
        )
        .note(REDIS_WHY),
        Row::recorded(
            "Redis_L, HMM-V over memory mode",
            "times",
            Printed(0.9),
            large(REDIS, "policy_over_memory_mode"),
        )
        .note(REDIS_WHY),
    ];
    for (program, short) in [
        (PR, "PR_L"),
        (BC, "BC_L"),
        ("breadth-first search", "graph500_L"),
        (REDIS, "Redis_L"),
    ] {
        rows.push(Row::recorded(
            format!("{short}, ours over HMM-V"),
            "times",
            None,
            large(program, "ours_over_policy"),
        ));
    }
    Ok(Table {
        name: "Figure 7",
        about: "Programs of table 6 in a machine with huge pages, simulated.",
        rows,
        ..Table::default()
    })
}

const FIRST_TOUCH_WHY: &str = "in place of NUMA balancing: pages where they were first touched, fast memory first; here \
                               the edges of a graph come first, and what is used most, last";
const LISTS_WHY: &str =
    "the paper's Nimble scans often, at a price; ours asks as often as the policy beside it";
const REDIS_WHY: &str =
    "hot pages lie anywhere, so that all huge pages are equally hot here; a cache has lines";
