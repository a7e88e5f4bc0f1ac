//! [`Watch`]: rounds of writes of one target. It follows the target's mappings ([`space`]), picks the technique
//! ([`choice`]), and keeps what was harvested until the consumer commits it.

mod backing;
pub(crate) mod builder;
pub(crate) mod choice;
mod config;
mod discards;
mod image;
mod latent;
mod life;
pub(crate) mod space;
mod untracked;

use crate::attach::hold::Hold;
use crate::attach::launch::{Ended, Image, Launched};
use crate::error::{Error, Result};
use crate::heap::heaps::Heaps;
use crate::page_set::{PageRange, PageSet};
use crate::proc::status::{self, Status};
use crate::region::Region;
use crate::round::{AccessKind, Event, Pending, Round, RoundCost, Told};
use crate::technique::Technique;
use builder::WatchBuilder;
#[cfg(doc)]
use choice::TrackMode;
use config::Config;
use life::{EXEC_PATIENCE, EXEC_PAUSE, ended_within, has_memory};
use rustix::fd::OwnedFd;
use space::Space;
use std::collections::BTreeSet;
use std::thread;
use std::time::{Duration, Instant};

pub use latent::Unwritable;
pub use untracked::UntrackedRegion;

/// Notices the writes of a target and hands them out in rounds.
///
/// ```
/// use pagetrail::{Choice, Target, Watch, pages_of};
/// let mut buffer = vec![0u8; 1 << 20];
/// let range = pages_of(&buffer).unwrap();
/// let mut watch = Watch::builder().target(Target::ranges([range])).technique(Choice::Auto).start()?;
/// buffer[300_000] = 1;
/// let round = watch.collect()?;
/// assert!(round.dirty().contains(&raw const buffer[300_000] as u64));
/// round.commit();
/// # Ok::<(), pagetrail::Error>(())
/// ```
///
/// Dropping the watch ends all tracking; the target runs on at full speed. A watch belongs to the process that started
/// it: a forked child must not collect from its copy, which would take the pages away from its parent.
pub struct Watch {
    config: Config,
    technique: Technique,
    reason: String,
    pid: u32,
    own: bool,
    space: Space,
    heaps: Heaps,
    launched: Option<Launched>,
    /// Readable when the process has ended (`pidfd_open(2)`); only for processes that are not ours.
    end: Option<OwnedFd>,
    /// What waits for its commit: writes and accesses.
    pending: [Pending; 2],
    /// Reported, and left unarmed since.
    unarmed: PageSet,
    children: BTreeSet<u32>,
    started: Instant,
    round_began: Duration,
    index: u64,
    attach_stopped: Duration,
}

/// What [`Watch::wait`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum State {
    /// The target runs on.
    Running,
    /// The target, started by [`Target::command`](crate::Target::command) with [`WatchBuilder::last_round`], has reached
    /// its end and is held there: collect the last round, then let it go by [`Watch::release_exit`].
    Exiting,
    /// The target has ended; how is known for programs that the watch started.
    Ended(Option<Ended>),
}

impl Watch {
    /// Describes a watch to be started.
    pub fn builder() -> WatchBuilder {
        WatchBuilder::default()
    }

    /// Hands out what was written since the last committed round. It is re-armed already.
    ///
    /// A write that completes before this returns is in this round or in the next. Where rounds of writes and of accesses
    /// [alternate](TrackMode::Alternate), one that is not committed comes back in the next of its kind.
    ///
    /// # Errors
    ///
    /// [`Error::Gone`] when the target has ended. After any error the watch can be asked again, and what was
    /// harvested before the error is in the next round.
    pub fn collect(&mut self) -> Result<Round<'_>> {
        let told = self.harvest()?;
        self.unarmed.clear();
        Ok(self.round(told))
    }

    /// Watches mappings that have come since the last collect already now, and forgets those that have gone. The next round has
    /// the new ones' pages, as it would without this.
    ///
    /// # Errors
    ///
    /// As [`Self::collect`], but an `execve` of the target is left to that.
    pub fn follow_mappings(&mut self) -> Result<()> {
        let access_kind = self.space.noticing();
        self.space.follow(&mut self.pending[access_kind as usize])
    }

    /// The same, but the pages it reports stay unarmed: they cost the target nothing, and every round reports them, until
    /// [`rearm`](Self::rearm) is called for them.
    ///
    /// For those who ask about some pages more often than about others. Of a page that stays unarmed nothing is learned,
    /// and nothing is missed. Pages whose mapping is new in the round, and regions watched by `compare`, are armed as ever.
    ///
    /// # Errors
    ///
    /// As [`collect`](Self::collect); [`Error::Unavailable`] with techniques other than `pagemap-scan` and `access-scan`,
    /// and where rounds [alternate](TrackMode::Alternate).
    pub fn collect_unarmed(&mut self) -> Result<Round<'_>> {
        if !self.space.set_rearming(false) {
            return Err(Error::Unavailable {
                technique: self.technique,
                reason: "it arms what it reports in one step".into(),
            });
        }
        let told = self.harvest();
        self.space.set_rearming(true);
        let told = told?;
        let reported = &self.pending[told.access_kind as usize].written;
        self.unarmed.union_with(reported);
        Ok(self.round(told))
    }

    /// Arms pages that [`collect_unarmed`](Self::collect_unarmed) has reported; others are passed over, since what was
    /// written to them has not been told yet.
    ///
    /// What is touched between the two calls belongs to the round that was collected: read the pages after this.
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

    /// Leaves everything unarmed, for a while in which nobody asks: the target takes no fault, and the next round reports all
    /// its pages.
    ///
    /// Techniques other than `pagemap-scan` and `access-scan` go on as before.
    ///
    /// # Errors
    ///
    /// [`Error::Gone`] when the target has ended.
    pub fn suspend(&mut self) -> Result<()> {
        self.space.suspend()
    }

    /// Takes what was written into `pending`.
    fn harvest(&mut self) -> Result<Told> {
        let before = Instant::now();
        for pending in &mut self.pending {
            pending.told = None;
        }
        let mut access_kind = self.space.noticing();
        let mut carried = !self.pending[access_kind as usize].written.is_empty();
        let outcome = self.space.collect(&mut self.pending[access_kind as usize]);
        let harvested = match outcome {
            Err(error) if !self.own && error.means_gone() => {
                let followed = self.follow_execs()?;
                (access_kind, carried) = (followed.0, false);
                followed.1
            }
            outcome => outcome?,
        };
        self.tell_units(access_kind, carried);
        self.count_children(access_kind);
        let now = self.started.elapsed();
        let began = std::mem::replace(&mut self.round_began, now);
        let cost = RoundCost {
            collect: before.elapsed(),
            stopped: harvested.stopped,
            faults: harvested.faults,
            blind: harvested.blind,
        };
        let told = Told {
            access_kind,
            began,
            duration: now - began,
            cost,
            prediction: harvested.prediction,
        };
        self.pending[access_kind as usize].told = Some(told);
        Ok(told)
    }

    /// The round of the last collect once more, unless that failed or the round was committed.
    ///
    /// For those who cannot hold on to the [`Round`] because it borrows the watch: a C interface, or a struct that
    /// owns the watch and commits in another call than the one that collects.
    pub fn current_round(&mut self) -> Option<Round<'_>> {
        let told = self.pending.iter().find_map(|pending| pending.told)?;
        Some(self.round(told))
    }

    fn round(&mut self, told: Told) -> Round<'_> {
        Round {
            pending: &mut self.pending[told.access_kind as usize],
            index: &mut self.index,
            regions: self.space.regions(),
            untracked: self.space.untracked(),
            told,
        }
    }

    /// Makes room for rounds of up to this many ranges: 16 bytes of address space each, three times (for rounds of writes,
    /// of accesses, and for one that waits for its commit). Half the number of pages is always enough.
    ///
    /// On ranges of the own process, with `pagemap-scan` or `mprotect`, neither [`Self::collect`] nor
    /// [`Round::commit`] allocates then, as a collector needs it that has stopped the world. Three things may still
    /// take memory: pages that are touched for the first time ever, mappings that change, and a collect while an
    /// older round was not committed.
    pub fn reserve(&mut self, ranges: usize) {
        for pending in &mut self.pending {
            pending.written.reserve(ranges);
        }
        self.space.reserve(ranges);
    }

    /// The same while the target is held: what it returns is all that was written up to the hold.
    ///
    /// # Errors
    ///
    /// As [`Self::collect`]; also when another process is held.
    pub fn collect_held(&mut self, hold: &Hold) -> Result<Round<'_>> {
        if hold.pid() != self.pid {
            return Err(Error::Attach {
                pid: self.pid,
                reason: format!("process {} is held instead", hold.pid()),
            });
        }
        self.space.set_held(true);
        let told = self.harvest();
        self.space.set_held(false);
        let told = told?;
        self.unarmed.clear();
        Ok(self.round(told))
    }

    /// The address space is gone: by `execve`, then the new one is watched, or because the target ended.
    ///
    /// A program that executes the next one while we look at it leaves us with what belongs to neither, so we look again.
    fn follow_execs(&mut self) -> Result<(AccessKind, space::Harvested)> {
        let deadline = Instant::now() + EXEC_PATIENCE;
        loop {
            match self.follow_exec() {
                Err(_) if self.has_ended() || !has_memory(self.pid) => {
                    // Ended, or just executing: the next collect tells.
                    return Err(Error::Gone { pid: self.pid });
                }
                // Whatever is said of a process in the middle of `execve` need not hold behind it.
                Err(_) if Instant::now() < deadline => thread::sleep(EXEC_PAUSE),
                followed => return followed,
            }
        }
    }

    /// Whether it is known to have ended: its number may be another process's by now.
    fn has_ended(&mut self) -> bool {
        let program = self.launched.as_mut();
        program.is_some_and(|launched| launched.ended().is_some())
            || (self.end.as_ref()).is_some_and(|end| ended_within(end, Duration::ZERO))
    }

    /// Watches the address space that the target has now.
    fn follow_exec(&mut self) -> Result<(AccessKind, space::Harvested)> {
        let gone = Error::Gone { pid: self.pid };
        let image = match &mut self.launched {
            // A thread that is not the main one took its place by `execve`, and the keeper lost sight of it:
            // no image will come from there.
            Some(launched) => match launched.take_image(match Status::of(self.pid) {
                Ok(status) if status.tracer == 0 => Duration::ZERO,
                _ => EXEC_PATIENCE,
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
        // What was written in the old image no longer exists; what happened before has not been told yet.
        for pending in &mut self.pending {
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
        let access_kind = self.space.noticing();
        let pending = &mut self.pending[access_kind as usize];
        pending.events.push(Event::Exec {
            command: status::command_line(self.pid),
        });
        self.space.arm_as_fresh(pending)?;
        let mut harvested = self.space.collect(pending)?;
        harvested.stopped += stopped;
        Ok((access_kind, harvested))
    }

    /// Tells writes apart within the pages of sub-page heaps.
    fn tell_units(&mut self, access_kind: AccessKind, carried: bool) {
        let pending = &mut self.pending[access_kind as usize];
        pending.units = self.heaps.units(
            self.space.regions(),
            self.space.within(),
            carried,
            &mut pending.written,
            &mut pending.fresh,
        );
    }

    fn count_children(&mut self, access_kind: AccessKind) {
        if self.own {
            return;
        }
        let before = self.children.len();
        self.children.extend(status::children(self.pid));
        if self.children.len() != before {
            self.pending[access_kind as usize]
                .events
                .push(Event::Children {
                    count: self.children.len() as u32,
                });
        }
    }

    /// Waits for `timeout`, or until the target comes to its end.
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
            None => match &self.end {
                Some(end) if ended_within(end, timeout) => State::Ended(None),
                Some(_) => State::Running,
                None => {
                    std::thread::sleep(timeout);
                    State::Running
                }
            },
        }
    }

    /// Lets a program end that is held at its end; see [`State::Exiting`].
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

    /// Why this technique is in use, one line.
    pub fn reason(&self) -> &str {
        &self.reason
    }

    /// The process whose memory is watched.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// The target's mappings as of the last collect, those not watched included.
    pub fn regions(&self) -> &[Region] {
        self.space.regions()
    }

    /// Regions that the technique cannot watch, and what is done about them.
    pub fn untracked(&self) -> &[UntrackedRegion] {
        self.space.untracked()
    }

    /// How long the target was stopped to start watching it.
    pub fn attach_stopped(&self) -> Duration {
        self.attach_stopped
    }

    /// Takes the write faults of a range of this process's memory now, so that a system call may write there.
    ///
    /// With the technique `mprotect` the kernel's own writes into protected pages fail with `EFAULT`
    /// (`read(2)` into a watched buffer, say). Call this before, and collect not in between. With every other
    /// technique it does nothing.
    pub fn prepare_for_kernel_write(&mut self, range: PageRange) {
        self.space.prepare_for_kernel_write(range);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::Target;

    #[test]
    fn mappings_followed_before_a_collect_are_in_its_round() {
        let builder = Watch::builder().target(Target::own());
        let Ok(mut watch) = builder.technique(Technique::PagemapScan).start() else {
            return; // The conformance suite says why.
        };
        watch.collect().unwrap().commit();
        let mut buffer = vec![1_u8; 8 << 20];
        let address = |buffer: &[u8]| &raw const buffer[5 << 20] as u64;
        watch.follow_mappings().unwrap();
        let round = watch.collect().unwrap();
        assert!(round.dirty().contains(address(&buffer)));
        round.commit();
        watch.follow_mappings().unwrap();
        buffer[5 << 20] = 2;
        let round = watch.collect().unwrap();
        assert!(round.dirty().contains(address(&buffer)));
        round.commit();
    }
}
