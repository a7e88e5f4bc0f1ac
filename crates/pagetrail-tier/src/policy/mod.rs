//! [`Policy`]: what is hot, what to ask about again, and what should move, for one target. No system call, no clock, no chance.

pub(crate) mod clock;
mod cursor;
pub(crate) mod histogram;
mod page;
pub(crate) mod plan;
pub(crate) mod pool;
mod rank;
pub(crate) mod settings;
mod spot_check;
pub(crate) mod table;

use pagetrail::PageSet;

use cursor::{Cursor, push};
use histogram::{Histogram, Tally};
use page::{Asked, Page};
use plan::Plan;
use rank::Degrees;
use settings::{Ranking, Settings, SettingsError};
use spot_check::Samples;
use table::{Place, Run, Table, Units};

/// What a source can tell about a page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tells {
    /// Whether it was touched at all.
    pub accesses: bool,
    /// Whether it was written.
    pub writes: bool,
    /// Accesses and writes in windows of their own, one after the other.
    pub in_turns: bool,
}

/// What a source found in a window.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// The pages that were touched; `None` where this window does not tell.
    pub accessed: Option<PageSet>,
    /// The pages that were written; `None` where this window does not tell.
    pub written: Option<PageSet>,
}

/// What follows from a window.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Noted {
    /// The pages to arm for the next window: all others are armed, or are to be left alone.
    pub rearm: PageSet,
    /// Pages that were touched and that the policy does not know; [`Policy::add`] makes them known.
    pub unknown: PageSet,
    /// Pages that were asked about and touched: each cost its program a fault.
    pub answered: u64,
    /// Whether the program does something else than before, so that all pages are asked about.
    pub doubt: bool,
}

/// How much memory a target has, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// In fast memory.
    pub fast: u64,
    /// In slow memory.
    pub slow: u64,
}

/// How much fast memory a target could use, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Demand {
    /// What it wants: the share of what is hot by its degree that the settings name.
    pub wanted: u64,
    /// What was touched in most of the windows that count: what it could use for sure.
    pub steady: u64,
}

/// The policy for one target.
pub struct Policy {
    settings: Settings,
    tells: Tells,
    degrees: Degrees,
    table: Table,
    /// Of the table as it is, or nothing where it changed since.
    histogram: Option<Histogram>,
    /// Windows since everything was doubted.
    since_doubt: u32,
    /// Windows since the first, or since everything was doubted.
    seen: u16,
    /// All windows.
    windows: u64,
}

impl Policy {
    /// A policy that knows of no page yet.
    ///
    /// # Errors
    ///
    /// A setting makes no sense.
    pub fn new(settings: Settings, tells: Tells, page_bytes: u64) -> Result<Self, SettingsError> {
        settings.validate()?;
        Ok(Self {
            since_doubt: u32::MAX,
            degrees: Degrees::new(&settings),
            settings,
            tells,
            table: Table::new(page_bytes),
            histogram: None,
            seen: 0,
            windows: 0,
        })
    }

    /// The settings.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Takes other settings from now on.
    ///
    /// # Errors
    ///
    /// A setting makes no sense; then nothing changes.
    pub fn set_settings(&mut self, settings: Settings) -> Result<(), SettingsError> {
        settings.validate()?;
        // No degree may be above what the new settings know.
        for block in self.table.blocks_mut() {
            match &mut block.units {
                Units::Huge(page) => page.forget_before(settings.windows),
                Units::Small(pages) => {
                    pages
                        .iter_mut()
                        .for_each(|page| page.forget_before(settings.windows));
                }
            }
        }
        self.degrees = Degrees::new(&settings);
        self.settings = settings;
        self.histogram = None;
        Ok(())
    }

    /// Says which pages there are and where, all of them, in ascending order. Pages that stay are remembered.
    pub fn set_layout(&mut self, runs: &[Run]) {
        self.table.set(runs, true);
        self.histogram = None;
    }

    /// Says where some pages are, in ascending order; of the others nothing changes.
    pub fn add(&mut self, runs: &[Run]) {
        self.table.set(runs, false);
        self.histogram = None;
    }

    /// Says that a page, or huge page, is somewhere now.
    pub fn moved(&mut self, address: u64, place: Place) {
        self.change(address, |page| page.set_place(place));
    }

    /// Says that a page cannot be moved, until the next layout says where it is.
    pub fn fix(&mut self, address: u64) {
        self.change(address, |page| page.set_fixed(true));
    }

    /// Changes where a unit is, and counts it there.
    fn change(&mut self, address: u64, change: impl FnOnce(&mut Page)) {
        let Some((page, bytes)) = self.table.unit_mut(address) else {
            return;
        };
        let before = page.kind();
        change(page);
        if let Some(histogram) = &mut self.histogram {
            let rank = self.degrees.rank(page, address);
            histogram.shift(before, page.kind(), rank, bytes);
        }
    }

    /// Takes what a window told.
    pub fn observe(&mut self, sample: &Sample) -> Noted {
        let (settings, tells) = (&self.settings, self.tells);
        let asked = Asked {
            accesses: sample.accessed.is_some(),
            writes: sample.written.is_some(),
            // The window after everything was doubted is the one that asks.
            doubtful: self.since_doubt == 0,
            settled: self.seen >= settings.windows.into(),
        };
        let mut accessed = Cursor::new(sample.accessed.as_ref());
        let mut written = Cursor::new(sample.written.as_ref());
        let mut noted = Noted::default();
        let mut samples = Samples::new(settings, self.windows);
        let mut tally = Tally::new(settings.rank_max());
        let degrees = &self.degrees;
        let mask = u16::MAX >> (16 - settings.windows);
        let (page_bytes, block_bytes) = (self.table.page_bytes(), self.table.block_bytes());
        let mut behind = 0;
        for block in self.table.blocks_mut() {
            let base = block.base;
            for cursor in [&mut accessed, &mut written] {
                cursor.between(behind, base, &mut noted.unknown);
            }
            behind = base.saturating_add(block_bytes);
            match &mut block.units {
                Units::Huge(page) => {
                    let (read, wrote) = (accessed.any(base, behind), written.any(base, behind));
                    let awake = !page.is_asleep();
                    samples.take(page, read || wrote);
                    if page.observe(settings, tells, asked, read, wrote) || samples.draw(page, base)
                    {
                        push(&mut noted.rearm, base, behind);
                    }
                    noted.answered += u64::from(awake && (read || wrote));
                    tally.add(page.kind(), degrees.rank(page, base), block_bytes);
                }
                Units::Small(pages) => {
                    let mut start = base;
                    while start < behind {
                        // Pages of which the window tells the same.
                        let (read, read_until) = accessed.at(start);
                        let (wrote, wrote_until) = written.at(start);
                        let end = behind.min(read_until).min(wrote_until);
                        let index = |address: u64| ((address - base) / page_bytes) as usize;
                        let touched = read || wrote;
                        for (at, page) in pages[index(start)..index(end)].iter_mut().enumerate() {
                            let address = start + at as u64 * page_bytes;
                            // Most of most memory: not used, and hardly used before.
                            if !touched && page.is_at_the_bottom() {
                                page.observe_nothing(mask, asked);
                                tally.add(page.kind(), degrees.rank(page, address), page_bytes);
                                continue;
                            }
                            if page.is_absent() {
                                if touched {
                                    push(&mut noted.unknown, address, address + page_bytes);
                                }
                                continue;
                            }
                            let awake = !page.is_asleep();
                            samples.take(page, touched);
                            if page.observe(settings, tells, asked, read, wrote)
                                || samples.draw(page, address)
                            {
                                push(&mut noted.rearm, address, address + page_bytes);
                            }
                            noted.answered += u64::from(awake && touched);
                            tally.add(page.kind(), degrees.rank(page, address), page_bytes);
                        }
                        start = end;
                    }
                }
            }
        }
        for cursor in [&mut accessed, &mut written] {
            cursor.between(behind, u64::MAX, &mut noted.unknown);
        }
        let in_doubt = samples.contradict(settings);
        self.histogram = Some(tally.finish());
        self.since_doubt = self.since_doubt.saturating_add(1);
        self.seen = self.seen.saturating_add(1);
        self.windows += 1;
        if in_doubt && self.since_doubt >= self.settings.windows.into() {
            noted.doubt = true;
            self.doubt(&mut noted.rearm);
        }
        noted
    }

    /// How many bytes of each rank there are.
    pub fn histogram(&mut self) -> &Histogram {
        let (settings, table, degrees) = (&self.settings, &self.table, &self.degrees);
        self.histogram.get_or_insert_with(|| {
            let mut tally = Tally::new(settings.rank_max());
            table.for_each(|address, bytes, page| {
                tally.add(page.kind(), degrees.rank(page, address), bytes);
            });
            tally.finish()
        })
    }

    /// How much memory there is.
    pub fn usage(&mut self) -> Usage {
        let histogram = self.histogram();
        Usage {
            fast: histogram.fast_bytes(),
            slow: histogram.slow_bytes(),
        }
    }

    /// How much fast memory the target could use.
    pub fn demand(&mut self) -> Demand {
        let (least, percent) = (self.hot_rank(), self.settings.share_percent);
        let steady = least.max(self.steady_rank());
        let hot = self.histogram().bytes_from(least);
        let wanted = u128::from(hot) * u128::from(percent) / 100;
        Demand {
            wanted: u64::try_from(wanted).unwrap_or(u64::MAX),
            steady: self.histogram().bytes_from(steady),
        }
    }

    /// Picks a sample of the pages that should be in use, to be asked about in one window and left alone again.
    ///
    /// What that window told is for [`Self::glanced`].
    pub fn glance(&mut self) -> PageSet {
        let (page_bytes, block_bytes) = (self.table.page_bytes(), self.table.block_bytes());
        self.windows += 1;
        let mut samples = Samples::new(&self.settings, self.windows);
        let mut picked = PageSet::new();
        for block in self.table.blocks_mut() {
            let base = block.base;
            let (pages, bytes) = block.units_mut(page_bytes, block_bytes);
            for (index, page) in pages.iter_mut().enumerate() {
                let address = base + index as u64 * bytes;
                if samples.glance(page, address) {
                    push(&mut picked, address, address + bytes);
                }
            }
        }
        picked
    }

    /// Takes what a window told about the sample alone; whether the program does something else than before. Then all pages
    /// that are left alone are to be asked about.
    pub fn glanced(&mut self, sample: &Sample) -> bool {
        let (page_bytes, block_bytes) = (self.table.page_bytes(), self.table.block_bytes());
        let mut cursors = [&sample.accessed, &sample.written].map(|set| Cursor::new(set.as_ref()));
        let mut samples = Samples::new(&self.settings, self.windows);
        for block in self.table.blocks_mut() {
            let base = block.base;
            let (pages, bytes) = block.units_mut(page_bytes, block_bytes);
            for (index, page) in pages.iter_mut().enumerate() {
                let address = base + index as u64 * bytes;
                // Each cursor goes on, whatever the other says.
                let touched = cursors.iter_mut().fold(false, |any, cursor| {
                    cursor.any(address, address + bytes) | any
                });
                samples.take_picked(page, touched);
            }
        }
        let in_doubt = samples.contradict(&self.settings);
        if in_doubt {
            self.doubt(&mut PageSet::new());
        }
        in_doubt
    }

    /// What should move so that the hottest pages are in fast memory, of which at most `capacity` bytes may be used.
    pub fn plan(&mut self, capacity: u64) -> Plan {
        let hot = self.hot_rank();
        let windows = u16::from(self.settings.windows);
        let margin = self.settings.margin * self.seen.min(windows) / windows;
        let budget = plan::budget(self.histogram(), capacity, hot, margin);
        self.pick(&budget)
    }

    /// Has all pages that are left alone asked about in the next window.
    fn doubt(&mut self, rearm: &mut PageSet) {
        self.since_doubt = 0;
        // What was learned before holds no longer.
        self.seen = 0;
        let (page_bytes, block_bytes) = (self.table.page_bytes(), self.table.block_bytes());
        let mut woken = PageSet::new();
        for block in self.table.blocks_mut() {
            let base = block.base;
            let (pages, bytes) = block.units_mut(page_bytes, block_bytes);
            for (index, page) in pages.iter_mut().enumerate() {
                if page.is_asleep() {
                    page.doubt();
                    let address = base + index as u64 * bytes;
                    push(&mut woken, address, address + bytes);
                }
            }
        }
        rearm.union_with(&woken);
    }

    /// The pages that can be hot, by their degree, and are in a place: for tests and reports.
    pub fn hottest(&self, least: u16) -> PageSet {
        let mut hot = PageSet::new();
        self.table.for_each(|address, bytes, page| {
            if self.degrees.rank(page, address) >= least {
                push(&mut hot, address, address + bytes);
            }
        });
        hot
    }

    /// All pages that are to be asked about in the next window.
    pub fn awake(&self) -> PageSet {
        let mut awake = PageSet::new();
        self.table.for_each(|address, bytes, page| {
            if !page.is_asleep() {
                push(&mut awake, address, address + bytes);
            }
        });
        awake
    }

    /// The same of some pages, each of them a unit's.
    pub fn awake_of(&mut self, pages: &PageSet) -> PageSet {
        let mut awake = PageSet::new();
        for address in pages.iter_units(self.table.page_bytes()) {
            if self
                .table
                .unit_mut(address)
                .is_some_and(|(page, _)| !page.is_asleep())
            {
                push(&mut awake, address, address + self.table.page_bytes());
            }
        }
        awake
    }

    /// Calls `found` with address, size, rank and place of every page, or huge page, in ascending order.
    pub fn for_each(&self, mut found: impl FnMut(u64, u64, u16, Place)) {
        self.table.for_each(|address, bytes, page| {
            found(
                address,
                bytes,
                self.degrees.rank(page, address),
                page.place(),
            );
        });
    }

    /// From which rank on a page was used in most windows.
    fn steady_rank(&self) -> u16 {
        let settings = &self.settings;
        match settings.ranking {
            Ranking::Degree => {
                let least = match self.tells.accesses {
                    true => settings.read_weight,
                    false => settings.write_weight,
                };
                u16::from(settings.windows) * u16::from(least) / 2 + 1
            }
            _ => self.hot_rank(),
        }
    }

    /// From which rank on a page is hot.
    pub fn hot_rank(&self) -> u16 {
        match self.settings.ranking {
            Ranking::Degree => self.settings.degree_min,
            Ranking::TwoLists => 2,
            Ranking::Threshold | Ranking::FirstTouch | Ranking::Random => 1,
        }
    }
}
