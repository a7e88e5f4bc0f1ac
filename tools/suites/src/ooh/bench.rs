//! `cargo xtask bench ooh`: section VI of the OoH paper on a real kernel, in counts. One guest has
//! the log, soft-dirty bits, `PAGEMAP_SCAN` and userfaultfd side by side, and its clock advances by
//! a nanosecond for each instruction, so that times are numbers of instructions. Another guest has
//! one to five guests of KVM at once.
//!
//! It ends within a time that is given. What it has measured by then is recorded, and the next call
//! measures the rest.

use std::env;
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use pagetrail_rig::guest::End;
use pagetrail_steps::products::{Product, Profile};
use pagetrail_steps::repo::Repo;
use pagetrail_steps::time::duration;

use super::recorded::{Known, Recorded};
use super::spent::Spent;
use super::{Guests, SERIES, Wanted, build};
use crate::{checkpointer, collector};

/// How long all of it may take, unless said otherwise; without what is built.
const TIME: Duration = Duration::from_secs(3600);
/// Memory of Listing 1.
const SIZES: [(&str, u64); 2] = [("1M", 1 << 20), ("10M", 10 << 20)];
/// Techniques of the paper, and the newer ones of the kernel.
const TECHNIQUES: [&str; 6] = [
    "pagemap-scan",
    "userfaultfd",
    "soft-dirty",
    "epml",
    "spml",
    "spml-search",
];
/// The parts, by the names of their lists in the recording; the quickest first.
const PARTS: [&str; 5] = ["listing1", "guests", "checkpointer", "collector", "engines"];
/// The test that counts what several guests cost.
const GUESTS: &str = "several_guests::what_a_guest_costs_beside_others";
/// Which log and how many guests it counts alone.
const ONLY: &str = "PAGETRAIL_TEST_SEVERAL_GUESTS";
/// What it calls KVM's logs.
const LOGS: [&str; 3] = ["bitmap", "bitmap, manual protection", "ring"];

/// A part of the recording.
struct Part {
    name: &'static str,
    /// The command that measures it in a guest; the file of what is known comes after it.
    command: Vec<String>,
    /// The kernel modules that it needs there.
    modules: &'static [&'static str],
    /// The fields that tell its rows apart.
    keys: &'static [&'static str],
    /// Whether it has guests of KVM, and no log.
    nested: bool,
}

/// What a call asks for.
#[derive(Debug, PartialEq, Eq)]
struct Asked {
    parts: Vec<&'static str>,
    time: Duration,
    /// Whether what is recorded is measured again.
    again: bool,
}

impl Asked {
    fn parse(words: &[String]) -> Result<Self> {
        let mut asked = Self {
            parts: Vec::new(),
            time: TIME,
            again: false,
        };
        let mut words = words.iter();
        while let Some(word) = words.next() {
            match word.as_str() {
                "--again" => asked.again = true,
                "--for" => {
                    asked.time = duration(words.next().context("--for needs a time")?)?;
                }
                word => {
                    let part = PARTS.into_iter().find(|part| *part == word);
                    let parts = PARTS.join(", ");
                    asked.parts.push(part.with_context(|| {
                        format!("bench ooh takes {parts}, --again and --for TIME, not '{word}'")
                    })?);
                }
            }
        }
        if asked.parts.is_empty() {
            asked.parts = PARTS.to_vec();
        }
        Ok(asked)
    }
}

/// Measures what is not recorded yet, of all parts or of some.
pub fn run(repo: &Repo, words: &[String]) -> Result<()> {
    let asked = Asked::parse(words)?;
    // Built before a guest is taken that others may wait for.
    let parts = asked.parts.iter().map(|name| part(repo, name));
    let parts: Vec<Part> = parts.collect::<Result<_>>()?;
    let mut guests = Guests::open(repo, SERIES[0])?;
    let mut recorded = Recorded::read(repo, guests.kernel.version())?;
    guests.machine.counted = true;
    let log = guests.machine.ooh.clone();
    let end = Instant::now() + asked.time;
    for part in parts {
        let mut command = part.command.clone();
        let known = recorded.known(part.name, asked.again)?;
        command.push(known.display().to_string());
        guests.machine.modules = part.modules.iter().map(|&name| name.to_owned()).collect();
        guests.machine.nested = part.nested;
        guests.machine.ooh = log.clone().filter(|_| !part.nested);
        guests.machine.timeout = end.saturating_duration_since(Instant::now());
        let began = Instant::now();
        let mut rows = 0;
        let ended = measure(&guests, command, |row| {
            rows += 1;
            println!("{row}");
            recorded.keep(repo, part.name, part.keys, row)
        })?;
        let (name, seconds) = (part.name, began.elapsed().as_secs());
        println!("== {name}: {rows} rows are new, in {seconds} s");
        match ended {
            End::Exited(0) => {}
            End::Exited(status) => bail!("{name}: the command in the guest ends with {status}"),
            End::TimedOut => bail!(
                "{name}: the time is over (--for); what was measured is recorded, and the same command \
                 (without --again) goes on"
            ),
        }
    }
    Ok(())
}

/// Builds what a part needs.
fn part(repo: &Repo, name: &'static str) -> Result<Part> {
    let this = || anyhow::Ok(env::current_exe()?.display().to_string());
    let (command, modules, keys): (_, &[&str], &[&str]) = match name {
        "engines" => {
            let (command, modules) = checkpointer::engines_by_logs(repo)?;
            (command, modules, &["engine", "bits"])
        }
        "checkpointer" => {
            let (command, modules) = checkpointer::measured_by_logs(repo)?;
            (command, modules, &["bits"])
        }
        "collector" => (collector::logs::prepare(repo)?, &[], &["program", "by"]),
        "guests" => {
            let tests = build(repo, &[Wanted("pagetrail-vmm", "vmm", &[])])?;
            let (test, _) = tests.first().context("no test")?;
            let verb = "measure-guests-logs".to_owned();
            let command = vec![this()?, verb, test.display().to_string()];
            (command, &[], &["log", "guests"])
        }
        _ => {
            let measured = Product::Command.build(repo, Profile::Release)?;
            let verb = "measure-listing1-logs".to_owned();
            let command = vec![this()?, verb, measured.display().to_string()];
            (command, &[], &["technique", "size_bytes", "tracked"])
        }
    };
    Ok(Part {
        name,
        command,
        modules,
        keys,
        nested: name == "guests",
    })
}

/// Runs a command in a guest, and passes on each line that it prints when it comes.
fn measure(
    guests: &Guests,
    command: Vec<String>,
    mut each: impl FnMut(Value) -> Result<()>,
) -> Result<End> {
    let mut rest = Vec::new();
    guests.run(command, &mut |bytes| {
        rest.extend_from_slice(bytes);
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = rest.drain(..=end).collect();
            let row = serde_json::from_slice(&line)?;
            each(row).map_err(|error| io::Error::other(format!("{error:#}")))?;
        }
        Ok(())
    })
}

/// In such a guest: Listing 1 by each technique and size, one line of JSON for each of its results,
/// with what the run took as a whole.
pub fn measure_listing1(args: &[String]) -> Result<()> {
    let [command, known] = args else {
        bail!("usage: measure-listing1-logs COMMAND KNOWN");
    };
    let known = Known::read(known)?;
    for (size, bytes) in SIZES {
        for technique in TECHNIQUES {
            let row = |tracked: &str| json!({"technique": technique, "size_bytes": bytes, "tracked": tracked});
            if ["own", "other"]
                .iter()
                .all(|tracked| known.has(&row(tracked)))
            {
                continue;
            }
            let spent = Spent::begin()?;
            let mut bench = Command::new(command);
            bench.args(["bench", "--json", "--runs", "1", "--size", size]);
            let output = bench.args(["--technique", technique]).output()?;
            let said = String::from_utf8_lossy(&output.stderr);
            ensure!(output.status.success(), "{technique}: {said}");
            let spent = spent.end()?;
            let mut document: Value = serde_json::from_slice(&output.stdout)?;
            let Value::Array(results) = document["results"].take() else {
                bail!("{technique}: no results");
            };
            for mut result in results {
                result["kernel"] = document["kernel"].clone();
                result["run"] = spent.clone();
                println!("{result}");
            }
        }
    }
    Ok(())
}

/// In a guest that has guests of KVM: what one of them costs beside others, one line of JSON for
/// each kind of log and number of guests.
pub fn measure_guests(args: &[String]) -> Result<()> {
    let [test, known] = args else {
        bail!("usage: measure-guests-logs TEST KNOWN");
    };
    let known = Known::read(known)?;
    for log in LOGS {
        for guests in 1..=5_u32 {
            if known.has(&json!({"log": log, "guests": guests})) {
                continue;
            }
            // One at a time, so that each row is kept when it is there.
            let mut command = Command::new(Path::new(test));
            command.args(["--exact", "--ignored", "--nocapture", GUESTS]);
            command.env(ONLY, format!("{log}: {guests}"));
            let output = command.stderr(Stdio::inherit()).output()?;
            let said = String::from_utf8_lossy(&output.stdout);
            ensure!(output.status.success(), "{said}");
            // The harness has lines of its own, and the first of ours may come after its words.
            let mut rows = said.lines().filter_map(|line| line.get(line.find('{')?..));
            let row = rows.next().with_context(|| format!("no result: {said}"))?;
            ensure!(rows.next().is_none(), "more than one result: {said}");
            println!("{row}");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Asked> {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        Asked::parse(&words)
    }

    #[test]
    fn a_call_names_parts_and_its_time() {
        let all = parse("").unwrap();
        assert_eq!((all.parts.as_slice(), all.time), (&PARTS[..], TIME));
        assert!(!all.again);
        let some = parse("collector --for 20m engines --again").unwrap();
        assert_eq!(some.parts, ["collector", "engines"]);
        assert_eq!(some.time, Duration::from_secs(1200));
        assert!(some.again);
        for wrong in ["listing2", "--for", "--for 20", "--for never"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
