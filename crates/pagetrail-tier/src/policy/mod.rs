//! [`Policy`]: ranks the pages of one target, chooses which to sample, and plans moves. It makes no
//! system call, reads no clock and uses no random numbers.

pub(crate) mod clock;
mod cursor;
pub(crate) mod histogram;
mod means;
mod orders;
mod page;
mod phase;
pub(crate) mod plan;
pub(crate) mod pool;
mod rank;
pub(crate) mod settings;
mod spot_check;
pub(crate) mod table;
mod trial;
mod window;

use pagetrail::PageSet;

use cursor::{Touches, push};
use histogram::{Histogram, Tally};
use orders::Orders;
use page::{Page, WindowKind};
use plan::Plan;
use rank::{Degrees, Order};
use settings::{Ranking, Settings, SettingsError};
use table::{Place, Run, Table, Units};
use trial::Trial;
use window::Window;

/// The kinds of access that a source reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SourceCaps {
    /// Whether the source reports accesses of any kind.
    pub accesses: bool,
    /// Whether the source reports writes.
    pub writes: bool,
    /// Whether windows of accesses and windows of writes alternate.
    pub in_turns: bool,
}

/// The pages that a source reported in a window.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// Pages accessed; `None` if the window does not track accesses.
    pub accessed: Option<PageSet>,
    /// Pages written; `None` if the window does not track writes.
    pub written: Option<PageSet>,
}

/// The result of a window.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Noted {
    /// Pages to arm for the next window. All others are armed already or backed off.
    pub rearm: PageSet,
    /// Pages that were accessed and are not in the table; [`Policy::add`] adds them.
    pub unknown: PageSet,
    /// Number of sampled pages that were accessed; each cost its program a fault.
    pub answered: u64,
    /// Whether the program entered another phase, after which all pages are sampled.
    pub phase_change: bool,
}

/// How much memory a target has, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Bytes in fast memory.
    pub fast: u64,
    /// Bytes in slow memory.
    pub slow: u64,
}

/// How much fast memory a target could use, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Demand {
    /// Bytes that the target demands from the pool: a share of its hot pages, as the settings say.
    pub wanted: u64,
    /// Bytes of the pages accessed in most of the windows that are remembered.
    pub steady: u64,
}

/// The policy for one target.
pub struct Policy {
    settings: Settings,
    caps: SourceCaps,
    degrees: Degrees,
    table: Table,
    /// Histogram of the table; `None` if the table changed since.
    histogram: Option<Histogram>,
    /// Bytes by score, where that is not the rank; `None` if the table changed since, or the order.
    scores: Option<Histogram>,
    /// Number of windows since the last phase change.
    since_phase_change: u32,
    /// Number of windows since the first, or since the last phase change.
    seen: u16,
    /// Number of all windows.
    windows: u64,
    /// Whether the queue pays; `None` if it is not tried.
    trial: Option<Trial>,
    /// Whether the trial does not know yet which pages there are.
    is_table_new: bool,
    /// Whether the queue is left out from the next window on.
    ends_queue: bool,
    /// Which order serves more; `None` if it is not tried.
    orders: Option<Orders>,
}

impl Policy {
    /// Makes a policy with an empty table.
    ///
    /// # Errors
    ///
    /// A setting is out of its range.
    pub fn new(
        settings: Settings,
        caps: SourceCaps,
        page_bytes: u64,
    ) -> Result<Self, SettingsError> {
        settings.validate()?;
        Ok(Self {
            since_phase_change: u32::MAX,
            degrees: Degrees::new(&settings, Order::Lately),
            trial: settings
                .tries_without_queue()
                .then(|| Trial::new(&settings)),
            is_table_new: true,
            ends_queue: false,
            orders: settings.tries_orders().then(|| Orders::new(&settings)),
            settings,
            caps,
            table: Table::new(page_bytes),
            histogram: None,
            scores: None,
            seen: 0,
            windows: 0,
        })
    }

    /// Returns the settings.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Changes the settings.
    ///
    /// # Errors
    ///
    /// A setting is out of its range; then nothing changes.
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
        self.degrees = Degrees::new(&settings, Order::Lately);
        self.orders = settings.tries_orders().then(|| Orders::new(&settings));
        self.trial = (settings.tries_without_queue()).then(|| Trial::new(&settings));
        self.is_table_new = true;
        self.settings = settings;
        self.forget_counts();
        Ok(())
    }

    /// Sets all pages and their tiers, in ascending order. Pages that stay keep their history.
    pub fn set_layout(&mut self, runs: &[Run]) {
        self.table.set(runs, true);
        self.is_table_new = true;
        self.forget_counts();
    }

    /// Sets some pages and their tiers, in ascending order, and leaves all others as they are.
    pub fn add(&mut self, runs: &[Run]) {
        self.table.set(runs, false);
        self.is_table_new = true;
        self.forget_counts();
    }

    /// Forgets how many bytes of each rank and score there are.
    fn forget_counts(&mut self) {
        self.histogram = None;
        self.scores = None;
    }

    /// Records the tier to which a page, or huge page, was moved.
    pub fn moved(&mut self, address: u64, place: Place) {
        self.change(address, |page| page.set_place(place));
    }

    /// Marks a page as not movable until the next layout.
    pub fn fix(&mut self, address: u64) {
        self.change(address, |page| page.set_fixed(true));
    }

    /// Changes a page and updates the histograms.
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
        if let Some(scores) = &mut self.scores {
            let score = self.degrees.score(page, address);
            scores.shift(before, page.kind(), score, bytes);
        }
    }

    /// Begins a period: no window was sampled for a while.
    pub fn begin_period(&mut self) {
        if let Some(orders) = &mut self.orders {
            orders.begin_period(&self.table);
        }
    }

    /// Updates all pages with the sample of a window.
    pub fn observe(&mut self, sample: &Sample) -> Noted {
        let kind = WindowKind {
            accesses: sample.accessed.is_some(),
            writes: sample.written.is_some(),
            // The window after a phase change samples all pages.
            phase_changed: self.since_phase_change == 0,
            settled: self.seen >= self.settings.windows.into(),
            seen: self.seen,
        };
        let page_bytes = self.table.page_bytes();
        let mut settings = self.settings.clone();
        if let Some(trial) = &mut self.trial {
            if std::mem::take(&mut self.is_table_new) {
                trial.follow(&self.table);
            }
            trial.observe(sample, self.caps, kind, page_bytes);
            if trial.leaves_queue_out() {
                settings.level_max = 0;
            }
        }
        let tried = self.sampled_for_trial();
        let mut touches = Touches::new(sample);
        if let Some(orders) = &mut self.orders {
            let of_huge_pages = settings.of_huge_pages();
            let settings = [&settings, &of_huge_pages];
            orders.observe(&mut self.table, &mut touches, settings, self.caps, kind);
            touches = Touches::new(sample);
        }
        let all = self.windows.try_into().unwrap_or(u16::MAX);
        let kind = WindowKind {
            seen: self.degrees.seen(self.seen, all),
            ..kind
        };
        let mut window = Window::new(
            &settings,
            self.caps,
            kind,
            &self.degrees,
            page_bytes,
            self.windows,
        );
        for block in self.table.blocks_mut() {
            window.observe(block, &mut touches);
        }
        let observed = window.end(&mut touches);
        let mut noted = observed.noted;
        self.histogram = Some(observed.histogram);
        self.scores = observed.scores;
        self.since_phase_change = self.since_phase_change.saturating_add(1);
        self.seen = self.seen.saturating_add(1);
        self.windows += 1;
        let accessed = [&sample.accessed, &sample.written].into_iter().flatten();
        noted.answered += (tried.iter_units(page_bytes))
            .filter(|address| accessed.clone().any(|set| set.contains(*address)))
            .count() as u64;
        if std::mem::take(&mut self.ends_queue) {
            self.wake_all(&mut noted.rearm);
        }
        noted.rearm.union_with(&self.sampled_for_trial());
        let may_change = self.since_phase_change >= self.settings.windows.into();
        if observed.contradicted && may_change {
            noted.phase_change = true;
            self.reset_back_off(&mut noted.rearm);
        }
        noted
    }

    /// Returns the bytes of each rank.
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

    /// Returns the bytes of each score.
    fn scores(&mut self) -> &Histogram {
        if !self.settings.has_means() {
            return self.histogram();
        }
        let (settings, table, degrees) = (&self.settings, &self.table, &self.degrees);
        self.scores.get_or_insert_with(|| {
            let mut tally = Tally::new(settings.rank_max() * degrees.in_score());
            table.for_each(|address, bytes, page| {
                tally.add(page.kind(), degrees.score(page, address), bytes);
            });
            tally.finish()
        })
    }

    /// Returns the bytes in each tier.
    pub fn usage(&mut self) -> Usage {
        let histogram = self.histogram();
        Usage {
            fast: histogram.fast_bytes(),
            slow: histogram.slow_bytes(),
        }
    }

    /// Returns the fast memory that the target could use.
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

    /// Plans moves so that the hottest pages are in fast memory, of which at most `capacity` bytes
    /// may be used.
    pub fn plan(&mut self, capacity: u64) -> Plan {
        if let Some(trial) = &mut self.trial {
            let before = trial.leaves_queue_out();
            trial.plan(capacity);
            self.ends_queue = trial.leaves_queue_out() && !before;
        }
        if let Some(orders) = &mut self.orders {
            orders.plan(&self.settings, capacity, self.seen);
            if self.degrees.set_order(orders.better(), &self.settings) {
                self.scores = None;
            }
        }
        let hot = self.degrees.score_of(self.place_rank());
        let margin = self.degrees.margin(self.seen);
        let budget = plan::budget(self.scores(), capacity, hot, margin);
        self.pick(budget, |page, address| self.degrees.score(page, address))
    }

    /// Returns the pages that are backed off and sampled in each window for a trial.
    fn sampled_for_trial(&mut self) -> PageSet {
        let mut sampled = PageSet::new();
        for address in self.trial.iter().flat_map(Trial::addresses) {
            if let Some((page, bytes)) = self.table.unit_mut(address)
                && page.is_backed_off()
            {
                push(&mut sampled, address, address + bytes);
            }
        }
        sampled
    }

    /// Returns the pages with at least the rank `least`.
    pub fn hottest(&self, least: u16) -> PageSet {
        let mut hot = PageSet::new();
        self.table.for_each(|address, bytes, page| {
            if self.degrees.rank(page, address) >= least {
                push(&mut hot, address, address + bytes);
            }
        });
        hot
    }

    /// Returns all pages that the next window samples.
    pub fn sampled(&self) -> PageSet {
        let mut sampled = PageSet::new();
        self.table.for_each(|address, bytes, page| {
            let is_tried = || (self.trial.iter()).any(|trial| trial.samples(address));
            if !page.is_backed_off() || is_tried() {
                push(&mut sampled, address, address + bytes);
            }
        });
        sampled
    }

    /// Returns those of some pages that the next window samples.
    pub fn sampled_of(&mut self, pages: &PageSet) -> PageSet {
        let mut sampled = PageSet::new();
        for address in pages.iter_units(self.table.page_bytes()) {
            let is_tried = (self.trial.iter()).any(|trial| trial.samples(address));
            if self
                .table
                .unit_mut(address)
                .is_some_and(|(page, _)| !page.is_backed_off() || is_tried)
            {
                push(&mut sampled, address, address + self.table.page_bytes());
            }
        }
        sampled
    }

    /// Calls `found` with address, size, rank and place of every page, or huge page, in ascending
    /// order.
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

    /// Returns the lowest rank of a page accessed in most windows.
    fn steady_rank(&self) -> u16 {
        let settings = &self.settings;
        match settings.ranking {
            Ranking::Degree => {
                let least = match self.caps.accesses {
                    true => settings.read_weight,
                    false => settings.write_weight,
                };
                u16::from(settings.windows) * u16::from(least) / 2 + 1
            }
            _ => self.hot_rank(),
        }
    }

    /// Returns the lowest rank of a page that may be in fast memory.
    fn place_rank(&self) -> u16 {
        match self.settings.ranking {
            Ranking::Degree => self.settings.place_min,
            _ => self.hot_rank(),
        }
    }

    /// Returns the lowest rank of a hot page.
    pub fn hot_rank(&self) -> u16 {
        match self.settings.ranking {
            Ranking::Degree => self.settings.degree_min,
            Ranking::TwoLists => 2,
            Ranking::Threshold | Ranking::Recency | Ranking::FirstTouch | Ranking::Random => 1,
        }
    }
}
