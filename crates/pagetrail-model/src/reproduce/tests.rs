//! Each table comes out, and each difference is accounted for.

use super::catalog::Paper;
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

fn check_all(paper: Paper) {
    for entry in paper.entries() {
        check(&entry.make().unwrap());
    }
}

#[test]
fn ooh() {
    check_all(Paper::Ooh);
}

#[test]
fn flexible() {
    check_all(Paper::Flexible);
}

#[test]
fn xen() {
    check_all(Paper::Xen);
}
