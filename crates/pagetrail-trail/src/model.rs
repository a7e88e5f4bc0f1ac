//! What a trail holds, independent of how it is written down.
//!
//! All times are durations since the recording started, in nanoseconds unless the name says otherwise;
//! all addresses are bytes in the tracked process; counts of pages use [`Header::page_size`], the page
//! size of the machine that recorded.

use pagetrail::{AccessKind, PageRange, PageSet};

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
    /// Why this technique was used, one line.
    pub reason: String,
    /// The interval that was asked for, in milliseconds.
    pub interval_ms: u64,
    /// Start of the recording, in milliseconds since 1970-01-01 UTC.
    pub started_unix_ms: u64,
    /// How long attaching stopped the process, in nanoseconds.
    pub attach_stopped_ns: u64,
}

/// A mapping (VMA) of the tracked process and the rounds in which it existed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// Its addresses.
    pub range: PageRange,
    /// Path, or the kernel's name in brackets, or empty for anonymous memory (`proc_pid_maps(5)`).
    pub name: String,
    /// As in `proc_pid_maps(5)`, for example `rw-p`.
    pub permissions: String,
    /// Why its writes are not seen, when they are not; tracked mappings have `None`.
    pub untracked: Option<String>,
    /// The first round that covers it.
    pub first_round: u32,
    /// The last round that covers it; `None` while it exists.
    pub last_round: Option<u32>,
}

/// Something that happened to the tracked process within a round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// It replaced its memory by `execve(2)`; the text is the new command line.
    Exec(String),
    /// It has child processes, which are not tracked; how many were seen so far.
    Children(u32),
    /// Anything else worth a line in the report.
    Note(String),
}

/// One round.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Round {
    /// Counts from 0.
    pub index: u32,
    /// Whether `written` holds the pages that were written, or all that were touched.
    pub access_kind: AccessKind,
    /// When the round began, since the start of the recording.
    pub start_ns: u64,
    /// How long it lasted: from its beginning to the return of collect.
    pub duration_ns: u64,
    /// How long collect took.
    pub collect_ns: u64,
    /// How long the tracked process was stopped for it.
    pub stopped_ns: u64,
    /// For how long, at its end, nothing was access_kind, because rounds of writes and of accesses take turns.
    pub blind_ns: u64,
    /// Faults that the technique caused in this round, where they can be counted.
    pub faults: Option<u64>,
    /// What was predicted dirty, with a technique that predicts.
    pub predicted: Option<Predicted>,
    /// The write set; in a round of accesses, every page that was read, written or executed.
    pub written: PageSet,
    /// The part of the write set reported only because its mapping is new in this round.
    pub fresh: PageSet,
    /// What happened meanwhile.
    pub events: Vec<Event>,
    /// What was written of sub-page heaps, where the process has one.
    pub units: Option<UnitWrites>,
}

impl Round {
    /// Whether it tells of accesses in the very time of whose writes the round before it tells.
    pub fn is_beside(&self, before: &Self) -> bool {
        let kinds = (before.access_kind, self.access_kind);
        kinds == (AccessKind::Writes, AccessKind::Accesses) && before.start_ns == self.start_ns
    }
}

/// Writes to sub-page heaps, told apart within pages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnitWrites {
    /// Into how many parts a page is divided.
    pub parts: u32,
    /// The heaps' addresses: what the write set has there stands here more exactly.
    pub windows: PageSet,
    /// The parts of pages that were written, each at one address, whichever the program has used.
    pub units: PageSet,
}

impl UnitWrites {
    /// Bytes in a unit on a machine with pages of this size.
    pub fn unit_bytes(&self, page_size: u64) -> u64 {
        (page_size / u64::from(self.parts.max(1))).max(1)
    }

    /// The pages of which something was written.
    pub fn pages(&self, page_size: u64) -> PageSet {
        let ranges = self.units.ranges().iter();
        ranges
            .map(|range| range.align_outwards(page_size))
            .collect()
    }
}

/// What a technique that predicts pages written did in a round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Predicted {
    /// Pages that it predicted dirty.
    pub pages: u64,
    /// Estimate: of them, written; a fault less for each.
    pub faults_avoided: u64,
    /// Estimate: of them, reported and not written.
    pub false_positives: u64,
    /// Memory used to remember pages, in bytes.
    pub memory_bytes: u64,
}

/// How the recording ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// The tracked process exited with this code.
    Exited(i32),
    /// The tracked process was killed by this signal.
    Killed(i32),
    /// The tracked process ended; how is not known (it was no child of the recorder).
    Gone,
    /// The recorder stopped first: interrupted, or its number of rounds or its duration was reached.
    Detached,
}

/// A whole recording.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trail {
    /// Facts that hold for all of it.
    pub header: Header,
    /// All mappings that ever existed, in order of appearance.
    pub mappings: Vec<Mapping>,
    /// The rounds in order.
    pub rounds: Vec<Round>,
    /// How it ended; `None` when the file is cut off or still being written.
    pub end: Option<End>,
}

impl Trail {
    /// The same recording with the rounds of one kind only, as if they followed each other.
    pub fn only(&self, access_kind: AccessKind) -> Self {
        let rounds = self
            .rounds
            .iter()
            .filter(|round| round.access_kind == access_kind);
        Self {
            header: self.header.clone(),
            mappings: self.mappings.clone(),
            rounds: rounds.cloned().collect(),
            end: self.end.clone(),
        }
    }

    /// Whether the recording has no end: its file is cut off, or the recorder still runs.
    pub fn is_cut_off(&self) -> bool {
        self.end.is_none()
    }
}
