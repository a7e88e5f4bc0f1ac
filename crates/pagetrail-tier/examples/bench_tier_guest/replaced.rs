//! Moving pages as the paper does, by a copy that is made while the program runs, beside
//! `move_pages(2)`: its faults for table 5, and how long a thread waits that reads what moves.

use serde_json::{Value, json};

use crate::program::Built;
use crate::{Error, round};

/// Of 4 KiB.
const PAGES: u64 = 10_000;
/// Regions of 2 MiB, each of which moves once.
const REGIONS: u64 = 64;

/// What happens to memory while it is read, by the word that `wait.c` has for it.
const WAITS: [(&str, &str); 5] = [
    ("still", "nothing moves"),
    ("small", "a page of 4 KiB, by move_pages"),
    ("batch", "512 pages of 4 KiB in one call of move_pages"),
    ("huge", "a page of 2 MiB, by move_pages"),
    (
        "replaced",
        "a page of 2 MiB, write-protected, copied, and replaced by UFFDIO_MOVE",
    ),
];

fn row(built: &Built, how: &str, access: &str) -> Result<Value, Error> {
    let numbers = built.numbers("remap", &["cost", how, access, &PAGES.to_string()])?;
    let moved = numbers["moved"];
    Ok(json!({
        "moved_pages": moved,
        "on_the_fast_node": numbers["fast"],
        "copied_again": numbers["again"],
        "faults": numbers["faults"],
        "faults_per_moved_page": round(numbers["faults"] as f64 / moved.max(1) as f64),
        "its_memory_is_intact": numbers["wrong"] == 0,
    }))
}

/// Rows of table 5: a page is taken out of its place, and a copy of it on the fast node put there.
pub(crate) fn rows(built: &Built) -> Vec<Value> {
    let designs = [
        ("copied while it is used, UFFDIO_MOVE", "copy"),
        ("write-protected and copied, UFFDIO_MOVE", "protect"),
    ];
    let row = |(name, how): (&str, &str)| {
        eprintln!("{name}");
        let with = |access| {
            row(built, how, access).unwrap_or_else(|error| json!({ "not_here": error.to_string() }))
        };
        json!({ "design": name, "read": with("read"), "write": with("write") })
    };
    designs.into_iter().map(row).collect()
}

/// The longest access of a thread that reads a page all the time, while it moves: in copies of
/// 2 MiB by a program, because times of an emulated machine say nothing by themselves.
pub(crate) fn waits(built: &Built) -> Vec<Value> {
    let wait = |(how, what): (&str, &str)| {
        eprintln!("{what}");
        let numbers = match built.numbers("wait", &[how, &REGIONS.to_string()]) {
            Ok(numbers) => numbers,
            Err(error) => return json!({ "moves": what, "not_here": error.to_string() }),
        };
        let copy = numbers["copy_ns_median"].max(1) as f64;
        let in_copies = |name: &str| round(numbers[name] as f64 / copy);
        json!({
            "moves": what,
            "regions": REGIONS,
            "of_them_on_the_fast_node": numbers["moved"],
            "huge_pages": { "before": numbers["had"], "after": numbers["huge"] },
            "faults": numbers["faults"],
            "wait_in_copies_of_2_mib": {
                "median": in_copies("wait_ns_median"),
                "most": in_copies("wait_ns_most"),
            },
            "copy_of_2_mib_us": round(copy / 1000.0),
            "its_memory_is_intact": numbers["wrong"] == 0,
        })
    };
    WAITS.into_iter().map(wait).collect()
}
