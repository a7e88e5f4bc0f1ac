//! The Xen study's tables 9, 11, 12 and 14 to 16: the web server, and Windows.
//!
//! Neither of them is modelled as a program. What the model says of shadow paging can be held
//! against their counts all the same: what one fault and one emulation take (14 to 16), and what
//! the parts of a fault's time come to (9 to 12). A web server of ours, in a guest of KVM, stands
//! beside tables 9 and 14.

use super::xen_kvm::Load;
use super::{Printed, Row, Statement, Table};
use crate::RunError;

/// Counts of tables 13 to 16, and means in nanoseconds.
struct Counts {
    page_fault: (f64, f64),
    gva_to_gfn: f64,
    map_dest: f64,
    emulate_write: (f64, f64),
    emulate_cmpxchg: (f64, f64),
    map_and_validate: f64,
    guest_walks: f64,
    remove_l1: (f64, f64),
    /// Exits of the fault: fixed, for a device, not a shadow fault.
    exits: [(f64, f64); 3],
}

const SPECWEB_DEBIAN: Counts = Counts {
    page_fault: (17_344_499.0, 3591.7),
    gva_to_gfn: 21_223_706.0,
    map_dest: 9_292_585.0,
    emulate_write: (9_031_366.0, 1843.2),
    emulate_cmpxchg: (261_219.0, 1476.9),
    map_and_validate: 9_292_586.0,
    guest_walks: 47_860_790.0,
    remove_l1: (0.0, 0.0),
    exits: [
        (10_938_993.0, 2140.7),
        (2_693_365.0, 4001.6),
        (3_986_234.0, 412.8),
    ],
};

/// Tables 9 and 14, and our own web server.
const WEB: Load = Load {
    test: ("apps", "web"),
    sh_page_fault: SPECWEB_DEBIAN.page_fault.0,
    not_shadow: SPECWEB_DEBIAN.exits[2].0,
    fixed: SPECWEB_DEBIAN.exits[0].0,
    emulate_write: SPECWEB_DEBIAN.emulate_write.0,
    emulate_cmpxchg: SPECWEB_DEBIAN.emulate_cmpxchg.0,
    guest_walks: SPECWEB_DEBIAN.guest_walks,
    propagate_l1: 27_345_619.0,
    make_shadow: 35_863.0,
    update_cr3: 114_702.0,
};

const MOTION_WINDOWS: Counts = Counts {
    page_fault: (86_042_670.0, 5432.5),
    gva_to_gfn: 96_431_759.0,
    map_dest: 75_278_749.0,
    emulate_write: (75_278_737.0, 1690.7),
    emulate_cmpxchg: (12.0, 2064.5),
    map_and_validate: 75_329_616.0,
    guest_walks: 257_753_178.0,
    remove_l1: (4384.0, 12_895.5),
    exits: [(75_555_141.0, 2467.7), (0.0, 0.0), (10_780_573.0, 284.5)],
};

const SPECWEB_WINDOWS: Counts = Counts {
    page_fault: (26_547_825.0, 5723.9),
    gva_to_gfn: 24_509_507.0,
    map_dest: 23_220_915.0,
    emulate_write: (23_214_867.0, 1652.5),
    emulate_cmpxchg: (6064.0, 3308.6),
    map_and_validate: 23_568_635.0,
    guest_walks: 74_278_247.0,
    remove_l1: (626_788.0, 11_859.6),
    exits: [(27_599_474.0, 2557.7), (0.0, 0.0), (3_422_605.0, 409.1)],
};

/// What the model's algorithm of shadow paging says of the study's own counts. Nothing runs.
fn counts(name: &'static str, about: &'static str, counts: &Counts) -> Table {
    let emulated = Printed(counts.emulate_write.0) + Printed(counts.emulate_cmpxchg.0);
    let walks =
        Printed(counts.page_fault.0) + Printed(counts.gva_to_gfn) + Printed(counts.map_dest);
    let row = |what: &str, paper, ours| Row::identity(what, "", Printed(paper), ours, SUMS_WHY);
    Table {
        name,
        absent: None,
        claims: Vec::new(),
        about,
        rows: vec![
            row(
                "guest_walk_tables: one for each fault, translation and destination",
                counts.guest_walks,
                walks,
            ),
            row(
                "sh_map_and_validate: one for each emulated write and exchange",
                counts.map_and_validate,
                emulated,
            ),
            row(
                "emulate_map_dest: one for each of them",
                counts.map_dest,
                emulated,
            ),
        ],
        statements: vec![Statement::identity(
            "a fault is emulated, or ends in one of three ways: emulations are part of the fixed ones",
            emulated.0 <= counts.exits[0].0 * 1.01,
            format!("{:.0} of {:.0}", emulated.0, counts.exits[0].0),
            SUMS_WHY,
        )],
    }
}

const SUMS_WHY: &str = "a sum of the study's other counts; the program is not run";

/// The parts of a fault's time, as the model prices them, against its mean. Nothing runs.
fn time(name: &'static str, about: &'static str, counts: &Counts) -> Table {
    let seconds = |(count, mean): (f64, f64)| Printed(count) * Printed(mean) / Printed(1e9);
    let [fixed, device, other] = counts.exits.map(seconds);
    let emulation = seconds(counts.emulate_write) + seconds(counts.emulate_cmpxchg);
    Table {
        name,
        absent: None,
        claims: Vec::new(),
        about,
        rows: vec![
            Row::identity(
                "sh_page_fault, all of them",
                "s",
                seconds(counts.page_fault),
                fixed + device + other + emulation + seconds(counts.remove_l1),
                SUMS_WHY,
            )
            .note(TIME_WHY),
        ],
        statements: Vec::new(),
    }
}

const TIME_WHY: &str = "the parts are from another run than the whole, which the study says cannot be compared directly, \
                        and propagating entries, which Windows does by whole tables, is in none of them";

/// Says what keeps a run of ours from a table of Windows.
fn of_windows(table: Table) -> Table {
    Table {
        absent: Some(
            "Windows, which nobody may hand on with a test; the model's values are arithmetic on the study's counts",
        ),
        ..table
    }
}

/// Table 9: SPECweb99 on Debian.
pub fn table9() -> Result<Table, RunError> {
    let of = &SPECWEB_DEBIAN;
    let mut table = time(
        "9",
        "SPECweb99 on Debian: the time of shadow faults from its parts. Counts and means are the study's.",
        of,
    );
    let timed = WEB.emulation_over_fault(of.emulate_write.1, of.page_fault.1);
    table.rows.push(timed);
    Ok(table)
}

/// Table 11: SPECweb99 on Windows.
pub fn table11() -> Result<Table, RunError> {
    Ok(of_windows(time(
        "11",
        "SPECweb99 on Windows: the time of shadow faults from its parts. Counts and means are the study's.",
        &SPECWEB_WINDOWS,
    )))
}

/// Table 12: MemoryMotion on Windows.
pub fn table12() -> Result<Table, RunError> {
    Ok(of_windows(time(
        "12",
        "MemoryMotion on Windows: the time of shadow faults from its parts. Counts and means are the study's.",
        &MOTION_WINDOWS,
    )))
}

/// Table 14: SPECweb99 on Debian.
pub fn table14() -> Result<Table, RunError> {
    let mut table = counts(
        "14",
        "SPECweb99 on Debian: sums of the study's other counts, as the model's algorithm has them, and what KVM counts \
         of a web server of ours, which has neither processes nor devices, and so hardly any faults.",
        &SPECWEB_DEBIAN,
    );
    table.rows.extend(WEB.per_fault());
    Ok(table)
}

/// Table 15: MemoryMotion on Windows.
pub fn table15() -> Result<Table, RunError> {
    Ok(of_windows(counts(
        "15",
        "MemoryMotion on Windows: sums of the study's other counts, as the model's algorithm has them.",
        &MOTION_WINDOWS,
    )))
}

/// Table 16: SPECweb99 on Windows.
pub fn table16() -> Result<Table, RunError> {
    Ok(of_windows(counts(
        "16",
        "SPECweb99 on Windows: sums of the study's other counts, as the model's algorithm has them.",
        &SPECWEB_WINDOWS,
    )))
}
