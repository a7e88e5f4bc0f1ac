//! [`Trial`]: whether the queue pays, found by trying to do without it on a sample of the pages.
//!
//! While a page is backed off, it counts as accessed. Where a program's phases are shorter than
//! that, fast memory holds pages that are used no longer. How much it would serve with the queue
//! and without, two miniatures of the target show: one page in so many, with its own history, its
//! own queue and its own fast memory in proportion (as caches are modelled by miniature
//! simulations: Waldspurger et al., USENIX ATC 2017). These pages are sampled in every window, so
//! that it is known of each whether it was accessed.

use std::ops::RangeInclusive;

use super::cursor::Touches;
use super::histogram::Tally;
use super::page::{Page, WindowKind};
use super::plan;
use super::rank::{Degrees, Order};
use super::settings::Settings;
use super::spot_check::scatter;
use super::table::{Place, Table};
use super::{Sample, SourceCaps};

/// So many pages are sampled, where that is not more than one in 4, nor less than one in 32.
const PAGES: u64 = 512;
const ONE_IN: RangeInclusive<u64> = 4..=32;
/// More pages than this need not be sampled.
const PAGES_ENOUGH: u64 = 8192;
/// Fewer pages show nothing.
const PAGES_MIN: usize = 128;
/// Fewer windows since a phase began do not, either.
const WINDOWS_MIN: u16 = 4;
/// For so many windows what a window has shown counts.
const MEMORY_WINDOWS: f64 = 24.0;
/// The part of the accesses that the other way must serve more.
const AHEAD: f64 = 0.015;
/// What a move, and a fault, cost, as parts of what fast memory gains for a page in a window.
const MOVE: f64 = 0.15;
const FAULT: f64 = 0.06;

/// Both ways.
pub(super) struct Trial {
    /// Address and size of each page, or huge page, in ascending order.
    units: Vec<(u64, u64)>,
    with_queue: Miniature,
    without_queue: Miniature,
    /// How many of the pages were accessed.
    accessed: f64,
    /// Whether doing without the queue has served more.
    leaves_queue_out: bool,
    /// The part of all bytes that is sampled.
    part: f64,
}

/// The sampled pages under some settings.
struct Miniature {
    settings: Settings,
    of_huge_pages: Settings,
    degrees: Degrees,
    /// In the order of the units.
    pages: Vec<Page>,
    /// Number of windows since its last phase change.
    seen: u16,
    /// Pages that should be in use, by whether they were accessed in this window.
    unused: u32,
    used: u32,
    /// Accesses that fast memory served, less the cost of faults and moves.
    gain: f64,
}

impl Trial {
    pub(super) fn new(settings: &Settings) -> Self {
        let without_queue = Settings {
            level_max: 0,
            ..settings.clone()
        };
        Self {
            units: Vec::new(),
            with_queue: Miniature::new(settings.clone()),
            without_queue: Miniature::new(without_queue),
            accessed: 0.0,
            leaves_queue_out: false,
            part: 0.0,
        }
    }

    /// Whether the queue does not pay.
    pub(super) fn leaves_queue_out(&self) -> bool {
        self.leaves_queue_out
    }

    /// The addresses of the pages that are sampled in every window.
    pub(super) fn addresses(&self) -> impl Iterator<Item = u64> + '_ {
        self.units.iter().map(|(address, _)| *address)
    }

    /// Whether this page is sampled in every window.
    pub(super) fn samples(&self, address: u64) -> bool {
        let at = |unit: &(u64, u64)| unit.0;
        self.units.binary_search_by_key(&address, at).is_ok()
    }

    /// Takes over which pages there are; those that stay keep their history.
    pub(super) fn follow(&mut self, table: &Table) {
        let (mut count, mut bytes) = (0, 0);
        table.for_each(|_, size, _| (count, bytes) = (count + 1, bytes + size));
        let one_in = (count / PAGES).clamp(*ONE_IN.start(), *ONE_IN.end());
        let one_in = one_in.max(count / PAGES_ENOUGH);
        let (mut units, mut pages) = (Vec::new(), Vec::new());
        table.for_each(|address, size, page| {
            if scatter(address >> 12, one_in) == 0 {
                units.push((address, size));
                pages.push(Page::new(page.place(), page.is_fixed()));
            }
        });
        if units.len() < PAGES_MIN {
            units.clear();
            pages.clear();
        }
        for miniature in [&mut self.with_queue, &mut self.without_queue] {
            miniature.follow(&self.units, &units, &pages);
        }
        let sampled: u64 = units.iter().map(|(_, size)| size).sum();
        self.part = sampled as f64 / bytes.max(1) as f64;
        self.units = units;
    }

    /// Takes a window: what both ways have served in it, and what they know after it.
    pub(super) fn observe(
        &mut self,
        sample: &Sample,
        caps: SourceCaps,
        kind: WindowKind,
        page_bytes: u64,
    ) {
        let forgotten = 1.0 - 1.0 / MEMORY_WINDOWS;
        self.accessed *= forgotten;
        let mut touches = Touches::new(sample);
        let units = self.units.iter().map(|(address, bytes)| {
            let touch = touches.any(*address, address + bytes);
            (touch, *bytes > page_bytes)
        });
        let units: Vec<_> = units.collect();
        self.accessed += units.iter().filter(|(touch, _)| touch.any()).count() as f64;
        for miniature in [&mut self.with_queue, &mut self.without_queue] {
            miniature.gain *= forgotten;
            for (page, (touch, is_huge)) in miniature.pages.iter_mut().zip(&units) {
                if page.should_be_in_use() {
                    *(match touch.any() {
                        true => &mut miniature.used,
                        false => &mut miniature.unused,
                    }) += 1;
                }
                if touch.any() {
                    let served = f64::from(u8::from(page.place() == Place::Fast));
                    let fault = f64::from(u8::from(!page.is_backed_off())) * FAULT;
                    miniature.gain += served - fault;
                }
                let settings = match is_huge {
                    true => &miniature.of_huge_pages,
                    false => &miniature.settings,
                };
                let kind = WindowKind {
                    phase_changed: miniature.seen == 0,
                    settled: miniature.seen >= settings.windows.into(),
                    seen: miniature.seen,
                    ..kind
                };
                page.observe(settings, &miniature.degrees.means, caps, kind, *touch);
            }
            miniature.end_window();
        }
    }

    /// Moves the pages of both miniatures, and compares what they have served.
    pub(super) fn plan(&mut self, capacity: u64) {
        let capacity = (capacity as f64 * self.part) as u64;
        for miniature in [&mut self.with_queue, &mut self.without_queue] {
            miniature.gain -= MOVE * miniature.place(&self.units, capacity) as f64;
        }
        if self.with_queue.seen.min(self.without_queue.seen) < WINDOWS_MIN {
            return;
        }
        let lead = self.without_queue.gain - self.with_queue.gain;
        let enough = AHEAD * self.accessed;
        if lead.abs() > enough {
            self.leaves_queue_out = lead > 0.0;
        }
    }
}

impl Miniature {
    fn new(settings: Settings) -> Self {
        Self {
            of_huge_pages: settings.of_huge_pages(),
            degrees: Degrees::new(&settings, Order::Lately),
            settings,
            pages: Vec::new(),
            seen: 0,
            unused: 0,
            used: 0,
            gain: 0.0,
        }
    }

    /// Takes other pages; those that were among `before` keep their history.
    fn follow(&mut self, before: &[(u64, u64)], units: &[(u64, u64)], fresh: &[Page]) {
        let mut before = before.iter().zip(&self.pages).peekable();
        let pages = units.iter().zip(fresh).map(|(unit, fresh)| {
            while before.next_if(|(known, _)| known.0 < unit.0).is_some() {}
            let known = before.next_if(|(known, _)| *known == unit);
            known.map_or(*fresh, |(_, page)| *page)
        });
        self.pages = pages.collect();
    }

    /// Ends a window, in which the program may have entered another phase.
    fn end_window(&mut self) {
        let (unused, all) = (self.unused, self.unused + self.used);
        (self.unused, self.used) = (0, 0);
        let limit = u32::from(self.settings.phase_change_percent);
        let may_change = self.seen >= self.settings.windows.into();
        self.seen = self.seen.saturating_add(1);
        if may_change && all >= 8 && unused * 100 > all * limit {
            self.seen = 0;
            let backed_off = self.pages.iter_mut().filter(|page| page.is_backed_off());
            backed_off.for_each(Page::reset_back_off);
        }
    }

    /// Moves pages as a plan says; returns how many.
    fn place(&mut self, units: &[(u64, u64)], capacity: u64) -> usize {
        let in_score = self.degrees.in_score();
        let mut tally = Tally::new(self.settings.rank_max() * in_score);
        let ranks = units
            .iter()
            .zip(&self.pages)
            .map(|((address, bytes), page)| {
                let rank = self.degrees.score(page, *address);
                tally.add(page.kind(), rank, *bytes);
                rank
            });
        let ranks: Vec<u16> = ranks.collect();
        let margin = self.degrees.margin(self.seen);
        let mut budget = plan::budget(
            &tally.finish(),
            capacity,
            self.degrees.score_of(self.settings.place_min),
            margin,
        );
        let mut moved = 0;
        for ((page, rank), (_, bytes)) in self.pages.iter_mut().zip(ranks).zip(units) {
            if !page.is_fixed() && budget.takes(page.place(), rank, *bytes) {
                moved += 1;
                page.set_place(match page.place() {
                    Place::Fast => Place::Slow,
                    _ => Place::Fast,
                });
            }
        }
        moved
    }
}

#[cfg(test)]
mod tests {
    use pagetrail::PageRange;

    use super::*;
    use crate::policy::table::Run;

    const PAGE: u64 = 4096;
    const COUNT: u64 = 4096;
    const FAST: u64 = COUNT / 4;
    const KIND: WindowKind = WindowKind {
        accesses: true,
        writes: false,
        phase_changed: false,
        settled: true,
        seen: 8,
    };
    const CAPS: SourceCaps = SourceCaps {
        accesses: true,
        writes: false,
        in_turns: false,
    };

    fn pages(from: u64, count: u64) -> PageRange {
        PageRange::new(from * PAGE, (from + count) * PAGE).unwrap()
    }

    fn table() -> Table {
        let mut table = Table::new(PAGE);
        let run = |range, place| Run {
            range,
            place,
            huge: false,
            fixed: false,
        };
        let fast = run(pages(0, FAST), Place::Fast);
        table.set(&[fast, run(pages(FAST, COUNT - FAST), Place::Slow)], true);
        table
    }

    /// Whether it leaves the queue out after windows in which these pages were accessed.
    fn after(trial: &mut Trial, windows: u64, hot: impl Fn(u64) -> Vec<PageRange>) -> bool {
        for window in 0..windows {
            let sample = Sample {
                accessed: Some(hot(window).into_iter().collect()),
                written: None,
            };
            trial.observe(&sample, CAPS, KIND, PAGE);
            trial.plan(FAST * PAGE);
        }
        trial.leaves_queue_out()
    }

    #[test]
    fn the_queue_stays_where_pages_are_used_steadily() {
        let mut trial = Trial::new(&Settings::default());
        trial.follow(&table());
        assert!(trial.addresses().count() >= PAGES_MIN);
        let always = |_| vec![pages(2 * FAST, FAST)];
        assert!(!after(&mut trial, 40, always));
        let [with, without] = [&trial.with_queue, &trial.without_queue].map(|way| way.gain);
        assert!(with > without, "faults cost nothing: {with} and {without}");
        // As if it had been left out before.
        trial.leaves_queue_out = true;
        assert!(!after(&mut trial, 40, always));
    }

    #[test]
    fn few_pages_show_nothing() {
        let mut table = Table::new(PAGE);
        table.set(
            &[Run {
                range: pages(0, 64 * 512),
                place: Place::Slow,
                huge: true,
                fixed: false,
            }],
            true,
        );
        let mut trial = Trial::new(&Settings::default());
        trial.follow(&table);
        assert_eq!(trial.addresses().count(), 0);
        assert!(!after(&mut trial, 100, |window| vec![pages(
            window % 8 * 512,
            512
        )]));
    }

    #[test]
    fn pages_that_stay_keep_their_history() {
        let mut trial = Trial::new(&Settings::default());
        let mut table = table();
        trial.follow(&table);
        after(&mut trial, 20, |_| vec![pages(2 * FAST, FAST)]);
        let degrees = |trial: &Trial| -> Vec<(u64, u16)> {
            let pages = trial.addresses().zip(&trial.without_queue.pages);
            let known = pages.map(|(address, page)| (address, page.touches(8)));
            known
                .filter(|(address, _)| *address < 3 * FAST * PAGE)
                .collect()
        };
        let before = degrees(&trial);
        assert!(before.iter().any(|(_, touches)| *touches == 8));
        let grown = Run {
            range: pages(COUNT, 100),
            place: Place::Slow,
            huge: false,
            fixed: false,
        };
        table.set(&[grown], false);
        trial.follow(&table);
        assert_eq!(degrees(&trial), before);
        assert!(trial.samples(before[0].0) && !trial.samples(u64::MAX));
    }
}
