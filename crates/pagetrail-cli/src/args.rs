//! The command line: subcommands and the flags that several of them share.
//!
//! Help texts, man pages and shell completions are generated from it.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{ArgAction, Args, Parser, Subcommand, ValueEnum};
use pagetrail::{BLOCK_PAGES_MAX, Choice, FalsePositiveCost, HugePages, Technique};
pub(crate) use pagetrail_report::duration::{MAX as DURATION_MAX, parse as duration};

use crate::session::find;
use crate::version;

/// File of a recording if none is named.
pub(crate) const DEFAULT_FILE: &str = "pagetrail.trail";

/// Where the flags of every subcommand stand in its help: after its own, before `--help`.
const LAST: usize = 990;

/// Tracks the dirty pages of running programs.
#[derive(Parser, Debug)]
#[command(
    name = "pagetrail",
    version,
    long_version = version::LONG,
    max_term_width = 100,
    after_help = "Examples:\n  \
        pagetrail check\n  \
        pagetrail record --html out.html -- ./prog\n  \
        pagetrail report\n\n\
        Exit codes: 0 fine, 1 negative finding, 2 error, 3 not possible on this machine; record passes the\n\
        program's own on, and 126 and 127 are as in shells. PAGETRAIL_DISABLE names techniques not to use,\n\
        PAGETRAIL_LOG a level of events to report, NO_COLOR turns colours off."
)]
pub(crate) struct Cli {
    /// When to use colours: auto (on a terminal, unless NO_COLOR is set), always or never
    #[arg(
        long,
        value_name = "WHEN",
        default_value = "auto",
        hide_possible_values = true,
        global = true,
        display_order = LAST
    )]
    pub(crate) color: ColorArg,
    /// Report events on standard error: which technique was chosen and why; -vv: what was probed
    /// and measured
    #[arg(short, long, action = ArgAction::Count, global = true, display_order = LAST)]
    pub(crate) verbose: u8,
    /// The subcommand.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The subcommands.
#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Try every technique on this machine and say which work, and why the others do not
    Check(crate::commands::check::CheckArgs),
    /// Record what a program writes, round by round, into a file
    ///
    /// Tracks a running process (-p), or starts a program and tracks it from its first instruction
    /// to its end (--). Child processes are recorded, too, each by itself (--no-children leaves
    /// them out): those that are there, and those that come. They are found at each round, so one
    /// that lives shorter than --interval may be missed. The recording ends with the processes that
    /// were named, or with the program.
    ///
    /// A program started here has the terminal to itself: an interrupt from the keyboard is for the
    /// program, and is ignored by pagetrail; SIGTERM and SIGHUP are passed on to it. When the
    /// recording stops first (--rounds, --duration, a full disk), the program runs on untracked and
    /// pagetrail waits for its end.
    ///
    /// A process followed by -p is left alone when the recording ends, by an interrupt or a limit.
    #[command(
        override_usage = "pagetrail record [OPTIONS] -p <PID>\n       pagetrail record [OPTIONS] --cgroup <PATH>\n       pagetrail record [OPTIONS] -- <CMD>...",
        after_help = "Examples:\n  \
        pagetrail record -- ./prog --its-option\n  \
        pagetrail record --cgroup /sys/fs/cgroup/system.slice/cron.service\n  \
        pagetrail record -p 1234 --duration 10s --html out.html\n  \
        pagetrail record -p 1234 --interval 1s --technique compare -o slow.trail\n  \
        pagetrail record -p 1234 --access\n  \
        pagetrail record --vm --access -- ./prog\n  \
        pagetrail record --subpages 8 -- ./prog"
    )]
    Record(crate::commands::record::args::RecordArgs),
    /// Show what a recording holds, or how two differ
    #[command(after_help = "Examples:\n  \
        pagetrail report\n  \
        pagetrail report slow.trail --json\n  \
        pagetrail report --html out.html --png out.png\n  \
        pagetrail report before.trail after.trail --fail-if 'written>1.1x'\n  \
        pagetrail report --parquet pages.parquet")]
    Report(crate::commands::report::args::ReportArgs),
    /// Watch live what a program writes
    ///
    /// Keys: q or Esc quits, s changes the order of the mappings, f changes between mappings and
    /// the functions of --stacks, p lists the processes, and j and k go from one to the next.
    ///
    /// A program started here (--) gets no input, and its output is thrown away unless --output
    /// names a file: the screen is taken. It runs on when the view is left.
    #[command(
        override_usage = "pagetrail top [OPTIONS] -p <PID>\n       pagetrail top [OPTIONS] --cgroup <PATH>\n       pagetrail top [OPTIONS] -- <CMD>...",
        after_help = "Examples:\n  \
        pagetrail top -p 1234\n  \
        pagetrail top --cgroup /sys/fs/cgroup/web\n  \
        pagetrail top --stacks -p 1234\n  \
        pagetrail top --interval 100ms --output prog.log -- ./prog"
    )]
    Top(crate::commands::top::args::TopArgs),
    #[command(flatten)]
    Checkpoints(crate::commands::checkpoint::args::CheckpointCommand),
    /// Start a process anew from a checkpoint that was taken with --restorable
    ///
    /// It starts with the PIDs, files and memory that it had; so these PIDs must be free, and its
    /// files must be there and have the sizes that they had. A checkpoint can be restored as often
    /// as you like. One that was taken with --restorable=own is restored by pagetrail itself,
    /// others by CRIU (4.1 or newer, on PATH); of those the next checkpoint in the same store is an
    /// increment of the one restored.
    ///
    /// With --lazy the process runs at once, and gets its pages as it touches them, the others
    /// after; pagetrail ends when it has all. Killed before that, it takes the process with it.
    ///
    /// With --count copies are started, all of them or none, in PID and mount namespaces of their
    /// own, so their PIDs are always free. They share files and the network: of a program with a
    /// TCP or UDP port or an abstract socket there is one copy at a time. A copy ends with its
    /// first process, which is named.
    #[command(after_help = "Examples:\n  \
        pagetrail checkpoint --restorable -p 1234 --store saved\n  \
        pagetrail restore saved\n  \
        pagetrail restore saved --at 3 --lazy\n  \
        pagetrail restore saved --count 8 --wait\n  \
        pagetrail checkpoint --restorable=own -p 1234 --store own\n  \
        pagetrail restore own --wait")]
    Restore(crate::commands::criu::args::RestoreArgs),
    /// Take the dumps of CRIU into a store, and give their pages back when it restores them
    ///
    /// It speaks the protocol of criu page-server, with CRIU 4.1 or newer as it is. What criu dump
    /// or criu pre-dump sends with --page-server becomes a checkpoint of the store, published whole
    /// or not at all before CRIU hears that all went well; with --track-mem and --prev-images-dir,
    /// dumps that follow each other are increments. CRIU's other image files stay in its directory.
    ///
    /// To restore, export --criu writes the pages to that directory; with --lazy it leaves those
    /// that can be restored when they are first touched, for criu lazy-pages --page-server to get
    /// from here.
    ///
    /// All who reach the port can read and write the checkpoints: the protocol knows no passwords.
    /// Of this machine only programs of the same user and of root are served.
    #[command(after_help = "Examples:\n  \
        pagetrail page-server --store saved &\n  \
        criu dump -t 1234 -D images --page-server --address 127.0.0.1 --port 9466\n  \
        pagetrail export saved --criu images --lazy\n  \
        criu lazy-pages -D images --page-server --address 127.0.0.1 --port 9466 &\n  \
        criu restore -D images --lazy-pages")]
    PageServer(crate::commands::page_server::args::PageServerArgs),
    /// Measure what each technique costs here, as the OoH paper does
    Bench(crate::commands::bench::args::BenchArgs),
    /// Measure what tracking, or a virtual machine, costs a program, against its native run
    ///
    /// Runs a program in several environments, in rounds whose order is drawn, and says how many
    /// times as long it takes in each, with a confidence interval. The noise of the machine is
    /// measured first, and a difference within it is marked. Output and exit status are compared,
    /// too: a program that behaves differently somewhere is named. With --suite, tests of
    /// subsystems run instead: fixed work that checks its own result.
    ///
    /// All runs have the same processors and the same variables; the program gets no input, and its
    /// output is kept in memory and not shown.
    #[command(
        override_usage = "pagetrail compare [OPTIONS] <ENVIRONMENTS> -- <CMD>...\n       pagetrail compare [OPTIONS] <ENVIRONMENTS> --suite <SUITES>",
        after_help = "Examples:\n  \
        pagetrail compare native,tracked:pagemap-scan,vm -- ./prog\n  \
        pagetrail compare tracked:pagemap-scan@10ms,heap:8 --for 2m --html out.html -- ./prog\n  \
        pagetrail compare tracked:pagemap-scan --fail-if 'tracked:pagemap-scan>1.1x' -- ./prog\n  \
        pagetrail compare vm --suite memory,calls,ipc\n\n\
        Recordings are compared by pagetrail report, and designs on a machine in software by\n\
        pagetrail model compare."
    )]
    Compare(crate::commands::compare::args::CompareArgs),
    /// Run tracking designs that need other hardware on a machine in software, and price them
    #[cfg(feature = "model")]
    Model(crate::commands::model::args::ModelArgs),
    /// Keep the hot pages of programs in fast memory, on machines whose memory is of two kinds
    Tier(crate::commands::tier::args::TierArgs),
    /// Run a program as the guest of a virtual machine on KVM, where the processor logs which pages
    /// it writes
    Vm(crate::commands::vm::args::VmArgs),
    /// Write a shell's completions to standard output
    #[command(after_help = "Examples:\n  \
        pagetrail completions bash > ~/.local/share/bash-completion/completions/pagetrail\n  \
        pagetrail completions zsh > /usr/local/share/zsh/site-functions/_pagetrail\n  \
        pagetrail completions fish > ~/.config/fish/completions/pagetrail.fish")]
    Completions(crate::commands::generate::CompletionsArgs),
    /// Write man pages and shell completions
    #[command(hide = true)]
    Generate(crate::commands::generate::GenerateArgs),
}

/// Numbers of sub-pages into which a sub-page heap can divide a page.
pub(crate) const SUBPAGES: [&str; 7] = ["1", "2", "4", "8", "16", "32", "64"];

/// The targets: processes, a control group, or a program to start.
#[derive(Args, Debug)]
#[group(required = true, multiple = false)]
pub(crate) struct TreeArgs {
    /// A running process, by its PID or its name; several with one -p each
    #[arg(short, long, value_name = "PID", value_parser = find::process)]
    pub(crate) pid: Vec<u32>,
    /// All processes of a control group (version 2), those that come later included; PATH is its
    /// directory
    #[arg(long, value_name = "PATH")]
    pub(crate) cgroup: Option<PathBuf>,
    /// A program to start, and its arguments
    #[arg(last = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

/// The technique and its options.
#[derive(Args, Debug)]
pub(crate) struct TechniqueArgs {
    /// How to track writes; auto is the cheapest technique that works for the target
    #[arg(
        long,
        value_name = "TECHNIQUE",
        default_value = "auto",
        value_parser = technique_parser()
    )]
    pub(crate) technique: TechniqueChoice,
    /// Cost of a false positive, for the technique adaptive: what is done with a page (copied,
    /// hashed, scanned, sent), or a time with its unit
    #[arg(long, value_name = "COST", value_parser = false_positive_cost)]
    pub(crate) false_positive_cost: Option<FalsePositiveCost>,
    /// Leave out pages that adaptive predicts dirty and that have not changed, by hashing them in
    /// each round
    #[arg(long)]
    pub(crate) exact: bool,
    /// Report each page again in the next round: for memory written through pinned pages
    /// (process_vm_writev, O_DIRECT, io_uring), where a short round may see only the pinning
    #[arg(long)]
    pub(crate) report_again: bool,
    /// What pagemap-scan does with transparent huge pages
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

/// What to do with transparent huge pages.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum HugePagesArg {
    /// split a huge page at the first write, and track its small pages
    Split,
    /// split none, and report each as dirty in every round
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

/// When to use colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ColorArg {
    /// on a terminal, unless `NO_COLOR` is set
    Auto,
    /// also in files and pipes
    Always,
    /// nowhere
    Never,
}

/// Whether a program to be started is to be a guest.
#[derive(Args, Debug)]
pub(crate) struct GuestArgs {
    /// Run the program in a virtual machine on KVM, where the processor logs its dirty pages (see
    /// pagetrail vm)
    #[arg(long, conflicts_with_all = ["pid", "cgroup", "technique", "false_positive_cost", "exact", "huge_pages", "block_pages", "report_again"])]
    pub(crate) vm: bool,
    /// Track each process that comes of the program, as a guest of its own: its children, and what
    /// they execute
    #[arg(long, requires = "vm", conflicts_with = "max_overhead")]
    pub(crate) follow: bool,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_definitions_hold_together() {
        Cli::command().debug_assert();
    }
}
