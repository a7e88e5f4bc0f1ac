//! Prints the papers' tables beside the model's: `cargo run --release --example reproduce`.

#![allow(clippy::print_stdout, reason = "the result of an example")]

use pagetrail_model::reproduce::{Table, flexible, ooh, xen};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let micro = ooh::Micro::run()?;
    let tables = [
        ("OoH", micro.table1()),
        ("OoH", ooh::table3()),
        ("OoH", ooh::agreement(64 << 20)?),
        ("OoH", ooh::table5()?),
        ("OoH", micro.figure3()),
        ("OoH", micro.figure4()),
        ("OoH", ooh::figures10_11()?),
        ("Lu et al.", flexible::figure8()?),
        ("Lu et al.", flexible::figures9_to_11()?),
        ("Xen study", xen::table13()?),
        ("Xen study", xen::memory_motion_time()?),
    ];
    for (paper, table) in &tables {
        print(paper, table);
    }
    Ok(())
}

fn print(paper: &str, table: &Table) {
    println!("{paper}, {}: {}", table.name, table.about);
    for row in &table.rows {
        let difference = row.difference() * 100.0;
        println!(
            "  {:55} {:>12.4} {:>12.4} {:5} {difference:+7.1}%",
            row.what, row.paper, row.ours, row.unit
        );
        if let (Some(why), true) = (row.why, difference.abs() > 10.0) {
            println!("      {why}");
        }
    }
    for claim in &table.claims {
        println!(
            "  {} {}: {}",
            if claim.holds { "holds:" } else { "FAILS:" },
            claim.says,
            claim.numbers
        );
    }
    println!();
}
