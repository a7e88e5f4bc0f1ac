//! [`Sample`]: what one run gave.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::behaviour::Behaviour;
use crate::statistics::Estimate;

/// What one run gave.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Sample {
    /// How long the work took: of a program, from its start to its end; of a test of a suite, what
    /// the test itself measured.
    pub time_ns: f64,
    /// What else the kernel counted.
    pub counts: Counts,
    /// What it did.
    pub behaviour: Behaviour,
    /// What KVM has counted of the virtual machine meanwhile, by the names of its counters; those
    /// that are missing have not changed.
    pub kvm: BTreeMap<String, i64>,
}

/// What the kernel counted in a run: where the time went.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Counts {
    /// Processor time of the program and its children in user mode.
    pub user_ns: f64,
    /// Processor time of the program and its children in the kernel.
    pub system_ns: f64,
    /// Page faults that needed no input or output.
    pub minor_faults: f64,
    /// Page faults that waited for input or output.
    pub major_faults: f64,
    /// How often a thread gave up its processor, or had to.
    pub switches: f64,
    /// Processor time of the tracker, which runs beside the program.
    pub tracker_ns: f64,
    /// Rounds that the tracker collected.
    pub rounds: f64,
    /// Pages in these rounds.
    pub pages: f64,
}

/// Medians of [`Counts`] over the runs.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct CountMedians {
    pub(crate) user_ns: f64,
    pub(crate) system_ns: f64,
    pub(crate) minor_faults: f64,
    pub(crate) major_faults: f64,
    pub(crate) switches: f64,
    pub(crate) tracker_ns: f64,
    pub(crate) rounds: f64,
    pub(crate) pages: f64,
}

impl CountMedians {
    pub(crate) fn of(samples: &[Sample]) -> Self {
        let median = |count: fn(&Counts) -> f64| {
            Estimate::of(samples.iter().map(|sample| count(&sample.counts))).median
        };
        Self {
            user_ns: median(|counts| counts.user_ns),
            system_ns: median(|counts| counts.system_ns),
            minor_faults: median(|counts| counts.minor_faults),
            major_faults: median(|counts| counts.major_faults),
            switches: median(|counts| counts.switches),
            tracker_ns: median(|counts| counts.tracker_ns),
            rounds: median(|counts| counts.rounds),
            pages: median(|counts| counts.pages),
        }
    }
}

/// Medians of KVM's counters over the runs.
pub(crate) fn kvm_medians(samples: &[Sample]) -> BTreeMap<String, f64> {
    let names = samples.iter().flat_map(|sample| sample.kvm.keys());
    let names: BTreeSet<&String> = names.collect();
    let medians = names.into_iter().map(|name| {
        let counts = samples.iter();
        let counts = counts.map(|sample| *sample.kvm.get(name).unwrap_or(&0) as f64);
        (name.clone(), Estimate::of(counts).median)
    });
    medians.collect()
}
