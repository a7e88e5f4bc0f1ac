//! What rounds cost a guest, held against what is allowed.

use std::ops::RangeInclusive;
use std::time::Duration;

use pagetrail::Pace;

use super::GuestSource;

impl GuestSource {
    /// Keeps what rounds cost the guest within a share of its time, 0.03 for 3 %, by the interval
    /// from one to the next ([`next_collect`](pagetrail::DirtySource::next_collect)), within these
    /// bounds. `write` is what the first write to a page in a round costs
    /// ([`price_of_write`](crate::check::price_of_write)).
    ///
    /// # Errors
    ///
    /// [`pagetrail::Error::WrongBudget`]: the share is not more than 0 and at most 1, or there is
    /// no such interval.
    pub fn set_max_overhead(
        &mut self,
        write: Duration,
        share: f64,
        intervals: RangeInclusive<Duration>,
    ) -> pagetrail::Result<()> {
        self.pace = Some(Pace::of_guest(self.process.pid(), write, share, intervals)?);
        Ok(())
    }

    /// Adds up what a round of so many dirty pages cost.
    pub(super) fn settle(&mut self, pages: u64) {
        if let Some(pace) = &mut self.pace {
            // The guest waits for none of it: its vCPUs leave it only where KVM must tell them.
            self.rounds.set_overhead(pace.spend(pages, Duration::ZERO));
        }
    }
}
