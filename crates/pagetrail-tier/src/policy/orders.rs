//! [`Orders`]: by which order fast memory would have served more, tried without a further question.
//!
//! Two orders of the same pages are two placements. Each is kept beside the real one for a sample
//! of the pages, with its own means, its own moves and its own fast memory in proportion (a
//! miniature, as Waldspurger et al. model caches, USENIX ATC 2017). When a page is sampled that was
//! accessed, an order gains that has it in fast memory. What pages do while nothing is sampled
//! shows in the first window of a period, which counts as much as that time; what an order moves
//! costs it. This is prediction with expert advice, over two experts, of which the better one is
//! followed.

use super::SourceCaps;
use super::cursor::Touches;
use super::histogram::Tally;
use super::page::{LongTerm, Page, WindowKind};
use super::plan;
use super::rank::{Degrees, Order};
use super::settings::Settings;
use super::spot_check::scatter;
use super::table::{Place, Table};

/// More pages than this need not be tried.
const PAGES_ENOUGH: u64 = 16_384;
/// Fewer pages show nothing.
const PAGES_MIN: usize = 128;
/// The windows of a period that are not sampled, for one that is: of 100, the paper samples 8.
const GAP: f64 = 12.0;
/// For so many periods what one has shown counts.
const MEMORY_PERIODS: f64 = 8.0;
/// So many periods must have shown something.
const PERIODS_MIN: u32 = 2;
/// The part of the accesses that the other order must serve more.
const AHEAD: f64 = 0.01;
/// What a move costs, as a part of what fast memory gains for a page that is accessed in a window.
const MOVE: f64 = 0.15;

/// Both orders.
pub(super) struct Orders {
    /// In ascending order of their addresses.
    units: Vec<Tried>,
    ways: [Way; 2],
    /// How many accesses there were to serve.
    accessed: f64,
    /// Number of periods that began since pages are tried.
    periods: u32,
    is_first: bool,
    /// Number of windows since the first.
    windows: u16,
    follows: Order,
    /// The part of all bytes that is tried.
    part: f64,
}

/// An order, and what it has served.
struct Way {
    degrees: Degrees,
    gain: f64,
}

/// A page, or huge page, as both orders have it.
#[derive(Clone, Copy)]
struct Tried {
    address: u64,
    bytes: u64,
    is_fixed: bool,
    by_way: [Placed; 2],
}

#[derive(Clone, Copy)]
struct Placed {
    place: Place,
    long_term: LongTerm,
    score: u16,
}

impl Orders {
    pub(super) fn new(settings: &Settings) -> Self {
        let way = |order| Way {
            degrees: Degrees::new(settings, order),
            gain: 0.0,
        };
        Self {
            units: Vec::new(),
            ways: [way(Order::Lately), way(Order::Steadily)],
            accessed: 0.0,
            periods: 0,
            is_first: false,
            windows: 0,
            follows: Order::Lately,
            part: 0.0,
        }
    }

    /// The order that has served more.
    pub(super) fn better(&self) -> Order {
        self.follows
    }

    /// Begins a period with these pages; those that stay keep what is known of them.
    pub(super) fn begin_period(&mut self, table: &Table) {
        let (mut count, mut bytes) = (0u64, 0);
        table.for_each(|_, size, _| (count, bytes) = (count + 1, bytes + size));
        let one_in = (count / PAGES_ENOUGH).max(1);
        let mut before = std::mem::take(&mut self.units).into_iter().peekable();
        let mut sampled = 0;
        table.for_each(|address, size, page| {
            if scatter(address >> 12, one_in) != 0 {
                return;
            }
            sampled += size;
            while before.next_if(|known| known.address < address).is_some() {}
            let known = before.next_if(|known| (known.address, known.bytes) == (address, size));
            let fresh = Placed {
                place: page.place(),
                long_term: page.long_term(),
                score: 0,
            };
            self.units.push(Tried {
                address,
                bytes: size,
                is_fixed: page.is_fixed(),
                by_way: known.map_or([fresh; 2], |known| known.by_way),
            });
        });
        self.part = sampled as f64 / bytes.max(1) as f64;
        if self.units.len() < PAGES_MIN {
            self.units.clear();
        }
        self.is_first = self.windows > 0;
        let kept = 1.0 - 1.0 / MEMORY_PERIODS;
        self.accessed *= kept;
        self.ways.iter_mut().for_each(|way| way.gain *= kept);
        self.periods += u32::from(self.is_first);
    }

    /// Takes a window of pages as they were before it.
    pub(super) fn observe(
        &mut self,
        table: &mut Table,
        touches: &mut Touches<'_>,
        settings: [&Settings; 2],
        caps: SourceCaps,
        kind: WindowKind,
    ) {
        let counts = if std::mem::take(&mut self.is_first) {
            GAP
        } else {
            1.0
        };
        let page_bytes = table.page_bytes();
        for unit in &mut self.units {
            let touch = touches.any(unit.address, unit.address + unit.bytes);
            let page = table.unit_mut(unit.address).map(|(page, _)| *page);
            let Some(page) = page.filter(|page| !page.is_absent()) else {
                continue;
            };
            let served = touch.any() && !page.is_backed_off();
            self.accessed += if served { counts } else { 0.0 };
            let settings = settings[usize::from(unit.bytes > page_bytes)];
            for (way, placed) in self.ways.iter_mut().zip(&mut unit.by_way) {
                if served && placed.place == Place::Fast {
                    way.gain += counts;
                }
                let mut page = page;
                page.set_long_term(placed.long_term);
                let kind = WindowKind {
                    seen: way.degrees.seen(kind.seen, self.windows),
                    ..kind
                };
                page.observe(settings, &way.degrees.means, caps, kind, touch);
                placed.long_term = page.long_term();
                placed.score = way.degrees.score(&page, unit.address);
            }
        }
        self.windows = self.windows.saturating_add(1);
    }

    /// Moves the pages of both orders, `seen` windows after a phase began, and compares what they
    /// have served.
    pub(super) fn plan(&mut self, settings: &Settings, capacity: u64, seen: u16) {
        let capacity = (capacity as f64 * self.part) as u64;
        for (index, way) in self.ways.iter_mut().enumerate() {
            let degrees = &way.degrees;
            let mut tally = Tally::new(settings.rank_max() * degrees.in_score());
            for unit in &self.units {
                let placed = unit.by_way[index];
                let kind = Page::new(placed.place, unit.is_fixed).kind();
                tally.add(kind, placed.score, unit.bytes);
            }
            let hot = degrees.score_of(settings.place_min);
            let mut budget = plan::budget(&tally.finish(), capacity, hot, degrees.margin(seen));
            for unit in self.units.iter_mut().filter(|unit| !unit.is_fixed) {
                let placed = &mut unit.by_way[index];
                if placed.place != Place::Absent
                    && budget.takes(placed.place, placed.score, unit.bytes)
                {
                    way.gain -= MOVE;
                    placed.place = match placed.place {
                        Place::Fast => Place::Slow,
                        _ => Place::Fast,
                    };
                }
            }
        }
        let [lately, steadily] = &self.ways;
        let lead = steadily.gain - lately.gain;
        if self.periods >= PERIODS_MIN && lead.abs() > AHEAD * self.accessed {
            self.follows = match lead > 0.0 {
                true => Order::Steadily,
                false => Order::Lately,
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use pagetrail::{PageRange, PageSet};

    use super::*;
    use crate::policy::table::Run;
    use crate::policy::{Policy, Sample};

    const PAGE: u64 = 4096;
    const COUNT: u64 = 1024;
    const FAST: u64 = COUNT / 4;
    const CAPS: SourceCaps = SourceCaps {
        accesses: true,
        writes: false,
        in_turns: false,
    };

    fn pages(from: u64, count: u64) -> PageRange {
        PageRange::new(from * PAGE, (from + count) * PAGE).unwrap()
    }

    fn runs(count: u64) -> [Run; 2] {
        let run = |range, place| Run {
            range,
            place,
            huge: false,
            fixed: false,
        };
        [
            run(pages(0, FAST), Place::Fast),
            run(pages(FAST, count - FAST), Place::Slow),
        ]
    }

    /// The order that is followed after periods of eight windows, in each of which the program is
    /// in a phase, and which part of the pages that `steady` says are in fast memory by then.
    fn after(
        periods: u64,
        phase: impl Fn(u64) -> Vec<PageRange>,
        steady: PageRange,
    ) -> (Order, f64) {
        let mut policy = Policy::new(Settings::default(), CAPS, PAGE).unwrap();
        policy.set_layout(&runs(COUNT));
        for period in 0..periods {
            policy.begin_period();
            // The first window tells how it was before.
            for window in 0..8 {
                let sample = Sample {
                    accessed: Some(
                        phase(2 * period + u64::from(window > 0))
                            .into_iter()
                            .collect(),
                    ),
                    written: None,
                };
                policy.observe(&sample);
                let plan = policy.plan(FAST * PAGE);
                for (units, place) in [(&plan.demote, Place::Slow), (&plan.promote, Place::Fast)] {
                    let moved = units.iter().map(|unit| unit.address);
                    moved.for_each(|address| policy.moved(address, place));
                }
            }
        }
        let mut fast = PageSet::new();
        policy.for_each(|address, bytes, _, place| {
            if place == Place::Fast {
                fast.insert(PageRange::new(address, address + bytes).unwrap());
            }
        });
        let found = fast.intersection(&PageSet::from_iter([steady])).bytes();
        let order = policy.orders.as_ref().unwrap().better();
        (order, found as f64 / steady.bytes() as f64)
    }

    /// In each phase blocks of pages are used by chance, some of them in most phases.
    #[test]
    fn phases_that_come_again_are_ordered_by_a_longer_time() {
        const BLOCK: u64 = 16;
        let steady = pages(2 * FAST, FAST);
        let phase = |phase: u64| {
            let blocks = (0..COUNT / BLOCK).map(|block| block * BLOCK);
            let used = blocks.filter(|first| {
                let percent = match (2 * FAST..3 * FAST).contains(first) {
                    true => 75,
                    false => 25,
                };
                scatter(phase * COUNT + first, 100) < percent
            });
            used.map(|first| pages(first, BLOCK)).collect()
        };
        let (order, found) = after(20, phase, steady);
        assert_eq!(order, Order::Steadily);
        assert!(found > 0.9, "{found}");
    }

    #[test]
    fn a_hot_set_that_moves_is_followed() {
        // Each stays for four periods.
        let stage = |phase: u64| vec![pages(phase / 8 % 4 * FAST, FAST)];
        for periods in [8, 15, 20] {
            let last = 2 * periods - 1;
            let (order, found) = after(periods, stage, stage(last)[0]);
            assert_eq!(order, Order::Lately, "after {periods}");
            assert!(found > 0.9, "{found} after {periods}");
        }
    }

    #[test]
    fn few_pages_show_nothing_and_those_that_stay_are_known() {
        let settings = Settings::default();
        let mut orders = Orders::new(&settings);
        let mut table = Table::new(PAGE);
        table.set(&runs(COUNT), true);
        orders.begin_period(&table);
        assert_eq!(orders.units.len(), COUNT as usize);
        orders.units[3].by_way[1].score = 7;
        table.set(&runs(COUNT + 512), true);
        orders.begin_period(&table);
        assert_eq!(orders.units.len(), COUNT as usize + 512);
        assert_eq!(orders.units[3].by_way[1].score, 7);
        let mut few = Table::new(PAGE);
        let huge = Run {
            range: pages(0, 8 * 512),
            huge: true,
            ..runs(COUNT)[1]
        };
        few.set(&[huge], true);
        orders.begin_period(&few);
        assert!(orders.units.is_empty());
        assert_eq!(orders.better(), Order::Lately);
    }
}
