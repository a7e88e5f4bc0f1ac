//! [`TierLoop`]: the loop for one target: track, classify, migrate.
//!
//! The caller keeps the time: it calls [`begin_period`](TierLoop::begin_period), then
//! [`window`](TierLoop::window) until a [report](WindowReport) says that the period is over, and
//! [`end_period`](TierLoop::end_period). Dropped, it leaves the target's pages where they are.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use pagetrail::{PageRange, PageSet};

use crate::error::Result;
use crate::mover::{Mover, Outcome, Reason};
use crate::policy::clock::Clock;
use crate::policy::histogram::Histogram;
use crate::policy::plan::Plan;
use crate::policy::settings::{Settings, SettingsError};
use crate::policy::table::Place;
use crate::policy::{Demand, Policy, Usage};
use crate::source::{Source, SourceInfo};
use crate::steps::Steps;

/// The options of a [`TierLoop`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TierLoopOptions {
    /// The policy's constants.
    pub settings: Settings,
    /// Fast memory that the target may use, in bytes.
    pub capacity: u64,
    /// Longest time for moving pages after a window; `None` for no limit.
    pub timeout: Option<Duration>,
}

/// What becomes of the moves that are planned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moves {
    /// They are carried out.
    CarriedOut,
    /// None is: each window reports what it would have moved.
    Held,
}

/// What happened in a window.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WindowReport {
    /// Number of the window, counted from 0 over all periods.
    pub index: u64,
    /// Bytes that the source reported as accessed, including pages that are backed off.
    pub touched_bytes: u64,
    /// Page faults that sampling cost the target.
    pub faults: u64,
    /// Whether samples of backed-off pages were not accessed: a phase change, after which all pages
    /// are sampled again.
    pub phase_change: bool,
    /// Bytes moved into fast memory.
    pub promoted_bytes: u64,
    /// Bytes moved out of it.
    pub demoted_bytes: u64,
    /// Bytes that the plan would have moved while [moves were held](TierLoop::set_moves).
    pub held_bytes: u64,
    /// Hot bytes for which fast memory has no room.
    pub left_out_bytes: u64,
    /// Lowest degree of a page that should be in fast memory.
    pub cut: u16,
    /// Pages that were not moved, by reason.
    pub failures: BTreeMap<Reason, u64>,
    /// Bytes of the target in fast and slow memory after the window.
    pub usage: Usage,
    /// Fast memory that the target could use.
    pub demand: Demand,
    /// Whether this window was the last of its period.
    pub over: bool,
    /// Time that the source took.
    pub collect: Duration,
    /// Time that the policy took.
    pub policy: Duration,
    /// Time that moving took.
    pub moving: Duration,
}

/// Sums over all windows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Number of windows.
    pub windows: u64,
    /// Number of periods that were tracked.
    pub periods: u64,
    /// Number of periods that were not tracked, because earlier ones moved little.
    pub pauses: u64,
    /// Number of periods that were tracked because their probe found a phase change.
    pub alarms: u64,
    /// Page faults that sampling cost the target.
    pub faults: u64,
    /// Bytes moved into fast memory.
    pub promoted_bytes: u64,
    /// Bytes moved out of it.
    pub demoted_bytes: u64,
    /// Pages that were not moved, by reason.
    pub failures: BTreeMap<Reason, u64>,
    /// Time spent on sampling, planning and moving.
    pub busy: Duration,
}

/// Keeps the hot pages of one target in fast memory.
pub struct TierLoop {
    source: Box<dyn Source>,
    mover: Box<dyn Mover>,
    policy: Policy,
    clock: Clock,
    capacity: u64,
    timeout: Option<Duration>,
    /// Whether plans are made and not carried out.
    moves: Moves,
    /// Whether the current window is a probe, which samples few pages.
    probing: bool,
    /// Whether the current period is tracked.
    tracking: bool,
    /// Number of windows in this period so far.
    in_period: u32,
    /// Bytes moved in this period; in a dry run, bytes that would be moved.
    moved_in_period: u64,
    totals: Totals,
}

impl TierLoop {
    /// Makes a loop for the target of a source and a mover.
    ///
    /// # Errors
    ///
    /// A setting is out of its range.
    pub fn new(
        source: Box<dyn Source>,
        mover: Box<dyn Mover>,
        options: TierLoopOptions,
    ) -> Result<Self> {
        let info = source.info();
        let settings = fitting(options.settings, &info);
        Ok(Self {
            policy: Policy::new(settings, info.caps, pagetrail::page_size())?,
            source,
            mover,
            clock: Clock::default(),
            capacity: options.capacity,
            timeout: options.timeout,
            moves: Moves::CarriedOut,
            probing: false,
            tracking: false,
            in_period: 0,
            moved_in_period: 0,
            totals: Totals::default(),
        })
    }

    /// Begins a period, and returns whether it has windows. If not, there is nothing to do until
    /// the next.
    ///
    /// # Errors
    ///
    /// The target has ended, or cannot be tracked.
    pub fn begin_period(&mut self) -> Result<bool> {
        self.probing = false;
        if self.clock.tick() {
            return self.track().map(|()| true);
        }
        if self.policy.settings().probe {
            let sample = self.policy.probe();
            if !sample.is_empty() {
                self.probing = true;
                // Accesses during the pause are not part of the probe.
                self.source.window()?;
                self.source.rearm(&sample)?;
                return Ok(true);
            }
        }
        self.totals.pauses += 1;
        Ok(false)
    }

    /// Begins a tracked period.
    fn track(&mut self) -> Result<()> {
        self.tracking = true;
        self.in_period = 0;
        self.moved_in_period = 0;
        self.totals.periods += 1;
        // Discards accesses from before the period.
        self.source.window()?;
        self.refresh_layout()?;
        self.policy.begin_period();
        self.source.rearm(&self.policy.sampled())
    }

    /// Ends the window of a probe, and begins a tracked period if it found a phase change.
    fn probed(&mut self) -> Result<WindowReport> {
        let began = Instant::now();
        let mut report = WindowReport {
            index: self.totals.windows,
            ..WindowReport::default()
        };
        self.probing = false;
        let sample = self.source.window()?;
        report.collect = began.elapsed();
        report.phase_change = self.policy.probed(&sample);
        report.over = !report.phase_change;
        report.policy = began.elapsed() - report.collect;
        if report.phase_change {
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

    /// Reads which pages exist and in which tier each is.
    ///
    /// # Errors
    ///
    /// The target has ended, or its pages may not be read.
    pub fn refresh_layout(&mut self) -> Result<()> {
        let mapped = self.source.mapped()?;
        let runs = self.mover.places(&mapped)?;
        self.policy.set_layout(&runs);
        Ok(())
    }

    /// Ends a window: collects its accesses, and moves pages as the policy plans.
    ///
    /// # Errors
    ///
    /// The target has ended, or can no longer be tracked.
    pub fn window(&mut self) -> Result<WindowReport> {
        if self.probing {
            return self.probed();
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
            phase_change: noted.phase_change,
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
            let moved = match self.moves {
                Moves::CarriedOut => self.carry_out(&plan, &mut report),
                Moves::Held => self.hold(&plan, &mut report),
            };
            // A page that moves may lose its write-protection, or be accessed before it is
            // protected again.
            noted.rearm.union_with(&self.policy.sampled_of(&moved));
        }
        self.source.rearm(&noted.rearm)?;
        report.usage = self.policy.usage();
        report.policy = policy_time;
        if noted.phase_change {
            // The history belongs to the phase that ended.
            self.in_period = 0;
            self.clock.wake();
        }
        report.over = self.is_over();
        self.totals.windows += 1;
        self.totals.faults += report.faults;
        self.totals.busy += began.elapsed();
        Ok(report)
    }

    /// Ends a period after its last window. Until the next period tracking causes no faults.
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

    /// Whether the period ends with this window: it has all its windows, or it moves as little as
    /// the one before.
    fn is_over(&self) -> bool {
        let settings = self.policy.settings();
        let (windows, settled) = (settings.windows.into(), settings.settle_after.into());
        let calm_so_far = u128::from(self.moved_in_period) * u128::from(windows)
            < u128::from(settings.calm_bytes) * u128::from(self.in_period);
        self.in_period >= windows
            || settled > 0 && self.in_period >= settled && self.clock.was_calm() && calm_so_far
    }

    /// Moves nothing of a plan.
    fn hold(&mut self, plan: &Plan, report: &mut WindowReport) -> PageSet {
        report.left_out_bytes = plan.left_out_bytes;
        report.cut = plan.cut;
        report.held_bytes = plan.bytes();
        // What waits to be moved is no sign of calm; it is in plan after plan.
        self.moved_in_period = self.moved_in_period.max(plan.bytes());
        PageSet::new()
    }

    /// Carries out a plan and returns the pages that moved.
    fn carry_out(&mut self, plan: &Plan, report: &mut WindowReport) -> PageSet {
        report.left_out_bytes = plan.left_out_bytes;
        report.cut = plan.cut;
        let began = Instant::now();
        let timeout = self.timeout.unwrap_or(Duration::from_secs(3600));
        let mut moved = Vec::new();
        let mut without_room = 0;
        let mut not_tried = 0;
        let mut steps = Steps::of(plan);
        while let Some(step) = steps.next(self.policy.usage().fast, self.capacity) {
            let left = |began: Instant| timeout.saturating_sub(began.elapsed());
            if left(began).is_zero() {
                not_tried += step.demote.len() + step.promote.len() + steps.end();
                break;
            }
            if !step.demote.is_empty() {
                let demoted = self.mover.carry_out(step.demote, Place::Slow, left(began));
                report.demoted_bytes += self.note(&demoted, Place::Slow, report);
                moved.extend(demoted.moved);
            }
            // Limited to the room left, since demotions may have failed.
            let mut room = self.capacity.saturating_sub(self.policy.usage().fast);
            let fits = step.promote.iter().take_while(|unit| {
                let fits = unit.bytes <= room;
                room = room.saturating_sub(unit.bytes);
                fits
            });
            let fits = &step.promote[..fits.count()];
            without_room += step.promote.len() - fits.len();
            if fits.is_empty() {
                continue;
            }
            let promoted = self.mover.carry_out(fits, Place::Fast, left(began));
            report.promoted_bytes += self.note(&promoted, Place::Fast, report);
            if promoted.has_no_room() {
                not_tried += steps.end_promotions();
            }
            moved.extend(promoted.moved);
        }
        // A dry run moves nothing; that does not count as failure.
        for (reason, count) in [
            (Reason::NoRoom, without_room),
            (Reason::NotTried, not_tried),
        ] {
            if count > 0 && !self.mover.is_dry() {
                *report.failures.entry(reason).or_default() += count as u64;
            }
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
        let ranges = moved.iter();
        ranges
            .filter_map(|unit| PageRange::new(unit.address, unit.address + unit.bytes))
            .collect()
    }

    /// Reports the outcome of moves to the policy; returns the bytes that moved.
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
        // A dry run moves nothing; that does not count as failure.
        let counted = outcome
            .failures()
            .into_iter()
            .filter(|_| !self.mover.is_dry());
        for (reason, count) in counted {
            *report.failures.entry(reason).or_default() += count;
        }
        outcome.moved_bytes()
    }

    /// Sets the fast memory that the target may use, in bytes. After a large change the next period
    /// is tracked in any case.
    pub fn set_capacity(&mut self, bytes: u64) {
        if self.capacity.abs_diff(bytes) >= self.policy.settings().calm_bytes {
            self.clock.wake();
        }
        self.capacity = bytes;
    }

    /// Sets the longest time for moving pages after a window; `None` for no limit.
    pub fn set_timeout(&mut self, timeout: Option<Duration>) {
        self.timeout = timeout;
    }

    /// Returns the longest time for moving pages after a window; `None` for no limit.
    pub fn timeout(&self) -> Option<Duration> {
        self.timeout
    }

    /// Says what becomes of plans from now on. Sampling and planning go on in any case.
    pub fn set_moves(&mut self, moves: Moves) {
        self.moves = moves;
    }

    /// Returns the fast memory that the target may use, in bytes.
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Changes the settings; the next period is tracked in any case.
    ///
    /// # Errors
    ///
    /// A setting is out of its range; then nothing changes.
    pub fn set_settings(&mut self, settings: Settings) -> Result<(), SettingsError> {
        let settings = fitting(settings, &self.source.info());
        self.policy.set_settings(settings)?;
        self.clock.wake();
        Ok(())
    }

    /// Plans moves without carrying them out.
    pub fn plan(&mut self) -> Plan {
        self.policy.plan(self.capacity)
    }

    /// Returns the policy.
    pub fn policy(&mut self) -> &mut Policy {
        &mut self.policy
    }

    /// Describes the source.
    pub fn info(&self) -> SourceInfo {
        self.source.info()
    }

    /// Returns the bytes of each degree.
    pub fn histogram(&mut self) -> &Histogram {
        self.policy.histogram()
    }

    /// Returns the number of periods that will be skipped.
    pub fn pause(&self) -> u8 {
        self.clock.counter()
    }

    /// Returns sums over all windows.
    pub fn totals(&self) -> &Totals {
        &self.totals
    }
}

/// Turns back-off off for a source that samples every page in every window anyway.
fn fitting(settings: Settings, info: &SourceInfo) -> Settings {
    match info.saves_faults {
        true => settings,
        false => Settings {
            level_max: 0,
            ..settings
        },
    }
}
