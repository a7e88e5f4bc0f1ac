//! The flags of `pagetrail report`.

use std::path::PathBuf;

use clap::Args;

use crate::args::DEFAULT_FILE;
use pagetrail_report::comparison::Condition;

/// Arguments of `report`.
#[derive(Args, Debug)]
pub(crate) struct ReportArgs {
    /// The recording
    #[arg(value_name = "FILE", default_value = DEFAULT_FILE)]
    pub(crate) file: PathBuf,
    /// A second recording, after a change: what is different, by mapping and function; where they
    /// have several processes, by process, which are the same by command line and order
    #[arg(value_name = "AFTER")]
    pub(crate) after: Option<PathBuf>,
    /// Exit with 1 if this holds of the two recordings: FIGURE OPERATOR BOUND, or FIGURE:NAME
    /// OPERATOR BOUND, where FIGURE is written (pages per second) or working-set (different pages
    /// in a second), NAME a mapping or function, OPERATOR one of > >= < <=, and BOUND pages, or
    /// with an x times as many as before: 'written>1.1x'. Of several processes it is judged for
    /// each that both have (or --process). It can be given several times
    #[arg(long, value_name = "CONDITION", requires = "after")]
    pub(crate) fail_if: Vec<Condition>,
    /// Write one JSON document to standard output
    #[arg(long)]
    pub(crate) json: bool,
    /// The process to report on, by its PID or its program's name, where the recording has several;
    /// without it the report lists all processes, the page has those that wrote most, and other
    /// pictures show the first
    #[arg(long, value_name = "PID")]
    pub(crate) process: Option<String>,
    /// Report what each process has copied of the memory that it shared with its parent after
    /// fork(2), and by which code: of a recording of a tree, made with CAP_SYS_ADMIN
    #[arg(long, conflicts_with_all = ["after", "html", "png", "flamegraph", "folded", "pprof", "parquet", "chrome_trace"])]
    pub(crate) private_since_fork: bool,
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
    /// Write a table of all pages written, as an Apache Parquet file for DuckDB, Spark and others;
    /// without OUT it takes the recording's name with .parquet
    #[arg(long, value_name = "OUT", num_args = 0..=1)]
    pub(crate) parquet: Option<Option<PathBuf>>,
    /// Write the rounds as a trace in Chrome's format, for Perfetto; without OUT it takes the
    /// recording's name with .trace.json
    #[arg(long, value_name = "OUT", num_args = 0..=1)]
    pub(crate) chrome_trace: Option<Option<PathBuf>>,
}

impl ReportArgs {
    /// A flag that was given and is of one recording only.
    pub(crate) fn of_one_recording(&self) -> Option<&'static str> {
        let flags = [
            ("--png", &self.pictures.png),
            ("--flamegraph", &self.flamegraph),
            ("--folded", &self.folded),
            ("--pprof", &self.pprof),
            ("--parquet", &self.parquet),
            ("--chrome-trace", &self.chrome_trace),
        ];
        let mut given = flags.into_iter().filter(|(_, out)| out.is_some());
        given.next().map(|(flag, _)| flag)
    }
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
