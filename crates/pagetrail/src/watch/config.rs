//! [`Config`]: the settings that a watch keeps after its start, and the tracker that they describe.

use super::latent::Unwritable;
use crate::budget::Allowance;
use crate::error::{Error, Result};
use crate::technique::access_scan::AccessScan;
use crate::technique::adaptive::{Adaptive, FalsePositiveCost, Precision};
use crate::technique::alternate::Alternate;
use crate::technique::ooh::Ooh;
use crate::technique::pagemap_scan::{HugePages, PagemapScan};
use crate::technique::soft_dirty::SoftDirty;
use crate::technique::userfaultfd::Userfaultfd;
use crate::technique::{Tracker, compare::Compare, mprotect::Mprotect, none};
use crate::types::{AccessKind, CollectAt, ReportPages, Technique, TrackMode, UntrackedPolicy};
use rustix::fd::OwnedFd;
use std::ops::RangeInclusive;
use std::time::Duration;

/// The settings that a watch keeps after its start: an `execve` of the target needs them again.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    pub(crate) track: TrackMode,
    pub(crate) huge_pages: HugePages,
    pub(crate) block_pages: u32,
    pub(crate) collect_at: CollectAt,
    pub(crate) untracked: UntrackedPolicy,
    pub(crate) unwritable: Unwritable,
    pub(crate) report_pages: ReportPages,
    pub(crate) false_positive_cost: Option<FalsePositiveCost>,
    pub(crate) precision: Precision,
    pub(crate) merge_subpages: bool,
    pub(crate) max_overhead: Option<f64>,
    pub(crate) intervals: RangeInclusive<Duration>,
}

impl Config {
    /// Whether a technique that predicts is wanted: the consumer has set what a false positive
    /// costs, or what tracking may cost.
    pub(super) fn predicts(&self) -> bool {
        self.false_positive_cost.is_some() || self.max_overhead.is_some()
    }

    /// What tracking may cost.
    pub(super) fn allowance(&self) -> Option<Allowance> {
        self.max_overhead.map(|share| Allowance {
            share,
            intervals: self.intervals.clone(),
        })
    }

    /// Refuses an allowance that makes no sense.
    pub(super) fn check_allowance(&self) -> Result<()> {
        match self.allowance().and_then(|allowance| allowance.is_wrong()) {
            Some(reason) => Err(Error::WrongBudget { reason }),
            None => Ok(()),
        }
    }

    /// Makes the technique's tracker for an address space; `pid` is `None` for the own one.
    pub(crate) fn tracker(
        &self,
        technique: Technique,
        fd: Option<OwnedFd>,
        pid: Option<u32>,
    ) -> Result<Box<dyn Tracker>> {
        let missing = || Error::Unavailable {
            technique,
            reason: "no userfaultfd of the target".into(),
        };
        Ok(match technique {
            Technique::PagemapScan => Box::new(PagemapScan::new(
                fd.ok_or_else(missing)?,
                pid,
                self.huge_pages,
            )?),
            Technique::Adaptive => Box::new(Adaptive::new(
                fd.ok_or_else(missing)?,
                pid,
                self.huge_pages,
                self.false_positive_cost.unwrap_or_default(),
                self.precision,
            )?),
            Technique::Userfaultfd => Box::new(Userfaultfd::new(
                fd.ok_or_else(missing)?,
                pid,
                self.block_pages,
            )?),
            Technique::SoftDirty => Box::new(SoftDirty::new(
                pid,
                self.collect_at == CollectAt::Safepoint,
            )?),
            Technique::Mprotect if self.track == TrackMode::Accesses => {
                Box::new(Mprotect::new(AccessKind::Accesses))
            }
            Technique::Mprotect => Box::new(Mprotect::new(AccessKind::Writes)),
            Technique::Compare => Box::new(Compare::new(pid)?),
            Technique::AccessScan if self.track == TrackMode::Alternate => Box::new(
                Alternate::new(fd.ok_or_else(missing)?, pid, self.huge_pages)?,
            ),
            Technique::AccessScan => Box::new(AccessScan::new(
                fd.ok_or_else(missing)?,
                pid,
                self.huge_pages,
            )?),
            Technique::Epml | Technique::Spml | Technique::SpmlSearch => {
                Box::new(Ooh::new(technique, pid)?)
            }
            Technique::None => Box::new(none::None::new(pid)?),
        })
    }
}
