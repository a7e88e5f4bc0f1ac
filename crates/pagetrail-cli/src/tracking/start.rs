//! From arguments to a running watch and the header of its trail.

use std::ffi::OsString;
use std::fs;
use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Result;
use pagetrail::{Notice, Precision, Target, Watch};
use pagetrail_trail::Header;

use crate::args::{TargetArgs, TechniqueArgs};

/// Starts to watch. A program that is started is held at its end if `last_round`. `set_streams` may change where its
/// output goes; it inherits ours otherwise.
pub(crate) fn start(
    target: &TargetArgs,
    technique: &TechniqueArgs,
    notice: Option<Notice>,
    last_round: bool,
    set_streams: impl FnOnce(&mut Command) -> Result<()>,
) -> Result<Watch> {
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
        .last_round(last_round)
        .technique(technique.technique.0)
        .huge_pages(technique.huge_pages.into())
        .report_again(technique.report_again)
        .block_pages(technique.block_pages);
    if let Some(cost) = technique.vain_page {
        watch = watch.vain_page(cost);
    }
    if technique.exact {
        watch = watch.precision(Precision::Exact);
    }
    if let Some(notice) = notice {
        watch = watch.notice(notice);
    }
    Ok(watch.start()?)
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
        Some(pid) => command_line(pid),
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

/// The words of `/proc/PID/cmdline`; none where the process has ended.
fn command_line(pid: u32) -> Vec<String> {
    let text = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let text = text.strip_suffix(b"\0").unwrap_or(&text);
    if text.is_empty() {
        return Vec::new();
    }
    let words = text.split(|byte| *byte == 0);
    words
        .map(|word| String::from_utf8_lossy(word).into_owned())
        .collect()
}
