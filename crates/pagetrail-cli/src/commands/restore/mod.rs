//! `pagetrail restore`: a process started anew from a checkpoint, by CRIU or by pagetrail itself,
//! whichever took it.

pub(crate) mod args;
mod copies;
mod own;

use std::process::ExitCode;

use anyhow::{Result, bail};
use pagetrail_checkpoint::TreeStore;

use crate::commands::checkpoint::chain::image;
use crate::commands::checkpoint::open;
use crate::commands::criu;
use crate::commands::criu::args::RestoreArgs;

/// Runs the subcommand.
pub(crate) fn run(args: &RestoreArgs) -> Result<ExitCode> {
    if TreeStore::is_at(&args.store) {
        bail!(
            "a tree is not started anew from checkpoints of this kind, which lack what connects its processes; CRIU's can be: pagetrail checkpoint --restorable -p PID"
        );
    }
    let store = open(&args.store, &args.key)?;
    let image = image(&store, args.at.as_ref())?;
    match image.manifest().state() {
        Some(_) => own::run(args, image),
        None => criu::restore::run(args),
    }
}
