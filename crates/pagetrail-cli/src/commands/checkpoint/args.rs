//! What the commands about checkpoints look like on the command line.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use clap::{Args, Subcommand, ValueEnum};
use pagetrail_checkpoint::{
    Compression, Label, Mode, Retention, Store, WorldWritable, WriterOptions,
};

use crate::args::{TechniqueChoice, duration, technique_parser};
use crate::session::waiting::ProgressArgs;
use crate::session::{find, pace};

/// The subcommands about checkpoints.
#[derive(Subcommand, Debug)]
pub(crate) enum CheckpointCommand {
    /// Save the memory and registers of a running process, which hardly pauses
    ///
    /// A checkpoint is for putting the living process back (rewind) and for debuggers (export
    /// --core). One that is taken with --restorable is for starting the process anew (restore):
    /// CRIU takes it, of the process and its children, which stand still meanwhile and then go on.
    /// With --every or --count, most is copied while they run, where soft-dirty bits tell what they
    /// write: the kernel's, or those of libpagetrail_softdirty.so beside pagetrail.
    /// With --restorable=own it is of one process, as any other checkpoint, and without CRIU; what
    /// could not be started anew, connections to others say, is refused.
    ///
    /// Pages are copied while the process runs, those that it writes meanwhile are copied again,
    /// and for what is left it is stopped: each checkpoint is of one instant. The first of each run
    /// of this command is a base, for which all memory is read; the others, with --every or
    /// --count, are increments, of what was written since. Pages that the store has are not stored
    /// again, by either.
    ///
    /// A checkpoint that fails, because the disk is full, leaves the store as it was, and the next
    /// has what it should have had.
    ///
    /// A program that it starts (-- CMD) keeps the terminal and its input and output; the first
    /// checkpoint is taken an interval after its start, signals are passed on to it, and the exit
    /// code is its own. Lines about checkpoints go to standard error then.
    ///
    /// Of a tree (--tree) all processes are held before any is copied for good, those that are born
    /// meanwhile too, and none goes on before all have been copied: so what they share, and what
    /// one knows of another, is of one instant. With --cgroup these are the processes of a control
    /// group and of those below it. The store is a directory with a store of each process below
    /// `processes`; log, show and verify know it, and the other subcommands take the store of one
    /// process. Processes that share an address space are refused, and from these
    /// checkpoints no tree is started anew: that takes CRIU's (--restorable).
    ///
    /// A guest (--vm) gets no input, its output goes to standard error, and it runs on when the
    /// command ends before it.
    #[command(
        override_usage = "pagetrail checkpoint [OPTIONS] --store <STORE> -p <PID>\n       \
        pagetrail checkpoint [OPTIONS] --store <STORE> --cgroup <PATH>\n       \
        pagetrail checkpoint [OPTIONS] --store <STORE> --every <TIME> -- <CMD>...\n       \
        pagetrail checkpoint [OPTIONS] --store <STORE> --vm -- <CMD>...",
        after_help = "Examples:\n  \
        pagetrail checkpoint -p 1234 --store saved\n  \
        pagetrail checkpoint -p 1234 --store saved --every 5s --keep 10\n  \
        pagetrail checkpoint --tree -p 1234 --store saved-tree --every 5s --keep 10\n  \
        pagetrail checkpoint --cgroup /sys/fs/cgroup/web --store saved-web\n  \
        pagetrail checkpoint -p 1234 --store saved --every 1s..1m --max-overhead 2%\n  \
        pagetrail checkpoint -p 1234 --store saved --label before-upgrade\n  \
        pagetrail checkpoint --store saved --every 1m --keep 10 -- ./prog\n  \
        pagetrail checkpoint --restorable -p 1234 --store saved\n  \
        pagetrail checkpoint --restorable=own -p 1234 --store saved --every 5s\n  \
        pagetrail checkpoint --vm --store saved --every 5s -- ./prog"
    )]
    Checkpoint(TakeArgs),
    /// List the checkpoints of a store
    #[command(after_help = "Examples:\n  pagetrail log saved\n  pagetrail log saved --json")]
    Log(LogArgs),
    /// Show what a checkpoint holds: threads, mappings, descriptors
    #[command(after_help = "Examples:\n  pagetrail show saved\n  pagetrail show saved 3")]
    Show(ShowArgs),
    /// Say whether a process holds something else than its newest checkpoint; exit code 1 if not
    ///
    /// Its memory is read once while it runs, up to the first page that differs. Nothing changed
    /// means that its mappings are the same, and that every page held, at one moment of the scan,
    /// what the checkpoint has: a page that was written and holds again what it held is as it was.
    /// The kernel itself writes to it when a thread goes on on another processor (rseq(2)): that
    /// counts. Registers are not compared, nor files and connections. A process of which the store
    /// has no checkpoint has changed.
    #[command(after_help = "Examples:\n  \
        pagetrail changed -p 1234 --store saved && pagetrail checkpoint -p 1234 --store saved")]
    Changed(ChangedArgs),
    /// Show which pages differ between two checkpoints, mapping by mapping
    #[command(after_help = "Examples:\n  pagetrail diff saved 2 3")]
    Diff(DiffArgs),
    /// Check every byte of a store; exit code 1 when something is damaged or missing
    ///
    /// It says which checkpoints that costs. That the newest was removed it cannot know: nothing
    /// names it.
    #[command(after_help = "Examples:\n  pagetrail verify saved")]
    Verify(VerifyArgs),
    /// Remove checkpoints of a store: all that no rule keeps
    ///
    /// Each rule keeps some, and what one keeps stays; the newest stays in any case, and so do
    /// those with a label, unless --labelled. Hours, days and weeks are those of UTC, weeks begin
    /// on Monday, and those without a checkpoint do not count.
    ///
    /// All of the store is read first: only checkpoints without damage count, and the others stay.
    #[command(after_help = "Examples:\n  \
        pagetrail prune saved --keep-last 3\n  \
        pagetrail prune saved --keep-hourly 24 --keep-daily 7 --keep-weekly 4 --dry-run")]
    Prune(PruneArgs),
    /// Set aside what is damaged in a store, with the checkpoints that need it; the others stay as
    /// they are
    ///
    /// In a directory it is moved to `damaged` below it, in an object store to names that begin so.
    #[command(after_help = "Examples:\n  pagetrail verify saved || pagetrail repair saved")]
    Repair(RepairArgs),
    /// Merge a span of checkpoints into its last
    ///
    /// The last is read first: if it is damaged, nothing is removed. Those with a label stay.
    #[command(after_help = "Examples:\n  pagetrail squash saved 2 7")]
    Squash(SquashArgs),
    /// Make files of a checkpoint: an ELF core for debuggers, the plain contents, images for CRIU
    ///
    /// --raw writes the contents of the saved mappings one after the other, and to OUT.map a line
    /// for each: its addresses, the offset in OUT at which its contents begin (hexadecimal, as the
    /// addresses), and its name. --criu writes the image files of a checkpoint that CRIU made, for
    /// criu restore. Files that exist are not replaced without --force, and image files never.
    #[command(after_help = "Examples:\n  \
        pagetrail export saved --core core --at 3\n  \
        gdb ./prog core\n  \
        pagetrail export saved --criu images")]
    Export(ExportArgs),
    /// Put a process back to an earlier instant of its own
    ///
    /// Memory and registers go back; what the kernel keeps for the process, positions in files,
    /// say, does not. The threads must be those of then, their memory still be mapped, and the same
    /// descriptors be open: a connection that has come since may hold what the process of then
    /// would answer a second time. If pagetrail itself is killed while it writes to the process,
    /// the kernel kills the process too: it must not run with memory of two times.
    #[command(after_help = "Examples:\n  pagetrail rewind -p 1234 saved --to 3")]
    Rewind(RewindArgs),
}

/// Who saves what it takes to start a process anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Restorer {
    /// CRIU, as root: the process and its children
    Criu,
    /// Pagetrail itself: one process with ordinary descriptors
    Own,
    /// Own where that is possible, else CRIU
    Auto,
}

/// Arguments of `checkpoint`.
#[derive(Args, Debug)]
pub(crate) struct TakeArgs {
    /// A running process, by its PID or its name
    #[arg(short, long, value_name = "PID", value_parser = find::process, group = "roots", required_unless_present_any = ["cgroup", "vm", "command"])]
    pub(crate) pid: Option<u32>,
    /// Save all processes that descend from it too, all at one instant: into a directory that has
    /// a store for each process
    #[arg(
        long,
        requires = "roots",
        conflicts_with_all = ["vm", "command", "label", "restorable", "key_file", "max_pause", "metrics_file", "metrics_listen", "progress"]
    )]
    pub(crate) tree: bool,
    /// Save all processes of a control group (version 2), as by --tree; PATH is its directory
    #[arg(
        long,
        value_name = "PATH",
        group = "roots",
        conflicts_with_all = ["pid", "vm", "command", "label", "restorable", "key_file", "max_pause", "metrics_file", "metrics_listen", "progress"]
    )]
    pub(crate) cgroup: Option<PathBuf>,
    /// Run the program in a virtual machine on KVM, where the processor logs its dirty pages (see
    /// pagetrail vm)
    #[arg(long, requires = "command", conflicts_with_all = ["pid", "technique", "report_again"])]
    pub(crate) vm: bool,
    /// As record --vm has it: refused, with what to do instead
    #[arg(long, hide = true, requires = "vm")]
    pub(crate) follow: bool,
    /// A program to start, and its arguments; with --vm, as a guest
    #[arg(last = true, value_name = "CMD", conflicts_with = "pid")]
    pub(crate) command: Vec<OsString>,
    /// The store: a directory, made where there is none, or s3://BUCKET/PREFIX and the like where
    /// this is built in
    #[arg(long, value_name = "STORE")]
    pub(crate) store: PathBuf,
    /// Save all that it takes to start the process anew: criu saves it and its children, by CRIU
    /// (4.1 or newer, on PATH), as root; own needs neither, saves a process alone, without
    /// connections to others, and takes increments
    #[arg(
        long,
        value_name = "BY",
        value_enum,
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "criu"
    )]
    pub(crate) restorable: Option<Restorer>,
    /// With --restorable, pass an argument on to criu dump, --tcp-established say; may be given
    /// several times
    #[arg(
        long,
        value_name = "ARG",
        requires = "restorable",
        allow_hyphen_values = true
    )]
    pub(crate) criu_arg: Vec<String>,
    /// Take one after the other, at this interval with its unit, until the process ends, or Ctrl-C;
    /// with --max-overhead, between two, as 1s..1m
    #[arg(long, value_name = "TIME", value_parser = pace::interval)]
    pub(crate) every: Option<pace::Interval>,
    /// Let checkpoints slow the process down by no more than this share of its time, such as 3%:
    /// where they would, the interval is stretched, up to 10 s or ten
    /// times, or to the end of --every 1s..1m
    ///
    /// Counted are the faults by which writes are noticed and the pauses; not the processors that
    /// copying, compressing and writing take, which the process may not need. Where the longest
    /// interval does not suffice, checkpoints are taken at that, and a line says so.
    #[arg(
        long,
        value_name = "SHARE",
        value_parser = pace::share,
        requires = "every",
        conflicts_with_all = ["vm", "tree", "cgroup"]
    )]
    pub(crate) max_overhead: Option<pace::Share>,
    /// Stop after this many checkpoints; without --every, one right after the other
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) count: Option<u32>,
    /// Give the checkpoint a name, by which the other subcommands know it; it stays until it is
    /// pruned by --labelled
    #[arg(long, value_name = "LABEL", value_parser = Label::new, conflicts_with_all = ["every", "count"])]
    pub(crate) label: Option<Label>,
    /// Remove all but the newest N checkpoints of the store, and those with a label, as new ones
    /// come
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) keep: Option<u32>,
    /// Copy while the process runs and stop it for the rest, or stop it for all, or write-protect
    /// the rest
    #[arg(long, value_name = "MODE", default_value = "precopy")]
    pub(crate) mode: ModeArg,
    /// How long the process should stand still at most: precopy where that suffices, else cow
    ///
    /// A goal, not a promise. Where it chooses cow, pages are write-protected for a while, in which
    /// operations of the kernel on priority-inheriting mutexes in them fail with EFAULT, and the
    /// death of a robust mutex's owner may go unrecorded. Not for programs with such mutexes.
    #[arg(long, value_name = "TIME", value_parser = duration, conflicts_with = "mode")]
    pub(crate) max_pause: Option<Duration>,
    /// How to notice writes; auto is the cheapest that works for the process
    #[arg(long, value_name = "TECHNIQUE", default_value = "auto", value_parser = technique_parser())]
    pub(crate) technique: TechniqueChoice,
    /// Store of pages of a sub-page heap only what differs; in an object store the sub-pages
    /// written, which trusts the program not to write past its objects
    #[arg(long)]
    pub(crate) trust_subpages: bool,
    /// Read what was written before a checkpoint once more for the next one: for memory that is
    /// written through pinned pages (process_vm_writev, O_DIRECT, io_uring)
    #[arg(long)]
    pub(crate) report_again: bool,
    /// Of shared memory, save what the process itself writes through its mappings only, and not
    /// what others write there; otherwise all of it is read while the process stands still
    #[arg(long)]
    pub(crate) trust_shared: bool,
    #[command(flatten)]
    pub(crate) writing: WritingArgs,
    /// Keep numbers about the checkpoints in a file, as Prometheus reads them
    #[arg(long, value_name = "FILE")]
    pub(crate) metrics_file: Option<PathBuf>,
    /// Serve these numbers by HTTP, at this address and port
    #[arg(long, value_name = "ADDRESS", requires = "every")]
    pub(crate) metrics_listen: Option<SocketAddr>,
    /// Write a JSON document to standard output for each checkpoint, a line each
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) progress: ProgressArgs,
}

impl TakeArgs {
    /// The time from one checkpoint to the next, the shortest where there is a budget.
    pub(crate) fn interval(&self) -> Option<Duration> {
        self.every.map(|interval| interval.shortest)
    }

    /// What checkpoints may cost, if there is a budget.
    pub(crate) fn budget(&self) -> Result<Option<pace::Budget>> {
        let Some(interval) = self.every else {
            return Ok(None);
        };
        let max_overhead = self.max_overhead;
        pace::BudgetArgs { max_overhead }.budget(interval, "--every")
    }
}

/// How to write to a store.
#[derive(Args, Debug)]
pub(crate) struct WritingArgs {
    /// How to compress: none, lz4, zstd, or zstd:LEVEL from 1 to 22
    #[arg(long, value_name = "HOW", default_value = "lz4", value_parser = compression)]
    pub(crate) compression: Compression,
    /// Compress so many pages together, 1 to 1024: fewer make the store larger, and a page that
    /// restore --lazy needs alone come sooner. 16 unless said otherwise; with --restorable=own 4
    #[arg(
        long,
        value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..=1024)
    )]
    pub(crate) frame_pages: Option<u32>,
    #[command(flatten)]
    pub(crate) key: KeyArgs,
    /// Use the store even in a directory in which everybody may write
    #[arg(long)]
    pub(crate) allow_world_writable: bool,
    /// Wait so long for another process that writes to the store
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = duration)]
    pub(crate) lock_wait: Duration,
}

/// How many pages are compressed together where a process may be started from a checkpoint, and
/// need some of them before others.
const RESTORABLE_FRAME_PAGES: u32 = 4;

impl WritingArgs {
    /// Where the store may lie.
    pub(crate) fn exposed(&self) -> WorldWritable {
        match self.allow_world_writable {
            true => WorldWritable::Allow,
            false => WorldWritable::Refuse,
        }
    }

    /// How the library is to write checkpoints, by which processes are started without CRIU or not.
    pub(crate) fn options(&self, is_restorable: bool) -> WriterOptions {
        let usual = match is_restorable {
            true => RESTORABLE_FRAME_PAGES,
            false => WriterOptions::default().frame_pages,
        };
        WriterOptions {
            compression: self.compression,
            frame_pages: self.frame_pages.unwrap_or(usual),
        }
    }
}

/// The key of a store.
#[derive(Args, Debug)]
pub(crate) struct KeyArgs {
    /// The store is encrypted, by the key in this file: 32 random bytes, or 64 hexadecimal digits;
    /// a store that is made new becomes encrypted
    #[arg(long, value_name = "FILE")]
    pub(crate) key_file: Option<PathBuf>,
}

/// When to stop the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ModeArg {
    /// copy while it runs, stop it for the rest
    Precopy,
    /// stop it, copy, let it go on
    Stop,
    /// copy while it runs, write-protect the rest in a stop, and copy that while it runs on; not
    /// for programs with priority-inheriting mutexes
    Cow,
}

impl From<ModeArg> for Mode {
    fn from(mode: ModeArg) -> Self {
        match mode {
            ModeArg::Precopy => Self::Precopy,
            ModeArg::Stop => Self::Stop,
            ModeArg::Cow => Self::Cow,
        }
    }
}

/// A store, and how to tell about it.
#[derive(Args, Debug)]
pub(crate) struct LogArgs {
    /// The store
    #[arg(value_name = "STORE")]
    pub(crate) store: PathBuf,
    #[command(flatten)]
    pub(crate) key: KeyArgs,
    /// Write one JSON document to standard output
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `verify`.
#[derive(Args, Debug)]
pub(crate) struct VerifyArgs {
    #[command(flatten)]
    pub(crate) of: LogArgs,
    #[command(flatten)]
    pub(crate) progress: ProgressArgs,
}

/// Arguments of `show`.
#[derive(Args, Debug)]
pub(crate) struct ShowArgs {
    /// The store
    #[arg(value_name = "STORE")]
    pub(crate) store: PathBuf,
    #[command(flatten)]
    pub(crate) key: KeyArgs,
    /// The checkpoint, by its number or its label; the newest when left out
    #[arg(value_name = "N", value_parser = Which::parse)]
    pub(crate) number: Option<Which>,
    /// Write one JSON document to standard output
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `changed`.
#[derive(Args, Debug)]
pub(crate) struct ChangedArgs {
    /// The process, by its PID or its name
    #[arg(short, long, value_name = "PID", value_parser = find::process)]
    pub(crate) pid: u32,
    /// The store
    #[arg(long, value_name = "STORE")]
    pub(crate) store: PathBuf,
    #[command(flatten)]
    pub(crate) key: KeyArgs,
    /// The checkpoint of this process, by its number or its label; the newest when left out
    #[arg(long, value_name = "N", value_parser = Which::parse)]
    pub(crate) at: Option<Which>,
    /// Write one JSON document to standard output
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `diff`.
#[derive(Args, Debug)]
pub(crate) struct DiffArgs {
    /// The store
    #[arg(value_name = "STORE")]
    pub(crate) store: PathBuf,
    #[command(flatten)]
    pub(crate) key: KeyArgs,
    /// One checkpoint, by its number or its label
    #[arg(value_name = "A", value_parser = Which::parse)]
    pub(crate) first: Which,
    /// The other
    #[arg(value_name = "B", value_parser = Which::parse)]
    pub(crate) second: Which,
    /// Write one JSON document to standard output
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `prune`.
#[derive(Args, Debug)]
pub(crate) struct PruneArgs {
    /// The store
    #[arg(value_name = "STORE")]
    pub(crate) store: PathBuf,
    #[command(flatten)]
    pub(crate) rules: RetentionArgs,
    /// Say what would be removed, and remove nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    #[command(flatten)]
    pub(crate) writing: WritingArgs,
    /// Write one JSON document to standard output
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) progress: ProgressArgs,
}

/// Which checkpoints stay.
#[derive(Args, Debug)]
#[command(group = clap::ArgGroup::new("rules").required(true).multiple(true))]
pub(crate) struct RetentionArgs {
    /// Keep the newest N
    #[arg(long, alias = "keep", value_name = "N", group = "rules", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) keep_last: Option<u32>,
    /// Keep the newest of each of the newest N hours that have any
    #[arg(long, value_name = "N", group = "rules", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) keep_hourly: Option<u32>,
    /// Keep the newest of each of the newest N days that have any
    #[arg(long, value_name = "N", group = "rules", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) keep_daily: Option<u32>,
    /// Keep the newest of each of the newest N weeks that have any
    #[arg(long, value_name = "N", group = "rules", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) keep_weekly: Option<u32>,
    /// Treat checkpoints with a label as the others
    #[arg(long)]
    pub(crate) labelled: bool,
}

impl RetentionArgs {
    pub(crate) fn rule(&self) -> Retention {
        Retention {
            last: self.keep_last.unwrap_or(0),
            hourly: self.keep_hourly.unwrap_or(0),
            daily: self.keep_daily.unwrap_or(0),
            weekly: self.keep_weekly.unwrap_or(0),
            labels_go: self.labelled,
        }
    }
}

/// A checkpoint, as somebody names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Which {
    /// By its number.
    Number(u64),
    /// By its label: the newest that has it.
    Label(Label),
}

impl Which {
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        if text.bytes().all(|b| b.is_ascii_digit()) {
            let number = text.parse().map(Self::Number);
            return number.map_err(|error: std::num::ParseIntError| error.to_string());
        }
        match Label::new(text) {
            Ok(label) => Ok(Self::Label(label)),
            Err(error) => Err(format!("it is no number, and {error}")),
        }
    }

    /// The number in a store.
    pub(crate) fn number(&self, store: &Store) -> pagetrail_checkpoint::Result<u64> {
        match self {
            Self::Number(number) => Ok(*number),
            Self::Label(label) => store.labelled(label),
        }
    }
}

/// Arguments of `repair`.
#[derive(Args, Debug)]
pub(crate) struct RepairArgs {
    /// The store
    #[arg(value_name = "STORE")]
    pub(crate) store: PathBuf,
    #[command(flatten)]
    pub(crate) writing: WritingArgs,
    /// Write one JSON document to standard output
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `squash`.
#[derive(Args, Debug)]
pub(crate) struct SquashArgs {
    /// The store
    #[arg(value_name = "STORE")]
    pub(crate) store: PathBuf,
    /// The first checkpoint of the span, by its number or its label; it goes
    #[arg(value_name = "FIRST", value_parser = Which::parse)]
    pub(crate) first: Which,
    /// The last one; it stays, with all that it has
    #[arg(value_name = "LAST", value_parser = Which::parse)]
    pub(crate) last: Which,
    #[command(flatten)]
    pub(crate) writing: WritingArgs,
    /// Write one JSON document to standard output
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) progress: ProgressArgs,
}

/// Arguments of `export`.
#[derive(Args, Debug)]
#[command(group = clap::ArgGroup::new("form").required(true).multiple(true))]
pub(crate) struct ExportArgs {
    /// The store
    #[arg(value_name = "STORE")]
    pub(crate) store: PathBuf,
    #[command(flatten)]
    pub(crate) key: KeyArgs,
    /// Write an ELF core file
    #[arg(long, value_name = "OUT", group = "form")]
    pub(crate) core: Option<PathBuf>,
    /// Write the contents as they are, and an index to OUT.map
    #[arg(long, value_name = "OUT", group = "form")]
    pub(crate) raw: Option<PathBuf>,
    /// Write the image files of a checkpoint that CRIU made to a directory, made where there is
    /// none
    #[arg(long, value_name = "DIR", group = "form")]
    pub(crate) criu: Option<PathBuf>,
    /// Leave pages that can be restored when they are first touched to a page server
    #[arg(long, requires = "criu")]
    pub(crate) lazy: bool,
    /// The checkpoint, by its number or its label; the newest when left out
    #[arg(long, value_name = "N", value_parser = Which::parse)]
    pub(crate) at: Option<Which>,
    /// Replace files that exist
    #[arg(long)]
    pub(crate) force: bool,
    /// Write one JSON document to standard output
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) progress: ProgressArgs,
}

/// Arguments of `rewind`.
#[derive(Args, Debug)]
pub(crate) struct RewindArgs {
    /// The process, by its PID or its name
    #[arg(short, long, value_name = "PID", value_parser = find::process)]
    pub(crate) pid: u32,
    /// The store
    #[arg(value_name = "STORE")]
    pub(crate) store: PathBuf,
    #[command(flatten)]
    pub(crate) key: KeyArgs,
    /// The checkpoint, by its number or its label
    #[arg(long, value_name = "N", value_parser = Which::parse)]
    pub(crate) to: Which,
    /// Rewind even where other descriptors are open than then
    #[arg(long)]
    pub(crate) force: bool,
    /// Write one JSON document to standard output
    #[arg(long)]
    pub(crate) json: bool,
}

fn compression(text: &str) -> Result<Compression, String> {
    let wrong = || "it must be none, lz4, zstd or zstd:LEVEL with a level from 1 to 22".to_owned();
    let compression = match text.split_once(':') {
        None if text == "none" => Compression::None,
        None if text == "lz4" => Compression::Lz4,
        None if text == "zstd" => Compression::Zstd(3),
        Some(("zstd", level)) => {
            let level = level.parse().map_err(|_| wrong())?;
            if !(1..=22).contains(&level) {
                return Err(wrong());
            }
            Compression::Zstd(level)
        }
        _ => return Err(wrong()),
    };
    Ok(compression)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checkpoints_are_named_by_numbers_and_labels() {
        assert_eq!(Which::parse("12"), Ok(Which::Number(12)));
        let label = Label::new("v1").unwrap();
        assert_eq!(Which::parse("v1"), Ok(Which::Label(label)));
        for wrong in ["", "-1", "a b", "99999999999999999999"] {
            assert!(Which::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn compressions_are_named() {
        assert_eq!(compression("none"), Ok(Compression::None));
        assert_eq!(compression("zstd:19"), Ok(Compression::Zstd(19)));
        for wrong in ["", "gzip", "zstd:", "zstd:0", "zstd:23", "lz4:1", "zstd:x"] {
            assert!(compression(wrong).is_err(), "{wrong}");
        }
    }
}
