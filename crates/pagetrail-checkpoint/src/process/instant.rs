//! The instant of a checkpoint: the process is held, and what is left is copied, or kept as it is
//! until it has been copied.

use super::ProcessCheckpointer;
use super::describe;
use super::pause::Steps;
use super::pending::Found;
use super::precopy::Mode;
use super::state::memory::Motion;
use super::together::Together;
use super::transfer::{Overflow, Transfer};
use crate::error::{Error, Result};
use crate::format::manifest::Process;
use pagetrail::Error::{Gone, NoSuchProcess};
use pagetrail::{Frozen, Held, PageSet, Urgent};
use std::time::Duration;

/// Fewer pages are copied at once, whatever that takes.
const FROZEN_PAGES_MIN: u64 = 128;
/// How often everything is copied once more before another instant.
const COPIES_ANEW: u32 = 2;
/// What a hold itself takes, as a part of the pause that is wanted.
const HOLD: Duration = Duration::from_micros(500);

/// How often pages are kept for one checkpoint; after that everything is copied at an instant.
const FREEZES_MAX: u32 = 2;
/// In how many holds it is tried to end the protection. A child of `vfork(2)` or `posix_spawn(3)`
/// that shares the memory for a moment does not allow it.
const THAWS_MAX: u32 = 5;
/// The time between two of them.
const THAW_AGAIN: Duration = Duration::from_millis(1);

/// What is left after the instant.
struct Rest {
    frozen: Box<dyn Frozen>,
    /// All that the instant had to have.
    all: PageSet,
}

impl ProcessCheckpointer {
    /// How often it may be tried to keep pages, and to copy them after the instant, instead of in
    /// it.
    pub(super) fn freezes(&mut self, transfer: &Transfer<'_>, left: &PageSet) -> Result<u32> {
        let is_to_freeze = match (self.options.mode, self.options.max_pause) {
            (Mode::Cow, _) => {
                self.source.prepare_freeze()?;
                true
            }
            (Mode::Precopy, Some(max)) => {
                let is_too_long = transfer.estimate(left.page_count()) + HOLD > max;
                is_too_long && self.source.prepare_freeze().is_ok()
            }
            _ => false,
        };
        Ok(u32::from(is_to_freeze) * FREEZES_MAX)
    }

    /// Holds the process, copies what is `left` and was found since, and lets the process go on;
    /// describes it as of that instant. `None` when it has replaced its program.
    ///
    /// Unless `freezes` is 0, as much as possible of it is copied after that, as it was at the
    /// instant.
    pub(super) fn copy_at_rest(
        &mut self,
        transfer: &mut Transfer<'_>,
        left: PageSet,
        freezes: u32,
        others: &dyn Together,
    ) -> Result<Option<Process>> {
        let urgent = Urgent::begin();
        let mut hold = self.source.hold()?;
        let mut steps = Steps::begin();
        let mut found = match self.absorb(Some(&*hold)) {
            Ok(found) if !self.replaced => found,
            Err(Error::Process(Gone { .. } | NoSuchProcess { .. })) => {
                // It has ended, or executed another program before it was held: that is found out,
                // and followed, only when it is not held.
                drop(hold);
                return self.absorb(None).map(|_| None);
            }
            outcome => return outcome.map(|_| None),
        };
        others.held(hold.let_go())?;
        if !others.is_alone() {
            // Others ran on while this one was held, and may have written to its memory
            // (process_vm_writev(2), /proc/PID/mem, ptrace(2)) before they were held themselves.
            found.add(self.absorb(Some(&*hold))?);
        }
        steps.end("collect");
        let copied_before = transfer.cost.copied_pages;
        let freezing = (freezes > 0).then_some(&*hold);
        let copied = self.copy_rest(transfer, &left, &found, freezing, others, &mut steps);
        let descriptors = describe::descriptors_at_rest(self.pid());
        let threads = hold.threads().to_vec();
        let state = self.state(&mut *hold);
        steps.end("describe");
        // Until the others have been copied too: it may write to memory that it shares with them.
        let others_copied = match (&copied, &state) {
            (Ok(_), Ok(_)) => others.copied(),
            _ => Ok(()),
        };
        let has_stood_still = hold.check();
        let pause = hold.release();
        let pause_ns = pause.as_nanos() as u64;
        self.costs.count_stop(pause);
        drop(urgent);
        steps.tell(pause, transfer.cost.copied_pages - copied_before);
        transfer.cost.pause_ns = transfer.cost.pause_ns.max(pause_ns);
        has_stood_still?;
        let rest = copied?;
        others_copied?;
        transfer.cost.stopped_pages += transfer.cost.copied_pages - copied_before;
        let process = Process {
            descriptors: descriptors.unwrap_or_else(|| describe::descriptors(self.pid())),
            state: state?,
            ..self.process(threads)
        };
        let Some(Rest { frozen, all }) = rest else {
            return Ok(Some(process));
        };
        match self.copy_kept(transfer, frozen)? {
            true => Ok(Some(process)),
            false => self.copy_anew(transfer, all, freezes - 1, others),
        }
    }

    /// Copies `all` while the process runs, and then, at another instant, what it has written
    /// meanwhile: not everything at that instant, since the pause is to be short.
    fn copy_anew(
        &mut self,
        transfer: &mut Transfer<'_>,
        all: PageSet,
        freezes: u32,
        others: &dyn Together,
    ) -> Result<Option<Process>> {
        tracing::info!("pages were discarded before they were copied: another instant is taken");
        let mut left = all;
        for _ in 0..COPIES_ANEW {
            transfer.cost.rounds += 1;
            let pages = self.to_precopy(&left);
            transfer.copy(&self.memory, &pages, Overflow::Store)?;
            let found = self.absorb(None)?;
            if self.replaced {
                return Ok(None);
            }
            transfer.remap(&found.remapped);
            left = left.difference(&pages).union(&found.pages);
        }
        let freezes = match freezes > 0 && self.source.prepare_freeze().is_ok() {
            true => freezes,
            false => 0,
        };
        self.copy_at_rest(transfer, left, freezes, others)
    }

    /// Copies what is kept while the process runs, and gives it back to the source; false if some
    /// of it is not known any more.
    fn copy_kept(
        &mut self,
        transfer: &mut Transfer<'_>,
        mut frozen: Box<dyn Frozen>,
    ) -> Result<bool> {
        let whole = transfer.copy_frozen(&*frozen)?;
        // A process that has ended, or does not stop again, is left alone by the drop; the image is
        // of the instant all the same.
        let _urgent = Urgent::begin();
        for _ in 0..THAWS_MAX {
            let Ok(held) = self.source.hold() else {
                break;
            };
            let mut steps = Steps::begin();
            let thawed = frozen.thaw(&*held);
            steps.end("thaw");
            let pause = held.release();
            steps.tell(pause, 0);
            self.costs.count_stop(pause);
            let pause_ns = pause.as_nanos() as u64;
            transfer.cost.pause_ns = transfer.cost.pause_ns.max(pause_ns);
            match thawed {
                Ok(()) => break,
                Err(reason) => tracing::info!(%reason, "pages stay protected for now"),
            }
            std::thread::sleep(THAW_AGAIN);
        }
        // While the process runs: what is not given back is let go page by page.
        drop(frozen);
        Ok(whole)
    }

    /// Copies what is left when nobody can write; gives what is kept instead.
    fn copy_rest(
        &mut self,
        transfer: &mut Transfer<'_>,
        left: &PageSet,
        found: &Found,
        freezing: Option<&dyn Held>,
        others: &dyn Together,
        steps: &mut Steps,
    ) -> Result<Option<Rest>> {
        transfer.remap(&found.remapped);
        let mut todo = left.difference(&found.remapped).union(&found.pages);
        todo.union_with(&self.pending.pages().intersection(&self.compared()));
        let (untouched, reverted_to_file) = self.layout.vanished()?;
        transfer.void(&untouched);
        todo.union_with(&reverted_to_file);
        let todo = todo
            .intersection(self.layout.addresses())
            .difference(&untouched)
            .difference(&self.shared());
        steps.end("layout");
        self.look_at_shared(transfer, others.common(Motion::AtRest))?;
        self.look_at_apart(transfer, Motion::AtRest)?;
        let in_files = self.layout.as_in_files()?;
        transfer.look_at_files(&self.memory, &in_files, &todo)?;
        steps.end("read again");
        // The store is not waited for while the process stands still, unless memory does not
        // suffice.
        let overflow = match self.options.mode {
            Mode::Precopy | Mode::Cow => Overflow::Stay,
            Mode::Stop => Overflow::Store,
        };
        let to_copy = todo.difference(&in_files);
        let count = to_copy.page_count();
        let is_worth = count >= FROZEN_PAGES_MIN && self.price.is_worth(transfer.estimate(count));
        let frozen = freezing.filter(|_| is_worth).and_then(|held| {
            steps.end("choose");
            let frozen = self.source.freeze(held, &to_copy);
            let took = steps.end("keep");
            match frozen {
                Ok(frozen) => {
                    self.price.observe(took);
                    Some(frozen)
                }
                Err(reason) => {
                    tracing::info!(%reason, "copied while the process stands still");
                    None
                }
            }
        });
        let kept = frozen.as_ref().map(|frozen| frozen.pages().clone());
        let now = to_copy.difference(&kept.unwrap_or_default());
        transfer.copy(&self.memory, &now, overflow)?;
        steps.end("copy");
        Ok(frozen.map(|frozen| Rest { frozen, all: todo }))
    }
}
