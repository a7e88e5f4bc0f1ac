//! The flags of `pagetrail record`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use pagetrail::TrackMode;
use pagetrail_stacks::Unwind;
use pagetrail_vm::UnitStrategy;

use crate::args::{DEFAULT_FILE, GuestArgs, SUBPAGES, TechniqueArgs, TreeArgs, duration};
use crate::commands::report::args::PictureArgs;
use crate::session::pace::{BudgetArgs, Interval, interval};
use pagetrail_endpoint::Address;

/// Arguments of `record`.
#[derive(Args, Debug)]
pub(crate) struct RecordArgs {
    #[command(flatten)]
    pub(crate) target: TreeArgs,
    /// Track only the processes that are named, not their children
    #[arg(long, conflicts_with_all = ["cgroup", "vm"])]
    pub(crate) no_children: bool,
    #[command(flatten)]
    pub(crate) technique: TechniqueArgs,
    /// Track reads too: rounds of writes and of accesses in turns, or of accesses only (Linux 7.3).
    /// With --vm reads and writes cover the same interval, on any kernel
    #[arg(
        long,
        value_name = "WHICH",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "turns"
    )]
    pub(crate) access: Option<AccessArg>,
    /// Start the program on the sub-page allocator, which tracks writes within a page: 1, 2, 4, 8,
    /// 16, 32 or 64 sub-pages a page
    #[arg(
        long,
        value_name = "N",
        conflicts_with_all = ["pid", "cgroup"],
        hide_possible_values = true,
        value_parser = SUBPAGES
    )]
    pub(crate) subpages: Option<String>,
    /// Merge sub-pages while the program runs, so that they are logged together: static (never),
    /// adaptive (those that are written together in round after round; natively only in new
    /// memory of short-lived objects), or, with --vm, history:N (those written in the same round,
    /// and all separated after N rounds)
    #[arg(
        long,
        value_name = "STRATEGY",
        requires = "subpages",
        conflicts_with = "follow",
        default_value = "static"
    )]
    pub(crate) units: UnitStrategy,
    /// Record a last round at the program's exit. The program runs under ptrace(2) for this, with
    /// side effects: LeakSanitizer fails, debuggers and set-user-ID are refused, signals take
    /// longer
    #[arg(long, conflicts_with_all = ["pid", "cgroup", "vm"])]
    pub(crate) last_round: bool,
    #[command(flatten)]
    pub(crate) guest: GuestArgs,
    /// Sample which code writes: the call stack of each first write to a page, found by frame
    /// pointers or by unwind tables. Samples as many as add some 5 % to the program's time by frame
    /// pointers, and some 10 % by unwind tables
    #[arg(
        long,
        value_name = "HOW",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "fp"
    )]
    pub(crate) stacks: Option<StacksArg>,
    /// Sample one of so many page faults, whatever it costs, instead of as many as cost little; 1
    /// samples all
    #[arg(long, value_name = "N", requires = "stacks", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) stacks_period: Option<u32>,
    /// Time from round to round, with its unit; a range such as 20ms..1s with --max-overhead
    #[arg(long, value_name = "TIME", default_value = "100ms", value_parser = interval)]
    pub(crate) interval: Interval,
    #[command(flatten)]
    pub(crate) budget: BudgetArgs,
    /// Stop after this many rounds
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) rounds: Option<u32>,
    /// Stop after this time, with its unit: 10s, 2m
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) duration: Option<Duration>,
    /// File for the recording; an earlier recording is overwritten, any other file is not
    #[arg(short, long, value_name = "FILE", default_value = DEFAULT_FILE)]
    pub(crate) output: PathBuf,
    /// Serve counts as OpenMetrics text at /metrics while recording: ADDRESS:PORT or unix:PATH.
    /// Only addresses of this machine are taken; port 0 is any
    #[arg(long, value_name = "ADDRESS", value_parser = metrics_address)]
    pub(crate) metrics: Option<Address>,
    #[command(flatten)]
    pub(crate) pictures: PictureArgs,
}

fn metrics_address(text: &str) -> Result<Address, String> {
    let address: Address = text.parse()?;
    match address.is_local() {
        true => Ok(address),
        false => Err("it must be an address of this machine: others could read it".into()),
    }
}

/// Accesses to track in addition to writes.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum AccessArg {
    /// rounds of accesses and rounds of writes alternate
    Turns,
    /// every round holds the pages accessed
    Only,
}

/// How the callers in a stack are found.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum StacksArg {
    /// by frame pointers; a program compiled without them has short stacks
    Fp,
    /// by the unwind tables of the program's files; dearer
    Dwarf,
}

impl From<StacksArg> for Unwind {
    fn from(arg: StacksArg) -> Self {
        match arg {
            StacksArg::Fp => Self::FramePointers,
            StacksArg::Dwarf => Self::Dwarf,
        }
    }
}

impl From<AccessArg> for TrackMode {
    fn from(arg: AccessArg) -> Self {
        match arg {
            AccessArg::Turns => Self::Alternate,
            AccessArg::Only => Self::Accesses,
        }
    }
}
