//! What the command line looks like: help texts, man pages and shell completions are made from it.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, Parser, Subcommand, ValueEnum};
use pagetrail::{BLOCK_PAGES_MAX, Choice, FalsePositiveCost, HugePages, Technique, TrackMode};

use crate::tracking::find;

/// Where a recording is kept when no file is named.
pub(crate) const DEFAULT_FILE: &str = "pagetrail.trail";

/// Shorter ones are not rounds but a busy loop, and the trail counts milliseconds.
const DURATION_MIN: Duration = Duration::from_millis(1);
/// Far from where sums of times overflow.
const DURATION_MAX: Duration = Duration::from_secs(366 * 24 * 3600);

/// Tells which memory a program wrote.
#[derive(Parser, Debug)]
#[command(
    name = "pagetrail",
    version,
    max_term_width = 100,
    disable_help_subcommand = true,
    after_help = "Examples:\n  \
        pagetrail check\n  \
        pagetrail record --html out.html -- ./prog\n  \
        pagetrail report\n\n\
        Exit codes: 0 fine, 1 negative finding, 2 error, 3 not possible on this machine; record passes the\n\
        program's own on, and 126 and 127 are as in shells. PAGETRAIL_DISABLE names techniques not to use,\n\
        NO_COLOR turns colours off."
)]
pub(crate) struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The subcommands.
#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Try every technique on this machine and say which work, and why the others do not
    Check(CheckArgs),
    /// Record what a program writes, round by round, into a file
    ///
    /// Follows a running process (-p), or starts a program and follows it from its first instruction to its end (--).
    /// Programs that it starts in turn are not recorded.
    ///
    /// A program started here has the terminal to itself: an interrupt from the keyboard is for the program, and is
    /// ignored by pagetrail; SIGTERM and SIGHUP are passed on to it. When the recording stops first (--rounds,
    /// --duration, a full disk), the program runs on unwatched and pagetrail waits for its end.
    ///
    /// A process followed by -p is left alone when the recording ends, by an interrupt or a limit.
    #[command(
        override_usage = "pagetrail record [OPTIONS] -p <PID>\n       pagetrail record [OPTIONS] -- <CMD>...",
        after_help = "Examples:\n  \
        pagetrail record -- ./prog --its-option\n  \
        pagetrail record -p 1234 --duration 10s --html out.html\n  \
        pagetrail record -p 1234 --interval 1s --technique compare -o slow.trail\n  \
        pagetrail record -p 1234 --access\n  \
        pagetrail record --vm --access -- ./prog\n  \
        pagetrail record --parts 8 -- ./prog"
    )]
    Record(RecordArgs),
    /// Show what a recording holds
    #[command(after_help = "Examples:\n  \
        pagetrail report\n  \
        pagetrail report slow.trail --json\n  \
        pagetrail report --html out.html --png out.png")]
    Report(ReportArgs),
    /// Watch live what a program writes
    ///
    /// Keys: q or Esc quits, s changes the order of the mappings.
    ///
    /// A program started here (--) gets no input, and its output is thrown away unless --output names a file: the
    /// screen is taken. It runs on when the view is left.
    #[command(
        override_usage = "pagetrail top [OPTIONS] -p <PID>\n       pagetrail top [OPTIONS] -- <CMD>...",
        after_help = "Examples:\n  \
        pagetrail top -p 1234\n  \
        pagetrail top --interval 100ms --output prog.log -- ./prog"
    )]
    Top(TopArgs),
    #[command(flatten)]
    Checkpoints(crate::commands::checkpoint::args::CheckpointCommand),
    /// Measure what each technique costs here, as the OoH paper does
    Bench(crate::bench::args::BenchArgs),
    /// Run tracking designs that need other hardware on a machine in software, and price them
    Model(crate::model::args::ModelArgs),
    /// Keep the hot pages of programs in fast memory, on machines whose memory is of two kinds
    Tier(crate::tier::args::TierArgs),
    /// Run a program as the guest of a virtual machine on KVM, where the processor logs which pages it writes
    Vm(crate::vm::args::VmArgs),
    /// Write man pages and shell completions
    #[command(hide = true)]
    Generate(GenerateArgs),
}

/// Arguments of `check`.
#[derive(Args, Debug)]
pub(crate) struct CheckArgs {
    /// Write one JSON document to standard output
    #[arg(long)]
    pub(crate) json: bool,
}

/// Numbers of parts that a page of a sub-page heap can have.
pub(crate) const PARTS: [&str; 7] = ["1", "2", "4", "8", "16", "32", "64"];

/// Arguments of `record`.
#[derive(Args, Debug)]
pub(crate) struct RecordArgs {
    #[command(flatten)]
    pub(crate) target: TargetArgs,
    #[command(flatten)]
    pub(crate) technique: TechniqueArgs,
    /// Notice reads, too: rounds of writes and of accesses in turns, or of accesses only (Linux 7.3). With --vm both are told
    /// of the same time, on any kernel
    #[arg(
        long,
        value_name = "WHICH",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "turns"
    )]
    pub(crate) access: Option<AccessArg>,
    /// Start the program on the sub-page allocator, which tells writes to small objects apart within a page: 1, 2, 4, 8,
    /// 16, 32 or 64 parts
    #[arg(
        long,
        value_name = "N",
        conflicts_with = "pid",
        hide_possible_values = true,
        value_parser = PARTS
    )]
    pub(crate) parts: Option<String>,
    /// Record also what the program writes after the last round before its end. It runs under ptrace(2) for this as long
    /// as it lives, and can tell: LeakSanitizer fails, debuggers and set-user-ID are refused, signals take longer
    #[arg(long, conflicts_with_all = ["pid", "vm"])]
    pub(crate) last_round: bool,
    /// Run the program in a virtual machine on KVM, and let the processor tell what it writes (see pagetrail vm)
    #[arg(long, conflicts_with_all = ["pid", "technique", "false_positive_cost", "exact", "huge_pages", "block_pages", "report_again"])]
    pub(crate) vm: bool,
    /// Time from round to round, with its unit
    #[arg(long, value_name = "TIME", default_value = "100ms", value_parser = duration)]
    pub(crate) interval: Duration,
    /// Stop after this many rounds
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) rounds: Option<u32>,
    /// Stop after this time, with its unit: 10s, 2m
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) duration: Option<Duration>,
    /// Where to keep the recording; an earlier recording there is overwritten, any other file is not
    #[arg(short, long, value_name = "FILE", default_value = DEFAULT_FILE)]
    pub(crate) output: PathBuf,
    #[command(flatten)]
    pub(crate) pictures: PictureArgs,
}

/// Arguments of `top`.
#[derive(Args, Debug)]
pub(crate) struct TopArgs {
    #[command(flatten)]
    pub(crate) target: TargetArgs,
    #[command(flatten)]
    pub(crate) technique: TechniqueArgs,
    /// Time from round to round, with its unit
    #[arg(long, value_name = "TIME", default_value = "500ms", value_parser = duration)]
    pub(crate) interval: Duration,
    /// Keep what the started program writes to its standard output and error
    #[arg(
        long,
        value_name = "FILE",
        requires = "command",
        conflicts_with = "pid"
    )]
    pub(crate) output: Option<PathBuf>,
}

/// Whom to watch.
#[derive(Args, Debug)]
#[group(required = true, multiple = false)]
pub(crate) struct TargetArgs {
    /// A running process, by its PID or its name
    #[arg(short, long, value_name = "PID", value_parser = find::process)]
    pub(crate) pid: Option<u32>,
    /// A program to start, and its arguments
    #[arg(last = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

/// How to watch.
#[derive(Args, Debug)]
pub(crate) struct TechniqueArgs {
    /// How to notice writes; auto is the cheapest that works for the target
    #[arg(
        long,
        value_name = "TECHNIQUE",
        default_value = "auto",
        value_parser = technique_parser()
    )]
    pub(crate) technique: TechniqueChoice,
    /// What a page costs that is reported and was not written, for the technique adaptive: what is done with it (copied,
    /// hashed, scanned, sent), or a time with its unit
    #[arg(long, value_name = "COST", value_parser = false_positive_cost)]
    pub(crate) false_positive_cost: Option<FalsePositiveCost>,
    /// Leave out pages that adaptive predicts dirty and that have not changed, by hashing them in each round
    #[arg(long)]
    pub(crate) exact: bool,
    /// Report each page once more in the round after: for memory that is written through pinned pages (process_vm_writev,
    /// O_DIRECT, io_uring), of which a short round may see the pinning only
    #[arg(long)]
    pub(crate) report_again: bool,
    /// What pagemap-scan does about transparent huge pages
    #[arg(long, value_name = "HOW", default_value = "split")]
    pub(crate) huge_pages: HugePagesArg,
    /// How many pages a fault of the technique userfaultfd releases at once
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..=i64::from(BLOCK_PAGES_MAX))
    )]
    pub(crate) block_pages: u32,
}

/// `auto` or a technique.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TechniqueChoice(pub(crate) Choice);

pub(crate) fn technique_parser() -> impl TypedValueParser<Value = TechniqueChoice> {
    let names = Technique::ALL.map(Technique::name);
    let names = ["auto"].into_iter().chain(names).map(PossibleValue::new);
    PossibleValuesParser::new(names).try_map(|name| match name.as_str() {
        "auto" => Ok(TechniqueChoice(Choice::Auto)),
        name => name.parse().map(Choice::Technique).map(TechniqueChoice),
    })
}

fn false_positive_cost(text: &str) -> Result<FalsePositiveCost, String> {
    match text {
        "copied" => Ok(FalsePositiveCost::Copied),
        "hashed" => Ok(FalsePositiveCost::Hashed),
        "scanned" => Ok(FalsePositiveCost::Scanned),
        "sent" => Ok(FalsePositiveCost::Sent),
        time => humantime::parse_duration(time)
            .map(FalsePositiveCost::Costs)
            .map_err(|_| "copied, hashed, scanned, sent, or a time such as 3us".into()),
    }
}

/// What to do about huge pages.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum HugePagesArg {
    /// the first write splits one, and its small pages are told apart
    Split,
    /// none is split, and each is reported as written in every round
    Keep,
}

impl From<HugePagesArg> for HugePages {
    fn from(arg: HugePagesArg) -> Self {
        match arg {
            HugePagesArg::Split => Self::Split,
            HugePagesArg::Keep => Self::Keep,
        }
    }
}

/// Which accesses to notice besides writes.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum AccessArg {
    /// every second round holds the pages touched, the others those written
    Turns,
    /// every round holds the pages touched
    Only,
}

impl From<AccessArg> for TrackMode {
    fn from(arg: AccessArg) -> Self {
        match arg {
            AccessArg::Turns => Self::Alternate,
            AccessArg::Only => Self::Accesses,
        }
    }
}

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
}

/// Files to write besides.
#[derive(Args, Debug)]
pub(crate) struct PictureArgs {
    /// Write a self-contained page with a heatmap to zoom into; without OUT it takes the recording's name with .html. A file
    /// that is no web page is not overwritten
    #[arg(long, value_name = "OUT", num_args = 0..=1)]
    pub(crate) html: Option<Option<PathBuf>>,
    /// Write the heatmap as a picture; without OUT it takes the recording's name with .png. A file that is no PNG picture is
    /// not overwritten
    #[arg(long, value_name = "OUT", num_args = 0..=1)]
    pub(crate) png: Option<Option<PathBuf>>,
}

/// Arguments of `generate`.
#[derive(Args, Debug)]
pub(crate) struct GenerateArgs {
    /// The directory that gets `man/` and `completions/`
    #[arg(value_name = "DIR")]
    pub(crate) directory: PathBuf,
}

pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let duration = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    if (DURATION_MIN..=DURATION_MAX).contains(&duration) {
        Ok(duration)
    } else {
        Err("it must be between 1ms and 1year".into())
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_definitions_hold_together() {
        Cli::command().debug_assert();
    }

    #[test]
    fn durations_need_a_unit_and_a_sensible_size() {
        assert_eq!(duration("100ms"), Ok(Duration::from_millis(100)));
        assert_eq!(duration("2m"), Ok(Duration::from_secs(120)));
        for wrong in [
            "100",
            "",
            "ms",
            "0s",
            "10us",
            "-1s",
            "2years",
            "99999999999999999999s",
        ] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
    }
}
