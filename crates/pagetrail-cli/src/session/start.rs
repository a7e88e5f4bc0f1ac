//! Starts a watch from the flags of the command, and makes the header of its trail.

use std::ffi::OsString;
use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Result, bail};
use pagetrail::{AtExit, Choice, Precision, ReportPages, Target, Technique, TrackMode, Watch};
use pagetrail_trail::Header;

use crate::args::{HugePagesArg, TargetArgs, TechniqueArgs};
use crate::exit;

/// Starts tracking a process, or starts a program and tracks it. With `last_round` a started
/// program is held at its exit. `set_streams` may redirect the program's output, which is inherited
/// otherwise.
pub(crate) fn start(
    target: &TargetArgs,
    technique: &TechniqueArgs,
    track: Option<TrackMode>,
    last_round: bool,
    set_streams: impl FnOnce(&mut Command) -> Result<()>,
) -> Result<Watch> {
    // Checked before anything is started.
    if let Choice::Technique(requested) = technique.technique.0
        && let Some(line) = without_effect(technique, requested).first()
    {
        bail!("{line}");
    }
    let target = match (target.pid, target.command.split_first()) {
        (None, Some((program, arguments))) => {
            let mut command = command(program, arguments);
            set_streams(&mut command)?;
            Target::command(command)
        }
        // The parser refuses a command line with neither; no process has PID 0.
        (pid, _) => Target::process(pid.unwrap_or(0))?,
    };
    let mut watch = Watch::builder()
        .target(target)
        .at_exit(match last_round {
            true => AtExit::Hold,
            false => AtExit::Run,
        })
        .technique(technique.technique.0)
        .huge_pages(technique.huge_pages.into())
        .report_pages(match technique.report_again {
            true => ReportPages::Twice,
            false => ReportPages::Once,
        })
        .block_pages(technique.block_pages);
    if let Some(cost) = technique.false_positive_cost {
        watch = watch.false_positive_cost(cost);
    }
    if technique.exact {
        watch = watch.precision(Precision::Exact);
    }
    if let Some(track) = track {
        watch = watch.track(track);
    }
    let watch = watch.start()?;
    for line in without_effect(technique, watch.technique()) {
        exit::message(&line);
    }
    Ok(watch)
}

/// One line for each flag that has no effect with this technique.
fn without_effect(args: &TechniqueArgs, technique: Technique) -> Vec<String> {
    use Technique::{AccessScan, Adaptive, PagemapScan, Userfaultfd};
    let options: [(&str, bool, &[Technique]); 4] = [
        ("--block-pages", args.block_pages != 1, &[Userfaultfd]),
        (
            "--false-positive-cost",
            args.false_positive_cost.is_some(),
            &[Adaptive],
        ),
        ("--exact", args.exact, &[Adaptive]),
        (
            "--huge-pages",
            matches!(args.huge_pages, HugePagesArg::Keep),
            &[PagemapScan, Adaptive, AccessScan],
        ),
    ];
    let idle = options
        .into_iter()
        .filter(|(_, is_set, with)| *is_set && !with.contains(&technique));
    idle.map(|(option, _, with)| {
        let with: Vec<_> = with.iter().map(|technique| technique.name()).collect();
        format!(
            "{option} has no effect with {technique}: it is for {}",
            with.join(", ")
        )
    })
    .collect()
}

/// Makes the command for a program and its arguments.
pub(crate) fn command(program: &OsString, arguments: &[OsString]) -> Command {
    let mut command = Command::new(program);
    command.args(arguments);
    command
}

/// Makes the header of a trail that records this watch.
pub(crate) fn header(watch: &Watch, target: &TargetArgs, interval: Duration) -> Header {
    let command = match target.pid {
        Some(pid) => pagetrail::command_line(pid),
        None => {
            let words = target.command.iter();
            words.map(|word| word.to_string_lossy().into()).collect()
        }
    };
    Header {
        command,
        pid: watch.pid(),
        page_size: pagetrail::page_size(),
        technique: watch.technique().name().into(),
        reason: watch.reason().into(),
        interval_ms: interval.as_millis() as u64,
        started_unix_ms: unix_ms(),
        attach_stopped_ns: watch.attach_stopped().as_nanos() as u64,
    }
}

/// The current time, in milliseconds since 1970-01-01 UTC.
pub(crate) fn unix_ms() -> u64 {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH);
    since_1970.map_or(0, |time| time.as_millis() as u64)
}
