//! Lu et al.: figures 8 to 11 are charts without numbers; what the text says of them is checked.

use super::{Statement, Table};
use crate::technique::TechniqueKind;
use crate::workload::{Workload, WorkloadKind};
use crate::{Report, RunConfig, RunError, run};

/// A store of small records under incremental checkpoints, at `parts` to a page.
fn checkpoints(parts: u32, dynamic: bool) -> Result<Report, RunError> {
    let store = Workload {
        kind: WorkloadKind::KeyValue,
        bytes: 16 << 20,
        rounds: 12,
        seed: 1,
    };
    // Requests enough to write some parts of most pages between two checkpoints.
    run(
        &RunConfig::new(TechniqueKind::Lu { parts, dynamic }),
        store.ops(),
    )
}

/// Faults for tracking, and bytes that a checkpoint copies, over all rounds.
fn faults_and_bytes(report: &Report) -> (u64, u64) {
    let units: u64 = report.rounds.iter().map(|round| round.reported).sum();
    (report.monitor().ept_write_faults, units * report.unit_bytes)
}

/// Figures 9 to 11: faults and checkpoint data with whole pages, 2 and 4 parts, static and dynamic.
pub fn figures9_to_11() -> Result<Table, RunError> {
    let [page, two, four] = [1, 2, 4].map(|parts| checkpoints(parts, false));
    let [two_dynamic, four_dynamic] = [2, 4].map(|parts| checkpoints(parts, true));
    let (page, two, four) = (
        faults_and_bytes(&page?),
        faults_and_bytes(&two?),
        faults_and_bytes(&four?),
    );
    let (two_dynamic, four_dynamic) = (
        faults_and_bytes(&two_dynamic?),
        faults_and_bytes(&four_dynamic?),
    );
    let statements = vec![
        Statement::modelled(
            "2 parts fault less than 4 parts",
            two.0 < four.0,
            format!(
                "{} against {} faults ({} with whole pages)",
                two.0, four.0, page.0
            ),
        ),
        Statement::modelled(
            "the dynamic strategy faults less than the static one",
            two_dynamic.0 < two.0 && four_dynamic.0 < four.0,
            format!(
                "{} against {} with 2 parts, {} against {} with 4",
                two_dynamic.0, two.0, four_dynamic.0, four.0
            ),
        ),
        Statement::modelled(
            "4 parts copy less than 2 parts, and these less than whole pages",
            four.1 < two.1 && two.1 < page.1,
            format!("{}, {} and {} KiB", four.1 >> 10, two.1 >> 10, page.1 >> 10),
        ),
        Statement::modelled(
            "the dynamic strategy reduces the volume of checkpoint data",
            two_dynamic.1 < two.1 && four_dynamic.1 < four.1,
            format!(
                "{} against {} KiB with 2 parts, {} against {} with 4",
                two_dynamic.1 >> 10,
                two.1 >> 10,
                four_dynamic.1 >> 10,
                four.1 >> 10
            ),
        ),
        Statement::modelled(
            "for the same number of checkpoints, merging copies more than not merging",
            two_dynamic.1 >= two.1 && four_dynamic.1 >= four.1,
            format!(
                "{} against {} KiB with 2 parts, {} against {} with 4",
                two_dynamic.1 >> 10,
                two.1 >> 10,
                four_dynamic.1 >> 10,
                four.1 >> 10
            ),
        ),
    ];
    Ok(Table {
        name: "Figures 9 to 11",
        about: "A store of 256-byte records, 12 checkpoints. Not modelled: that fewer faults make for fewer checkpoints, from which \
                the paper's smaller volume comes.",
        rows: Vec::new(),
        statements,
    })
}

/// Figure 8: more windows need more of the TLB.
pub fn figure8() -> Result<Table, RunError> {
    let misses = |parts| -> Result<f64, RunError> {
        let report = checkpoints(parts, false)?;
        let events = report.monitor();
        Ok(events.tlb_misses as f64 / events.accesses as f64)
    };
    let [one, two, four] = [misses(1)?, misses(2)?, misses(4)?];
    Ok(Table {
        name: "Figure 8",
        about: "TLB misses per access of the same store.",
        rows: Vec::new(),
        statements: vec![Statement::modelled(
            "dividing pages costs TLB misses",
            one < two && two < four,
            format!("{one:.3} with whole pages, {two:.3} with 2 parts, {four:.3} with 4"),
        )],
    })
}
