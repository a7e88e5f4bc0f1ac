//! [`Own`]: the watch on the own process, and clearing by one system call as long as its mappings
//! stay what they are.
//!
//! A clear drops what the watch would report, so usually no collect is needed: one
//! `PAGEMAP_SCAN(2const)` over a span of addresses re-protects the pages that were written, and
//! fails with `EPERM` at a mapping that is not registered. Only then, when something was newly
//! mapped, the watch reads the mappings. All private memory is tracked, unwritable memory included,
//! so that spans are long and few.
//!
//! Spans reach over gaps in which the program may map memory and watch it by a userfaultfd of its
//! own, whose marks a sweep would remove. So once it has registered any
//! ([`note_foreign_userfaultfd`]), every clear collects from the watch.
//!
//! For a collector, pages that are dirty in every round would cost a fault in each: [`Habits`]
//! finds them, and they stay unprotected, and soft-dirty, for a while.
//!
//! Unlike the watch, a sweep leaves empty entries of private memory alone: a page that is populated
//! there shows as written by itself, and a marker would cost it a second fault.

use crate::habits::Habits;
use crate::holder::{self, Armed};
use crate::spans::{NOTHING, query};
use crate::sys::kernel::pagemap_scan;
use linux_raw_sys::general as raw;
use pagetrail::{PageRange, PageSet, Target, Technique, UntrackedPolicy, Unwritable, Watch};
use rustix::fd::{AsRawFd, OwnedFd, RawFd};
use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether the program has a userfaultfd of its own in use.
static FOREIGN: AtomicBool = AtomicBool::new(false);

/// Notes that the program watches memory by itself.
pub(crate) fn note_foreign_userfaultfd() {
    FOREIGN.store(true, Ordering::Relaxed);
}

pub(crate) struct Own {
    watch: Watch,
    /// Without it every clear goes through the watch.
    pagemap: Option<OwnedFd>,
    spans: Vec<Span>,
    /// Predictions, for a reader that tolerates false positives.
    habits: Option<Habits>,
    /// The spans without what is predicted dirty.
    around: Vec<Span>,
}

/// Addresses that are swept at once: mappings that are registered, and nothing between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Span {
    range: PageRange,
    /// Mapped shared: an empty entry may have lost a page that was written.
    shared: bool,
}

impl Own {
    /// Starts the watch, which clears everything, and returns what is armed. `predict`: false
    /// positives are allowed.
    pub(crate) fn start(predict: bool) -> pagetrail::Result<(Self, Armed)> {
        let watch = Watch::builder()
            .target(Target::own())
            .technique(Technique::PagemapScan)
            .unwritable(Unwritable::Always)
            .untracked(UntrackedPolicy::Report)
            .start()?;
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let pagemap = open(c"/proc/self/pagemap", flags, Mode::empty()).ok();
        let mut own = Self {
            watch,
            pagemap,
            spans: Vec::new(),
            habits: predict.then(Habits::default),
            around: Vec::new(),
        };
        let armed = own.look();
        Ok((own, armed))
    }

    /// Clears all bits, and returns what is armed if that has changed.
    pub(crate) fn clear(&mut self) -> pagetrail::Result<Option<Armed>> {
        if FOREIGN.load(Ordering::Relaxed) {
            self.watch.collect()?.commit();
            return Ok(Some(self.look()));
        }
        if self.sweep().is_ok() {
            return Ok(None);
        }
        // As a rule there is a new mapping.
        self.watch.follow_mappings()?;
        let armed = self.look();
        if self.sweep().is_ok() {
            return Ok(Some(armed));
        }
        // One was replaced by another at the same place, which only a collect finds.
        self.watch.collect()?.commit();
        Ok(Some(self.look()))
    }

    fn look(&mut self) -> Armed {
        let armed = holder::armed_by(&self.watch);
        let mapped = self.watch.regions().iter().map(|region| region.range);
        self.spans = spans(&armed, &mapped.collect());
        if let Some(habits) = &self.habits {
            self.around = around(&self.spans, habits.predicted());
        }
        armed
    }

    fn sweep(&mut self) -> Result<(), Errno> {
        let fd = self.pagemap.as_ref().ok_or(Errno::BADF)?.as_raw_fd();
        let Some(habits) = &mut self.habits else {
            return self
                .spans
                .iter()
                .try_for_each(|span| span.sweep(fd, |_| {}));
        };
        if habits.begin() {
            self.around = around(&self.spans, habits.predicted());
        }
        let mut written = PageSet::new();
        for span in &self.around {
            span.sweep(fd, |range| written.insert(range))?;
        }
        if habits.end(written) {
            self.around = around(&self.spans, habits.predicted());
        }
        Ok(())
    }
}

impl Span {
    /// Re-protects the span; calls `written` with what was written in private memory.
    fn sweep(self, fd: RawFd, mut written: impl FnMut(PageRange)) -> Result<(), Errno> {
        // Without a vector the kernel marks empty entries as well, as is right for shared memory
        // alone.
        let mut regions = [NOTHING; 128];
        let vector = if self.shared {
            &mut [][..]
        } else {
            &mut regions
        };
        let mut from = self.range.start();
        while from < self.range.end() {
            let mut arg = query(from, self.range.end());
            arg.flags = u64::from(raw::PM_SCAN_WP_MATCHING | raw::PM_SCAN_CHECK_WPASYNC);
            arg.category_mask = u64::from(raw::PAGE_IS_WRITTEN);
            if !self.shared {
                arg.category_anyof_mask = u64::from(raw::PAGE_IS_PRESENT | raw::PAGE_IS_SWAPPED);
            }
            let count = pagemap_scan(fd, &mut arg, vector)?;
            for region in &vector[..count.min(vector.len())] {
                if let Some(range) = PageRange::new(region.start, region.end) {
                    written(range);
                }
            }
            if arg.walk_end <= from {
                break;
            }
            from = arg.walk_end;
        }
        Ok(())
    }
}

/// The address space cut at what is mapped and not armed, and at shared mappings, from its lowest
/// address to the highest that is armed: what is mapped anew in between is found by the sweep.
fn spans(armed: &Armed, mapped: &PageSet) -> Vec<Span> {
    let page = pagetrail::page_size();
    let Some(all) = armed
        .armed
        .ranges()
        .last()
        .and_then(|last| PageRange::new(page, last.end()))
    else {
        return Vec::new();
    };
    let apart = mapped.difference(&armed.armed).union(&armed.shared);
    let private = PageSet::from_iter([all]).difference(&apart);
    let span = |shared| {
        move |range: &PageRange| Span {
            range: *range,
            shared,
        }
    };
    let shared = armed.shared.ranges().iter().map(span(true));
    private
        .ranges()
        .iter()
        .map(span(false))
        .chain(shared)
        .collect()
}

/// The spans without what is predicted dirty.
fn around(spans: &[Span], predicted: &PageSet) -> Vec<Span> {
    let mut found = Vec::new();
    for span in spans {
        let rest = PageSet::from_iter([span.range]).difference(predicted);
        found.extend(rest.ranges().iter().map(|range| Span {
            range: *range,
            ..*span
        }));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::set;

    #[test]
    fn spans_leave_out_what_is_not_armed_and_reach_over_gaps() {
        let armed = Armed {
            armed: set(&[(10, 20), (30, 40), (50, 60)]),
            shared: set(&[(30, 40)]),
            anonymous: PageSet::new(),
            written: None,
        };
        let mapped = armed.armed.union(&set(&[(20, 22), (70, 80)]));
        let found = spans(&armed, &mapped);
        let private: PageSet = found
            .iter()
            .filter(|s| !s.shared)
            .map(|s| s.range)
            .collect();
        assert_eq!(private, set(&[(1, 20), (22, 30), (40, 60)]));
        let shared: Vec<_> = found.iter().filter(|s| s.shared).map(|s| s.range).collect();
        assert_eq!(shared, set(&[(30, 40)]).ranges());
        assert!(spans(&Armed::default(), &mapped).is_empty());
    }
}
