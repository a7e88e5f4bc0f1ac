//! [`Watch`]: rounds of one target. It follows the target's mappings ([`space`]), picks the
//! technique ([`choice`]), and keeps what was collected until the consumer commits it.

pub(crate) mod attached;
mod backing;
mod birth;
pub(crate) mod builder;
pub(crate) mod choice;
mod config;
mod deleted;
mod discards;
mod image;
mod latent;
pub(crate) mod life;
mod overhead;
mod source;
pub(crate) mod space;
mod untracked;

use crate::attach::hold::Hold;
use crate::attach::launch::{Image, Launched};
use crate::budget::Budget;
use crate::error::{Error, Result};
use crate::heap::heaps::Heaps;
use crate::page_set::{PageRange, PageSet};
use crate::proc::pidfd;
use crate::proc::status::{self, Status};
use crate::region::Region;
use crate::round::{CollectInfo, Round, RoundBuffer};
use crate::source::{Held, State};
use crate::sys::cpu_clock;
#[cfg(doc)]
use crate::types::TrackMode;
use crate::types::{AccessKind, Event, Inherited, RoundCost, Technique, UntrackedRegion};
#[cfg(doc)]
use builder::WatchBuilder;
use config::Config;
pub(crate) use life::has_memory;
use life::{EXEC_PAUSE, EXEC_TIMEOUT};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use space::Space;
use std::collections::BTreeSet;
use std::thread;
use std::time::{Duration, Instant};

pub use latent::Unwritable;

/// Tracks the pages that a target writes (or accesses) and hands them out in rounds.
///
/// ```
/// use pagetrail::{Target, Watch, pages_of};
/// let mut buffer = vec![0u8; 1 << 20];
/// let range = pages_of(&buffer).unwrap();
/// let mut watch = Watch::builder().target(Target::ranges([range])).start()?;
/// buffer[300_000] = 1;
/// let round = watch.collect()?;
/// assert!(round.dirty().contains(&raw const buffer[300_000] as u64));
/// round.commit();
/// # Ok::<(), pagetrail::Error>(())
/// ```
///
/// Dropping the watch ends all tracking; the target runs on at full speed. A watch belongs to the
/// process that started it: a forked child must not collect from its copy, which would take pages
/// away from its parent.
pub struct Watch {
    config: Config,
    technique: Technique,
    reason: String,
    pid: u32,
    own: bool,
    space: Space,
    heaps: Heaps,
    launched: Option<Launched>,
    /// Readable when the target has ended (`pidfd_open(2)`); `None` for this process and for
    /// programs that the watch started.
    pidfd: Option<OwnedFd>,
    /// Rounds that wait for their commit.
    rounds: RoundBuffer,
    /// Pages that were reported and have not been re-armed since.
    unarmed: PageSet,
    children: BTreeSet<u32>,
    /// Whether children are watched by a tree, and need not be counted.
    has_followed_children: bool,
    inherited: Inherited,
    attach_stopped: Duration,
    /// Keeps what tracking costs the target within bounds, if the consumer has set any.
    budget: Option<Budget>,
    /// Processor time of the last settling of the budget, which counts as part of the next collect.
    settling: Duration,
}

impl Watch {
    /// Collects the pages that were written since the last committed round. They are already
    /// re-armed.
    ///
    /// A write that completes before this returns is in this round or in the next. Where rounds of
    /// writes and of accesses [alternate](TrackMode::Alternate), a round that is not committed
    /// comes back in the next round of its kind.
    ///
    /// # Errors
    ///
    /// [`Error::Gone`] when the target has ended. After any error `collect` can be called again,
    /// and what was collected before the error is in the next round.
    pub fn collect(&mut self) -> Result<Round<'_>> {
        let info = self.collect_pending(false)?;
        self.unarmed.clear();
        Ok(self.round(info))
    }

    /// Arms mappings that were created since the last collect, and forgets those that were
    /// unmapped. The next round reports the pages of the new mappings, as it would without this
    /// call.
    ///
    /// # Errors
    ///
    /// The errors of [`Self::collect`], except that an `execve` of the target is left to it.
    pub fn follow_mappings(&mut self) -> Result<()> {
        let access_kind = self.space.access_kind();
        self.space.follow(self.rounds.of(access_kind))
    }

    /// Collects a round like [`collect`](Self::collect), but leaves the reported pages unarmed:
    /// they cost the target nothing, and every round reports them, until [`rearm`](Self::rearm) is
    /// called for them.
    ///
    /// Use this to sample pages at different rates. Unarmed pages are always reported, so that no
    /// write is lost. Pages whose mapping is new in the round, and regions tracked by `compare`,
    /// are armed as usual.
    ///
    /// ```no_run
    /// # fn main() -> pagetrail::Result<()> {
    /// # let mut watch = pagetrail::Watch::builder().start()?;
    /// let round = watch.collect_unarmed()?;
    /// let sampled = round.dirty().clone();
    /// round.commit();
    /// watch.rearm(&sampled)?; // from here on, writes to these pages are detected again
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`collect`](Self::collect); [`Error::Unavailable`] with techniques other than
    /// `pagemap-scan` and `access-scan`, and where rounds [alternate](TrackMode::Alternate).
    pub fn collect_unarmed(&mut self) -> Result<Round<'_>> {
        if !self.space.set_rearming(false) {
            return Err(Error::Unavailable {
                technique: self.technique,
                reason: "it arms what it reports in one step".into(),
            });
        }
        let info = self.collect_pending(false);
        self.space.set_rearming(true);
        let info = info?;
        let reported = &self.rounds.of(info.access_kind).written;
        self.unarmed.union_with(reported);
        Ok(self.round(info))
    }

    /// Arms pages that [`collect_unarmed`](Self::collect_unarmed) has reported. Other pages are
    /// passed over, since writes to them have not been reported yet.
    ///
    /// An access between the two calls belongs to the round that was collected: read the pages
    /// after this call.
    ///
    /// # Errors
    ///
    /// [`Error::Gone`] when the target has ended.
    pub fn rearm(&mut self, pages: &PageSet) -> Result<()> {
        let pages = pages.intersection(&self.unarmed);
        self.space.rearm(&pages)?;
        self.unarmed = self.unarmed.difference(&pages);
        Ok(())
    }

    /// Disarms everything, for a time in which no round is collected: the target takes no fault,
    /// and the next round reports all its pages.
    ///
    /// Techniques other than `pagemap-scan` and `access-scan` stay armed.
    ///
    /// # Errors
    ///
    /// [`Error::Gone`] when the target has ended.
    pub fn suspend(&mut self) -> Result<()> {
        self.space.suspend()
    }

    /// Collects what was written into `pending`. An `execve` is not followed while the target
    /// `is_held`: what holds it is its tracer, and no other can attach.
    fn collect_pending(&mut self, is_held: bool) -> Result<CollectInfo> {
        let before = Instant::now();
        let cpu_before = self.budget.as_ref().map(|_| cpu_clock::of_this_thread());
        if let Some(budget) = &mut self.budget {
            self.space.weigh_faults(budget.fault_weight_now());
        }
        self.rounds.forget_info();
        let mut access_kind = self.space.access_kind();
        let mut carried = !self.rounds.of(access_kind).written.is_empty();
        let outcome = self.space.collect(self.rounds.of(access_kind));
        let collected = match outcome {
            Err(error) if !self.own && !is_held && error.means_gone() => {
                let followed = self.follow_execs()?;
                (access_kind, carried) = (followed.0, false);
                followed.1
            }
            Err(error) if is_held && error.means_gone() => {
                return Err(Error::Gone { pid: self.pid });
            }
            outcome => outcome?,
        };
        let (regions, within) = (self.space.regions(), self.space.within());
        self.rounds
            .resolve(access_kind, &mut self.heaps, regions, within, carried);
        self.count_children(access_kind);
        let (began, duration) = self.rounds.end_interval();
        let cost = RoundCost {
            collect: before.elapsed(),
            stopped: collected.stopped,
            faults: collected.faults,
            blind: collected.blind,
        };
        let mut info = CollectInfo {
            access_kind,
            began,
            duration,
            cost,
            prediction: collected.prediction,
            overhead: None,
        };
        if let Some(before) = cpu_before {
            let now = cpu_clock::of_this_thread();
            let collect = now.saturating_sub(before) + std::mem::take(&mut self.settling);
            info.overhead = self.settle(&info, collect, collected.reported);
            self.settling = cpu_clock::of_this_thread().saturating_sub(now);
        }
        self.rounds.of(access_kind).info = Some(info);
        Ok(info)
    }

    /// Returns the round of the last collect again, unless that collect failed or the round was
    /// committed.
    ///
    /// Use this where the [`Round`] cannot be kept because it borrows the watch: in a C interface,
    /// or in a struct that owns the watch and commits in a different call than the one that
    /// collects.
    pub fn current_round(&mut self) -> Option<Round<'_>> {
        let info = self.rounds.last_info()?;
        Some(self.round(info))
    }

    fn round(&mut self, info: CollectInfo) -> Round<'_> {
        self.rounds
            .with_info(info, self.space.regions(), self.space.untracked())
    }

    /// Reserves memory for rounds of up to this many ranges: 16 bytes of address space each, three
    /// times (for rounds of writes, of accesses, and for one that waits for its commit). Half the
    /// number of pages is always enough.
    ///
    /// On ranges of the own process, with `pagemap-scan` or `mprotect`, neither [`Self::collect`]
    /// nor [`Round::commit`] then allocates, as a garbage collector at a safepoint needs it. Four
    /// things may still take memory: pages that are touched for the first time, mappings that
    /// change, a collect while an older round is not committed, and the note that a budget is not
    /// kept, or is kept again.
    pub fn reserve(&mut self, ranges: usize) {
        for pending in self.rounds.all() {
            pending.written.reserve(ranges);
        }
        self.space.reserve(ranges);
    }

    /// Collects a round like [`collect`](Self::collect) while the target is held: the round has
    /// everything that was written up to the hold.
    ///
    /// # Errors
    ///
    /// The errors of [`Self::collect`]; [`Error::Attach`] when `hold` holds another process, or no
    /// longer holds it; [`Error::Gone`] also when the target has executed another program, which
    /// [`Self::collect`] follows once the target is let go.
    pub fn collect_held(&mut self, hold: &Hold) -> Result<Round<'_>> {
        self.collect_held_by(hold)
    }

    /// Collects a round while the target is held, by whatever holds it.
    fn collect_held_by(&mut self, held: &dyn Held) -> Result<Round<'_>> {
        self.check_held(held)?;
        self.space.set_held(true);
        let info = self.collect_pending(true);
        self.space.set_held(false);
        let info = info?;
        // What was collected is pending.
        held.check()?;
        self.unarmed.clear();
        Ok(self.round(info))
    }

    fn check_held(&self, held: &dyn Held) -> Result<()> {
        match held.pid() == self.pid {
            true => Ok(()),
            false => Err(Error::Attach {
                pid: self.pid,
                reason: format!("process {} is held instead", held.pid()),
            }),
        }
    }

    /// Handles an address space that no longer exists: either the target executed another program,
    /// which is then tracked, or it ended.
    ///
    /// If the target executes yet another program meanwhile, what was read belongs to neither of
    /// them, so it is read again.
    fn follow_execs(&mut self) -> Result<(AccessKind, space::CollectStats)> {
        let deadline = Instant::now() + EXEC_TIMEOUT;
        loop {
            match self.follow_exec() {
                Err(_) if self.has_ended() || !has_memory(self.pid) => {
                    // It has ended, or is just executing: the next collect finds out which.
                    return Err(Error::Gone { pid: self.pid });
                }
                // During `execve` the files in /proc may belong to either program, so any error is
                // retried.
                Err(_) if Instant::now() < deadline => thread::sleep(EXEC_PAUSE),
                followed => return followed,
            }
        }
    }

    /// Whether the target is known to have ended: another process may have its PID now.
    fn has_ended(&mut self) -> bool {
        let program = self.launched.as_mut();
        program.is_some_and(|launched| launched.ended().is_some())
            || self.pidfd.as_ref().is_some_and(pidfd::has_ended)
    }

    /// Whether the target has ended, where nothing but `/proc` says so.
    pub(crate) fn is_known_to_be_gone(&self) -> bool {
        self.launched.is_none() && self.pidfd.is_none() && !has_memory(self.pid)
    }

    /// Tracks the target's current address space, after an `execve`.
    fn follow_exec(&mut self) -> Result<(AccessKind, space::CollectStats)> {
        let gone = Error::Gone { pid: self.pid };
        let image = match &mut self.launched {
            // When a thread other than the leader executes, it takes the leader's PID, and the
            // thread that traces the program loses it: it will deliver no image.
            Some(launched) => match launched.take_image(match Status::of(self.pid) {
                Ok(status) if status.tracer == 0 => Duration::ZERO,
                _ => EXEC_TIMEOUT,
            }) {
                Some(image) => Some(image?),
                None if launched.ended().is_some() => return Err(gone),
                None => None,
            },
            None => None,
        };
        if self.has_ended() || !has_memory(self.pid) {
            return Err(gone);
        }
        let Image { fd, stopped } = match image {
            Some(image) => image,
            None => image::attach(self.technique, self.pid)?,
        };
        self.unarmed.clear();
        self.inherited = Inherited::default();
        // What was written in the old image no longer exists; events from before are still
        // unreported.
        for pending in self.rounds.all() {
            pending.written.clear();
            pending.predicted.clear();
            pending.fresh.clear();
            pending.remapped.clear();
        }
        self.space = Space::open(
            Some(self.pid),
            None,
            self.config.tracker(self.technique, fd, Some(self.pid))?,
            &self.config,
        )?;
        self.heaps = Heaps::new(self.pid);
        if self.config.merge_subpages {
            self.heaps.merge();
        }
        let access_kind = self.space.access_kind();
        let pending = self.rounds.of(access_kind);
        pending.events.push(Event::Exec {
            command: status::command_or_name(self.pid),
        });
        self.space.arm_as_fresh(pending)?;
        let mut collected = self.space.collect(pending)?;
        collected.stopped += stopped;
        Ok((access_kind, collected))
    }

    fn count_children(&mut self, access_kind: AccessKind) {
        if self.own || self.has_followed_children {
            return;
        }
        let before = self.children.len();
        self.children.extend(status::children(self.pid));
        if self.children.len() != before {
            self.rounds.of(access_kind).events.push(Event::Children {
                count: self.children.len() as u32,
            });
        }
    }

    /// Waits until the target ends, but at most for `timeout`.
    pub fn wait(&mut self, timeout: Duration) -> State {
        match &mut self.launched {
            Some(launched) => {
                launched.wait(timeout);
                match launched.ended() {
                    Some(ended) => State::Ended(Some(ended)),
                    None if launched.is_exiting() => State::Exiting,
                    None => State::Running,
                }
            }
            None => match &self.pidfd {
                Some(pidfd) if pidfd::ends_within(pidfd, timeout) => State::Ended(None),
                Some(_) => State::Running,
                None => {
                    std::thread::sleep(timeout);
                    State::Running
                }
            },
        }
    }

    /// Releases a program that is held at its end; see [`State::Exiting`].
    pub fn release_exit(&mut self) {
        if let Some(launched) = &mut self.launched
            && launched.is_exiting()
        {
            launched.go();
        }
    }

    /// The technique in use.
    pub fn technique(&self) -> Technique {
        self.technique
    }

    /// Why this technique is in use, in one line.
    pub fn reason(&self) -> &str {
        &self.reason
    }

    /// The PID of the process whose memory is tracked.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// The pidfd of the target, which becomes readable when it ends: for `poll(2)` together with
    /// other descriptors.
    ///
    /// `None` for this process, for a program that the watch started ([`Self::wait`] also reports
    /// that it is held at its end), and before Linux 5.3. No descriptor becomes readable when a
    /// page is written: the kernel records dirty pages without an event.
    pub fn pidfd(&self) -> Option<BorrowedFd<'_>> {
        self.pidfd.as_ref().map(AsFd::as_fd)
    }

    /// The target's mappings as of the last collect, including those that are not tracked.
    pub fn regions(&self) -> &[Region] {
        self.space.regions()
    }

    /// Regions that the technique cannot track, with the reason and whether `compare` tracks them
    /// instead.
    pub fn untracked(&self) -> &[UntrackedRegion] {
        self.space.untracked()
    }

    /// How long the target was stopped when tracking began.
    pub fn attach_stopped(&self) -> Duration {
        self.attach_stopped
    }

    /// What the target had of its parent's memory when it was attached to.
    pub(crate) fn inherited(&self) -> &Inherited {
        &self.inherited
    }

    /// Takes the write faults of a range of this process's memory now, so that a system call may
    /// write there.
    ///
    /// With the technique `mprotect`, the kernel's own writes to protected pages fail with `EFAULT`
    /// (for example `read(2)` into a tracked buffer). Call this before such a system call, and do
    /// not collect in between. With every other technique it does nothing.
    pub fn prepare_for_kernel_write(&mut self, range: PageRange) {
        self.space.prepare_for_kernel_write(range);
    }
}

#[cfg(test)]
mod tests;
