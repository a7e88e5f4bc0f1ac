//! The command line of `pagetrail vm`.

use std::ffi::OsString;

use clap::{Args, Subcommand};
use pagetrail_report::size::Size;

use crate::args::SUBPAGES;

/// Arguments of `vm`.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    pagetrail vm check\n  \
    pagetrail vm run -- python3 -c 'print(1)'\n  \
    pagetrail vm run --follow -- bash script\n  \
    pagetrail record --vm -- ./prog\n  \
    pagetrail record --vm --access -- ./prog\n  \
    pagetrail record --vm --follow -- make\n  \
    pagetrail top --vm -- ./prog\n\n\
    It is a tracker, not a sandbox: the program keeps its own rights. Most calls that are not\n\
    supported (seccomp, for one) fail as on a kernel that lacks them; the others end the program\n\
    with one line on standard error and exit status 3.")]
pub(crate) struct VmArgs {
    #[command(subcommand)]
    pub(crate) command: VmCommand,
}

/// The subcommands of `vm`.
#[derive(Subcommand, Debug)]
pub(crate) enum VmCommand {
    /// Run a program as the guest of a virtual machine; its output and exit status are the
    /// program's
    #[command(override_usage = "pagetrail vm run [OPTIONS] -- <CMD>...")]
    Run(RunArgs),
    /// Report what KVM offers on this machine, and whether a trial guest ran
    Check(CheckArgs),
}

/// Arguments of `vm run`.
#[derive(Args, Debug)]
pub(crate) struct RunArgs {
    /// Send rounds over this descriptor, to the process that tracks the program
    #[arg(long, value_name = "FD", hide = true)]
    pub(crate) rounds: Option<i32>,
    /// Track accesses in those rounds, too
    #[arg(long, hide = true, requires = "rounds")]
    pub(crate) accesses: bool,
    /// Keep programs that the program executes, and those of its children, in virtual machines,
    /// too, each in one of its own; without this they run natively
    #[arg(long)]
    pub(crate) follow: bool,
    /// Limit the program's writable memory; mappings beyond the limit fail with ENOMEM
    #[arg(long, value_name = "SIZE")]
    pub(crate) memory: Option<Size>,
    /// Start the program on the sub-page allocator, as record --subpages does: each sub-page is
    /// then written through an alias of its own
    #[arg(long, value_name = "N", hide_possible_values = true, value_parser = SUBPAGES)]
    pub(crate) subpages: Option<String>,
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
