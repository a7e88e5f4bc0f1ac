//! Programs that are started as guests of KVM, to be tiered.

use std::ffi::OsString;

use anyhow::{Result, bail};
use pagetrail::{DirtySource, TrackMode};
use pagetrail_tier::source::{Rounds, Source};
use pagetrail_tier_service::{SourceKind, machine_limit};

use crate::session::guest;

/// Starts a program, whose output does not mix with that of this command; returns its PID, and what
/// reports its accesses. Its first window is over, so that its mappings are complete.
pub(super) fn start(command: &[OsString], kind: SourceKind) -> Result<(u32, Box<dyn Source>)> {
    let track = track_mode(kind)?;
    let guest = guest::start(command, Some(track), None, guest::set_apart)?;
    let pid = guest.pid();
    let mut source = Box::new(Rounds::new(guest, "kvm", track));
    source.window().map_err(machine_limit)?;
    Ok((pid, source))
}

/// What a guest is tracked for.
fn track_mode(kind: SourceKind) -> Result<TrackMode> {
    match kind {
        SourceKind::Auto => Ok(match pagetrail_vm::check::try_accesses() {
            Ok(()) => TrackMode::Alternate,
            Err(_) => TrackMode::Writes,
        }),
        SourceKind::Accesses => Ok(TrackMode::Accesses),
        SourceKind::Writes => Ok(TrackMode::Writes),
        SourceKind::Turns => Ok(TrackMode::Alternate),
        SourceKind::Damon | SourceKind::Idle => {
            bail!("the virtual machine reports a guest's accesses: leave out the source")
        }
    }
}
