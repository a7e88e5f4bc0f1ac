//! Arguments of `bench`.

use std::path::PathBuf;

use clap::Args;
use pagetrail::Technique;
use pagetrail_report::size::Size;

use crate::session::pace::{Share, share};

/// Sizes of the paper's tables.
const SIZES: &str = "1M,10M,50M,100M,250M,500M,1G";

/// Arguments of `bench`.
#[derive(Args, Debug)]
#[command(after_long_help = pagetrail_bench::definitions::HELP)]
pub(crate) struct BenchArgs {
    /// How much memory the writer has: numbers with a unit, K, M or G (binary).
    #[arg(long, value_name = "SIZES", value_delimiter = ',', default_value = SIZES)]
    pub(crate) size: Vec<Size>,
    /// Only these techniques; otherwise all that work here.
    #[arg(long, value_name = "TECHNIQUES", value_delimiter = ',')]
    pub(crate) technique: Vec<Technique>,
    /// Measure each this many times, in turn; medians are shown.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) runs: u32,
    /// Write one JSON document to standard output.
    #[arg(long)]
    pub(crate) json: bool,
    /// Write a self-contained page with charts and the tables.
    #[arg(long, value_name = "OUT")]
    pub(crate) html: Option<PathBuf>,
    /// Measure the workloads and programs of this file instead, side by side
    #[arg(long, value_name = "FILE", conflicts_with_all = ["size", "runs"])]
    pub(crate) suite: Option<PathBuf>,
    /// Measure single steps instead, of which no technique is part
    ///
    /// Those of table IV of the OoH paper that a stock kernel has: a system call, a walk of the
    /// pagemap, the search for a page by its frame (needs CAP_SYS_ADMIN), a copy out of a ring
    /// buffer.
    #[arg(long, conflicts_with_all = ["suite", "technique", "html"])]
    pub(crate) metrics: bool,
    /// Measure the suite's short form
    #[arg(long, requires = "suite")]
    pub(crate) quick: bool,
    /// What tracking may cost the programs of a suite: rounds are stretched for that, up to 10 s
    #[arg(long, value_name = "SHARE", value_parser = share, requires = "suite")]
    pub(crate) max_overhead: Option<Share>,
    /// Where the programs of a suite are that it brings along
    #[arg(long, value_name = "DIR", requires = "suite", default_value = ".")]
    pub(crate) programs: PathBuf,
    /// Be the writer of a workload, which `bench` itself starts.
    #[arg(long, hide = true, value_name = "JSON")]
    pub(crate) as_workload: Option<String>,
    /// Be the writer in another process, which `bench` itself starts.
    #[arg(long, hide = true, value_name = "SIZE")]
    pub(crate) as_writer: Option<Size>,
}
