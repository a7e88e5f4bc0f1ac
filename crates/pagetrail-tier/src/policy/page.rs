//! [`Page`]: the 12 bytes of state that the policy has for a page; its moves through the
//! multi-level queue are in [`queue`].

mod queue;

use super::cursor::Touch;
use super::means::Means;
use super::table::Place;

/// Bits of [`Page::state`].
mod state {
    /// Two bits: absent, fast or slow.
    pub(super) const PLACE: u8 = 0b11;
    /// The page cannot be moved.
    pub(super) const FIXED: u8 = 1 << 2;
    /// The page was written in the last window that sampled its writes.
    pub(super) const WROTE: u8 = 1 << 3;
    /// The page is backed off and sampled early, as a spot check.
    pub(super) const SPOT: u8 = 1 << 4;
    /// The page is backed off as rarely used: it does not count as accessed meanwhile.
    pub(super) const RARE: u8 = 1 << 5;
}

/// Level from which on a page counts as in use, after accesses in several samples in a row.
const TRUSTED: u8 = 3;

/// The state of a page.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Page {
    /// One bit for each of the last windows that tracked accesses, the newest in the lowest bit.
    reads: u16,
    /// One bit for each of the last windows that tracked writes.
    writes: u16,
    /// The part of the windows of a longer time in which it was accessed, in 65535ths.
    long_reads: u16,
    /// The part in which it was written.
    long_writes: u16,
    /// Level in the queue.
    level: u8,
    /// Number of windows for which the page is still backed off.
    rest: u8,
    /// Number of windows since the page was last sampled.
    slept: u8,
    state: u8,
}

/// The means of a page over a longer time, of its accesses and of its writes.
#[derive(Clone, Copy, Debug)]
pub(super) struct LongTerm {
    reads: u16,
    writes: u16,
}

/// What a window samples, common to all pages.
#[derive(Clone, Copy, Debug)]
pub(super) struct WindowKind {
    pub(super) accesses: bool,
    pub(super) writes: bool,
    /// Whether a phase change came before: a page that is not accessed now loses its history.
    pub(super) phase_changed: bool,
    /// Whether the whole history was observed: an empty history then means a rarely used page.
    pub(super) settled: bool,
    /// Number of windows since the first, or since the last phase change.
    pub(super) seen: u16,
}

impl Page {
    pub(super) fn new(place: Place, fixed: bool) -> Self {
        let mut page = Self::default();
        page.set_place(place);
        page.set_fixed(fixed);
        page
    }

    pub(super) fn place(&self) -> Place {
        match self.state & state::PLACE {
            1 => Place::Fast,
            2 => Place::Slow,
            _ => Place::Absent,
        }
    }

    pub(super) fn set_place(&mut self, place: Place) {
        let bits = match place {
            Place::Absent => 0,
            Place::Fast => 1,
            Place::Slow => 2,
        };
        self.state = self.state & !state::PLACE | bits;
    }

    /// Number of kinds of place: absent, fast and slow, each with pages that can and cannot be
    /// moved.
    pub(super) const KINDS: usize = 8;

    /// The place of the page and whether it cannot be moved, as a small number.
    #[inline]
    pub(super) fn kind(&self) -> usize {
        usize::from(self.state & (state::PLACE | state::FIXED))
    }

    /// Decodes such a number.
    pub(super) fn place_of(kind: usize) -> (Place, bool) {
        let page = Self {
            state: kind as u8,
            ..Self::default()
        };
        (page.place(), page.is_fixed())
    }

    /// Whether the page is at the bottom of the queue, where a window without an access changes its
    /// history alone.
    #[inline]
    pub(super) fn is_at_the_bottom(&self) -> bool {
        self.level | self.rest | self.slept | self.state & state::SPOT == 0
    }

    /// Records a window without an access, at the bottom of the queue.
    #[inline]
    pub(super) fn observe_nothing(&mut self, mask: u16, means: &Means, kind: WindowKind) {
        self.reads = (self.reads << u8::from(kind.accesses)) & mask;
        self.writes = (self.writes << u8::from(kind.writes)) & mask;
        if self.long_reads | self.long_writes != 0 {
            self.average(means, kind, Touch::default());
        }
        if kind.writes {
            self.set(state::WROTE, false);
        }
    }

    /// Adds a window that was sampled to the means over a longer time. It stands for those before
    /// it in which the page was backed off: that the page counted as accessed in them is not known.
    #[inline]
    fn average(&mut self, means: &Means, kind: WindowKind, touch: Touch) {
        let weight = means.weight(self.slept, kind.seen);
        if kind.accesses {
            let mean = Means::mix(self.long_reads, touch.any(), weight);
            self.long_reads = means.believed(mean, self.reads);
        }
        if kind.writes {
            let mean = Means::mix(self.long_writes, touch.written, weight);
            self.long_writes = means.believed(mean, self.writes);
        }
    }

    /// Its means over a longer time.
    pub(super) fn long_term(&self) -> LongTerm {
        LongTerm {
            reads: self.long_reads,
            writes: self.long_writes,
        }
    }

    pub(super) fn set_long_term(&mut self, means: LongTerm) {
        (self.long_reads, self.long_writes) = (means.reads, means.writes);
    }

    /// Its temperature over a longer time, in degrees of so many windows.
    #[inline]
    pub(super) fn long_degree(&self, windows: u8, read_weight: u8, write_weight: u8) -> u16 {
        let weighed = u32::from(self.long_reads) * u32::from(read_weight)
            + u32::from(self.long_writes) * u32::from(write_weight);
        let all = u32::from(u16::MAX);
        ((weighed * u32::from(windows) + all / 2) / all) as u16
    }

    pub(super) fn is_absent(&self) -> bool {
        self.state & state::PLACE == 0
    }

    pub(super) fn is_fixed(&self) -> bool {
        self.state & state::FIXED != 0
    }

    pub(super) fn set_fixed(&mut self, fixed: bool) {
        self.set(state::FIXED, fixed);
    }

    /// Drops all windows but the last ones from the history.
    pub(super) fn forget_before(&mut self, windows: u8) {
        let mask = u16::MAX >> (16 - windows);
        self.reads &= mask;
        self.writes &= mask;
    }

    /// Whether the page is backed off at present.
    pub(super) fn is_backed_off(&self) -> bool {
        self.rest > 0
    }

    /// Whether the page is backed off at a level at which it should be in use.
    pub(super) fn is_trusted(&self) -> bool {
        self.is_backed_off() && self.level >= TRUSTED
    }

    /// Whether the page was backed off at such a level and is sampled now.
    #[inline]
    pub(super) fn is_trusted_and_sampled(&self) -> bool {
        self.level >= TRUSTED && self.rest == 0 && self.slept > 0
    }

    /// Whether the page was accessed so often in a row that it should be in use, backed off or not.
    pub(super) fn should_be_in_use(&self) -> bool {
        self.level >= TRUSTED
    }

    /// Samples the page in the next window.
    pub(super) fn wake(&mut self) {
        self.rest = 0;
        self.set(state::RARE, false);
    }

    /// Samples the page in the next window and resets its back-off level.
    pub(super) fn reset_back_off(&mut self) {
        self.wake();
        self.level = self.level.min(1);
    }

    /// Samples the page in the next window as a spot check of backed-off pages.
    pub(super) fn spot_check(&mut self) {
        self.wake();
        self.set(state::SPOT, true);
    }

    /// Samples the page in one window as a probe, without changing its back-off.
    pub(super) fn probe(&mut self) {
        self.set(state::SPOT, true);
    }

    /// Whether the window that ends samples the page as a spot check; clears the mark.
    #[inline]
    pub(super) fn take_spot(&mut self) -> bool {
        let spot = self.state & state::SPOT != 0;
        self.state &= !state::SPOT;
        spot
    }

    fn set(&mut self, bit: u8, on: bool) {
        self.state = self.state & !bit | if on { bit } else { 0 };
    }

    /// Its temperature, by what the ones in a byte of each history weigh.
    #[inline]
    pub(super) fn weighed(&self, reads: &[u16; 256], writes: &[u16; 256]) -> u16 {
        let sum = |weights: &[u16; 256], history: u16| {
            let [low, high] = history.to_le_bytes();
            match high {
                // With eight windows, as by default, always.
                0 => weights[usize::from(low)],
                _ => weights[usize::from(low)] + weights[usize::from(high)],
            }
        };
        let read = sum(reads, self.reads);
        match self.writes {
            0 => read,
            history => read + sum(writes, history),
        }
    }

    /// In how many of the last `windows` it was touched; at most.
    pub(super) fn touches(&self, windows: u8) -> u16 {
        let mask = u16::MAX >> (16 - windows);
        ((self.reads | self.writes) & mask).count_ones() as u16
    }

    /// How many windows have passed since the one in which it was accessed; 16 if none is known.
    pub(super) fn windows_since(&self) -> u16 {
        (self.reads | self.writes).trailing_zeros() as u16
    }

    /// The page that two become, or a huge one that takes small ones in: as hot as the hottest.
    pub(super) fn merge(self, other: Self) -> Self {
        let hotter = |page: &Self| page.reads.count_ones() + page.writes.count_ones();
        let mut page = match hotter(&self) < hotter(&other) {
            true => other,
            false => self,
        };
        page.set_fixed(self.is_fixed() || other.is_fixed());
        page
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn twelve_bytes_are_all() {
        assert_eq!(size_of::<Page>(), 12);
    }
}
