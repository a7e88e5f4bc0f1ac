//! From arguments to a running watch and the header of its trail.

use std::ffi::OsString;
use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Result, bail};
use pagetrail::{AtExit, Choice, Precision, ReportPages, Target, Technique, TrackMode, Watch};
use pagetrail_trail::Header;

use super::find;
use crate::args::{HugePagesArg, TargetArgs, TechniqueArgs};
use crate::exit;

/// Starts to watch. A program that is started is held at its end if `last_round`. `set_streams` may change where its
/// output goes; it inherits ours otherwise.
pub(crate) fn start(
    target: &TargetArgs,
    technique: &TechniqueArgs,
    track: Option<TrackMode>,
    last_round: bool,
    set_streams: impl FnOnce(&mut Command) -> Result<()>,
) -> Result<Watch> {
    // Said before anything is started.
    if let Choice::Technique(asked) = technique.technique.0
        && let Some(line) = without_effect(technique, asked).first()
    {
        bail!("{line}");
    }
    let target = match (target.pid, target.command.split_first()) {
        (None, Some((program, arguments))) => {
            let mut command = command(program, arguments);
            set_streams(&mut command)?;
            Target::command(command)
        }
        // The parser lets nobody through with neither: 0 is nobody's PID.
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

/// A line for each option that changes nothing with this technique.
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

/// A program to be started.
pub(crate) fn command(program: &OsString, arguments: &[OsString]) -> Command {
    let mut command = Command::new(program);
    command.args(arguments);
    command
}

/// What a trail of this watch begins with.
pub(crate) fn header(watch: &Watch, target: &TargetArgs, interval: Duration) -> Header {
    let command = match target.pid {
        Some(pid) => find::command_line(pid),
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

/// Now, in milliseconds since 1970.
pub(crate) fn unix_ms() -> u64 {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH);
    since_1970.map_or(0, |time| time.as_millis() as u64)
}
