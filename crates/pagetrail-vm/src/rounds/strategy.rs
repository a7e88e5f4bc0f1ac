//! [`Strategy`]: which aliases of which pages to merge, from what earlier rounds have shown. Pure.
//!
//! A merge of aliases that are written in the same rounds saves a log entry for each of them but
//! one, which is a fault where the processor does not log by itself. It costs where only some of
//! them are written: all count as written then. A merged page does not show what its aliases would
//! have been. So a merge is taken apart from time to time, for one observation, and more rarely
//! each time that this shows what was expected (exponential back-off).

#[path = "strategy/evidence.rs"]
mod evidence;
#[path = "strategy/table.rs"]
mod table;

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use pagetrail::PageSet;

use super::unit_change::{Aliased, UnitChange};
use table::Pages;

/// How aliases of pages are merged, in a heap that distinguishes sub-pages
/// ([`GuestSource::set_units`](crate::GuestSource::set_units)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum UnitStrategy {
    /// Each sub-page is logged by itself.
    #[default]
    Static,
    /// Sub-pages that are written in the same round are merged, and everything is separated after
    /// this many rounds: the strategy of Lu et al., section 6.2.
    History(u32),
    /// Sub-pages that are written together in round after round are merged, where that reports
    /// hardly more than was written.
    Adaptive,
}

impl fmt::Display for UnitStrategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Static => write!(f, "static"),
            Self::History(rounds) => write!(f, "history:{rounds}"),
            Self::Adaptive => write!(f, "adaptive"),
        }
    }
}

impl FromStr for UnitStrategy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let rounds = text.strip_prefix("history:");
        match (text, rounds.map(str::parse)) {
            ("static", _) => Ok(Self::Static),
            ("adaptive", _) => Ok(Self::Adaptive),
            (_, Some(Ok(rounds))) if rounds > 0 => Ok(Self::History(rounds)),
            (_, Some(_)) => Err("history needs a number of rounds, at least 1: history:8".into()),
            _ => Err("the strategies are static, adaptive and history:ROUNDS".into()),
        }
    }
}

/// A strategy with what it knows of each heap.
#[derive(Debug)]
pub(crate) struct Strategy {
    kind: UnitStrategy,
    round: u32,
    heaps: BTreeMap<u64, (Aliased, Pages)>,
}

impl Strategy {
    pub(crate) fn new(kind: UnitStrategy) -> Self {
        Self {
            kind,
            round: 0,
            heaps: BTreeMap::new(),
        }
    }

    /// Takes in a round's written pages, at all aliases of `heaps`. Returns what to change before
    /// the next round.
    pub(crate) fn plan(
        &mut self,
        heaps: impl Iterator<Item = Aliased>,
        written: &PageSet,
    ) -> Vec<UnitChange> {
        let mut known = std::mem::take(&mut self.heaps);
        self.round = self.round.wrapping_add(1);
        let mut changes = Vec::new();
        for of in heaps.filter(|of| of.is_sound() && of.aliases > 1) {
            let known = known.remove(&of.base).filter(|(known, _)| *known == of);
            let mut pages = known.map_or_else(|| Pages::new(of), |(_, pages)| pages);
            let observed = observed(of, written);
            let merged = match self.kind {
                UnitStrategy::Static => Vec::new(),
                UnitStrategy::History(rounds) => {
                    pages.merge_at_once(&observed, self.round.is_multiple_of(rounds))
                }
                UnitStrategy::Adaptive => pages.adapt(&observed, self.round),
            };
            changes.extend(runs(of, &merged));
            self.heaps.insert(of.base, (of, pages));
        }
        changes
    }
}

/// The pages of which an alias is written, ascending, each with a bit per written alias.
fn observed(of: Aliased, written: &PageSet) -> Vec<(u64, u64)> {
    let mut found = Vec::new();
    for range in written
        .intersection(&of.range().into_iter().collect())
        .ranges()
    {
        for page in range.start() / 4096..range.end() / 4096 {
            found.extend(
                of.find(page * 4096)
                    .map(|(alias, number)| (number, 1 << alias)),
            );
        }
    }
    found.sort_unstable();
    let of_page = found.chunk_by(|one, next| one.0 == next.0);
    of_page
        .map(|bits| (bits[0].0, bits.iter().fold(0, |mask, (_, bit)| mask | bit)))
        .collect()
}

/// Changes of pages, ascending, as changes of runs.
fn runs(of: Aliased, merged: &[(u64, u64)]) -> impl Iterator<Item = UnitChange> {
    let continues = |one: &(u64, u64), next: &(u64, u64)| one.0 + 1 == next.0 && one.1 == next.1;
    merged.chunk_by(continues).map(move |run| UnitChange {
        of,
        first: run[0].0,
        pages: run.len() as u64,
        merged: run[0].1,
    })
}

// By its path, since `refused` has this file for other processors.
#[cfg(test)]
#[path = "strategy/tests.rs"]
mod tests;
