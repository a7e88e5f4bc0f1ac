//! The settings of a watch that are plain choices.

use super::technique::Technique;

/// Which technique a watch uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Choice {
    /// The cheapest technique that works on this machine for this target. It is `adaptive` only
    /// where the consumer has set the cost of a false positive
    /// ([`WatchBuilder::false_positive_cost`](crate::WatchBuilder::false_positive_cost)); otherwise
    /// it is one that does not predict.
    #[default]
    Auto,
    /// This technique, or an error that says why it cannot be used.
    Technique(Technique),
}

impl From<Technique> for Choice {
    fn from(technique: Technique) -> Self {
        Self::Technique(technique)
    }
}

/// What a watch tracks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum TrackMode {
    /// Writes.
    #[default]
    Writes,
    /// Every access, including reads: technique `access-scan`, or `mprotect` if requested for
    /// ranges of the own process.
    Accesses,
    /// Alternating rounds of writes and of accesses
    /// ([`Round::access_kind`](crate::Round::access_kind) says which): techniques `pagemap-scan`
    /// and `access-scan` in turns.
    ///
    /// This mode samples. A page that is only read appears in every second round; accesses during
    /// the switch, at the end of each collect, are missed
    /// ([`RoundCost::blind`](crate::RoundCost::blind)). Within a round, accesses between two
    /// collects are complete as in the other modes.
    Alternate,
}

/// What the watch of a tree does about processes that descend from its target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Children {
    /// They are tracked as the target is.
    #[default]
    Follow,
    /// They are left alone.
    LeaveOut,
}

/// What becomes of a held process if the one that holds it ends before it lets go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum IfAbandoned {
    /// It goes on.
    #[default]
    GoOn,
    /// The kernel kills it: for the time in which its memory is neither one thing nor the other.
    Kill,
}

/// When the collects of a watch on the own process run.
///
/// `soft-dirty` needs [`Self::Safepoint`] once the process has other threads, because the kernel
/// cannot fetch and clear the bits in one step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum CollectAt {
    /// Collects run at any time: other threads may write to the target meanwhile.
    #[default]
    AnyTime,
    /// Collects run at safepoints only: the caller makes sure that no other thread writes to the
    /// target meanwhile, as a garbage collector that stops the world does.
    Safepoint,
}

/// What happens to regions that the technique cannot track: other trackers' memory, and with some
/// techniques files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum UntrackedPolicy {
    /// `compare` tracks their writes instead.
    #[default]
    Compare,
    /// They are only reported, by [`Watch::untracked`](crate::Watch::untracked).
    Report,
}

/// How often a page is reported after it was written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReportPages {
    /// Each page is in one round.
    #[default]
    Once,
    /// Each page is reported once more, in the round after the one in which it was found.
    ///
    /// Use this for memory that is written through pinned pages: `process_vm_writev(2)`, `O_DIRECT`
    /// and `io_uring` reads, DMA. A technique detects the pinning; a round that is collected before
    /// the data arrive re-arms the page, and the data leave no trace. Reported twice, such a write
    /// is not missed as long as a page stays pinned no longer than from one collect to the one
    /// after the next.
    Twice,
}

/// What happens at the end of a program that a watch starts
/// ([`Target::command`](crate::Target::command)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum AtExit {
    /// The program ends; what it wrote after the last round is missed.
    #[default]
    Run,
    /// The program is held at its end, so that what it wrote after the last round can be collected
    /// ([`State::Exiting`](crate::State::Exiting)).
    ///
    /// For this, `ptrace(2)` traces it for as long as it lives, which it can notice: programs with
    /// LeakSanitizer fail at their end, `PTRACE_TRACEME` and other tracers (gdb, strace) are
    /// refused, set-user-ID programs get no privileges that the tracker lacks, each signal takes a
    /// stop (some 30 us), and the program waits while the tracker is stopped. With `soft-dirty`
    /// there is no such hold.
    Hold,
}
