//! Starts a program as a guest, in a process of its own, and makes it a source of rounds.

use std::env;
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use pagetrail::{State, TrackMode};
use pagetrail_vm::{Announcements, GuestSource, GuestTree, RoundDetail, UnitStrategy};

/// How long to wait at once for a program to begin.
const BEGIN_POLL: Duration = Duration::from_millis(100);

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
    let units = subpages.map_or(UnitStrategy::Static, |subpages| subpages.units);
    check(track)?;
    if units != UnitStrategy::Static {
        pagetrail_vm::check::try_units()?;
    }
    let (rounds, link) = pagetrail_vm::pair().context("cannot make a pair of sockets")?;
    let per_page = subpages.map(|subpages| subpages.per_page);
    let mut guest = guest(&link, track, per_page)?;
    guest.arg("--").args(command);
    set_streams(&mut guest)?;
    let child = guest.spawn().context("cannot start the virtual machine")?;
    drop(link);
    let mut source = GuestSource::new(rounds, child, track, detail(per_page));
    source.set_units(units)?;
    Ok(source)
}

/// What rounds say, by the option of sub-pages.
fn detail(subpages: Option<&str>) -> RoundDetail {
    match subpages {
        Some(_) => RoundDetail::SubPages,
        None => RoundDetail::Pages,
    }
}

/// Starts a program as a guest, as [`start`] does, and makes each process that comes of it a guest.
/// Returns when the program begins, or has ended.
pub(crate) fn start_tree(
    command: &[OsString],
    track: Option<TrackMode>,
    subpages: Option<&str>,
    set_streams: impl FnOnce(&mut Command) -> Result<()>,
) -> Result<GuestTree> {
    let track = track.unwrap_or_default();
    check(track)?;
    let (announcements, link) = Announcements::pair().context("cannot make a pair of sockets")?;
    let mut guest = guest(&link, track, subpages)?;
    guest.args(["--follow", "--"]).args(command);
    set_streams(&mut guest)?;
    let child = guest.spawn().context("cannot start the virtual machine")?;
    drop(link);
    let words = command.iter().map(|word| word.to_string_lossy().into());
    let words = words.collect();
    let mut tree = GuestTree::new(announcements, child, words, track, detail(subpages));
    while tree.members().is_empty() && !matches!(tree.wait(BEGIN_POLL), State::Ended(_)) {
        // The recording begins with it.
        tree.follow();
    }
    Ok(tree)
}

/// Checked here, before there is a process whose error would be less clear.
fn check(track: TrackMode) -> Result<()> {
    pagetrail_vm::check::report()?;
    if track != TrackMode::Writes {
        pagetrail_vm::check::try_accesses()?;
    }
    Ok(())
}

/// The command that becomes a guest whose rounds go over `link`; without the program.
fn guest(link: &OwnedFd, track: TrackMode, subpages: Option<&str>) -> Result<Command> {
    let mut guest = Command::new(env::current_exe().context("cannot find this program")?);
    guest
        .args(["vm", "run", "--rounds", &link.as_raw_fd().to_string()])
        .args(
            subpages
                .iter()
                .flat_map(|per_page| ["--subpages", per_page]),
        )
        .args((track != TrackMode::Writes).then_some("--accesses"));
    Ok(guest)
}

/// Keeps a program's streams apart from those of a subcommand that writes a result to standard
/// output: it gets no input, and its output goes to standard error.
pub(crate) fn set_apart(command: &mut Command) -> Result<()> {
    let output = io::stderr().as_fd().try_clone_to_owned();
    command.stdin(Stdio::null());
    command.stdout(output.context("cannot duplicate standard error")?);
    Ok(())
}
