//! [`ProcessOptions`]: how checkpoints of a process are taken.

use super::costs::MaxOverhead;
use super::precopy::Mode;
use pagetrail::Choice;
use std::time::Duration;

/// How checkpoints of a process are taken.
#[derive(Clone, Copy, Debug)]
pub struct ProcessOptions {
    /// Whether pages are copied before the process is stopped.
    pub mode: Mode,
    /// How writes are noticed, of a process that is attached to.
    pub technique: Choice,
    /// How much is kept in memory before it is written, in bytes; what is written by the program
    /// while more than that is copied may be stored twice.
    pub buffer_bytes: u64,
    /// Of a page of a sub-page heap, store only what differs from the last checkpoint. Where the
    /// storage is not [near](crate::storage::Storage::is_near), the sub-pages that were written are
    /// stored: a program that writes past the end of an object into another sub-page of the page
    /// makes such an image damaged, so it has to be trusted not to. Otherwise pages are stored
    /// whole.
    pub trust_subpages: bool,
    /// Read what was written before a checkpoint once more for the next one: for memory that is
    /// written through pinned pages, see
    /// [`WatchBuilder::report_pages`](pagetrail::WatchBuilder::report_pages). Such a write is
    /// missed only if a page stays pinned from one checkpoint to the one after the next.
    pub report_again: bool,
    /// Take of shared memory only what the process itself has written through its own mappings,
    /// instead of reading all of it again while the process stands still. What other processes
    /// write there, or the process by `write(2)`, the images then do not have; they say so
    /// ([`own_writes_only`](crate::Mapping::own_writes_only)). With `restartable`, a process is
    /// refused that has memory of `memfd_create(2)`, or several mappings of the same memory.
    pub trust_shared: bool,
    /// How long the process may stand still: where copying the rest would take longer, it is copied
    /// as by [`Mode::Cow`], if the process allows that. It is a goal, not a promise. With
    /// [`Mode::Stop`] it has no effect.
    pub max_pause: Option<Duration>,
    /// What checkpoints may cost the process. They are taken when the consumer takes them;
    /// [`next_checkpoint`](super::ProcessCheckpointer::next_checkpoint) says when the next is due.
    /// A process that is attached to or launched alone can have such a budget.
    pub max_overhead: Option<MaxOverhead>,
    /// Save all that it takes to start the process anew
    /// ([`Process::state`](crate::Process::state)), which adds about a millisecond to the pause. A
    /// process that could not be started anew is refused then.
    pub restartable: bool,
}

impl Default for ProcessOptions {
    fn default() -> Self {
        Self {
            mode: Mode::Precopy,
            technique: Choice::Auto,
            buffer_bytes: 256 << 20,
            trust_subpages: false,
            report_again: false,
            trust_shared: false,
            max_pause: None,
            max_overhead: None,
            restartable: false,
        }
    }
}
