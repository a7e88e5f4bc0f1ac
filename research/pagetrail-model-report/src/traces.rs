//! Traces: recorded from a program under Valgrind, imported, and looked at.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};

use anyhow::{Context, Result, bail};
use pagetrail_model::machine::PAGE_BYTES;
use pagetrail_model::trace::lackey::{LackeyError, LackeyOptions, import};
use pagetrail_model::trace::{self, MAGIC};
use pagetrail_model::workload::Op;
use pagetrail_report::words;
use serde::Serialize;

use crate::program;

/// The recorder is not installed.
#[derive(Debug, thiserror::Error)]
#[error("valgrind is not installed here, and it is what records")]
pub struct NoRecorder;

/// Why a trace may not be written there.
fn check_target(path: &Path) -> Result<()> {
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => {
            return Err(error).with_context(|| format!("cannot write {}", path.display()));
        }
    };
    let cannot = || format!("cannot write {}", path.display());
    if !file.metadata().with_context(cannot)?.is_file() {
        bail!("{} is no regular file", path.display());
    }
    let mut start = [0; MAGIC.len()];
    let mut length = 0;
    while length < start.len() {
        match file.read(&mut start[length..]).with_context(cannot)? {
            0 => break,
            more => length += more,
        }
    }
    if length > 0 && start != MAGIC {
        bail!(
            "{} is no trace, and only a trace is overwritten",
            path.display()
        );
    }
    Ok(())
}

fn keep(ops: Vec<Op>, path: &Path) -> Result<()> {
    let cannot = || format!("cannot write {}", path.display());
    let file = File::create(path).with_context(cannot)?;
    trace::write(ops, BufWriter::new(file)).with_context(cannot)?;
    Ok(())
}

/// Turns a recording of Valgrind's lackey into a trace. Returns whether the trace has all of it: it
/// stops at `options.limit`. A file at `trace` that is no trace is not overwritten.
pub fn import_file(recording: &Path, trace: &Path, options: LackeyOptions) -> Result<bool> {
    check_target(trace)?;
    let named = || recording.display().to_string();
    let file = File::open(recording).with_context(named)?;
    let imported = import(BufReader::new(file), options).with_context(named)?;
    keep(imported.ops, trace)?;
    Ok(imported.complete)
}

/// How a program ended whose trace was recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recorded {
    /// By itself: its exit status.
    Ended(ExitStatus),
    /// It was killed when the trace had `limit` loads and stores.
    AtLimit,
}

/// Runs a program under lackey and turns what that prints into a trace; calls `started` once the
/// program runs. A file at `trace` that is no trace is not overwritten.
pub fn record(
    command: &[OsString],
    trace: &Path,
    options: LackeyOptions,
    started: impl FnOnce(),
) -> Result<Recorded> {
    check_target(trace)?;
    // Standard error is the program's own; lackey writes to a pipe that both inherit.
    let (from, to) = rustix::pipe::pipe().context("cannot make a pipe")?;
    rustix::io::fcntl_setfd(&from, rustix::io::FdFlags::CLOEXEC).context("cannot make a pipe")?;
    let mut valgrind = Command::new("valgrind");
    valgrind
        .args(["--tool=lackey", "--trace-mem=yes"])
        // What children do is of other processes.
        .arg("--child-silent-after-fork=yes")
        .arg(format!("--log-fd={}", to.as_raw_fd()))
        .arg("--")
        .args(command)
        .stdin(Stdio::inherit());
    let mut child = valgrind.spawn().map_err(|error| match error.kind() {
        ErrorKind::NotFound => NoRecorder.into(),
        _ => anyhow::Error::from(error).context("cannot start valgrind"),
    })?;
    drop(to);
    started();
    let mut log = BufReader::new(File::from(from));
    let imported = import(&mut log, options);
    if matches!(&imported, Ok(imported) if !imported.complete) {
        // Valgrind would let it run on, as slowly. It has ended if that fails.
        let _ = child.kill();
    }
    // A program whose log nobody reads would stand still.
    let _ = io::copy(&mut log, &mut io::sink());
    let status = child.wait().context("cannot wait for valgrind")?;
    match imported {
        Ok(imported) => {
            keep(imported.ops, trace)?;
            if !imported.complete {
                return Ok(Recorded::AtLimit);
            }
        }
        // It could not be started, and valgrind has said so.
        Err(LackeyError::Empty) if matches!(status.code(), Some(126 | 127)) => {}
        Err(error) => return Err(error).context("valgrind's recording"),
    }
    Ok(Recorded::Ended(status))
}

/// What a trace holds; serialized, it is the document of `model trace show --json`.
#[derive(Debug, Default, Serialize)]
pub struct Summary {
    schema: u32,
    steps: u64,
    rounds: u64,
    processes: u64,
    areas: u64,
    /// Of all areas, whenever they were mapped.
    mapped_bytes: u64,
    reads: u64,
    writes: u64,
    file_bytes: u64,
}

/// Reads a trace to its end. Fails where it is damaged or cut short.
pub fn summary(path: &Path) -> Result<Summary> {
    let mut summary = Summary {
        schema: 1,
        ..Summary::default()
    };
    let mut reader = program::open(path)?;
    for op in reader.by_ref() {
        summary.steps += 1;
        match op {
            Op::Spawn { .. } => summary.processes += 1,
            Op::Map { bytes, .. } => {
                summary.areas += 1;
                summary.mapped_bytes = summary.mapped_bytes.saturating_add(bytes);
            }
            Op::Read { .. } => summary.reads += 1,
            Op::Write { .. } => summary.writes += 1,
            Op::Round => summary.rounds += 1,
            _ => {}
        }
    }
    reader
        .finish()
        .with_context(|| path.display().to_string())?;
    summary.file_bytes = std::fs::metadata(path)?.len();
    Ok(summary)
}

/// The summary for people.
pub fn write(summary: &Summary, out: &mut dyn Write) -> io::Result<()> {
    writeln!(
        out,
        "{} in {}; {}, {} of {} ({})\n{} reads, {} writes",
        words::plural(summary.steps, "step"),
        words::plural(summary.rounds, "round"),
        match summary.processes {
            1 => "1 process".into(),
            n => format!("{} processes", words::count(n)),
        },
        words::plural(summary.areas, "area"),
        words::bytes(summary.mapped_bytes as f64),
        words::plural(summary.mapped_bytes.div_ceil(PAGE_BYTES), "page"),
        words::count(summary.reads),
        words::count(summary.writes),
    )?;
    if summary.steps > 0 {
        let each = summary.file_bytes as f64 / summary.steps as f64;
        writeln!(
            out,
            "{} on disk, {each:.2} bytes a step",
            words::bytes(summary.file_bytes as f64)
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use pagetrail_model::trace::lackey::Imported;

    use super::*;

    const RECORDING: &str = "==1== Lackey\nI  0401ab70,3\n S 1fff000728,8\n L 1fff000720,8\n M 00401000,4\n\
                             I  0401b771,7\n S 00402ffc,8\n==1== done\n";

    fn options() -> LackeyOptions {
        LackeyOptions {
            round_every: 2,
            once_per_round: true,
            ..LackeyOptions::default()
        }
    }

    #[test]
    fn an_imported_recording_is_a_whole_trace() {
        let directory = tempfile::tempdir().unwrap();
        let recording = directory.path().join("recording");
        let trace = directory.path().join("trace");
        std::fs::write(&recording, RECORDING).unwrap();
        import_file(&recording, &trace, options()).unwrap();
        let summary = summary(&trace).unwrap();
        assert_eq!((summary.reads, summary.writes, summary.rounds), (2, 4, 2));
        assert_eq!(summary.mapped_bytes, 4 * PAGE_BYTES);
        // Again over itself, but over nothing else.
        import_file(&recording, &trace, options()).unwrap();
        let refused = import_file(&recording, &recording, options()).unwrap_err();
        assert!(
            refused.to_string().contains("only a trace is overwritten"),
            "{refused}"
        );
    }

    #[test]
    fn fuzz_of_recordings() {
        crate::fuzzing::for_seeds(4000, |random| {
            let mut bytes = RECORDING.as_bytes().to_vec();
            crate::fuzzing::mutate(random, &mut bytes);
            match import(&bytes[..], options()) {
                Ok(Imported { ops, .. }) => {
                    let mut out = Vec::new();
                    let steps = trace::write(ops.iter().copied(), &mut out).unwrap();
                    assert_eq!(steps, ops.len() as u64);
                }
                Err(error) => assert_eq!(error.to_string().lines().count(), 1, "{error}"),
            }
        });
    }
}
