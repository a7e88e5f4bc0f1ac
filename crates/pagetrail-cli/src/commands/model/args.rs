//! Arguments of `model`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand};
use pagetrail_model::reproduce::catalog::Paper;
use pagetrail_model::technique::TechniqueKind;
use pagetrail_model::workload::WorkloadKind;

use pagetrail_report::size::Size;

/// Arguments of `model`.
#[derive(Args, Debug)]
#[command(
    disable_help_subcommand = true,
    after_help = "Examples:\n  \
        pagetrail model run --technique epml --workload key-value --size 64M\n  \
        pagetrail model compare --workload listing1 --size 1M,10M,100M --html out.html\n  \
        pagetrail model reproduce ooh --table 1"
)]
pub(crate) struct ModelArgs {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: ModelCommand,
}

/// The subcommands of `model`.
#[derive(Subcommand, Debug)]
pub(crate) enum ModelCommand {
    /// Run a program under one technique: what happens, round by round, and what it costs
    #[command(after_help = "Examples:\n  \
        pagetrail model run --technique epml --workload key-value --size 64M\n  \
        pagetrail model run --technique spml --trace sort.ptops --costs mine.toml")]
    Run(RunArgs),
    /// Run a program under several techniques, side by side
    #[command(after_help = "Examples:\n  \
        pagetrail model compare --workload listing1 --size 1M,10M,100M --html out.html\n  \
        pagetrail model compare --technique spml,epml --workload zipf")]
    Compare(CompareArgs),
    /// Print a paper's tables with the model's value, and a measured one, beside each of the
    /// paper's
    ///
    /// Each value says how it came about: input, identity, fitted, modelled, simulated, measured or
    /// emulated; a line for each table counts the values that could have differed from the paper's.
    /// Measured values are the project's own recordings, unless --measured or --measure gives
    /// others. What a paper only states in words is checked; where the model does not bear one out,
    /// the exit code is 1.
    #[command(after_help = "Examples:\n  \
        pagetrail model reproduce ooh\n  \
        pagetrail model reproduce ooh --table 1 --measure\n  \
        pagetrail bench --json > bench.json; pagetrail model reproduce ooh --table 1 --measured bench.json\n  \
        pagetrail model reproduce xen --table 13 --json")]
    Reproduce(ReproduceArgs),
    /// Print a cost table as TOML, to be changed and given to --costs
    ///
    /// With --bench the costs of this machine, as far as `pagetrail bench` measured them; the
    /// others are the OoH paper's, and marked as assumed.
    #[command(after_help = "Examples:\n  \
        pagetrail model costs ooh > costs.toml\n  \
        pagetrail bench --json > bench.json; pagetrail model costs --bench bench.json > here.toml")]
    Costs(CostsArgs),
    /// Record, import and look at traces: real programs to run on the model
    Trace(TraceArgs),
}

/// Arguments of `model run`.
#[derive(Args, Debug)]
pub(crate) struct RunArgs {
    /// oracle, soft-dirty, userfaultfd, spml, epml, shadow, lu-static-N or lu-dynamic-N (N parts of
    /// a page)
    #[arg(long, value_name = "TECHNIQUE")]
    pub(crate) technique: TechniqueKind,
    /// Memory of the program, with its unit: 10M
    #[arg(
        long,
        value_name = "SIZE",
        default_value = "64M",
        conflicts_with = "trace"
    )]
    pub(crate) size: Size,
    #[command(flatten)]
    pub(crate) program: ProgramArgs,
    /// Write one JSON document to standard output
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `model compare`.
#[derive(Args, Debug)]
pub(crate) struct CompareArgs {
    /// Only these techniques; otherwise one of each
    #[arg(long, value_name = "TECHNIQUES", value_delimiter = ',')]
    pub(crate) technique: Vec<TechniqueKind>,
    /// Memory of the program: numbers with a unit
    #[arg(
        long,
        value_name = "SIZES",
        value_delimiter = ',',
        default_value = "1M,10M,50M",
        conflicts_with = "trace"
    )]
    pub(crate) size: Vec<Size>,
    #[command(flatten)]
    pub(crate) program: ProgramArgs,
    /// Write one JSON document to standard output
    #[arg(long)]
    pub(crate) json: bool,
    /// Write a self-contained page with charts and the tables
    #[arg(long, value_name = "OUT")]
    pub(crate) html: Option<PathBuf>,
}

/// What runs, and on what.
#[derive(Args, Debug)]
pub(crate) struct ProgramArgs {
    /// What the program does
    #[arg(
        long,
        value_name = "WORKLOAD",
        value_parser = workload_parser(),
        required_unless_present = "trace",
        conflicts_with = "trace"
    )]
    pub(crate) workload: Option<WorkloadKind>,
    /// A recorded program, as `pagetrail model trace` makes them
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: Option<PathBuf>,
    /// Rounds of the program (processes, for memory-motion)
    #[arg(
        long,
        value_name = "N",
        default_value_t = 5,
        value_parser = clap::value_parser!(u32).range(1..=1_000_000),
        conflicts_with = "trace"
    )]
    pub(crate) rounds: u32,
    /// Seed of the program's random numbers
    #[arg(long, value_name = "N", default_value_t = 0, conflicts_with = "trace")]
    pub(crate) seed: u64,
    /// Whose costs: papers, ooh, xen, or a file in TOML
    #[arg(long, value_name = "FILE", default_value = "papers")]
    pub(crate) costs: PathBuf,
    /// Another process gets the processor for a moment after so many accesses
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) switch_every: Option<u64>,
    /// Pages of the ring buffer between module and tracker (spml, epml)
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1024,
        value_parser = clap::value_parser!(u64).range(1..=65536)
    )]
    pub(crate) ring_pages: u64,
}

fn workload_parser() -> impl TypedValueParser<Value = WorkloadKind> {
    let names = WorkloadKind::ALL.map(WorkloadKind::name);
    PossibleValuesParser::new(names).try_map(|name| name.parse::<WorkloadKind>())
}

/// Arguments of `model reproduce`.
#[derive(Args, Debug)]
pub(crate) struct ReproduceArgs {
    /// The paper: ooh (Bitchebe, Tchana), flexible (Lu et al.), hmmv (Sha et al.) or xen
    /// (Kloster et al.)
    #[arg(value_name = "PAPER", value_parser = paper_parser())]
    pub(crate) paper: Paper,
    /// Only this table, by its number (not its Roman numeral)
    #[arg(long, value_name = "N", conflicts_with = "figure")]
    pub(crate) table: Option<u8>,
    /// Only this figure
    #[arg(long, value_name = "N")]
    pub(crate) figure: Option<u8>,
    /// Show what this recording has before those that the command brings along (may be repeated;
    /// the first that has a value gives it)
    ///
    /// A document of `pagetrail bench --json` or `bench --metrics --json`, or one that `cargo xtask
    /// bench` makes. Machine and date that it does not have come from a provenance.json beside it.
    #[arg(long, value_name = "FILE")]
    pub(crate) measured: Vec<PathBuf>,
    /// Measure now what this machine can: techniques and single steps of the OoH paper
    ///
    /// What needs programs, guests or the source is named, with the command that makes it.
    #[arg(long)]
    pub(crate) measure: bool,
    /// Measure these sizes alone, of those that the paper has: numbers with a unit
    #[arg(
        long,
        value_name = "SIZES",
        value_delimiter = ',',
        requires = "measure"
    )]
    pub(crate) size: Vec<Size>,
    /// Write a page of HTML as well
    #[arg(long, value_name = "OUT")]
    pub(crate) html: Option<PathBuf>,
    /// Write a chapter of Markdown as well, with a picture of each table, into this folder
    #[arg(long, value_name = "DIR")]
    pub(crate) report: Option<PathBuf>,
    /// Write one JSON document to standard output
    #[arg(long)]
    pub(crate) json: bool,
}

fn paper_parser() -> impl TypedValueParser<Value = Paper> {
    let names = Paper::ALL.map(Paper::name);
    PossibleValuesParser::new(names).try_map(|name| {
        name.parse::<Paper>()
            .map_err(|()| "no such paper".to_owned())
    })
}

/// Arguments of `model costs`.
#[derive(Args, Debug)]
pub(crate) struct CostsArgs {
    /// Whose: papers, ooh, xen, or a file, which is checked
    #[arg(value_name = "TABLE", default_value = "papers")]
    pub(crate) table: PathBuf,
    /// Calibrate from what `pagetrail bench --json` wrote
    #[arg(long, value_name = "FILE", conflicts_with = "table")]
    pub(crate) bench: Option<PathBuf>,
}

/// Arguments of `model trace`.
#[derive(Args, Debug)]
#[command(
    disable_help_subcommand = true,
    after_help = "Examples:\n  \
        pagetrail model trace record -o sort.ptops -- sort words.txt\n  \
        pagetrail model trace show sort.ptops"
)]
pub(crate) struct TraceArgs {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: TraceCommand,
}

/// The subcommands of `model trace`.
#[derive(Subcommand, Debug)]
pub(crate) enum TraceCommand {
    /// Run a program under Valgrind and keep its loads and stores as a trace
    ///
    /// Valgrind must be installed. The program runs some hundred times slower than alone; keep it
    /// short.
    #[command(after_help = "Examples:\n  \
        pagetrail model trace record -o sort.ptops -- sort words.txt")]
    Record(TraceRecordArgs),
    /// Turn a recording of Valgrind's lackey into a trace
    ///
    /// The recording is what `valgrind --tool=lackey --trace-mem=yes --log-file=RECORDING PROGRAM`
    /// leaves.
    #[command(after_help = "Examples:\n  \
        pagetrail model trace import recording.txt program.ptops --round-every 20000")]
    Import(TraceImportArgs),
    /// Check a trace and say what it holds
    #[command(after_help = "Examples:\n  \
        pagetrail model trace show program.ptops")]
    Show(TraceShowArgs),
}

/// Arguments of `model trace record`.
#[derive(Args, Debug)]
pub(crate) struct TraceRecordArgs {
    /// Where to keep the trace; an earlier trace there is overwritten, any other file is not
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: PathBuf,
    #[command(flatten)]
    pub(crate) keep: KeepArgs,
    /// The program, and its arguments
    #[arg(last = true, value_name = "CMD", required = true)]
    pub(crate) command: Vec<OsString>,
}

/// Arguments of `model trace import`.
#[derive(Args, Debug)]
pub(crate) struct TraceImportArgs {
    /// The recording
    #[arg(value_name = "RECORDING")]
    pub(crate) recording: PathBuf,
    /// Where to keep the trace; an earlier trace there is overwritten, any other file is not
    #[arg(value_name = "TRACE")]
    pub(crate) trace: PathBuf,
    #[command(flatten)]
    pub(crate) keep: KeepArgs,
}

/// What of a recording is kept.
#[derive(Args, Debug)]
pub(crate) struct KeepArgs {
    /// A round ends after so many loads and stores
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) round_every: u64,
    /// Keep every visit to a page; otherwise the first read and the first write of each page and
    /// round
    #[arg(long)]
    pub(crate) all: bool,
    /// Loads and stores that are recorded at most; a program that makes more is ended
    #[arg(
        long,
        value_name = "N",
        default_value_t = 100_000_000,
        value_parser = clap::value_parser!(u64).range(1..)
    )]
    pub(crate) limit: u64,
}

/// Arguments of `model trace show`.
#[derive(Args, Debug)]
pub(crate) struct TraceShowArgs {
    /// The trace
    #[arg(value_name = "FILE")]
    pub(crate) trace: PathBuf,
    /// Write one JSON document to standard output
    #[arg(long)]
    pub(crate) json: bool,
}
