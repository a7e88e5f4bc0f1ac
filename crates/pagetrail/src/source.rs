//! [`DirtySource`]: what yields rounds of dirty pages, whatever finds them.
//!
//! It is the seam between what finds dirty pages and what uses them: a [`Watch`](crate::Watch) on a
//! process is one source, a guest of KVM another. A consumer that takes a `DirtySource` works with
//! all of them. A source keeps what it found in a [`RoundBuffer`](crate::RoundBuffer), so that its
//! rounds are transactions; `tests/sources.rs` has the contract as a test.

use crate::attach::hold::{HeldThread, Hold, LetGo};
use crate::attach::launch::Ended;
use crate::error::{Error, Result};
use crate::page_set::{PageRange, PageSet};
use crate::region::Region;
use crate::round::Round;
use crate::types::{IfAbandoned, KernelState, UntrackedRegion};
use std::fmt;
use std::time::{Duration, Instant};

/// What [`DirtySource::wait`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum State {
    /// The target is running.
    Running,
    /// A round is ready that belongs to the interval of the last one, or to a time that is over:
    /// collect it now. Sources that report writes and accesses of the same interval have the second
    /// of both so. A [`Watch`](crate::Watch) never returns it.
    Ready,
    /// The target has reached its end and is held there: collect the last round, then release it by
    /// [`DirtySource::release_exit`]. A [`Watch`](crate::Watch) holds programs that it started by
    /// [`Target::command`](crate::Target::command) with
    /// [`WatchBuilder::at_exit`](crate::WatchBuilder::at_exit).
    Exiting,
    /// The target has ended; the exit status is known for programs that the source started.
    Ended(Option<Ended>),
}

/// A target whose threads all stand still, until this is released or dropped.
pub trait Held: fmt::Debug {
    /// The PID of the target.
    fn pid(&self) -> u32;

    /// The threads with their registers; empty where the source does not have them.
    fn threads(&self) -> &[HeldThread];

    /// Checks that the target has stood still until now.
    ///
    /// # Errors
    ///
    /// It was let go by somebody else: see [`Hold::check`].
    fn check(&self) -> Result<()>;

    /// What the kernel keeps for the target, and tells the target alone: see
    /// [`Hold::kernel_state`]. `None` where the source cannot find out.
    ///
    /// # Errors
    ///
    /// As of [`Hold::kernel_state`].
    fn kernel_state(&mut self) -> Result<Option<KernelState>> {
        Ok(None)
    }

    /// What lets the target go from another thread: see [`Hold::let_go`]. `None` where nothing can.
    fn let_go(&self) -> Option<LetGo> {
        None
    }

    /// Chooses what becomes of the target if this process ends before it lets go: see
    /// [`Hold::if_abandoned`]. With [`IfAbandoned::Kill`], a target that is not a process of its
    /// own first ends the system calls that are under way, which begin anew later, so that
    /// [`Self::threads`] may change.
    ///
    /// # Errors
    ///
    /// The target is not held any more, a system call does not end, or the source cannot do this.
    fn if_abandoned(&mut self, _what: IfAbandoned) -> Result<()> {
        Err(cannot(self.pid(), "say what becomes of it"))
    }

    /// Sets the registers and the blocked signals of threads: see [`Hold::set_registers`].
    ///
    /// # Errors
    ///
    /// A thread is none of those held, or the source cannot do this.
    fn set_registers(&mut self, _threads: &[HeldThread]) -> Result<()> {
        Err(cannot(self.pid(), "set registers"))
    }

    /// Says that this process is about to write to pages of the target, where the source would not
    /// notice by itself.
    ///
    /// # Errors
    ///
    /// The target is not held any more.
    fn announce_writes(&mut self, _pages: &PageSet) -> Result<()> {
        Ok(())
    }

    /// The target's memory, where its process has other memory, too; `None` where all is its own.
    fn memory(&self) -> Option<&PageSet> {
        None
    }

    /// Descriptors of the process that are not the target's.
    fn other_descriptors(&self) -> &[u32] {
        &[]
    }

    /// Lets the target go; returns for how long it stood still.
    fn release(self: Box<Self>) -> Duration;
}

fn cannot(pid: u32, what: &str) -> Error {
    Error::Attach {
        pid,
        reason: format!("what holds it cannot {what}"),
    }
}

impl Held for Hold {
    fn pid(&self) -> u32 {
        Self::pid(self)
    }

    fn threads(&self) -> &[HeldThread] {
        Self::threads(self)
    }

    fn check(&self) -> Result<()> {
        Self::check(self)
    }

    fn kernel_state(&mut self) -> Result<Option<KernelState>> {
        Self::kernel_state(self).map(Some)
    }

    fn let_go(&self) -> Option<LetGo> {
        Some(Self::let_go(self))
    }

    fn if_abandoned(&mut self, what: IfAbandoned) -> Result<()> {
        Self::if_abandoned(self, what)
    }

    fn set_registers(&mut self, threads: &[HeldThread]) -> Result<()> {
        Self::set_registers(self, threads)
    }

    fn release(self: Box<Self>) -> Duration {
        Self::release(*self)
    }
}

/// Pages of a target as they were at the instant of a [freeze](DirtySource::freeze), while it runs
/// and writes to them.
///
/// To be [thawed](Self::thaw) before the source collects again. Dropped without, it lets the target
/// write as before, and the source reports the memory as replaced.
pub trait Frozen: Send {
    /// The pages that are kept: of those asked for, what could be protected.
    fn pages(&self) -> &PageSet;

    /// Copies ranges of [`Self::pages`] into `buffer`, one after the other, as they were at the
    /// instant. False if that is no longer known: the target has discarded, moved or unmapped one
    /// of these pages before it was copied, or has ended.
    ///
    /// # Errors
    ///
    /// The target's memory may not be read.
    ///
    /// # Panics
    ///
    /// If a range is not of these pages, or `buffer` too short.
    fn read(&self, ranges: &[PageRange], buffer: &mut [u8]) -> Result<bool>;

    /// Gives the pages back to the source, while the target is held: what was written since the
    /// freeze is in its next round. What then is left, of mappings that have changed, is undone by
    /// the drop, which takes longer, and for which the target need not stand still.
    ///
    /// # Errors
    ///
    /// The target no longer stands still, or another process shares its memory at this moment;
    /// that may be over in a later hold.
    fn thaw(&mut self, held: &dyn Held) -> Result<()>;
}

/// A source of rounds: finds the dirty pages of one target.
///
/// The promises of every source: a write that completes before [`collect`](Self::collect) returns
/// is in that round or in the next; a round that is dropped without commit comes back in the next
/// round of its kind.
///
/// ```no_run
/// use pagetrail::{DirtySource, PageSet, Result};
/// /// Collects the pages that any source's target writes in one round.
/// fn working_set(source: &mut dyn DirtySource) -> Result<PageSet> {
///     let round = source.collect()?;
///     let dirty = round.dirty().clone();
///     round.commit();
///     Ok(dirty)
/// }
/// ```
pub trait DirtySource {
    /// The PID of the process whose memory is tracked.
    fn pid(&self) -> u32;

    /// The name of the technique, as recordings and reports have it.
    fn technique_name(&self) -> &str;

    /// Why this technique is in use, in one line.
    fn reason(&self) -> &str;

    /// How long the target was stopped when tracking began.
    fn attach_stopped(&self) -> Duration {
        Duration::ZERO
    }

    /// The target's mappings as of the last collect, including those that are not tracked.
    fn regions(&self) -> &[Region];

    /// Regions that the source cannot track, with the reason and whether they are compared with a
    /// copy instead.
    fn untracked(&self) -> &[UntrackedRegion];

    /// Waits until the target's state changes, but at most for `timeout`.
    fn wait(&mut self, timeout: Duration) -> State;

    /// Collects the pages that were dirtied since the last committed round, or accessed: the round
    /// says which ([`Round::access_kind`]).
    ///
    /// # Errors
    ///
    /// [`Error::Gone`](crate::Error::Gone) when there is nothing more to collect. After any error
    /// `collect` can be called again, and what was found before the error is in the next round.
    fn collect(&mut self) -> Result<Round<'_>>;

    /// When the next collect is due, where the source keeps what it costs the target within a
    /// budget ([`Watch::next_collect`](crate::Watch::next_collect)); `None` if the consumer alone
    /// decides.
    fn next_collect(&self) -> Option<Instant> {
        None
    }

    /// Private anonymous memory in which the next collect reports each page that exists at present
    /// and is discarded meanwhile, as far as that is known. Elsewhere, a page that came after the
    /// last collect and goes before the next leaves no trace.
    fn reports_discards_in(&self) -> PageSet {
        PageSet::new()
    }

    /// Releases a target that is held at its end; see [`State::Exiting`].
    fn release_exit(&mut self);

    /// Stops all threads of the target.
    ///
    /// # Errors
    ///
    /// The target has ended or does not stop.
    fn hold(&mut self) -> Result<Box<dyn Held>>;

    /// Collects a round while the target is held: the round has everything that was written up to
    /// the hold.
    ///
    /// # Errors
    ///
    /// The errors of [`Self::collect`], and [`Error::Attach`](crate::Error::Attach) when `held`
    /// holds another process.
    fn collect_held(&mut self, held: &dyn Held) -> Result<Round<'_>>;

    /// Prepares [`Self::freeze`], for which the target stands still for a moment the first time.
    ///
    /// # Errors
    ///
    /// This source, or this target, has no such thing: the error says why.
    fn prepare_freeze(&mut self) -> Result<()> {
        Err(Error::NoFreeze {
            pid: self.pid(),
            reason: format!("{} cannot keep pages of it", self.technique_name()),
        })
    }

    /// Keeps pages of a held target as they are, after it is let go: a thread that writes to one
    /// of them waits until the page has been copied. To be called after
    /// [`Self::collect_held`] in the same hold.
    ///
    /// What cannot be kept is left out of [`Frozen::pages`].
    ///
    /// # Errors
    ///
    /// As of [`Self::prepare_freeze`]; all is as before then.
    fn freeze(&mut self, held: &dyn Held, _: &PageSet) -> Result<Box<dyn Frozen>> {
        Err(Error::NoFreeze {
            pid: held.pid(),
            reason: format!("{} cannot keep pages of it", self.technique_name()),
        })
    }
}
