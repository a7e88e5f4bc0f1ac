//! The flags of `pagetrail top`.

use std::path::PathBuf;

use clap::Args;

use crate::args::{GuestArgs, TechniqueArgs, TreeArgs};
use crate::commands::record::args::StacksArg;
use crate::session::pace::{BudgetArgs, Interval, interval};

/// Arguments of `top`.
#[derive(Args, Debug)]
pub(crate) struct TopArgs {
    #[command(flatten)]
    pub(crate) target: TreeArgs,
    /// Track only the processes that are named, not their children
    #[arg(long, conflicts_with_all = ["cgroup", "vm"])]
    pub(crate) no_children: bool,
    #[command(flatten)]
    pub(crate) technique: TechniqueArgs,
    #[command(flatten)]
    pub(crate) guest: GuestArgs,
    /// Time from round to round, with its unit; a range such as 20ms..1s with --max-overhead
    #[arg(long, value_name = "TIME", default_value = "500ms", value_parser = interval)]
    pub(crate) interval: Interval,
    #[command(flatten)]
    pub(crate) budget: BudgetArgs,
    /// Sample which functions write, by their call stacks as in record; f shows them
    #[arg(
        long,
        value_name = "HOW",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "fp"
    )]
    pub(crate) stacks: Option<StacksArg>,
    /// File for the standard output and error of the started program
    #[arg(
        long,
        value_name = "FILE",
        requires = "command",
        conflicts_with_all = ["pid", "cgroup"]
    )]
    pub(crate) output: Option<PathBuf>,
}
