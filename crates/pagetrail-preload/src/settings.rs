//! The environment variables that steer the library, and the one place it writes messages to.

use crate::sys::kernel;
use pagetrail::Technique;
use std::fmt;
use std::io::Write;

/// Says when we answer: `auto` (the default), `always`, `off`.
const MODE: &std::ffi::CStr = c"PAGETRAIL_SOFTDIRTY";

/// Who reads the own bits: `any` (the default) or `collector`.
const READER: &std::ffi::CStr = c"PAGETRAIL_SOFTDIRTY_READER";

/// What the bits of a collector, or of another process, come from: `pagemap-scan` (the default), or
/// a log of `/dev/ooh`: `epml`, `spml` or `spml-search`.
const TECHNIQUE: &std::ffi::CStr = c"PAGETRAIL_SOFTDIRTY_TECHNIQUE";

/// A process with which the watches on other processes end, by its PID.
const HELD_FOR: &std::ffi::CStr = c"PAGETRAIL_SOFTDIRTY_HELD_FOR";

/// A file to which messages are appended; without it there are none.
const LOG: &std::ffi::CStr = c"PAGETRAIL_SOFTDIRTY_LOG";

/// When the library answers in the kernel's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Only where the kernel has no soft-dirty bits.
    Auto,
    /// Even where the kernel has soft-dirty bits.
    Always,
    /// Never.
    Off,
}

pub(crate) fn mode() -> Mode {
    match kernel::variable(MODE) {
        None | Some(b"" | b"auto") => Mode::Auto,
        Some(b"always") => Mode::Always,
        Some(b"off") => Mode::Off,
        Some(other) => {
            log(format_args!(
                "PAGETRAIL_SOFTDIRTY={} is none of auto, always, off; taken as auto",
                String::from_utf8_lossy(other)
            ));
            Mode::Auto
        }
    }
}

/// Whether the program is a garbage collector that reads bit 55 of its own entries and nothing
/// else, and for which a page too many costs no more than a fault: it gets its bits cheaper.
pub(crate) fn is_for_collector() -> bool {
    match kernel::variable(READER) {
        None | Some(b"" | b"any") => false,
        Some(b"collector") => true,
        Some(other) => {
            log(format_args!(
                "PAGETRAIL_SOFTDIRTY_READER={} is none of any, collector; taken as any",
                String::from_utf8_lossy(other)
            ));
            false
        }
    }
}

/// The log that the bits of a collector, or of another process, are to come from, if any.
pub(crate) fn log_technique() -> Option<Technique> {
    let value = kernel::variable(TECHNIQUE).filter(|value| !value.is_empty())?;
    let text = String::from_utf8_lossy(value);
    match text.parse() {
        Ok(technique @ (Technique::Epml | Technique::Spml | Technique::SpmlSearch)) => {
            Some(technique)
        }
        Ok(Technique::PagemapScan) => None,
        _ => {
            log(format_args!(
                "PAGETRAIL_SOFTDIRTY_TECHNIQUE={text} is none of pagemap-scan, epml, spml, spml-search; taken as pagemap-scan"
            ));
            None
        }
    }
}

/// The process with which the watches on other processes end.
pub(crate) fn held_for() -> Option<u32> {
    let value = kernel::variable(HELD_FOR).filter(|value| !value.is_empty())?;
    let text = String::from_utf8_lossy(value);
    let pid = text.parse().ok();
    if pid.is_none() {
        log(format_args!(
            "PAGETRAIL_SOFTDIRTY_HELD_FOR={text} is no PID; watches last as long as their targets"
        ));
    }
    pid
}

/// Appends a line to the log file, if there is one.
pub(crate) fn log(message: fmt::Arguments<'_>) {
    use rustix::fs::{Mode, OFlags, open};
    let Some(path) = kernel::variable(LOG).filter(|path| !path.is_empty()) else {
        return;
    };
    let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE | OFlags::CLOEXEC;
    let Ok(file) = open(path, flags, Mode::from_raw_mode(0o644)) else {
        return;
    };
    let mut line = Vec::new();
    let pid = std::process::id();
    if writeln!(line, "pagetrail-softdirty[{pid}]: {message}").is_ok() {
        // One write, so that lines of several processes do not mix.
        let _ = rustix::io::write(&file, &line);
    }
}
