//! What `pagetrail tier` looks like on the command line.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::PossibleValue;
use clap::{Args, Subcommand, ValueEnum};
use pagetrail_endpoint::Address;
use pagetrail_report::size::Size;
use pagetrail_tier_service::agent::{AgentAddress, ListenAddress};
use pagetrail_tier_service::{SourceKind, Vm};

use crate::args::duration;
use crate::session::find;

/// Arguments of `tier`.
#[derive(Args, Debug)]
pub(crate) struct TierArgs {
    #[command(subcommand)]
    pub(crate) command: TierCommand,
}

/// The subcommands.
#[derive(Subcommand, Debug)]
pub(crate) enum TierCommand {
    /// Track a process for some windows, and print what would move and why; nothing is moved
    ///
    /// For a recording, each round is a window; the HTML page shows what would have been moved in
    /// each.
    #[command(
        override_usage = "pagetrail tier plan [OPTIONS] --fast <SIZE> -p <PID>\n       \
        pagetrail tier plan [OPTIONS] --fast <SIZE> --guest <VM>\n       \
        pagetrail tier plan [OPTIONS] --fast <SIZE> --trail <FILE>\n       \
        pagetrail tier plan [OPTIONS] --fast <SIZE> --vm -- <CMD>...",
        after_help = "Examples:\n  \
        pagetrail tier plan -p 1234 --fast 1G\n  \
        pagetrail tier plan -p 1234 --fast 64M --source writes --json\n  \
        pagetrail tier plan --guest web1 --fast 512M\n  \
        pagetrail tier plan --trail run.trail --fast 64M --html plan.html\n  \
        pagetrail tier plan --vm --fast 64M -- ./prog"
    )]
    Plan(PlanArgs),
    /// Keep the hot pages of programs in fast memory until stopped
    ///
    /// The file names the programs, by PID, command or cgroup, or starts them as guests of KVM, or
    /// names virtual machines that run, and says how much fast memory each may use. SIGHUP has it
    /// read anew. SIGTERM and SIGINT end it: every program keeps its memory where it is, guests run
    /// on, and the next start goes on from there, but for guests that it started. It ends by itself
    /// where all are such guests that have ended.
    #[command(after_help = "Examples:\n  \
        pagetrail tier run --config tier.toml\n  \
        pagetrail tier run --config tier.toml --dry-run --duration 1m --html tier.html")]
    Run(RunArgs),
    /// Say what a running `tier run` does
    #[command(after_help = "Examples:\n  \
        pagetrail tier status --config tier.toml\n  \
        pagetrail tier status --at unix:/run/pagetrail-tier.sock --json\n  \
        pagetrail tier status --config tier.toml --max-age 2m")]
    Status(StatusArgs),
    /// In a virtual machine: tell its host which memory is used
    ///
    /// For a host whose 'tier run' or 'tier plan' names this agent. Processes are sampled by what
    /// the guest's kernel offers, and only while a host asks; free memory is distinguished from
    /// memory that the kernel uses. It takes CAP_SYS_ADMIN. SIGTERM and SIGINT end it.
    #[command(after_help = "Examples:\n  \
        pagetrail tier agent\n  \
        pagetrail tier agent --listen /dev/virtio-ports/pagetrail --min-memory 64M\n  \
        pagetrail tier plan --guest web1 --agent vsock:3:9466 --fast 512M   # on the host")]
    Agent(AgentArgs),
}

/// Arguments of `tier agent`.
#[derive(Args, Debug)]
pub(crate) struct AgentArgs {
    /// Where the host asks: vsock:PORT, unix:PATH, ADDRESS:PORT (anybody who reaches that may ask),
    /// or a serial port, as /dev/virtio-ports/NAME
    #[arg(long, value_name = "ADDRESS", default_value = "vsock:9466")]
    pub(crate) listen: ListenAddress,
    #[command(flatten)]
    pub(crate) which: WhichArgs,
    /// How accesses are tracked
    #[arg(long, value_name = "SOURCE", default_value = "auto")]
    pub(crate) source: SourceArg,
    /// How long a window of the host is, with its unit; for DAMON
    #[arg(long, value_name = "TIME", default_value = "600ms", value_parser = duration)]
    pub(crate) window: Duration,
}

/// The processes that an agent samples.
#[derive(Args, Debug)]
#[group(multiple = false)]
pub(crate) struct WhichArgs {
    /// These processes, by PID or name; may be repeated
    #[arg(short, long, value_name = "PID", value_parser = find::process)]
    pub(crate) pid: Vec<u32>,
    /// All processes of a control group and of those below it
    #[arg(long, value_name = "CGROUP")]
    pub(crate) cgroup: Option<PathBuf>,
    /// All processes with so much memory
    #[arg(long, value_name = "SIZE", default_value = "16M")]
    pub(crate) min_memory: Size,
}

/// Arguments of `tier plan`.
#[derive(Args, Debug)]
pub(crate) struct PlanArgs {
    /// As record --vm has it: refused, with what to do instead
    #[arg(long, hide = true, requires = "vm")]
    pub(crate) follow: bool,
    #[command(flatten)]
    pub(crate) subject: SubjectArgs,
    /// A program to start as a guest, with --vm, and its arguments; it gets no input, its output
    /// goes to standard error, and it runs on after the plan
    #[arg(last = true, value_name = "CMD", requires = "vm")]
    pub(crate) command: Vec<OsString>,
    /// How much of its memory may be fast
    #[arg(long, value_name = "SIZE")]
    pub(crate) fast: Size,
    /// How accesses are tracked
    #[arg(
        long,
        value_name = "SOURCE",
        default_value = "auto",
        conflicts_with = "trail"
    )]
    pub(crate) source: SourceArg,
    /// Ask the guest's agent, which runs 'pagetrail tier agent': vsock:CID:PORT, unix:PATH or
    /// ADDRESS:PORT
    #[arg(
        long,
        value_name = "ADDRESS",
        requires = "guest",
        conflicts_with = "source"
    )]
    pub(crate) agent: Option<AgentAddress>,
    /// How many windows to watch [default: 8; all of a recording]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) windows: Option<u32>,
    /// How long a window is, with its unit
    #[arg(long, value_name = "TIME", default_value = "600ms", value_parser = duration, conflicts_with = "trail")]
    pub(crate) window: Duration,
    /// The nodes that fast memory is on, with commas between them
    #[arg(
        long,
        value_name = "NODE",
        default_value = "0",
        value_delimiter = ',',
        conflicts_with = "trail"
    )]
    pub(crate) fast_node: Vec<u32>,
    /// Write one JSON document to standard output
    #[arg(long)]
    pub(crate) json: bool,
    /// Write a self-contained page with pictures
    #[arg(long, value_name = "OUT")]
    pub(crate) html: Option<PathBuf>,
}

/// What a plan is for.
#[derive(Args, Debug)]
#[group(required = true, multiple = false)]
pub(crate) struct SubjectArgs {
    /// A running process, by its PID or its name
    #[arg(short, long, value_name = "PID", value_parser = find::process)]
    pub(crate) pid: Option<u32>,
    /// A virtual machine on KVM that runs, by its monitor's PID or its guest's name: guest memory
    /// alone
    #[arg(long, value_name = "VM")]
    pub(crate) guest: Option<Vm>,
    /// A recording: what would have been done with the program
    #[arg(long, value_name = "FILE")]
    pub(crate) trail: Option<PathBuf>,
    /// A program that is started in a virtual machine on KVM: reads and writes of the same windows,
    /// without faults (see pagetrail vm)
    #[arg(long, requires = "command")]
    pub(crate) vm: bool,
}

/// Arguments of `tier run`.
#[derive(Args, Debug)]
pub(crate) struct RunArgs {
    /// What to keep, and how: docs/tier-format.md has all of it
    #[arg(long, value_name = "FILE")]
    pub(crate) config: PathBuf,
    /// Track and decide, and move nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Stop after this time, with its unit
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) duration: Option<Duration>,
    /// In the end, write a self-contained page about what was done
    #[arg(long, value_name = "OUT")]
    pub(crate) html: Option<PathBuf>,
}

/// Arguments of `tier status`.
#[derive(Args, Debug)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    pub(crate) whom: WhomArgs,
    /// Fail if the status is older than this time, with its unit: the daemon does not go on
    ///
    /// For liveness probes. A daemon makes its status anew with every window; one that hangs still
    /// answers.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) max_age: Option<Duration>,
    /// Write one JSON document to standard output
    #[arg(long)]
    pub(crate) json: bool,
}

/// Where a daemon is.
#[derive(Args, Debug)]
#[group(required = true, multiple = false)]
pub(crate) struct WhomArgs {
    /// The file that it was started with
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Where it listens: ADDRESS:PORT or unix:PATH
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) at: Option<Address>,
}

/// A source, on the command line.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SourceArg(pub(crate) SourceKind);

impl ValueEnum for SourceArg {
    fn value_variants<'a>() -> &'a [Self] {
        const { &all() }
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        let help = match self.0 {
            SourceKind::Auto => "accesses where the kernel reports them, else writes",
            SourceKind::Accesses => "reads and writes alike (access-scan, Linux 7.3)",
            SourceKind::Writes => "writes only (pagemap-scan, Linux 6.7)",
            SourceKind::Turns => {
                "accesses and writes in turns, distinguished; every page is sampled in every window"
            }
            SourceKind::Damon => {
                "regions that DAMON saw touched, without faults; one process on a machine"
            }
            SourceKind::Idle => {
                "accesses by the kernel's idle page tracking, without faults, where a kernel has it"
            }
        };
        Some(PossibleValue::new(self.0.name()).help(help))
    }
}

const fn all() -> [SourceArg; SourceKind::ALL.len()] {
    let mut all = [SourceArg(SourceKind::Auto); SourceKind::ALL.len()];
    let mut index = 0;
    while index < all.len() {
        all[index] = SourceArg(SourceKind::ALL[index]);
        index += 1;
    }
    all
}
