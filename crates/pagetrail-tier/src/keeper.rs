//! [`Keeper`]: turns the loop for one target: track, classify, migrate.
//!
//! It keeps no time: whoever has it calls [`begin_period`](Keeper::begin_period), then [`window`](Keeper::window) until a
//! [report](WindowReport) says that the period is over, and [`end_period`](Keeper::end_period). Dropped, it leaves the target's
//! pages where they are.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use pagetrail::{PageRange, PageSet};

use crate::error::Result;
use crate::mover::{Mover, Outcome, Reason};
use crate::policy::clock::Clock;
use crate::policy::histogram::Histogram;
use crate::policy::plan::{Plan, Unit};
use crate::policy::settings::{Settings, SettingsError};
use crate::policy::table::Place;
use crate::policy::{Demand, Policy, Usage};
use crate::source::{Ability, Source};

/// How a target is kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeeperOptions {
    /// The policy's constants.
    pub settings: Settings,
    /// How much of its memory may be fast.
    pub capacity: u64,
    /// For how long pages may be moved after a window; for ever if there is none.
    pub patience: Option<Duration>,
}

/// What happened in a window.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WindowReport {
    /// Counts from 0 over all periods.
    pub index: u64,
    /// Bytes that the source reported, pages that are left alone included.
    pub touched_bytes: u64,
    /// Faults that the target took for being asked.
    pub faults: u64,
    /// Whether pages that were left alone turned out not to be used, so that all are asked about.
    pub doubt: bool,
    /// Bytes moved into fast memory.
    pub promoted_bytes: u64,
    /// Bytes moved out of it.
    pub demoted_bytes: u64,
    /// Hot bytes that found no room.
    pub left_out_bytes: u64,
    /// The degree from which on pages should be in fast memory.
    pub cut: u16,
    /// Pages that were not moved, by reason.
    pub failures: BTreeMap<Reason, u64>,
    /// Where the memory is after that.
    pub usage: Usage,
    /// What it could use of fast memory.
    pub demand: Demand,
    /// Whether it was the last one of its period.
    pub over: bool,
    /// How long the source took.
    pub collect: Duration,
    /// How long the policy took.
    pub policy: Duration,
    /// How long moving took.
    pub moving: Duration,
}

/// Sums over all windows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Windows.
    pub windows: u64,
    /// Periods that were tracked.
    pub periods: u64,
    /// Periods that were not, since those before were calm.
    pub pauses: u64,
    /// Periods that were to be no more than a glance, and were tracked for what that told.
    pub alarms: u64,
    /// Faults that the target took for being asked.
    pub faults: u64,
    /// Bytes moved into fast memory.
    pub promoted_bytes: u64,
    /// Bytes moved out of it.
    pub demoted_bytes: u64,
    /// Pages that were not moved, by reason.
    pub failures: BTreeMap<Reason, u64>,
    /// Time for asking, deciding and moving.
    pub busy: Duration,
}

/// Keeps the hot pages of one target in fast memory.
pub struct Keeper {
    source: Box<dyn Source>,
    mover: Box<dyn Mover>,
    policy: Policy,
    clock: Clock,
    capacity: u64,
    patience: Option<Duration>,
    /// Whether the window that runs is a glance: a sample only is asked about.
    glancing: bool,
    /// Whether the period is tracked.
    tracking: bool,
    /// Windows of this period so far.
    in_period: u32,
    /// Bytes that were moved in this period; of a dry run those that would be.
    moved_in_period: u64,
    totals: Totals,
}

impl Keeper {
    /// A keeper for the target of a source and a mover.
    ///
    /// # Errors
    ///
    /// A setting makes no sense.
    pub fn new(
        source: Box<dyn Source>,
        mover: Box<dyn Mover>,
        options: KeeperOptions,
    ) -> Result<Self> {
        let ability = source.ability();
        let settings = fitting(options.settings, &ability);
        Ok(Self {
            policy: Policy::new(settings, ability.tells, pagetrail::page_size())?,
            source,
            mover,
            clock: Clock::default(),
            capacity: options.capacity,
            patience: options.patience,
            glancing: false,
            tracking: false,
            in_period: 0,
            moved_in_period: 0,
            totals: Totals::default(),
        })
    }

    /// Begins a period; whether it has windows. If not, there is nothing to do until the next.
    ///
    /// # Errors
    ///
    /// The target has ended, or cannot be watched.
    pub fn begin_period(&mut self) -> Result<bool> {
        self.glancing = false;
        if self.clock.tick() {
            return self.track().map(|()| true);
        }
        if self.policy.settings().glance {
            let sample = self.policy.glance();
            if !sample.is_empty() {
                self.glancing = true;
                // What was touched in the pause is no answer.
                self.source.window()?;
                self.source.rearm(&sample)?;
                return Ok(true);
            }
        }
        self.totals.pauses += 1;
        Ok(false)
    }

    /// Begins to track.
    fn track(&mut self) -> Result<()> {
        self.tracking = true;
        self.in_period = 0;
        self.moved_in_period = 0;
        self.totals.periods += 1;
        // What was touched before, in a pause perhaps, is no window.
        self.source.window()?;
        self.look()?;
        self.source.rearm(&self.policy.awake())
    }

    /// Ends the window of a glance: goes on to track where that is due.
    fn glanced(&mut self) -> Result<WindowReport> {
        let began = Instant::now();
        let mut report = WindowReport {
            index: self.totals.windows,
            ..WindowReport::default()
        };
        self.glancing = false;
        let sample = self.source.window()?;
        report.collect = began.elapsed();
        report.doubt = self.policy.glanced(&sample);
        report.over = !report.doubt;
        report.policy = began.elapsed() - report.collect;
        if report.doubt {
            self.clock.wake();
            self.totals.alarms += 1;
            self.track()?;
        } else {
            self.totals.pauses += 1;
        }
        report.usage = self.policy.usage();
        report.demand = self.policy.demand();
        self.totals.windows += 1;
        self.totals.busy += began.elapsed();
        Ok(report)
    }

    /// Finds out which pages there are, and where.
    ///
    /// # Errors
    ///
    /// The target has ended, or may not be asked about.
    pub fn look(&mut self) -> Result<()> {
        let mapped = self.source.mapped()?;
        let runs = self.mover.places(&mapped)?;
        self.policy.set_layout(&runs);
        Ok(())
    }

    /// Ends a window: takes what was touched in it, and moves what should move.
    ///
    /// # Errors
    ///
    /// The target has ended, or cannot be watched any longer.
    pub fn window(&mut self) -> Result<WindowReport> {
        if self.glancing {
            return self.glanced();
        }
        let began = Instant::now();
        let sample = self.source.window()?;
        let collected = Instant::now();
        let mut noted = self.policy.observe(&sample);
        let mut policy_time = collected.elapsed();
        let touched = [&sample.accessed, &sample.written];
        let mut report = WindowReport {
            index: self.totals.windows,
            touched_bytes: touched
                .iter()
                .filter_map(|set| Some(set.as_ref()?.bytes()))
                .max()
                .unwrap_or(0),
            faults: noted.answered,
            doubt: noted.doubt,
            collect: collected - began,
            ..WindowReport::default()
        };
        if !noted.unknown.is_empty() {
            let mapped = self.source.mapped_within(&noted.unknown)?;
            self.policy.add(&self.mover.places(&mapped)?);
            noted.rearm.union_with(&noted.unknown);
        }
        self.in_period += 1;
        let deciding = Instant::now();
        report.demand = self.policy.demand();
        let every = u32::from(self.policy.settings().decide_every);
        if self.in_period.is_multiple_of(every) {
            let plan = self.policy.plan(self.capacity);
            policy_time += deciding.elapsed();
            let moved = self.carry_out(&plan, &mut report);
            // A page that moves may lose its protection, or be touched while it has none.
            noted.rearm.union_with(&self.policy.awake_of(&moved));
        }
        self.source.rearm(&noted.rearm)?;
        report.usage = self.policy.usage();
        report.policy = policy_time;
        if noted.doubt {
            // What was learned of this program is of another.
            self.in_period = 0;
            self.clock.wake();
        }
        report.over = self.is_over();
        self.totals.windows += 1;
        self.totals.faults += report.faults;
        self.totals.busy += began.elapsed();
        Ok(report)
    }

    /// Ends a period, after the window that was its last one: until the next the target takes no faults.
    ///
    /// # Errors
    ///
    /// The target has ended.
    pub fn end_period(&mut self) -> Result<()> {
        if std::mem::take(&mut self.tracking) {
            self.clock
                .tracked(self.moved_in_period, self.policy.settings());
        }
        self.source.suspend()
    }

    /// Whether a period ends with this window: all its windows are over, or it is as calm as the one before.
    fn is_over(&self) -> bool {
        let settings = self.policy.settings();
        let (windows, settled) = (settings.windows.into(), settings.settle_after.into());
        let calm_so_far = u128::from(self.moved_in_period) * u128::from(windows)
            < u128::from(settings.calm_bytes) * u128::from(self.in_period);
        self.in_period >= windows
            || settled > 0 && self.in_period >= settled && self.clock.was_calm() && calm_so_far
    }

    /// Moves what a plan says; what has moved.
    fn carry_out(&mut self, plan: &Plan, report: &mut WindowReport) -> PageSet {
        report.left_out_bytes = plan.left_out_bytes;
        report.cut = plan.cut;
        let began = Instant::now();
        let patience = self.patience.unwrap_or(Duration::from_secs(3600));
        let demoted = self.mover.carry_out(&plan.demote, Place::Slow, patience);
        report.demoted_bytes = self.note(&demoted, Place::Slow, report);
        // Only so much as there is room for, should a page have refused to leave.
        let mut room = self.capacity.saturating_sub(self.policy.usage().fast);
        let fits = plan.promote.iter().take_while(|unit| {
            let fits = unit.bytes <= room;
            room = room.saturating_sub(unit.bytes);
            fits
        });
        let fits: Vec<Unit> = fits.copied().collect();
        let left = patience.saturating_sub(began.elapsed());
        let promoted = self.mover.carry_out(&fits, Place::Fast, left);
        report.promoted_bytes = self.note(&promoted, Place::Fast, report);
        let without_room = plan.promote.len() - fits.len();
        if without_room > 0 {
            *report.failures.entry(Reason::NoRoom).or_default() += without_room as u64;
        }
        report.moving = began.elapsed();
        if self.mover.is_dry() {
            // The same pages in plan after plan, since they stay where they are.
            self.moved_in_period = self.moved_in_period.max(plan.bytes());
        } else {
            self.moved_in_period += report.promoted_bytes + report.demoted_bytes;
        }
        self.totals.promoted_bytes += report.promoted_bytes;
        self.totals.demoted_bytes += report.demoted_bytes;
        for (reason, count) in &report.failures {
            *self.totals.failures.entry(*reason).or_default() += count;
        }
        let moved = demoted.moved.iter().chain(&promoted.moved);
        moved
            .filter_map(|unit| PageRange::new(unit.address, unit.address + unit.bytes))
            .collect()
    }

    /// Tells the policy what came of a list of moves; bytes that have moved.
    fn note(&mut self, outcome: &Outcome, to: Place, report: &mut WindowReport) -> u64 {
        for unit in &outcome.moved {
            self.policy.moved(unit.address, to);
        }
        for (unit, reason) in &outcome.failed {
            match reason {
                Reason::Absent => self.policy.moved(unit.address, Place::Absent),
                reason if reason.is_the_pages() => self.policy.fix(unit.address),
                _ => {}
            }
        }
        // That a dry run moves nothing is no failure.
        let counted = outcome
            .failures()
            .into_iter()
            .filter(|_| !self.mover.is_dry());
        for (reason, count) in counted {
            *report.failures.entry(reason).or_default() += count;
        }
        outcome.moved_bytes()
    }

    /// How much of the target's memory may be fast from now on. When that is another amount altogether, the next period is
    /// tracked in any case.
    pub fn set_capacity(&mut self, bytes: u64) {
        if self.capacity.abs_diff(bytes) >= self.policy.settings().calm_bytes {
            self.clock.wake();
        }
        self.capacity = bytes;
    }

    /// How much of the target's memory may be fast.
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Takes other settings from now on, and tracks the next period in any case.
    ///
    /// # Errors
    ///
    /// A setting makes no sense; then nothing changes.
    pub fn set_settings(&mut self, settings: Settings) -> Result<(), SettingsError> {
        let settings = fitting(settings, &self.source.ability());
        self.policy.set_settings(settings)?;
        self.clock.wake();
        Ok(())
    }

    /// What would move now, and why; nothing does.
    pub fn plan(&mut self) -> Plan {
        self.policy.plan(self.capacity)
    }

    /// The policy.
    pub fn policy(&mut self) -> &mut Policy {
        &mut self.policy
    }

    /// What the source can tell.
    pub fn ability(&self) -> Ability {
        self.source.ability()
    }

    /// How many pages of each degree there are.
    pub fn histogram(&mut self) -> &Histogram {
        self.policy.histogram()
    }

    /// How many periods are not tracked yet.
    pub fn pause(&self) -> u8 {
        self.clock.counter()
    }

    /// Sums over all windows.
    pub fn totals(&self) -> &Totals {
        &self.totals
    }
}

/// A source that arms everything with each window cannot leave a page alone: the queue would only guess.
fn fitting(settings: Settings, ability: &Ability) -> Settings {
    match ability.spares {
        true => settings,
        false => Settings {
            level_max: 0,
            ..settings
        },
    }
}
