//! Starts a source of rounds from the flags of the command, and makes the header of its trail.

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Result, bail};
use pagetrail::{
    AtExit, Children, Choice, DirtySource, Precision, ReportPages, Target, Technique, TrackMode,
    Watch, WatchBuilder,
};
use pagetrail_trail::Header;
use pagetrail_vm::{GuestMember, UnitStrategy};

use crate::args::{GuestArgs, HugePagesArg, TechniqueArgs, TreeArgs};
use crate::exit;
use crate::session::guest::{self, Subpages};
use crate::session::pace::Budget;
use crate::session::subject::Subject;
use crate::session::subpage;

/// The target that the command line names.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Named<'a> {
    /// Running processes.
    Processes(&'a [u32]),
    /// A control group, by its directory.
    Cgroup(&'a Path),
    /// A program to be started, and its arguments.
    Program(&'a [OsString]),
}

impl<'a> From<&'a TreeArgs> for Named<'a> {
    fn from(args: &'a TreeArgs) -> Self {
        match (&args.cgroup, args.pid.is_empty()) {
            (Some(path), _) => Self::Cgroup(path),
            (None, false) => Self::Processes(&args.pid),
            (None, true) => Self::Program(&args.command),
        }
    }
}

/// What to track, and how.
pub(crate) struct Wanted<'a> {
    pub(crate) target: Named<'a>,
    pub(crate) technique: &'a TechniqueArgs,
    /// What tracking may cost the target.
    pub(crate) budget: Option<Budget>,
    /// Whether a program to be started is to be a guest of KVM.
    pub(crate) guest: &'a GuestArgs,
    /// What to track, if not writes.
    pub(crate) track: Option<TrackMode>,
    /// Whether a started program is held at its exit; a guest always is.
    pub(crate) last_round: bool,
    /// The number of sub-pages for a program that is started on the sub-page allocator.
    pub(crate) subpages: Option<&'a str>,
    /// How sub-pages are merged.
    pub(crate) units: UnitStrategy,
}

/// Starts tracking processes, or starts a program and tracks it; `follow`: with all that descend
/// from them. `set_streams` may redirect the program's output, which is inherited otherwise.
pub(crate) fn start_tree(
    wanted: &Wanted<'_>,
    follow: bool,
    set_streams: impl FnOnce(&mut Command) -> Result<()>,
) -> Result<Subject> {
    if wanted.guest.follow {
        let command = program(wanted);
        let tree = guest::start_tree(command, wanted.track, wanted.subpages, set_streams)?;
        return Ok(Subject::Guests(Box::new(tree)));
    }
    if wanted.guest.vm {
        return Ok(Subject::Guest(start_guest(wanted, set_streams)?));
    }
    let builder = builder(wanted, set_streams)?;
    let children = match follow {
        true => Children::Follow,
        false => Children::LeaveOut,
    };
    let tree = builder.children(children).start_tree()?;
    if let Some(first) = tree.members().first() {
        warn(wanted.technique, first.watch().technique());
    }
    Ok(Subject::Tree(Box::new(tree)))
}

/// The program to be started as a guest: the parser refuses that for processes.
fn program<'a>(wanted: &Wanted<'a>) -> &'a [OsString] {
    match wanted.target {
        Named::Program(command) => command,
        Named::Processes(_) | Named::Cgroup(_) => &[],
    }
}

fn start_guest(
    wanted: &Wanted<'_>,
    set_streams: impl FnOnce(&mut Command) -> Result<()>,
) -> Result<Box<dyn DirtySource>> {
    let subpages = wanted.subpages.map(|per_page| Subpages {
        per_page,
        units: wanted.units,
    });
    // Measured before there is a guest, which would be left if it failed.
    let budget = match &wanted.budget {
        Some(budget) => Some((pagetrail_vm::check::price_of_write()?, budget)),
        None => None,
    };
    let mut source = guest::start(program(wanted), wanted.track, subpages, set_streams)?;
    if let Some((write, budget)) = budget {
        tracing::debug!(?write, "the first write to a page costs a guest");
        source.set_max_overhead(write, budget.share, budget.intervals.clone())?;
    }
    Ok(Box::new(source))
}

/// Describes the watch, or the watches of a tree.
fn builder(
    wanted: &Wanted<'_>,
    set_streams: impl FnOnce(&mut Command) -> Result<()>,
) -> Result<WatchBuilder> {
    let technique = wanted.technique;
    // Checked before anything is started.
    if let Choice::Technique(requested) = technique.technique.0
        && let Some(line) = without_effect(technique, requested).first()
    {
        bail!("{line}");
    }
    let target = match wanted.target {
        Named::Program(words) => {
            // The parser refuses a command line without a target; no program has no name.
            let Some((program, arguments)) = words.split_first() else {
                bail!("no program is named");
            };
            let mut command = command(program, arguments);
            if let Some(subpages) = wanted.subpages {
                subpage::preload(&mut command, subpages)?;
            }
            set_streams(&mut command)?;
            Target::command(command)
        }
        Named::Processes(&[pid]) => Target::process(pid)?,
        Named::Processes(pids) => Target::tree(pids.iter().copied())?,
        Named::Cgroup(path) => Target::cgroup(path)?,
    };
    let mut builder = Watch::builder()
        .target(target)
        .at_exit(match wanted.last_round {
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
    match wanted.units {
        UnitStrategy::Static => {}
        UnitStrategy::Adaptive => builder = builder.merge_subpages(true),
        _ => bail!("--units history needs --vm: objects of a process cannot be merged at once"),
    }
    if let Some(cost) = technique.false_positive_cost {
        builder = builder.false_positive_cost(cost);
    }
    if technique.exact {
        builder = builder.precision(Precision::Exact);
    }
    if let Some(budget) = &wanted.budget {
        builder = builder
            .max_overhead(budget.share)
            .intervals(budget.intervals.clone());
    }
    if let Some(track) = wanted.track {
        builder = builder.track(track);
    }
    Ok(builder)
}

/// Says which flags have no effect with the technique in use.
fn warn(args: &TechniqueArgs, technique: Technique) {
    for line in without_effect(args, technique) {
        exit::message(&line);
    }
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

/// Makes the header of a process that is a guest of a tree.
pub(crate) fn guest_header(member: &GuestMember, interval: Duration) -> Header {
    Header {
        command: member.command().to_vec(),
        ..header(member.source(), Named::Processes(&[]), interval)
    }
}

/// Makes the header of a trail that records this source; `target` names a program that was started.
pub(crate) fn header(source: &dyn DirtySource, target: Named<'_>, interval: Duration) -> Header {
    let command = match target {
        Named::Program(words) => {
            let words = words.iter();
            words.map(|word| word.to_string_lossy().into()).collect()
        }
        Named::Processes(_) | Named::Cgroup(_) => pagetrail::command_line(source.pid()),
    };
    Header {
        command,
        pid: source.pid(),
        page_size: pagetrail::page_size(),
        technique: source.technique_name().into(),
        reason: source.reason().into(),
        interval_ms: interval.as_millis() as u64,
        started_unix_ms: unix_ms(),
        attach_stopped_ns: source.attach_stopped().as_nanos() as u64,
    }
}

/// The current time, in milliseconds since 1970-01-01 UTC.
fn unix_ms() -> u64 {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH);
    since_1970.map_or(0, |time| time.as_millis() as u64)
}
