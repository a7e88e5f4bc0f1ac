//! What a write costs a target that a technique has made visible: measured on this machine, by the
//! technique itself on memory of this process.

use super::access_scan::AccessScan;
use super::mprotect::Mprotect;
use super::pagemap_scan::{HugePages, PagemapScan};
use super::userfaultfd::Userfaultfd;
use super::{Armed, Tracker};
use crate::error::Result;
use crate::page_set::{PageSet, page_size};
use crate::region::Region;
use crate::sys::scratch::Scratch;
use crate::sys::uffd::{Faults, Uffd};
use crate::types::{AccessKind, Technique};
use rustix::fd::OwnedFd;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

const PAGES: u64 = 128;
/// The least of so many is taken, a fraction of a millisecond each: on a busy machine most are
/// disturbed.
const TRIES: u32 = 16;

/// The assumed cost of a fault if it cannot be measured.
const DEFAULT: Duration = Duration::from_micros(1);

/// A program at work pays so much more for a fault than these measurements, whose caches nothing
/// else uses: by their own processor time with and without tracking 1.6 times as much in a loop
/// over a hot set, and 2.4 to 4 times in Redis.
const AT_WORK: f64 = 2.5;

/// The price of a fault to a program at work, by a technique; zero if it causes none.
pub(crate) fn at_work(technique: Technique) -> Duration {
    static PRICES: [OnceLock<Duration>; Technique::ALL.len()] =
        [const { OnceLock::new() }; Technique::ALL.len()];
    if causes_no_fault(technique) {
        return Duration::ZERO;
    }
    *PRICES[technique.index()].get_or_init(|| {
        let measured = measure_for(technique);
        tracing::debug!(%technique, ?measured, "a fault costs");
        measured.unwrap_or(DEFAULT).mul_f64(AT_WORK)
    })
}

/// The price of a write-protection fault that the kernel handles, to a program that does nothing
/// else.
pub(super) fn of_protection() -> Duration {
    static PRICE: OnceLock<Duration> = OnceLock::new();
    *PRICE.get_or_init(|| {
        let measured = measure_for(Technique::PagemapScan);
        tracing::debug!(?measured, "a fault costs");
        measured.unwrap_or(DEFAULT)
    })
}

fn measure_for(technique: Technique) -> Option<Duration> {
    let with_uffd = |faults, make: &dyn Fn(OwnedFd) -> Result<Box<dyn Tracker>>| {
        let fd = Uffd::create(faults).ok()?;
        measure(&mut *make(fd).ok()?)
    };
    match technique {
        Technique::PagemapScan | Technique::Adaptive => with_uffd(Faults::UserMode, &|fd| {
            Ok(Box::new(PagemapScan::new(fd, None, HugePages::Split)?))
        }),
        Technique::AccessScan => with_uffd(Faults::UserMode, &|fd| {
            Ok(Box::new(AccessScan::new(fd, None, HugePages::Split)?))
        }),
        // Its handler answers for a block at once, which is no dearer than for one page.
        Technique::Userfaultfd => with_uffd(Faults::UserAndKernel, &|fd| {
            Ok(Box::new(Userfaultfd::new(fd, None, 1)?))
        }),
        Technique::Mprotect => measure(&mut Mprotect::new(AccessKind::Writes)),
        // Its marks belong to the whole process, where others may use them. The first write to a
        // page that does not exist is a fault of the same kind, and a little dearer.
        Technique::SoftDirty => first_touch(),
        Technique::Compare
        | Technique::Epml
        | Technique::Spml
        | Technique::SpmlSearch
        | Technique::None => Some(Duration::ZERO),
    }
}

/// Whether the target runs on while its pages are written: their contents are compared, or the
/// machine logs them.
fn causes_no_fault(technique: Technique) -> bool {
    use Technique::{Compare, Epml, None, Spml, SpmlSearch};
    matches!(technique, Compare | Epml | Spml | SpmlSearch | None)
}

/// Measures what a write-protection fault costs a program that the technique tracks.
pub(super) fn measure(tracker: &mut dyn Tracker) -> Option<Duration> {
    let mut memory = Scratch::new(PAGES * page_size()).ok()?;
    let region = Region::scratch(memory.range());
    let layout = [Armed {
        range: region.range,
        permissions: region.permissions,
    }];
    pass(&mut memory);
    let untracked = (0..TRIES).map(|_| pass(&mut memory)).min()?;
    tracker.arm(&region).ok()?;
    tracker.begin().ok()?;
    let mut out = PageSet::new();
    let mut tracked = Duration::MAX;
    for _ in 0..TRIES {
        tracked = tracked.min(pass(&mut memory));
        out.clear();
        tracker.collect(&layout, &mut out).ok()?;
    }
    Some(tracked.saturating_sub(untracked) / PAGES as u32)
}

/// Measures the first write to a page.
fn first_touch() -> Option<Duration> {
    let mut least = Duration::MAX;
    for _ in 0..TRIES {
        let mut memory = Scratch::new(PAGES * page_size()).ok()?;
        let first = pass(&mut memory);
        least = least.min(first.saturating_sub(pass(&mut memory)));
    }
    Some(least / PAGES as u32)
}

/// Writes to each page; returns how long that took.
fn pass(memory: &mut Scratch) -> Duration {
    let began = Instant::now();
    for page in 0..PAGES {
        memory.write(page * page_size(), 1);
    }
    began.elapsed()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capabilities::Capabilities;
    use crate::types::Status;

    #[test]
    fn every_technique_that_works_has_a_price() {
        for technique in Technique::ALL {
            if *Capabilities::probe_one(technique) != Status::Works {
                continue;
            }
            let measured = measure_for(technique);
            let measured = measured.unwrap_or_else(|| panic!("{technique} has no price"));
            let causes_faults = at_work(technique) > Duration::ZERO;
            let is_free = matches!(technique, Technique::Compare | Technique::None);
            assert_ne!(causes_faults, is_free, "{technique}: {measured:?}");
        }
    }
}
