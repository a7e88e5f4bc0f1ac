//! The Xen study: MemoryMotion under Debian with shadow page tables (tables 10 and 13, section
//! 3.2).
//!
//! The study's counts are of one machine and one (unprinted) size; what can be compared is how
//! often each function ran per shadow page fault. How often a fault is passed on, fixed or emulated
//! is the algorithm's; the steps of one emulation were read off sums that hold exactly in table 13,
//! so that walks, translations and propagations agree for that reason. The other tables measure
//! Windows or a web server with its devices and are not modelled.

use super::{Claim, Row, Table};
use crate::cost::{CostTable, Payer, price};
use crate::technique::TechniqueKind;
use crate::workload::{Workload, WorkloadKind};
use crate::{Events, RunConfig, RunError, run};

/// `sh_page_fault` in table 13.
const PAGE_FAULTS: f64 = 32_320_864.0;
/// `sh_x86_emulate_cmpxchg` in table 13: one for each page that was freed.
const PAGES: f64 = 10_662_517.0;
/// Pages of each process of ours; the study's size is not printed.
const PROCESS_BYTES: u64 = 64 << 20;

/// MemoryMotion on shadow page tables, four processes of it.
fn memory_motion() -> Result<Events, RunError> {
    let program = Workload {
        kind: WorkloadKind::MemoryMotion,
        bytes: PROCESS_BYTES,
        rounds: 4,
        seed: 0,
    };
    Ok(run(&RunConfig::new(TechniqueKind::Shadow), program.ops())?.total())
}

/// Tables 10 and 13: counts of the shadow code's functions.
pub fn table13() -> Result<Table, RunError> {
    let events = memory_motion()?;
    let faults = events.sh_page_fault as f64;
    let row = |what: &str, paper: f64, ours: u64| {
        Row::new(
            format!("{what} per sh_page_fault"),
            "",
            paper / PAGE_FAULTS,
            ours as f64 / faults,
        )
    };
    let rows =
        vec![
        row("not a shadow fault", 10_715_854.0, events.sh_not_shadow),
        row("fault fixed", 21_479_937.0, events.sh_fixed),
        row("sh_x86_emulate_write", 10_824_508.0, events.sh_emulate_write),
        row("sh_x86_emulate_cmpxchg", 10_662_517.0, events.sh_emulate_cmpxchg),
        row("sh_map_and_validate", 21_487_025.0, events.sh_map_and_validate),
        row("emulate_map_dest", 21_487_025.0, events.sh_emulate_map),
        row("sh_gva_to_gfn", 32_450_648.0, events.sh_gva_to_gfn).why(EMULATION_WHY),
        row("guest_walk_tables", 86_258_537.0, events.sh_guest_walks).why(EMULATION_WHY),
        row("l1e_propagate_from_guest", 43_469_881.0, events.sh_propagate_l1).why(EMULATION_WHY),
        row("get_page_and_type", 10_795_960.0, events.sh_get_page_and_type),
        row("sh_make_shadow", 11_305.0, events.sh_make_shadow).why(
            "a table of ours maps 512 pages, one of the study's 32-bit guest 1024",
        ),
        row("l2e_propagate_from_guest", 95_933.0, events.sh_propagate_upper).why(
            "presumably because a real process has more areas than one (program, libraries, stack)",
        ),
        row("sh_update_cr3", 15_883.0, events.sh_update_cr3).why(
            "presumably because a real system has other processes to switch to; ours has none",
        ),
    ];
    let walks = events.sh_page_fault + events.sh_gva_to_gfn + events.sh_emulate_map;
    let emulated = events.sh_emulate_write + events.sh_emulate_cmpxchg;
    let claims = vec![
        Claim {
            says: "guest_walk_tables = sh_page_fault + sh_gva_to_gfn + emulate_map_dest (exact in table 13)",
            holds: events.sh_guest_walks == walks,
            numbers: format!("{} = {walks}", events.sh_guest_walks),
        },
        Claim {
            says: "sh_map_and_validate = emulated writes + emulated exchanges (exact in table 13)",
            holds: events.sh_map_and_validate == emulated,
            numbers: format!("{} = {emulated}", events.sh_map_and_validate),
        },
    ];
    Ok(Table {
        name: "10 and 13",
        about: "How often the shadow code's functions ran for MemoryMotion on Debian, per sh_page_fault.",
        rows,
        claims,
    })
}

const EMULATION_WHY: &str = "what one emulation takes (a fetch, an operand, the destination, two \
                             propagations) was read off the sums of table 13";

/// Section 3.2: MemoryMotion takes 33 s native and 125 s in the virtual machine.
pub fn memory_motion_time() -> Result<Table, RunError> {
    let events = memory_motion()?;
    let bill = price(&events, PROCESS_BYTES, &CostTable::xen_study());
    let per_page = bill.sum_ns(Payer::Tracked) / events.sh_emulate_cmpxchg as f64;
    let seconds = 33.0 + per_page * PAGES / 1e9;
    Ok(Table {
        name: "Section 3.2",
        about: "MemoryMotion on Debian: native time plus shadow faults and emulation at the study's mean times.",
        rows: vec![Row::new(
            "MemoryMotion in the virtual machine",
            "s",
            125.0,
            seconds,
        )],
        claims: Vec::new(),
    })
}
