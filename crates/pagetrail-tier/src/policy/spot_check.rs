//! [`Samples`]: samples some backed-off pages early, to detect phase changes of the program.

use super::page::Page;
use super::settings::Settings;

/// Samples of backed-off pages, and how many of them were accessed as expected.
///
/// Pages of one level are due together. If more backed-off pages are due in a window than are still
/// backed off, few are left to pick from, and the pages that are due serve as the sample.
pub(super) struct Samples {
    one_in: u64,
    /// Changes with the window, so that other pages are picked.
    salt: u64,
    /// Picked pages, by whether they were accessed.
    used: u32,
    unused: u32,
    /// Pages whose back-off ended with the last window, by whether they were accessed in this one.
    used_in_turn: u32,
    unused_in_turn: u32,
    /// Pages that should be in use and are still backed off.
    resting: u32,
}

impl Samples {
    /// The fewest sampled pages from which a phase change is concluded.
    const LEAST: u32 = 8;

    pub(super) fn new(settings: &Settings, window: u64) -> Self {
        Self {
            one_in: settings.spot_check.into(),
            salt: scatter(window + 1, 1 << 31),
            used: 0,
            unused: 0,
            used_in_turn: 0,
            unused_in_turn: 0,
            resting: 0,
        }
    }

    /// Counts a page that was picked in the last window, or whose back-off has ended.
    #[inline]
    pub(super) fn take(&mut self, page: &mut Page, touched: bool) {
        if page.is_trusted() {
            self.resting += 1;
        } else if page.is_trusted_and_sampled() {
            *(if touched {
                &mut self.used_in_turn
            } else {
                &mut self.unused_in_turn
            }) += 1;
        }
        self.take_picked(page, touched);
    }

    /// Counts a page if it was picked in the last window, and in a probe nothing else is sampled.
    #[inline]
    pub(super) fn take_picked(&mut self, page: &mut Page, touched: bool) {
        if page.take_spot() {
            *(if touched {
                &mut self.used
            } else {
                &mut self.unused
            }) += 1;
        }
    }

    /// Picks a few of the backed-off pages that should be in use; returns whether this is one.
    #[inline]
    pub(super) fn draw(&mut self, page: &mut Page, address: u64) -> bool {
        let picked = page.is_trusted() && self.picks(address);
        if picked {
            page.spot_check();
        }
        picked
    }

    /// Picks a few of the pages that should be in use for a probe, which leaves their back-off as
    /// it is; returns whether this is one.
    pub(super) fn probe(&mut self, page: &mut Page, address: u64) -> bool {
        let picked = page.should_be_in_use() && self.picks(address);
        if picked {
            page.probe();
        }
        picked
    }

    #[inline]
    fn picks(&self, address: u64) -> bool {
        self.one_in > 0 && scatter((address >> 12) ^ self.salt, self.one_in) == 0
    }

    /// Whether so many of the sampled pages were not accessed that the program is in another phase.
    pub(super) fn contradict(&self, settings: &Settings) -> bool {
        let in_turn = self.used_in_turn + self.unused_in_turn;
        let (used, unused) = match self.one_in > 0 && in_turn > self.resting {
            true => (self.used_in_turn, self.unused_in_turn),
            false => (self.used, self.unused),
        };
        let all = used + unused;
        all >= Self::LEAST && unused * 100 > all * u32::from(settings.phase_change_percent)
    }
}

/// A number below `most` for each number, neighbours far apart: Fibonacci hashing.
#[inline]
pub(super) fn scatter(number: u64, most: u64) -> u64 {
    let hash = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    (hash * most) >> 32
}
