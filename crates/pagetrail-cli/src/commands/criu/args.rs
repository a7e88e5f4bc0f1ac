//! What `restore` looks like on the command line.

use std::path::PathBuf;

use clap::Args;

use crate::commands::checkpoint::args::{KeyArgs, Which};
use crate::commands::restore::args::OwnRestoreArgs;
use crate::session::waiting::ProgressArgs;

/// Arguments of `restore`.
#[derive(Args, Debug)]
pub(crate) struct RestoreArgs {
    /// The store
    #[arg(value_name = "STORE")]
    pub(crate) store: PathBuf,
    #[command(flatten)]
    pub(crate) key: KeyArgs,
    /// The checkpoint, by its number or its label; the newest when left out
    #[arg(long, value_name = "N", value_parser = Which::parse)]
    pub(crate) at: Option<Which>,
    /// Start the program at once, and give it its pages as it touches them; this ends when it has
    /// all
    #[arg(long)]
    pub(crate) lazy: bool,
    /// Start so many copies, each in a PID namespace and a mount namespace of its own; beside the
    /// original, if it still runs. Of a checkpoint without CRIU, each has a PID of its own, and all
    /// share the pages that none of them writes to
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) count: Option<u32>,
    /// Stay until the program ends, and end with its exit status, or until all copies have ended,
    /// which end when this is ended
    #[arg(long)]
    pub(crate) wait: bool,
    /// Be the first process of a copy's namespaces
    #[arg(long, hide = true, conflicts_with_all = ["count", "json"])]
    pub(crate) first_of_copy: bool,
    /// Pass an argument on to criu restore, --tcp-established say; may be given several times
    #[arg(long, value_name = "ARG", allow_hyphen_values = true)]
    pub(crate) criu_arg: Vec<String>,
    #[command(flatten)]
    pub(crate) own: OwnRestoreArgs,
    /// Write one JSON document to standard output
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) progress: ProgressArgs,
}
