//! The types that C sees: plain numbers in structs that can grow, and names for the numbers.

use crate::text::Text;
use pagetrail::{Ended, PageRange, Technique as Known, TrackMode as What};
use std::ffi::c_char;
use std::mem::{align_of, offset_of, size_of};
use std::time::Duration;

/// A half-open range of addresses of the target, in bytes: start is in it, end is not.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// First address, in bytes.
    pub start: u64,
    /// First address after the range, in bytes.
    pub end: u64,
}

// A set's ranges are handed out as they lie in memory.
const _: () = assert!(
    size_of::<Range>() == size_of::<PageRange>()
        && align_of::<Range>() == align_of::<PageRange>()
        && offset_of!(Range, end) == 8
);

/// Bytes of the text in a struct, its terminating zero included; longer text is cut off.
pub const PAGETRAIL_TEXT_BYTES: usize = 256;

/// Text in a struct for C.
pub(crate) fn text(value: impl std::fmt::Display) -> [c_char; PAGETRAIL_TEXT_BYTES] {
    Text::<PAGETRAIL_TEXT_BYTES>::of(value).chars()
}

/// A way to detect writes: one of PAGETRAIL_TECHNIQUE_*.
pub type Technique = u32;
/// The cheapest technique that works here for the target.
pub const PAGETRAIL_TECHNIQUE_AUTO: Technique = 0;
/// Asynchronous write-protection by userfaultfd(2), collected by PAGEMAP_SCAN; Linux 6.7.
pub const PAGETRAIL_TECHNIQUE_PAGEMAP_SCAN: Technique = 1;
/// Synchronous write-protection by userfaultfd(2), resolved by a thread of the library; Linux 5.7.
pub const PAGETRAIL_TECHNIQUE_USERFAULTFD: Technique = 2;
/// The kernel's soft-dirty bits; process-wide.
pub const PAGETRAIL_TECHNIQUE_SOFT_DIRTY: Technique = 3;
/// mprotect(2) and a SIGSEGV handler; ranges of the own process only.
pub const PAGETRAIL_TECHNIQUE_MPROTECT: Technique = 4;
/// A copy of the memory, compared with it.
pub const PAGETRAIL_TECHNIQUE_COMPARE: Technique = 5;
/// Detects nothing and reports every populated page in every round: the baseline.
pub const PAGETRAIL_TECHNIQUE_NONE: Technique = 6;
/// Detects every access, reads included; Linux 7.3.
pub const PAGETRAIL_TECHNIQUE_ACCESS_SCAN: Technique = 7;
/// Like pagemap-scan, but stops write-protecting pages that are dirty in most rounds and predicts
/// them dirty: fewer faults, and a few false positives; Linux 6.7.
pub const PAGETRAIL_TECHNIQUE_ADAPTIVE: Technique = 8;
/// The processor's log of written virtual addresses, where /dev/ooh has one.
pub const PAGETRAIL_TECHNIQUE_EPML: Technique = 9;
/// The hypervisor's log of written page frames, where /dev/ooh has one.
pub const PAGETRAIL_TECHNIQUE_SPML: Technique = 10;
/// That log, with a search of the page tables for the frames.
pub const PAGETRAIL_TECHNIQUE_SPML_SEARCH: Technique = 11;

const TECHNIQUES: [(Technique, Known); 11] = [
    (PAGETRAIL_TECHNIQUE_ADAPTIVE, Known::Adaptive),
    (PAGETRAIL_TECHNIQUE_ACCESS_SCAN, Known::AccessScan),
    (PAGETRAIL_TECHNIQUE_PAGEMAP_SCAN, Known::PagemapScan),
    (PAGETRAIL_TECHNIQUE_USERFAULTFD, Known::Userfaultfd),
    (PAGETRAIL_TECHNIQUE_SOFT_DIRTY, Known::SoftDirty),
    (PAGETRAIL_TECHNIQUE_MPROTECT, Known::Mprotect),
    (PAGETRAIL_TECHNIQUE_COMPARE, Known::Compare),
    (PAGETRAIL_TECHNIQUE_NONE, Known::None),
    (PAGETRAIL_TECHNIQUE_EPML, Known::Epml),
    (PAGETRAIL_TECHNIQUE_SPML, Known::Spml),
    (PAGETRAIL_TECHNIQUE_SPML_SEARCH, Known::SpmlSearch),
];

/// The technique that a number names.
pub(crate) fn technique(number: Technique) -> Option<Known> {
    let mut known = TECHNIQUES.iter();
    known.find_map(|(n, technique)| (*n == number).then_some(*technique))
}

/// The number of a technique; that of `AUTO`, which no watch has, for one without a number.
pub(crate) fn number(technique: Known) -> Technique {
    let mut known = TECHNIQUES.iter();
    known
        .find_map(|(n, other)| (*other == technique).then_some(*n))
        .unwrap_or(PAGETRAIL_TECHNIQUE_AUTO)
}

/// Whose memory is tracked: one of PAGETRAIL_TARGET_*.
pub type Target = u32;
/// All writable mappings of this process, those that appear later included.
pub const PAGETRAIL_TARGET_OWN: Target = 0;
/// The ranges of this process's memory in pagetrail_options.ranges.
pub const PAGETRAIL_TARGET_RANGES: Target = 1;
/// All writable mappings of the running process pagetrail_options.pid.
pub const PAGETRAIL_TARGET_PROCESS: Target = 2;
/// A program to be started, pagetrail_options.argv, tracked from before its first instruction.
pub const PAGETRAIL_TARGET_COMMAND: Target = 3;

/// Which accesses are tracked: one of PAGETRAIL_TRACK_*.
pub type TrackMode = u32;
/// What the technique detects: writes, unless the requested technique is access-scan.
pub const PAGETRAIL_TRACK_DEFAULT: TrackMode = 0;
/// Writes.
pub const PAGETRAIL_TRACK_WRITES: TrackMode = 1;
/// Every access, reads included; technique access-scan.
pub const PAGETRAIL_TRACK_ACCESSES: TrackMode = 2;
/// A round of writes, a round of accesses, and so on. Accesses at the end of a collect, for
/// pagetrail_round_info.blind_ns, are missed.
pub const PAGETRAIL_TRACK_ALTERNATE: TrackMode = 3;

/// The track mode that a number names; `None` for an unknown number.
pub(crate) fn track(number: TrackMode) -> Option<Option<What>> {
    match number {
        PAGETRAIL_TRACK_DEFAULT => Some(None),
        PAGETRAIL_TRACK_WRITES => Some(Some(What::Writes)),
        PAGETRAIL_TRACK_ACCESSES => Some(Some(What::Accesses)),
        PAGETRAIL_TRACK_ALTERNATE => Some(Some(What::Alternate)),
        _ => None,
    }
}

/// The caller collects at safepoints: no other thread of this process writes to the target while
/// pagetrail_watch_collect() runs. The technique soft-dirty needs this promise on the own process.
pub const PAGETRAIL_OPTION_AT_SAFEPOINT: u32 = 1;
/// Leave transparent huge pages whole, and report them in every round, instead of splitting them at
/// their first write.
pub const PAGETRAIL_OPTION_KEEP_HUGE_PAGES: u32 = 2;
/// Only report regions that the technique cannot watch, instead of watching them by the technique
/// compare.
pub const PAGETRAIL_OPTION_NO_COMPARE: u32 = 4;

/// For PAGETRAIL_TARGET_COMMAND: hold the program at its end (PAGETRAIL_STATE_EXITING), so that
/// what it wrote after the last round can be collected. It is traced by ptrace(2) as long as it
/// lives, which it can notice: LeakSanitizer fails, debuggers are refused, set-user-ID is ignored,
/// each signal takes a stop, and it waits while this process is stopped.
pub const PAGETRAIL_OPTION_LAST_ROUND: u32 = 8;
/// Report each page once more in the round after, for memory that is written through pinned pages:
/// process_vm_writev(2), and reads by O_DIRECT or io_uring. Only the pinning is detected, and a
/// round that ends before the data arrives would miss it.
pub const PAGETRAIL_OPTION_REPORT_AGAIN: u32 = 16;

/// What to watch and how. All zeros is the whole own process by the cheapest technique; so begin
/// with `pagetrail_options options = {0};` (in C++ `{}`), set what differs, and pass
/// sizeof(options) with it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Whose memory: PAGETRAIL_TARGET_*.
    pub target: Target,
    /// Which technique: PAGETRAIL_TECHNIQUE_*.
    pub technique: Technique,
    /// For PAGETRAIL_TARGET_RANGES: whole pages, mapped and writable. Only read by the call.
    pub ranges: *const Range,
    /// How many ranges there are.
    pub range_count: usize,
    /// For PAGETRAIL_TARGET_PROCESS: the process ID.
    pub pid: u32,
    /// Any of PAGETRAIL_OPTION_*, joined by |.
    pub flags: u32,
    /// Pages that one fault of the technique userfaultfd releases: 1 to 512, rounded up to a power
    /// of two; 0 is 1.
    pub block_pages: u32,
    /// Which accesses are tracked: PAGETRAIL_TRACK_*.
    pub track: TrackMode,
    /// For PAGETRAIL_TARGET_COMMAND: the program, looked up in PATH unless it has a slash, its
    /// arguments, and a null pointer. Only read by the call.
    pub argv: *const *const c_char,
    /// The largest share of the target's time that tracking may cost, 0.03 for 3 %; 0 sets none.
    /// Collect then when pagetrail_watch_until_collect() says, and see
    /// pagetrail_round_get_overhead(). PAGETRAIL_TECHNIQUE_AUTO then takes a technique that can
    /// follow it.
    pub max_overhead: f64,
    /// With max_overhead, the bounds of the time from one collect to the next, in nanoseconds. Both
    /// 0: from 100 ms to 10 s.
    pub interval_min_ns: u64,
    /// The upper of them.
    pub interval_max_ns: u64,
}

/// What a target does: one of PAGETRAIL_STATE_*. More may come: take those you do not know
/// for RUNNING.
pub type ProgressState = u32;
/// It runs.
pub const PAGETRAIL_STATE_RUNNING: ProgressState = 0;
/// A program that the watch has started with PAGETRAIL_OPTION_LAST_ROUND is at its end and held
/// there, its memory complete: collect the last round, then let it go by
/// pagetrail_watch_release_exit().
pub const PAGETRAIL_STATE_EXITING: ProgressState = 1;
/// It has ended, and the library cannot find out how.
pub const PAGETRAIL_STATE_ENDED: ProgressState = 2;
/// A program that the watch has started has ended by itself; pagetrail_progress.number is its exit
/// code.
pub const PAGETRAIL_STATE_EXITED: ProgressState = 3;
/// A program that the watch has started was killed by the signal pagetrail_progress.number.
pub const PAGETRAIL_STATE_KILLED: ProgressState = 4;

/// How far a target has come.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// PAGETRAIL_STATE_*.
    pub state: ProgressState,
    /// The exit code or the signal, if the state has one; otherwise 0.
    pub number: i32,
}

/// The C value of a process's state.
pub(crate) fn progress(state: pagetrail::State) -> Progress {
    let (state, number) = match state {
        pagetrail::State::Exiting => (PAGETRAIL_STATE_EXITING, 0),
        pagetrail::State::Ended(Some(Ended::Exited(code))) => (PAGETRAIL_STATE_EXITED, code),
        pagetrail::State::Ended(Some(Ended::Killed(signal))) => (PAGETRAIL_STATE_KILLED, signal),
        pagetrail::State::Ended(_) => (PAGETRAIL_STATE_ENDED, 0),
        _ => (PAGETRAIL_STATE_RUNNING, 0),
    };
    Progress { state, number }
}

/// Facts about a watch.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct WatchInfo {
    /// The technique in use: PAGETRAIL_TECHNIQUE_*, never AUTO.
    pub technique: Technique,
    /// The process whose memory is tracked.
    pub pid: u32,
    /// How long the target was stopped to start watching it, in nanoseconds.
    pub attach_stopped_ns: u64,
    /// Why this technique, one line.
    pub reason: [c_char; PAGETRAIL_TEXT_BYTES],
}

/// Facts about a round, and what it cost.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RoundInfo {
    /// How many rounds of this watch were committed before.
    pub index: u64,
    /// When the round began, in nanoseconds since the watch started.
    pub began_ns: u64,
    /// How long it lasted, in nanoseconds: from the end of the collect before it to the end of its
    /// own.
    pub duration_ns: u64,
    /// How long pagetrail_watch_collect() took, in nanoseconds.
    pub collect_ns: u64,
    /// For how much of that the target was stopped, in nanoseconds.
    pub stopped_ns: u64,
    /// Faults that the technique caused since the collect before, or UINT64_MAX where it cannot
    /// count them.
    pub faults: u64,
    /// For how long, at the end of the collect, nothing was tracked, in nanoseconds: 0 unless
    /// rounds of writes and of accesses alternate.
    pub blind_ns: u64,
    /// What the round is of: PAGETRAIL_TRACK_WRITES or PAGETRAIL_TRACK_ACCESSES.
    pub access_kind: TrackMode,
    /// Zero.
    pub reserved: u32,
    /// Bytes of the written pages (in a round of accesses: of the touched ones, here and everywhere
    /// else).
    pub written_bytes: u64,
    /// Number of ranges that pagetrail_round_written() gives.
    pub written_count: u64,
    /// Number of events; see pagetrail_round_event().
    pub event_count: u64,
    /// Number of regions that the technique cannot watch; see pagetrail_round_untracked().
    pub untracked_count: u64,
}

/// What a round cost the target, by estimate, where pagetrail_options.max_overhead was set;
/// otherwise all zeros.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Overhead {
    /// The share of the target's time that tracking may cost.
    pub allowed: f64,
    /// The share that this round cost. Where processors are scarce, the time of a collect counts
    /// more in it than in stopped_ns: for a target that mostly sleeps, up to twenty times.
    pub share: f64,
    /// Page faults that tracking caused in this round.
    pub faults: u64,
    /// What one of them costs, as measured on this machine when the watch started, in nanoseconds.
    pub fault_ns: u64,
    /// For how long the target counts as stopped, by collects and by the caller, in nanoseconds.
    pub stopped_ns: u64,
    /// Reported pages for each page that was written; 1 where none is predicted.
    pub reported_per_written: f64,
    /// The time until the next collect is due, in nanoseconds.
    pub next_ns: u64,
    /// 1 while the budget is kept; 0 where tracking costs more in several rounds of the longest
    /// interval.
    pub is_kept: u32,
    /// Zero.
    pub reserved: u32,
}

/// How much of the sub-page heaps was written.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct SubpagesInfo {
    /// The number of sub-pages per page (the largest, if heaps of the process differ); 0 without a
    /// heap.
    pub subpages_per_page: u32,
    /// Zero.
    pub reserved: u32,
    /// Bytes in a sub-page.
    pub subpage_bytes: u64,
    /// The number of dirty sub-pages.
    pub count: u64,
    /// Bytes of the pages that have dirty sub-pages, each page once.
    pub page_bytes: u64,
    /// Bytes of the addresses of all aliases of all heaps.
    pub alias_bytes: u64,
}

/// What kind of event it is: one of PAGETRAIL_EVENT_*. More may come: ignore those you do not know.
pub type EventKind = u32;
/// Something that the user should know; the text says it.
pub const PAGETRAIL_EVENT_NOTE: EventKind = 0;
/// execve(2) replaced the memory of the target; all of the new image counts as written.
pub const PAGETRAIL_EVENT_EXEC: EventKind = 1;
/// The target has child processes; none of them is tracked.
pub const PAGETRAIL_EVENT_CHILDREN: EventKind = 2;

/// Something that happened to the target since the last committed round.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Event {
    /// PAGETRAIL_EVENT_*.
    pub kind: EventKind,
    /// For PAGETRAIL_EVENT_CHILDREN, how many different ones were seen so far; otherwise 0.
    pub count: u32,
    /// One line: the note, or the new command line.
    pub text: [c_char; PAGETRAIL_TEXT_BYTES],
}

/// A writable region that the technique cannot watch.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct UntrackedRegion {
    /// The region.
    pub range: Range,
    /// 1 if the technique compare watches it instead; 0 if its writes are not seen.
    pub compared: u32,
    /// Zero.
    pub reserved: u32,
    /// Its name, and why, one line.
    pub text: [c_char; PAGETRAIL_TEXT_BYTES],
}

/// Memory that a checkpointer keeps.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Region {
    /// Its name, in UTF-8, by which it is found again.
    pub name: *const c_char,
    /// Its length in bytes. It may have grown since the last time.
    pub bytes: usize,
}

/// What a checkpointer keeps, and where. Begin with `pagetrail_checkpointer_options options =
/// {0};`, and pass sizeof(options) with it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CheckpointerOptions {
    /// The store: a directory. Only read by the call.
    pub store: *const c_char,
    /// The regions. Only read by the call.
    pub regions: *const Region,
    /// How many regions there are.
    pub region_count: usize,
    /// How writes are noticed: PAGETRAIL_TECHNIQUE_*.
    pub technique: Technique,
    /// Zero.
    pub flags: u32,
}

/// The process has another PID than it had, which takes no privilege.
pub const PAGETRAIL_RESTORE_ANY_PID: u32 = 1;
/// Terminals and pipes that were standard input, output and error become /dev/null, instead of
/// those of the caller.
pub const PAGETRAIL_RESTORE_NULL_STDIO: u32 = 2;
/// Other descriptors whose file, terminal or pipe is not there any more become /dev/null.
pub const PAGETRAIL_RESTORE_NULL_MISSING: u32 = 4;
/// Restore also where files that the program had open or mapped have changed since.
pub const PAGETRAIL_RESTORE_CHANGED_FILES: u32 = 8;
/// The process stays in the caller's session and process group.
pub const PAGETRAIL_RESTORE_FOREGROUND: u32 = 16;

/// A process that was started anew.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Restored {
    /// The number of the checkpoint.
    pub number: u64,
    /// How many pages were written.
    pub pages: u64,
    /// How long it took until it ran, in nanoseconds.
    pub elapsed_ns: u64,
    /// Its PID.
    pub pid: u32,
    /// How many threads it has.
    pub threads: u32,
    /// What it lacks of what it had; "" if nothing.
    pub lost: [c_char; PAGETRAIL_TEXT_BYTES],
}

/// What a process was given after it had been started.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Given {
    /// How many pages, those of children that it has forked meanwhile included.
    pub pages: u64,
    /// How often a thread waited for one.
    pub faults: u64,
    /// How long it took, in nanoseconds.
    pub elapsed_ns: u64,
}

/// What came of putting memory back.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Reset {
    /// How many pages were copied back.
    pub pages: u64,
    /// Whether it was all of them, without asking which were written.
    pub whole: bool,
}

/// Whether a technique can be used: one of PAGETRAIL_CAPABILITY_*.
pub type Capability = u32;
/// A write was seen through it, and the next one too.
pub const PAGETRAIL_CAPABILITY_WORKS: Capability = 1;
/// The kernel accepts its calls, and yet it missed a write or an error came up.
pub const PAGETRAIL_CAPABILITY_FAILS: Capability = 2;
/// The kernel does not offer it, or it is not permitted, or switched off by PAGETRAIL_DISABLE in
/// the environment.
pub const PAGETRAIL_CAPABILITY_ABSENT: Capability = 3;

/// Nanoseconds; `u64` holds 584 years of them.
pub(crate) fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_technique_has_a_number_of_its_own() {
        for known in Known::ALL {
            assert_eq!(technique(number(known)), Some(known));
        }
        assert_eq!(technique(PAGETRAIL_TECHNIQUE_AUTO), None);
        assert_eq!(technique(u32::MAX), None);
    }
}
