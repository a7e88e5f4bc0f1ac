//! Each table comes out, and each difference is accounted for.

use super::*;

fn check(table: &Table) {
    for row in &table.rows {
        let explained = row.difference().abs() <= 0.1 || row.why.is_some();
        assert!(
            explained,
            "table {}: {row:?} is off by {:.0}%",
            table.name,
            row.difference() * 100.0
        );
    }
    for claim in &table.claims {
        assert!(claim.holds, "table {}: {claim:?}", table.name);
    }
}

#[test]
fn ooh() {
    let micro = ooh::Micro::run().unwrap();
    check(&micro.table1());
    check(&ooh::table3());
    check(&ooh::table5().unwrap());
    check(&micro.figure3());
    check(&micro.figure4());
    check(&ooh::figures10_11().unwrap());
    check(&ooh::agreement(8 << 20).unwrap());
}

#[test]
fn flexible() {
    check(&flexible::figure8().unwrap());
    check(&flexible::figures9_to_11().unwrap());
}

#[test]
fn xen() {
    check(&xen::table13().unwrap());
    check(&xen::memory_motion_time().unwrap());
}
