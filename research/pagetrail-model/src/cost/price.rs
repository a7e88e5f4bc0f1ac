//! [`price`]: events times costs.

use super::{CostTable, Metric};
use crate::Events;
use crate::machine::PAGE_BYTES;

/// Who stands still for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Payer {
    /// The tracker: E(C_x) in the paper's formulas.
    Tracker,
    /// The tracked program: I(C_x, C_tked).
    Tracked,
}

/// One line of a bill.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Item {
    /// What it is for.
    pub metric: Metric,
    /// Who pays.
    pub payer: Payer,
    /// How many events.
    pub events: u64,
    /// What they cost together, in nanoseconds; `None` where the table has no cost for them.
    pub cost_ns: Option<f64>,
}

/// What a run costs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Bill {
    /// The lines, each with at least one event.
    pub items: Vec<Item>,
}

impl Bill {
    /// The sum of what `payer` pays, in nanoseconds, as far as it has a cost.
    pub fn sum_ns(&self, payer: Payer) -> f64 {
        self.items
            .iter()
            .filter(|item| item.payer == payer)
            .filter_map(|item| item.cost_ns)
            // From 0, since the sum of nothing is -0.
            .fold(0.0, |sum, cost| sum + cost)
    }

    /// What both pay: the time by which the tracked program ends later if its tracker runs in its
    /// place.
    pub fn total_ns(&self) -> f64 {
        self.sum_ns(Payer::Tracker) + self.sum_ns(Payer::Tracked)
    }

    /// The first line for `metric`.
    pub fn item(&self, metric: Metric) -> Option<&Item> {
        self.items.iter().find(|item| item.metric == metric)
    }

    /// Lines without a cost. A bill with such lines is a lower bound.
    pub fn unpriced(&self) -> impl Iterator<Item = &Item> {
        self.items.iter().filter(|item| item.cost_ns.is_none())
    }
}

/// What one cost of the table buys.
enum Per {
    /// One event.
    Event,
    /// One for each page of the program.
    Page,
    /// A linear search for each page among all of them.
    Search,
}

/// Prices what happened to a program of `bytes`.
///
/// A cost that a table gives for all of a program's memory is divided by the events that it stands
/// for: one per page, or n(n+1)/2 comparisons for the reverse mapping of n pages. Events of demand
/// paging are not priced: they happen without a tracker, too.
pub fn price(events: &Events, bytes: u64, table: &CostTable) -> Bill {
    use Metric::*;
    use Payer::*;
    let pages = bytes.div_ceil(PAGE_BYTES).max(1) as f64;
    let tracking_faults = events.faults_soft_dirty + events.faults_userfaultfd;
    let lines = [
        (
            ContextSwitch,
            Tracked,
            tracking_faults + events.self_ipis + events.timer_ticks,
            Per::Event,
        ),
        (ContextSwitch, Tracker, events.tracker_calls, Per::Event),
        (UfdWriteProtect, Tracker, events.ufd_protects, Per::Page),
        (FaultKernel, Tracked, tracking_faults, Per::Page),
        (FaultUser, Tracked, events.faults_userfaultfd, Per::Page),
        (Vmread, Tracked, events.vmreads, Per::Event),
        (Vmwrite, Tracked, events.vmwrites, Per::Event),
        (InitPml, Tracker, events.spml_inits, Per::Event),
        (InitShadowing, Tracker, events.shadowing_inits, Per::Event),
        (StopPml, Tracker, events.spml_stops, Per::Event),
        (StopShadowing, Tracker, events.shadowing_stops, Per::Event),
        (EnableLogging, Tracked, events.enable_logging, Per::Event),
        (DisableLogging, Tracked, events.disable_logging, Per::Event),
        (ClearRefs, Tracker, events.clear_refs_entries, Per::Page),
        (PagemapWalk, Tracker, events.pagemap_entries, Per::Page),
        (
            ReverseMapping,
            Tracker,
            events.reverse_comparisons,
            Per::Search,
        ),
        (RingCopy, Tracker, events.ring_reads, Per::Page),
        (LogFullExit, Tracked, events.pml_full_exits, Per::Event),
        (ClearDirty, Tracker, events.clear_dirty_calls, Per::Event),
        (EptWriteFault, Tracked, events.ept_write_faults, Per::Event),
        (ShadowFixed, Tracked, events.sh_fixed, Per::Event),
        (ShadowNotShadow, Tracked, events.sh_not_shadow, Per::Event),
        (ShadowMmio, Tracked, events.sh_mmio, Per::Event),
        (
            ShadowEmulateWrite,
            Tracked,
            events.sh_emulate_write,
            Per::Event,
        ),
        (
            ShadowEmulateCmpxchg,
            Tracked,
            events.sh_emulate_cmpxchg,
            Per::Event,
        ),
    ];
    let items = lines.into_iter().filter(|&(_, _, events, _)| events > 0);
    let items = items.map(|(metric, payer, events, per)| {
        let share = match per {
            Per::Event => 1.0,
            Per::Page => pages,
            Per::Search => pages * (pages + 1.0) / 2.0,
        };
        let cost_ns = table
            .at(metric, bytes)
            .map(|cost| cost * events as f64 / share);
        Item {
            metric,
            payer,
            events,
            cost_ns,
        }
    });
    Bill {
        items: items.collect(),
    }
}
