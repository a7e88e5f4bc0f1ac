//! The first process of a copy's namespaces (`restore --first-of-copy`, which `copies` starts).

use std::process::ExitCode;

use anyhow::{Context, Result};
use pagetrail_criu::FirstProcess;

use super::args::RestoreArgs;
use super::{restore, with_cure};
use crate::commands::checkpoint::chain::image;
use crate::commands::checkpoint::open;
use crate::session::signals::{Addressee, Signals};

/// Runs the subcommand.
pub(super) fn run(args: &RestoreArgs) -> Result<ExitCode> {
    let mut signals = Signals::take(Addressee::Us).context("cannot handle signals")?;
    let store = open(&args.store, &args.key)?;
    let image = image(&store, args.at.as_ref())?;
    let first = FirstProcess::begin(&image).map_err(with_cure)?;
    let restored = restore::start(args, &store, image)?;
    first.announce(&restored).map_err(with_cure)?;
    restored.finish().map_err(with_cure)?;
    first.wait(|| signals.stop_requested());
    Ok(ExitCode::SUCCESS)
}
