//! The Xen study: MemoryMotion under Debian with shadow page tables (tables 10 and 13, section
//! 3.2).
//!
//! The study's counts are of one machine and one (unprinted) size; what can be compared is how
//! often each function ran per shadow page fault. How often a fault is passed on, fixed or emulated
//! is the algorithm's; the steps of one emulation were read off sums that hold exactly in table 13,
//! so that walks, translations and propagations agree for that reason. The other tables measure
//! Windows or a web server with its devices and are not modelled.

use super::xen_kvm::Load;
use super::{Modelled, Printed, Row, Statement, Table};
use crate::cost::{CostTable, Payer, price};
use crate::technique::TechniqueKind;
use crate::workload::{Workload, WorkloadKind};
use crate::{Events, RunConfig, RunError, run};

/// `sh_page_fault` in table 13.
const PAGE_FAULTS: Printed = Printed(32_320_864.0);
/// `sh_x86_emulate_cmpxchg` in table 13: one for each page that was freed.
const PAGES: Printed = Printed(10_662_517.0);
/// Tables 10 and 13, and our own MemoryMotion.
const MEMORY_MOTION: Load = Load {
    test: ("memory", "motion"),
    sh_page_fault: PAGE_FAULTS.0,
    not_shadow: 10_715_854.0,
    fixed: 21_479_937.0,
    emulate_write: 10_824_508.0,
    emulate_cmpxchg: PAGES.0,
    guest_walks: 86_258_537.0,
    propagate_l1: 43_469_881.0,
    make_shadow: 11_305.0,
    update_cr3: 15_883.0,
};
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
    let per_fault = |count: fn(&Events) -> u64| {
        Modelled::of(&events, |events| {
            count(events) as f64 / events.sh_page_fault as f64
        })
    };
    let what = |what: &str| format!("{what} per sh_page_fault");
    let row = |name: &str, paper: f64, ours| {
        Row::modelled(
            what(name),
            "",
            Printed(paper) / PAGE_FAULTS,
            per_fault(ours),
        )
    };
    let fitted = |name: &str, paper: f64, ours| {
        let paper = Printed(paper) / PAGE_FAULTS;
        Row::fitted(what(name), "", paper, per_fault(ours), EMULATION_WHY)
    };
    let mut rows =
        vec![
        row("not a shadow fault", MEMORY_MOTION.not_shadow, |e| e.sh_not_shadow),
        row("fault fixed", MEMORY_MOTION.fixed, |e| e.sh_fixed),
        row("sh_x86_emulate_write", MEMORY_MOTION.emulate_write, |e| e.sh_emulate_write),
        row("sh_x86_emulate_cmpxchg", MEMORY_MOTION.emulate_cmpxchg, |e| {
            e.sh_emulate_cmpxchg
        }),
        fitted("sh_map_and_validate", 21_487_025.0, |e| {
            e.sh_map_and_validate
        }),
        fitted("emulate_map_dest", 21_487_025.0, |e| e.sh_emulate_map),
        fitted("sh_gva_to_gfn", 32_450_648.0, |e| e.sh_gva_to_gfn),
        fitted("guest_walk_tables", MEMORY_MOTION.guest_walks, |e| e.sh_guest_walks),
        fitted("l1e_propagate_from_guest", MEMORY_MOTION.propagate_l1, |e| {
            e.sh_propagate_l1
        }),
        row("get_page_and_type", 10_795_960.0, |e| {
            e.sh_get_page_and_type
        }),
        row("sh_make_shadow", MEMORY_MOTION.make_shadow, |e| e.sh_make_shadow)
            .note("a table of ours maps 512 pages, one of the study's 32-bit guest 1024"),
        row("l2e_propagate_from_guest", 95_933.0, |e| {
            e.sh_propagate_upper
        })
        .note(
            "presumably because a real process has more areas than one (program, libraries, stack)",
        ),
        row("sh_update_cr3", MEMORY_MOTION.update_cr3, |e| e.sh_update_cr3).note(
            "presumably because a real system has other processes to switch to; ours has none",
        ),
    ];
    rows.extend(MEMORY_MOTION.per_fault());
    rows.push(MEMORY_MOTION.emulation_over_fault(1890.1, 3102.7));
    let walks = events.sh_page_fault + events.sh_gva_to_gfn + events.sh_emulate_map;
    let emulated = events.sh_emulate_write + events.sh_emulate_cmpxchg;
    let statements = vec![
        Statement::identity(
            "guest_walk_tables = sh_page_fault + sh_gva_to_gfn + emulate_map_dest (exact in table 13)",
            events.sh_guest_walks == walks,
            format!("{} = {walks}", events.sh_guest_walks),
            EMULATION_WHY,
        ),
        Statement::identity(
            "sh_map_and_validate = emulated writes + emulated exchanges (exact in table 13)",
            events.sh_map_and_validate == emulated,
            format!("{} = {emulated}", events.sh_map_and_validate),
            EMULATION_WHY,
        ),
    ];
    Ok(Table {
        name: "10 and 13",
        absent: None,
        claims: Vec::new(),
        about: "How often the shadow code's functions ran for MemoryMotion on Debian, per sh_page_fault.",
        rows,
        statements,
    })
}

const EMULATION_WHY: &str = "what one emulation takes (a fetch, an operand, the destination, a validation, two \
                             propagations) was read off the sums of table 13";

/// Section 3.2: MemoryMotion takes 33 s native and 125 s in the virtual machine.
pub fn memory_motion_time() -> Result<Table, RunError> {
    let events = memory_motion()?;
    let bill = price(&events, PROCESS_BYTES, &CostTable::xen_study());
    let per_page = Modelled::of(&(&events, bill), |(events, bill)| {
        bill.sum_ns(Payer::Tracked) / events.sh_emulate_cmpxchg as f64 / 1e9
    });
    Ok(Table {
        name: "Section 3.2",
        absent: None,
        claims: Vec::new(),
        about: "MemoryMotion on Debian: native time plus shadow faults and emulation at the study's mean times.",
        rows: vec![Row::fitted(
            "MemoryMotion in the virtual machine",
            "s",
            Printed(125.0),
            per_page * PAGES + Printed(33.0),
            "that the time of a fixed fault does not contain the emulator's was assumed because only then do the parts \
             come near the 92 s between native and virtual machine",
        )],
        statements: Vec::new(),
    })
}
