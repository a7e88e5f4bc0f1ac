//! The contents of a trail, independent of the file format.
//!
//! All times are durations since the recording started, in nanoseconds unless the name says
//! otherwise; all addresses are bytes in the tracked process; counts of pages use
//! [`Header::page_size`], the page size of the machine that recorded.

use pagetrail::{AccessKind, PageRange, PageSet};

use crate::stacks::{Attribution, StackTable};

/// Facts that hold for the whole recording.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// The command and its arguments as they were run, or as found in `/proc/PID/cmdline`.
    pub command: Vec<String>,
    /// The tracked process.
    pub pid: u32,
    /// Bytes per page on the recording machine.
    pub page_size: u64,
    /// The technique's name, for example `pagemap-scan`.
    pub technique: String,
    /// The reason for which this technique was used, in one line.
    pub reason: String,
    /// The requested time between two rounds, in milliseconds.
    pub interval_ms: u64,
    /// Start of the recording, in milliseconds since 1970-01-01 UTC.
    pub started_unix_ms: u64,
    /// How long attaching stopped the process, in nanoseconds.
    pub attach_stopped_ns: u64,
}

/// A mapping (VMA) of the tracked process and the rounds in which it existed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// The addresses of the mapping.
    pub range: PageRange,
    /// Path, or the kernel's name in brackets (`proc_pid_maps(5)`), or a name in brackets that the
    /// recorder gave to anonymous memory, or empty.
    pub name: String,
    /// Permissions as in `proc_pid_maps(5)`, for example `rw-p`.
    pub permissions: String,
    /// The reason for which the mapping is not tracked; `None` for a tracked mapping.
    pub untracked: Option<String>,
    /// What memory a shared mapping shows; `None` for a private one, and where it is not recorded.
    pub shared: Option<SharedMemory>,
    /// The first round that covers it.
    pub first_round: u32,
    /// The last round that covers it; `None` while it exists.
    pub last_round: Option<u32>,
}

/// The memory that a shared mapping (`MAP_SHARED`) shows, the same in every process that maps it:
/// a file, or one that the kernel made for anonymous memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SharedMemory {
    /// Major and minor number of the file's device.
    pub device: (u32, u32),
    /// Inode of the file.
    pub inode: u64,
    /// Offset of the mapping's first byte in the file.
    pub offset: u64,
}

/// Something that happened to the tracked process within a round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The process called `execve(2)`; the text is its new command line.
    Exec(String),
    /// The process has child processes, which are not tracked: the number seen so far.
    Children(u32),
    /// Another event, as one line for the report.
    Note(String),
}

/// The dirty pages of one round, or the pages accessed in it, with what the round cost.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Round {
    /// The number of the round, counted from 0.
    pub index: u32,
    /// Whether `written` holds the pages written, or all pages accessed.
    pub access_kind: AccessKind,
    /// When the round began, since the start of the recording.
    pub start_ns: u64,
    /// How long the round lasted: from its beginning to the return of collect.
    pub duration_ns: u64,
    /// How long collect took.
    pub collect_ns: u64,
    /// How long the tracked process was stopped during the round.
    pub stopped_ns: u64,
    /// Time at the end of the round in which this kind of access was not tracked, because rounds of
    /// writes and rounds of accesses alternate.
    pub blind_ns: u64,
    /// Page faults that the technique caused in this round; `None` if they cannot be counted.
    pub faults: Option<u64>,
    /// Pages predicted dirty, for a technique that predicts.
    pub predicted: Option<Predicted>,
    /// The write set; in a round of accesses, every page that was read, written or executed.
    pub written: PageSet,
    /// The part of the write set that is reported only because its mapping is new in this round.
    pub newly_mapped: PageSet,
    /// Events of the tracked process during the round.
    pub events: Vec<Event>,
    /// Dirty sub-pages; `None` if the process has no sub-page heap.
    pub subpages: Option<SubpageWrites>,
    /// Which code dirtied the pages; `None` if stacks were not sampled.
    pub attribution: Option<Attribution>,
    /// What tracking cost the process; `None` if it was not held against a budget.
    pub overhead: Option<Overhead>,
}

impl Round {
    /// Whether this round of accesses covers the same interval as `before`, a round of writes.
    pub fn covers_same_interval(&self, before: &Self) -> bool {
        let kinds = (before.access_kind, self.access_kind);
        kinds == (AccessKind::Writes, AccessKind::Accesses) && before.start_ns == self.start_ns
    }
}

/// Dirty sub-pages of the process's sub-page heaps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SubpageWrites {
    /// Number of sub-pages in a page, a power of two.
    pub subpages_per_page: u32,
    /// Addresses of all aliases of the heaps. For these addresses `dirty` is more precise than the
    /// write set.
    pub aliases: PageSet,
    /// The dirty sub-pages, each at its address in the first alias, whichever alias was written.
    pub dirty: PageSet,
}

impl SubpageWrites {
    /// Bytes in a sub-page on a machine with pages of `page_size` bytes.
    pub fn subpage_bytes(&self, page_size: u64) -> u64 {
        (page_size / u64::from(self.subpages_per_page.max(1))).max(1)
    }

    /// The pages that hold at least one dirty sub-page.
    pub fn pages(&self, page_size: u64) -> PageSet {
        let ranges = self.dirty.ranges().iter();
        ranges
            .map(|range| range.align_outwards(page_size))
            .collect()
    }
}

/// Pages that a technique predicted dirty in a round, and what that saved and cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Predicted {
    /// Pages predicted dirty.
    pub pages: u64,
    /// Estimate of the predicted pages that were written; each of them saved one fault.
    pub faults_avoided: u64,
    /// Estimate of the predicted pages that were not written.
    pub false_positives: u64,
    /// Memory that the predictor uses, in bytes.
    pub memory_bytes: u64,
}

/// What tracking cost the process in a round, by estimate, held against what it was allowed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Overhead {
    /// The share of the process's time that tracking may cost, in parts per million.
    pub allowed_ppm: u64,
    /// The share that it cost in this round, in parts per million.
    pub cost_ppm: u64,
    /// Page faults that tracking caused in this round.
    pub faults: u64,
    /// Whether the budget is kept; it is not where the longest interval does not do.
    pub is_kept: bool,
}

/// How the recording ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// The tracked process exited with this code.
    Exited(i32),
    /// The tracked process was killed by this signal.
    Killed(i32),
    /// The tracked process ended; its exit status is unknown, because it was not a child of the
    /// recorder.
    Gone,
    /// The recorder stopped before the process ended: it was interrupted, or its limit of rounds or
    /// time was reached.
    Detached,
}

/// A whole recording.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trail {
    /// Facts that hold for the whole recording.
    pub header: Header,
    /// All mappings that existed during the recording, in order of appearance.
    pub mappings: Vec<Mapping>,
    /// The rounds in order.
    pub rounds: Vec<Round>,
    /// The call stacks to which rounds refer.
    pub stacks: StackTable,
    /// How the recording ended; `None` if the file is cut off or still being written.
    pub end: Option<End>,
}

impl Trail {
    /// A copy of the recording that holds only the rounds of one kind.
    pub fn only(&self, access_kind: AccessKind) -> Self {
        let rounds = self
            .rounds
            .iter()
            .filter(|round| round.access_kind == access_kind);
        Self {
            header: self.header.clone(),
            mappings: self.mappings.clone(),
            rounds: rounds.cloned().collect(),
            stacks: self.stacks.clone(),
            end: self.end.clone(),
        }
    }

    /// Whether the recording has no end, because its file is cut off or the recorder still runs.
    pub fn is_cut_off(&self) -> bool {
        self.end.is_none()
    }
}
