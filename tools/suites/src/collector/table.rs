//! The collector's results as a text table: for each program and size, each provider beside
//! `mprotect`.

use std::fmt::Write;

use anyhow::{Context, Result};
use serde_json::Value;

/// Times in milliseconds; ratios to libgc's own `mprotect` mode, and where there is one to the
/// kernel's soft-dirty.
pub(super) fn render(results: &Value) -> Result<String> {
    let kernel = results["kernel"].as_str().unwrap_or_default();
    let rows = results["results"].as_array().context("no results")?;
    let mut text = format!(
        "libgc on Linux {kernel}, medians of interleaved runs\n\
         {:<10} {:>4} {:<24} {:>4} {:>10} {:>11} {:>10} {:>9} {:>11} {:>12}\n",
        "program",
        "size",
        "writes by",
        "runs",
        "run ms",
        "collect ms",
        "GC ms",
        "pause ms",
        "x mprotect",
        "x soft-dirty"
    );
    for row in rows {
        let beside = |mode: &str| {
            let is_beside = |other: &&Value| {
                other["mode"] == mode
                    && other["program"] == row["program"]
                    && other["size"] == row["size"]
            };
            let other = rows.iter().find(is_beside)?["gc_ms"].as_f64()?;
            Some(format!("{:.2}", row["gc_ms"].as_f64()? / other))
        };
        let number = |key: &str| row[key].as_f64().unwrap_or(f64::NAN);
        let ratio = |mode| beside(mode).unwrap_or_default();
        writeln!(
            text,
            "{:<10} {:>4} {:<24} {:>4} {:>10.1} {:>11.1} {:>10.1} {:>9.2} {:>11} {:>12}",
            row["program"].as_str().unwrap_or_default(),
            row["size"],
            row["mode"].as_str().unwrap_or_default(),
            row["rounds"],
            number("run_ms"),
            number("collecting_ms"),
            number("gc_ms"),
            number("pause_max_ms"),
            ratio("mprotect"),
            ratio("soft-dirty of the kernel"),
        )?;
    }
    Ok(text)
}
