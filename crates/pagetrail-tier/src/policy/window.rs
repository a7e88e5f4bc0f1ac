//! [`Window`]: applies the sample of one window to the pages of the table. This is done for every
//! page in every window, so what is the same for all pages is decided once.

use super::cursor::{Touch, Touches, push};
use super::histogram::{Histogram, Tally};
use super::page::{Page, WindowKind};
use super::rank::Degrees;
use super::settings::Settings;
use super::spot_check::Samples;
use super::table::{BLOCK_PAGES, Block, Units};
use super::{Noted, SourceCaps};

/// One window of one target.
pub(super) struct Window<'a> {
    settings: &'a Settings,
    of_huge_pages: Settings,
    caps: SourceCaps,
    kind: WindowKind,
    degrees: &'a Degrees,
    page_bytes: u64,
    /// The windows that a history remembers, as its bits.
    mask: u16,
    samples: Samples,
    tally: Tally,
    /// Of scores, where these are not ranks.
    scores: Option<Tally>,
    noted: Noted,
    /// The end of the last block.
    end: u64,
}

/// What all pages together come to.
pub(super) struct Observed {
    pub(super) noted: Noted,
    pub(super) histogram: Histogram,
    /// Bytes by score, where that is not the rank: with the ranks, since to go through all pages
    /// once more takes longer than to count twice.
    pub(super) scores: Option<Histogram>,
    /// Whether backed-off pages are not in use that should be.
    pub(super) contradicted: bool,
}

impl<'a> Window<'a> {
    /// Begins window number `number`.
    pub(super) fn new(
        settings: &'a Settings,
        caps: SourceCaps,
        kind: WindowKind,
        degrees: &'a Degrees,
        page_bytes: u64,
        number: u64,
    ) -> Self {
        Self {
            settings,
            of_huge_pages: settings.of_huge_pages(),
            caps,
            kind,
            degrees,
            page_bytes,
            mask: u16::MAX >> (16 - settings.windows),
            samples: Samples::new(settings, number),
            tally: Tally::new(settings.rank_max()),
            scores: (settings.has_means())
                .then(|| Tally::new(settings.rank_max() * degrees.in_score())),
            noted: Noted::default(),
            end: 0,
        }
    }

    /// Updates the pages of the next block.
    pub(super) fn observe(&mut self, block: &mut Block, touches: &mut Touches<'_>) {
        let base = block.base;
        touches.between(self.end, base, &mut self.noted.unknown);
        let block_bytes = self.page_bytes * BLOCK_PAGES;
        self.end = base.saturating_add(block_bytes);
        match &mut block.units {
            // Other pages may be there by now.
            Units::Huge(page) if page.is_absent() => {
                touches.between(base, self.end, &mut self.noted.unknown);
            }
            Units::Huge(page) => {
                let touch = touches.any(base, self.end);
                self.observe_page(page, base, block_bytes, touch);
            }
            Units::Small(pages) => self.observe_pages(&mut pages[..], base, touches),
        }
    }

    /// Updates small pages, which begin at `base`.
    fn observe_pages(&mut self, pages: &mut [Page], base: u64, touches: &mut Touches<'_>) {
        let page_bytes = self.page_bytes;
        let index = |address: u64| ((address - base) / page_bytes) as usize;
        let mut start = base;
        while start < self.end {
            // A run of pages for which the sample is the same.
            let (touch, end) = touches.at(start, self.end);
            for (at, page) in pages[index(start)..index(end)].iter_mut().enumerate() {
                let address = start + at as u64 * page_bytes;
                self.observe_page(page, address, page_bytes, touch);
            }
            start = end;
        }
    }

    /// Updates a page, or a huge page.
    #[inline]
    fn observe_page(&mut self, page: &mut Page, address: u64, bytes: u64, touch: Touch) {
        // Fast path for most pages: not accessed now and not backed off.
        if !touch.any() && page.is_at_the_bottom() {
            page.observe_nothing(self.mask, &self.degrees.means, self.kind);
            return self.count(page, address, bytes);
        }
        if page.is_absent() {
            if touch.any() {
                push(&mut self.noted.unknown, address, address + bytes);
            }
            return;
        }
        self.noted.answered += u64::from(touch.any() && !page.is_backed_off());
        self.samples.take(page, touch.any());
        let settings = match bytes > self.page_bytes {
            true => &self.of_huge_pages,
            false => self.settings,
        };
        let means = &self.degrees.means;
        if page.observe(settings, means, self.caps, self.kind, touch)
            || self.samples.draw(page, address)
        {
            push(&mut self.noted.rearm, address, address + bytes);
        }
        self.count(page, address, bytes);
    }

    /// Adds a page to the histograms. Left to the compiler, this is a call for each page, which
    /// takes 4% of a window more.
    #[inline(always)]
    fn count(&mut self, page: &Page, address: u64, bytes: u64) {
        let rank = self.degrees.rank(page, address);
        self.tally.add(page.kind(), rank, bytes);
        if let Some(scores) = &mut self.scores {
            scores.add(page.kind(), self.degrees.score_with(page, rank), bytes);
        }
    }

    /// Ends the window after the last block.
    pub(super) fn end(mut self, touches: &mut Touches<'_>) -> Observed {
        touches.between(self.end, u64::MAX, &mut self.noted.unknown);
        Observed {
            contradicted: self.samples.contradict(self.settings),
            noted: self.noted,
            histogram: self.tally.finish(),
            scores: self.scores.map(Tally::finish),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::policy::settings::Settings;
    use crate::policy::table::{BLOCK_PAGES, Place, Run};
    use crate::policy::{Policy, Sample, SourceCaps};
    use pagetrail::{PageRange, PageSet};

    const PAGE: u64 = 4096;

    fn pages(from: u64, to: u64) -> PageSet {
        PageSet::from_iter(PageRange::new(from * PAGE, to * PAGE))
    }

    #[test]
    fn what_comes_where_pages_were_freed_is_unknown() {
        let caps = SourceCaps {
            accesses: true,
            ..SourceCaps::default()
        };
        for huge in [true, false] {
            let mut policy = Policy::new(Settings::default(), caps, PAGE).unwrap();
            policy.set_layout(&[Run {
                range: PageRange::new(0, 2 * BLOCK_PAGES * PAGE).unwrap(),
                place: Place::Slow,
                huge,
                fixed: false,
            }]);
            let accessed = pages(3, 5).union(&pages(2000, 2002));
            let sample = Sample {
                accessed: Some(accessed.clone()),
                written: None,
            };
            // The table ends before them.
            assert_eq!(policy.observe(&sample).unknown, pages(2000, 2002));
            for page in 0..BLOCK_PAGES {
                policy.moved(page * PAGE, Place::Absent);
            }
            let noted = policy.observe(&sample);
            assert_eq!(noted.unknown, accessed, "huge: {huge}");
            assert_eq!(noted.answered, 0);
        }
    }

    /// Counted with the window and kept up to date by moves, they are what a pass over all pages
    /// finds, whatever the order.
    #[test]
    fn bytes_by_rank_and_score_stay_right() {
        let caps = SourceCaps {
            accesses: true,
            ..SourceCaps::default()
        };
        let mut policy = Policy::new(Settings::default(), caps, PAGE).unwrap();
        let run = |range, place, huge| Run {
            range,
            place,
            huge,
            fixed: false,
        };
        let block = BLOCK_PAGES * PAGE;
        let range = |from, to| PageRange::new(from * block, to * block).unwrap();
        policy.set_layout(&[
            run(range(0, 1), Place::Fast, true),
            run(range(1, 3), Place::Fast, false),
            run(range(3, 8), Place::Slow, false),
        ]);
        policy.begin_period();
        for window in 0..40 {
            let accessed = pages(window * 40, window * 40 + 700).union(&pages(3000, 3600));
            policy.observe(&Sample {
                accessed: Some(accessed),
                written: None,
            });
            assert!(policy.scores.is_some(), "they were not counted");
            let plan = policy.plan(3 * block);
            for (units, place) in [(&plan.demote, Place::Slow), (&plan.promote, Place::Fast)] {
                let moved = units.iter().map(|unit| unit.address);
                moved.for_each(|address| policy.moved(address, place));
            }
            policy.fix((1000 + window) * PAGE);
            let counted = (policy.histogram().clone(), policy.scores().clone());
            policy.forget_counts();
            let anew = (policy.histogram().clone(), policy.scores().clone());
            assert_eq!(counted, anew, "window {window}");
        }
    }
}
