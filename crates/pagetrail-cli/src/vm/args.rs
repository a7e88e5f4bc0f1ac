//! The command line of `pagetrail vm`.

use std::ffi::OsString;

use clap::{Args, Subcommand};

use crate::args::PARTS;
use crate::bench::size::Size;

/// Arguments of `vm`.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    pagetrail vm check\n  \
    pagetrail vm run -- python3 -c 'print(1)'\n  \
    pagetrail record --vm -- ./prog\n  \
    pagetrail record --vm --access -- ./prog\n\n\
    It is a tracker, not a sandbox: the program keeps its own rights. What is not supported\n\
    (seccomp, for one) ends it with one line on standard error and exit status 3.")]
pub(crate) struct VmArgs {
    #[command(subcommand)]
    pub(crate) command: VmCommand,
}

/// What to do with the machine.
#[derive(Subcommand, Debug)]
pub(crate) enum VmCommand {
    /// Run a program as the guest of a virtual machine; its output and exit status are the program's
    #[command(override_usage = "pagetrail vm run [OPTIONS] -- <CMD>...")]
    Run(RunArgs),
    /// Say what KVM offers here, and whether a guest ran
    Check(CheckArgs),
}

/// Arguments of `vm run`.
#[derive(Args, Debug)]
pub(crate) struct RunArgs {
    /// A descriptor that asks for rounds; for `record --vm`
    #[arg(long, value_name = "FD", hide = true)]
    pub(crate) rounds: Option<i32>,
    /// Tell of accesses in those rounds; for `record --vm --access`
    #[arg(long, hide = true, requires = "rounds")]
    pub(crate) accesses: bool,
    /// How much memory the program may have that it can write to; more is refused as if there were none
    #[arg(long, value_name = "SIZE")]
    pub(crate) memory: Option<Size>,
    /// Start the program on the sub-page allocator, as record --parts does: its parts of pages are then written at addresses
    /// of their own
    #[arg(long, value_name = "N", hide_possible_values = true, value_parser = PARTS)]
    pub(crate) parts: Option<String>,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

/// Arguments of `vm check`.
#[derive(Args, Debug)]
pub(crate) struct CheckArgs {
    /// Write one JSON document to standard output
    #[arg(long)]
    pub(crate) json: bool,
}
