//! What the command line looks like.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

/// Where a recording is kept when no file is named.
pub(crate) const DEFAULT_FILE: &str = "pagetrail.trail";

/// Tells which memory a program wrote.
#[derive(Parser, Debug)]
#[command(name = "pagetrail", version, max_term_width = 100)]
pub(crate) struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The subcommands.
#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Show what a recording holds.
    Report(ReportArgs),
    /// Measure what each technique costs here, as the OoH paper does.
    Bench(crate::bench::args::BenchArgs),
}

/// Arguments of `report`.
#[derive(Args, Debug)]
pub(crate) struct ReportArgs {
    /// The recording.
    #[arg(value_name = "FILE", default_value = DEFAULT_FILE)]
    pub(crate) file: PathBuf,
    /// Write one JSON document to standard output.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) pictures: PictureArgs,
}

/// Files to write besides.
#[derive(Args, Debug)]
pub(crate) struct PictureArgs {
    /// Write a self-contained page with a heatmap to zoom into.
    #[arg(long, value_name = "OUT")]
    pub(crate) html: Option<PathBuf>,
    /// Write the heatmap as a picture.
    #[arg(long, value_name = "OUT")]
    pub(crate) png: Option<PathBuf>,
}
