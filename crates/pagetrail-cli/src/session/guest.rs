//! Starts a program as a guest, in a process of its own, and makes it a source of rounds.

use std::env;
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};
use pagetrail::TrackMode;
use pagetrail_vm::{GuestSource, UnitStrategy};

/// How a guest's heap distinguishes sub-pages.
#[derive(Clone, Copy)]
pub(crate) struct Subpages<'a> {
    /// The number of sub-pages per page.
    pub(crate) per_page: &'a str,
    /// How they are merged while the guest runs.
    pub(crate) units: UnitStrategy,
}

/// Starts a program as a guest from its first instruction on. `set_streams` may redirect its
/// output, which is inherited otherwise.
pub(crate) fn start(
    command: &[OsString],
    track: Option<TrackMode>,
    subpages: Option<Subpages<'_>>,
    set_streams: impl FnOnce(&mut Command) -> Result<()>,
) -> Result<GuestSource> {
    let track = track.unwrap_or_default();
    // Checked here, before there is a process whose error would be less clear.
    pagetrail_vm::check::report()?;
    if track != TrackMode::Writes {
        pagetrail_vm::check::try_accesses()?;
    }
    let units = subpages.map_or(UnitStrategy::Static, |subpages| subpages.units);
    if units != UnitStrategy::Static {
        pagetrail_vm::check::try_units()?;
    }
    let (rounds, link) = pagetrail_vm::pair().context("cannot make a pair of sockets")?;
    let mut guest = Command::new(env::current_exe().context("cannot find this program")?);
    guest
        .args(["vm", "run", "--rounds", &link.as_raw_fd().to_string()])
        .args(
            subpages
                .iter()
                .flat_map(|subpages| ["--subpages", subpages.per_page]),
        )
        .args((track != TrackMode::Writes).then_some("--accesses"))
        .arg("--")
        .args(command);
    set_streams(&mut guest)?;
    let child = guest.spawn().context("cannot start the virtual machine")?;
    drop(link);
    let mut source = GuestSource::new(rounds, child, track, subpages.is_some());
    source.set_units(units)?;
    Ok(source)
}

/// Keeps a program's streams apart from those of a subcommand that writes a result to standard
/// output: it gets no input, and its output goes to standard error.
pub(crate) fn set_apart(command: &mut Command) -> Result<()> {
    let output = io::stderr().as_fd().try_clone_to_owned();
    command.stdin(Stdio::null());
    command.stdout(output.context("cannot duplicate standard error")?);
    Ok(())
}
