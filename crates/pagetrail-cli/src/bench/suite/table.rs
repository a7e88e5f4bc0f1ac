//! The suite as a table for people.

use std::io::{self, Write};

use super::results::{Presumed, Suite};

/// Writes it, a line for each technique on each workload.
pub(crate) fn write(suite: &Suite, out: &mut dyn Write) -> io::Result<()> {
    writeln!(
        out,
        "{:<22} {:>6} {:<13} {:>9} {:>9} {:>9} {:>9} {:>6} {:>10} {:>9} {:>9} {:>7}",
        "workload",
        "round",
        "technique",
        "overhead",
        "faults",
        "written",
        "reported",
        "ratio",
        "collect",
        "presumed",
        "avoided",
        "calls"
    )?;
    for row in &suite.rows {
        for measured in &row.techniques {
            write!(
                out,
                "{:<22} {:>4}ms {:<13} {:>8.1}% {:>9.0} {:>9.0} {:>9.0} {:>6.2} {:>8.0}us",
                row.name,
                row.round_ms,
                measured.technique,
                measured.overhead_percent.median,
                measured.faults_per_round.median,
                measured.written_per_round.median,
                measured.reported_per_round.median,
                measured.reported_per_written.median,
                measured.collect_us.median,
            )?;
            presumed(measured.presumption.as_ref(), out)?;
        }
    }
    for row in &suite.programs {
        for measured in &row.techniques {
            write!(
                out,
                "{:<22} {:>4}ms {:<13} {:>8.1}% {:>9.0} {:>9} {:>9.0} {:>6} {:>8.0}us",
                row.name,
                row.round_ms,
                measured.technique,
                measured.overhead_percent.median,
                measured.faults.median / measured.rounds.median.max(1.0),
                "",
                measured.reported_per_round.median,
                "",
                measured.collect_us.median,
            )?;
            presumed(measured.presumption.as_ref(), out)?;
        }
    }
    for (technique, reason) in &suite.absent {
        writeln!(out, "not here: {technique}: {reason}")?;
    }
    for name in &suite.missing {
        writeln!(out, "not here: {name}")?;
    }
    Ok(())
}

fn presumed(told: Option<&Presumed>, out: &mut dyn Write) -> io::Result<()> {
    match told {
        Some(told) => writeln!(
            out,
            " {:>9.0} {:>9.0} {:>7.0}",
            told.presumed_per_round.median,
            told.faults_avoided_per_round.median,
            told.calls_per_round.median
        ),
        None => writeln!(out),
    }
}
