//! `cargo xtask bench vm`: what the process-level virtual machine costs a program, into
//! `bench/results/vm.json`.
//!
//! Instructions and exits are counted in a guest with nested paging whose clock advances by
//! instructions; exits for writes on the emulated processor with page-modification logging; and
//! collects are timed on this machine's own KVM, if it has one.

use std::fmt::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::exact;
use pagetrail_rig::Needs;
use pagetrail_steps::recordings::{self, Place};
use pagetrail_steps::repo::Repo;

const SERIES: &str = "7.x";
/// Pages of what is touched from one end to the other, by the 2 MiB that a fault may map.
const BLOCK_BYTES: f64 = (2 << 20) as f64;

/// Measures, prints what came of it, and replaces the recorded results.
pub fn run(repo: &Repo) -> Result<()> {
    let mut build = repo.cargo(&["build", "--release", "--package", "pagetrail-vm"]);
    let built = build.args(["--example", "bench_vm"]).status()?;
    ensure!(built.success(), "the program does not build");
    let program = repo.target.join("release/examples/bench_vm");
    println!("== on this machine's KVM");
    let rings_here = here(&program, "rings")?;
    let tables_here = here(&program, "tables")?;
    println!("== in a guest");
    let counted = in_guest(repo, &program)?;
    println!("== with page-modification logging");
    let logged = exact::with_pml(repo)?;
    let results = json!({
        "schema": 1,
        "counted": counted,
        "rings_here": rings_here,
        "tables_here": tables_here,
        "page_modification_logging": logged.lines().collect::<Vec<_>>(),
    });
    let text = render(&results).context("the results lack something")?;
    print!("{text}");
    let text = serde_json::to_string_pretty(&results)? + "\n";
    recordings::keep(
        repo,
        "vm.json",
        text.as_bytes(),
        Place::Guest,
        "cargo xtask bench vm",
    )
}

/// Null where this machine has no KVM for us.
fn here(program: &Path, what: &str) -> Result<Value> {
    let mut command = Command::new(program);
    let output = command.arg(what).stderr(Stdio::inherit()).output()?;
    if !output.status.success() {
        println!("no figures from here");
        return Ok(Value::Null);
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}

fn in_guest(repo: &Repo, program: &Path) -> Result<Value> {
    let needs = Needs {
        timeout: Duration::from_secs(3600),
        memory_mib: 3072,
        nested: true,
        counted: true,
        ..Needs::default()
    };
    let command = vec![program.display().to_string(), "programs".to_owned()];
    let output = pagetrail_rig::output(repo, SERIES, &needs, command)?;
    serde_json::from_slice(&output).context("the guest's results")
}

/// The figures that there are goals for.
fn render(results: &Value) -> Option<String> {
    let counted = &results["counted"];
    let programs = counted["programs"].as_array()?;
    let calls = counted["calls"].as_f64()?;
    let mut text = String::new();
    for program in programs {
        let name = program["work"].as_str()?;
        let of = |mode: &str, part: &str, what: &str| program[mode][part][what].as_f64();
        // Writing to a text does not fail.
        let _ = match name {
            "touch 1 GiB" => {
                let faults =
                    of("guest", "first", "io_exits")? - of("guest", "nothing", "io_exits")?;
                let blocks = counted["touched_bytes"].as_f64()? / BLOCK_BYTES;
                writeln!(
                    text,
                    "{name}: {faults} guest faults, {:.4} per 2 MiB",
                    faults / blocks
                )
            }
            _ if program["native"].get("checksum").is_some() => {
                let ratio = |mode: &str, part: &str| {
                    Some(of(mode, part, "ticks")? / of("native", part, "ticks")?)
                };
                writeln!(
                    text,
                    "{name}: instructions beside native: guest {:.4}, and {:.4} on the same memory again; recorded {:.4}, {:.4}; with accesses {:.4}, {:.4}",
                    ratio("guest", "first")?,
                    ratio("guest", "again")?,
                    ratio("recorded", "first")?,
                    ratio("recorded", "again")?,
                    ratio("accesses", "first")?,
                    ratio("accesses", "again")?
                )
            }
            _ if program["native"].get("again").is_some() && name.starts_with("write") => {
                let exits = |mode: &str| {
                    let but_interrupts =
                        |part: &str| Some(of(mode, part, "exits")? - of(mode, part, "irq_exits")?);
                    Some(but_interrupts("again")? - but_interrupts("nothing")?)
                };
                writeln!(
                    text,
                    "{name}: {} exits but for interrupts, {} recorded",
                    exits("guest")?,
                    exits("recorded")?
                )
            }
            _ => {
                let per_call = |mode: &str, what: &str| {
                    Some((of(mode, "again", what)? - of(mode, "first", what)?) / calls)
                };
                writeln!(
                    text,
                    "{name}: {} exits per call; {:.0} instructions, natively {:.0}, a bare exit {:.0}",
                    per_call("guest", "io_exits")?,
                    per_call("guest", "ticks")?,
                    per_call("native", "ticks")?,
                    counted["bare_exit"]["ticks"].as_f64()?
                )
            }
        };
    }
    let mut collects = |orders: &Value, what: &str, unit: &str| {
        for order in orders.as_array().into_iter().flatten() {
            let name = order["order"].as_str().unwrap_or_default();
            let _ = writeln!(text, "collect, {name}: {} {unit}", order[what]);
        }
    };
    collects(
        &counted["rings"],
        "ticks_per_entry",
        "instructions per entry",
    );
    collects(&results["rings_here"], "ns_per_entry", "ns per entry");
    let page = "per page, with accesses";
    collects(
        &counted["tables"],
        "ticks_per_page",
        &format!("instructions {page}"),
    );
    collects(
        &results["tables_here"],
        "ns_per_page",
        &format!("ns {page}"),
    );
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recorded_results_have_every_figure() {
        let recorded = include_str!("../../../bench/results/vm.json");
        let results = serde_json::from_str(recorded).unwrap();
        let text = render(&results).unwrap();
        assert!(text.contains("1 exits per call"), "{text}");
        assert!(text.contains("touch 1 GiB: 2 guest faults"), "{text}");
    }
}
