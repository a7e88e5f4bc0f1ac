//! Programs that are started as guests of KVM, to be tiered.

use std::ffi::OsString;

use anyhow::Result;
use pagetrail::DirtySource;
use pagetrail_tier::source::{Rounds, Source};

use super::config::SourceKind;
use super::daemon::machine_limit;
use crate::vm::guest;

/// Starts a program, whose output does not mix with that of this command; returns its PID, and what
/// reports its accesses. Its first window is over, so that its mappings are complete.
pub(super) fn start(command: &[OsString], kind: SourceKind) -> Result<(u32, Box<dyn Source>)> {
    let track = kind.of_guest()?;
    let guest = guest::start(command, Some(track), None, guest::set_apart)?;
    let pid = guest.pid();
    let mut source = Box::new(Rounds::new(guest, "kvm", track));
    source.window().map_err(machine_limit)?;
    Ok((pid, source))
}
