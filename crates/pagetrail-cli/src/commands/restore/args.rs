//! The arguments of `restore` that are for checkpoints that were taken without CRIU.

use clap::{Args, ValueEnum};

/// What becomes of descriptors 0, 1 and 2.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum StdioArg {
    /// What this command has
    Inherit,
    /// /dev/null
    Null,
}

/// What becomes of other descriptors that cannot be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum MissingArg {
    /// Nothing is restored
    Fail,
    /// They become /dev/null
    Null,
}

/// Arguments for checkpoints that were taken with `--restorable=own`.
#[derive(Args, Debug)]
pub(crate) struct OwnRestoreArgs {
    /// Let the process have another PID than it had, which takes no privilege
    #[arg(long, help_heading = "Without CRIU")]
    pub(crate) any_pid: bool,
    /// What becomes of terminals and pipes that were standard input, output and error
    #[arg(
        long,
        value_name = "WHAT",
        default_value = "inherit",
        help_heading = "Without CRIU"
    )]
    pub(crate) stdio: StdioArg,
    /// What becomes of other descriptors whose file, terminal or pipe is not there any more
    #[arg(
        long,
        value_name = "WHAT",
        default_value = "fail",
        help_heading = "Without CRIU"
    )]
    pub(crate) on_missing: MissingArg,
    /// Restore also where files that the program had open or mapped have changed since
    #[arg(long, help_heading = "Without CRIU")]
    pub(crate) allow_changed_files: bool,
}
