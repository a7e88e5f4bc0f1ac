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
use page::Asked;
use plan::Plan;
use rank::{Degrees, count};
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

/// The policy for one target.
pub struct Policy {
    settings: Settings,
    tells: Tells,
    table: Table,
    /// Of the table as it is, or nothing where it changed since.
    histogram: Option<Histogram>,
    /// Windows since everything was doubted.
    since_doubt: u32,
    /// Windows since the first, or since [`Self::begin`].
    seen: u16,
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
            settings,
            tells,
            table: Table::new(page_bytes),
            histogram: None,
            seen: 0,
        })
    }

    /// Says that windows were left out: what is remembered is old.
    pub fn begin(&mut self) {
        self.seen = 0;
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
        if let Some(page) = self.table.unit_mut(address) {
            page.set_place(place);
            self.histogram = None;
        }
    }

    /// Says that a page cannot be moved, until the next layout says where it is.
    pub fn fix(&mut self, address: u64) {
        if let Some(page) = self.table.unit_mut(address) {
            page.set_fixed(true);
            self.histogram = None;
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
        };
        let mut accessed = Cursor::new(sample.accessed.as_ref());
        let mut written = Cursor::new(sample.written.as_ref());
        let mut noted = Noted::default();
        let mut samples = Samples::new(settings, self.seen);
        let mut tally = Tally::new(settings.rank_max());
        let degrees = Degrees::new(settings);
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
                    count(&degrees, &mut tally, page, base, block_bytes);
                }
                Units::Small(pages) => {
                    let mut start = base;
                    while start < behind {
                        // Pages of which the window tells the same.
                        let (read, read_until) = accessed.at(start);
                        let (wrote, wrote_until) = written.at(start);
                        let end = behind.min(read_until).min(wrote_until);
                        let index = |address: u64| ((address - base) / page_bytes) as usize;
                        for (at, page) in pages[index(start)..index(end)].iter_mut().enumerate() {
                            let address = start + at as u64 * page_bytes;
                            if page.is_absent() {
                                if read || wrote {
                                    push(&mut noted.unknown, address, address + page_bytes);
                                }
                                continue;
                            }
                            let awake = !page.is_asleep();
                            samples.take(page, read || wrote);
                            if page.observe(settings, tells, asked, read, wrote)
                                || samples.draw(page, address)
                            {
                                push(&mut noted.rearm, address, address + page_bytes);
                            }
                            noted.answered += u64::from(awake && (read || wrote));
                            count(&degrees, &mut tally, page, address, page_bytes);
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
        if in_doubt && self.since_doubt >= self.settings.windows.into() {
            noted.doubt = true;
            self.doubt(&mut noted.rearm);
        }
        noted
    }

    /// How many bytes of each rank there are.
    pub fn histogram(&mut self) -> &Histogram {
        let (settings, table) = (&self.settings, &self.table);
        self.histogram.get_or_insert_with(|| {
            let mut tally = Tally::new(settings.rank_max());
            let degrees = Degrees::new(settings);
            table.for_each(|address, bytes, page| {
                count(&degrees, &mut tally, page, address, bytes);
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

    /// How much fast memory the target could use: the share of what is hot by its degree that the settings name.
    pub fn demand(&mut self) -> u64 {
        let (least, percent) = (self.hot_rank(), self.settings.share_percent);
        let hot = u128::from(self.histogram().bytes_from(least));
        u64::try_from(hot * u128::from(percent) / 100).unwrap_or(u64::MAX)
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
            let (pages, bytes) = match &mut block.units {
                Units::Huge(page) => (std::slice::from_mut(page), block_bytes),
                Units::Small(pages) => (&mut pages[..], page_bytes),
            };
            for (index, page) in pages.iter_mut().enumerate() {
                if page.is_asleep() {
                    page.doubt();
                    let address = block.base + index as u64 * bytes;
                    push(&mut woken, address, address + bytes);
                }
            }
        }
        rearm.union_with(&woken);
    }

    /// The pages that can be hot, by their degree, and are in a place: for tests and reports.
    pub fn hottest(&self, least: u16) -> PageSet {
        let mut hot = PageSet::new();
        let degrees = Degrees::new(&self.settings);
        self.table.for_each(|address, bytes, page| {
            if degrees.rank(page, address) >= least {
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
                .is_some_and(|page| !page.is_asleep())
            {
                push(&mut awake, address, address + self.table.page_bytes());
            }
        }
        awake
    }

    /// Calls `found` with address, size, rank and place of every page, or huge page, in ascending order.
    pub fn for_each(&self, mut found: impl FnMut(u64, u64, u16, Place)) {
        let degrees = Degrees::new(&self.settings);
        self.table.for_each(|address, bytes, page| {
            found(address, bytes, degrees.rank(page, address), page.place());
        });
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
