//! The flags of `pagetrail report`.

use std::path::PathBuf;

use clap::Args;

use crate::args::DEFAULT_FILE;

/// Arguments of `report`.
#[derive(Args, Debug)]
pub(crate) struct ReportArgs {
    /// The recording
    #[arg(value_name = "FILE", default_value = DEFAULT_FILE)]
    pub(crate) file: PathBuf,
    /// Write one JSON document to standard output
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) pictures: PictureArgs,
    /// Draw the call stacks of `record --stacks` as a flame graph (SVG); without OUT it takes the
    /// recording's name with .svg. A file that is not an SVG picture is not overwritten
    #[arg(long, value_name = "OUT", num_args = 0..=1)]
    pub(crate) flamegraph: Option<Option<PathBuf>>,
    /// Write the call stacks of `record --stacks` as folded text, for other tools; without OUT it
    /// takes the recording's name with .folded
    #[arg(long, value_name = "OUT", num_args = 0..=1)]
    pub(crate) folded: Option<Option<PathBuf>>,
    /// Write the call stacks of `record --stacks` as a profile for pprof; without OUT it takes the
    /// recording's name with .pb
    #[arg(long, value_name = "OUT", num_args = 0..=1)]
    pub(crate) pprof: Option<Option<PathBuf>>,
}

/// Pictures to write in addition to the report.
#[derive(Args, Debug)]
pub(crate) struct PictureArgs {
    /// Write a self-contained page with a heatmap to zoom into; without OUT it takes the
    /// recording's name with .html. A file that is not a web page is not overwritten
    #[arg(long, value_name = "OUT", num_args = 0..=1)]
    pub(crate) html: Option<Option<PathBuf>>,
    /// Write the heatmap as a picture; without OUT it takes the recording's name with .png. A file
    /// that is not a PNG picture is not overwritten
    #[arg(long, value_name = "OUT", num_args = 0..=1)]
    pub(crate) png: Option<Option<PathBuf>>,
}
