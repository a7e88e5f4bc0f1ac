//! [`Page`]: the 8 bytes of state that the policy has for a page, and its moves through the
//! multi-level queue.
//!
//! HMM-V, section 4.1.2. A page of level 0 is sampled in every window. A sampled page that was
//! accessed goes up a level; at level x it then backs off for 2^(x-1) windows, in which it counts
//! as accessed, and is sampled in the window after. A sampled page that was not accessed goes down
//! a level and stays armed: sampling costs nothing until the page is accessed.

use super::SourceCaps;
use super::settings::Settings;
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
/// Level from which on a backed-off page counts as accessed, whatever its history.
const SURE: u8 = 4;

/// The state of a page.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Page {
    /// One bit for each of the last windows that tracked accesses, the newest in the lowest bit.
    reads: u16,
    /// One bit for each of the last windows that tracked writes.
    writes: u16,
    /// Level in the queue.
    level: u8,
    /// Number of windows for which the page is still backed off.
    rest: u8,
    /// Number of windows since the page was last sampled.
    slept: u8,
    state: u8,
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
    pub(super) fn observe_nothing(&mut self, mask: u16, kind: WindowKind) {
        self.reads = (self.reads << u8::from(kind.accesses)) & mask;
        self.writes = (self.writes << u8::from(kind.writes)) & mask;
        if kind.writes {
            self.set(state::WROTE, false);
        }
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

    /// Updates the page with the sample of a window; returns whether it must be armed for the next.
    #[inline]
    pub(super) fn observe(
        &mut self,
        settings: &Settings,
        caps: SourceCaps,
        kind: WindowKind,
        accessed: bool,
        written: bool,
    ) -> bool {
        let backed_off = self.is_backed_off();
        let (mut read_bit, mut write_bit) = (accessed || written, written);
        if backed_off {
            let counts = self.state & state::RARE == 0 && !self.counts_answers_only(settings, kind);
            (read_bit, write_bit) = (counts, counts && self.state & state::WROTE != 0);
        }
        let mask = u16::MAX >> (16 - settings.windows);
        let silent = self.reads | self.writes == 0;
        if kind.accesses {
            self.reads = (self.reads << 1 | u16::from(read_bit)) & mask;
        }
        if kind.writes {
            self.writes = (self.writes << 1 | u16::from(write_bit)) & mask;
        }
        if backed_off {
            self.rest -= 1;
            if self.state & state::RARE == 0 {
                self.slept = self.slept.saturating_add(1);
            } else if self.rest == 0 {
                self.set(state::RARE, false);
            }
            return self.rest == 0;
        }
        if kind.writes {
            self.set(state::WROTE, written);
        }
        if accessed || written {
            self.slept = 0;
            self.level = (self.level + 1).min(settings.level_max);
            self.rest = match self.level {
                0 => 0,
                1 if silent && kind.settled && settings.rare_rest > 0 => {
                    self.set(state::RARE, true);
                    1 + settings.rare_rest
                }
                level => 1 << (level - 1),
            };
            return self.rest == 0;
        }
        // A page that was not written may have been read, if the source tracks reads in other
        // windows.
        if kind.accesses || !caps.accesses {
            if kind.phase_changed && self.slept > 0 {
                (self.reads, self.writes) = (0, 0);
            } else if settings.take_back && self.slept > 0 {
                self.take_back(caps, kind);
            }
            self.slept = 0;
            self.level = self.level.saturating_sub(1);
        }
        false
    }

    /// Whether windows in which the page is backed off do not count as accessed. They do not once
    /// the whole history was observed: accesses that coincide by chance would then rank above pages
    /// that are in steady use.
    #[inline]
    fn counts_answers_only(&self, settings: &Settings, kind: WindowKind) -> bool {
        settings.only_answers && kind.settled && self.level < SURE
    }

    /// Erases the windows in which the page was assumed to be accessed; the newest window stays if
    /// it sampled the page.
    #[cold]
    fn take_back(&mut self, caps: SourceCaps, kind: WindowKind) {
        let slept = match caps.in_turns {
            true => self.slept.div_ceil(2),
            false => self.slept,
        };
        let guessed = |answered: bool| {
            let ones = u16::MAX
                .checked_shl(slept.into())
                .map_or(u16::MAX, |above| !above);
            ones << u8::from(answered)
        };
        self.reads &= !guessed(kind.accesses);
        self.writes &= !guessed(kind.writes);
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

    /// Its temperature.
    #[cfg(test)]
    fn degree(&self, settings: &Settings) -> u16 {
        self.reads.count_ones() as u16 * u16::from(settings.read_weight)
            + self.writes.count_ones() as u16 * u16::from(settings.write_weight)
    }

    /// In how many of the last `windows` it was touched; at most.
    pub(super) fn touches(&self, windows: u8) -> u16 {
        let mask = u16::MAX >> (16 - windows);
        ((self.reads | self.writes) & mask).count_ones() as u16
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

    const READS: SourceCaps = SourceCaps {
        accesses: true,
        writes: false,
        in_turns: false,
    };
    const KIND: WindowKind = WindowKind {
        accesses: true,
        writes: false,
        phase_changed: false,
        settled: false,
    };

    /// In which of `windows` windows a page that is always touched takes a fault.
    fn faults(settings: &Settings, windows: usize) -> Vec<usize> {
        let mut page = Page::new(Place::Slow, false);
        let mut armed = true;
        let mut faults = Vec::new();
        for window in 1..=windows {
            if armed {
                faults.push(window);
            }
            armed = page.observe(settings, READS, KIND, true, false);
        }
        faults
    }

    #[test]
    fn a_page_of_level_x_is_left_alone_for_two_to_the_x_minus_one_windows() {
        let settings = Settings::default();
        // Sampled, then backed off for 1, 2, 4, 8, 16, 32, 64, and 64 again.
        let expected = [1, 3, 6, 11, 20, 37, 70, 135, 200];
        assert_eq!(faults(&settings, 200), expected);
        let off = Settings {
            level_max: 0,
            ..settings
        };
        assert_eq!(faults(&off, 9), (1..=9).collect::<Vec<_>>());
    }

    #[test]
    fn left_alone_it_counts_as_touched() {
        let settings = Settings::default();
        let mut page = Page::new(Place::Slow, false);
        for window in 1..=8 {
            // The source reports it while it is not armed, or does not: it makes no difference.
            page.observe(&settings, READS, KIND, matches!(window, 1 | 3 | 6), false);
            assert_eq!(page.degree(&settings), window);
        }
    }

    #[test]
    fn once_all_is_known_answers_alone_count_at_a_low_level() {
        let settings = Settings::default();
        let degrees = |settled| {
            let kind = WindowKind { settled, ..KIND };
            let mut page = Page::new(Place::Slow, false);
            page.reads = 1 << 7;
            [true; 6].map(|touched| {
                page.observe(&settings, READS, kind, touched, false);
                page.degree(&settings)
            })
        };
        // Sampled in the windows 1, 3 and 6.
        assert_eq!(degrees(true), [1, 1, 2, 2, 2, 3]);
        assert_eq!(degrees(false), [1, 2, 3, 4, 5, 6]);
    }

    #[test]
    fn a_guess_that_was_wrong_is_taken_back() {
        let mut settings = Settings::default();
        for (take_back, degree) in [(true, 2), (false, 4)] {
            settings.take_back = take_back;
            let mut page = Page::new(Place::Slow, false);
            // Touched, left alone, touched, left alone for two windows, and not touched.
            for touched in [true, false, true, false, false, false] {
                page.observe(&settings, READS, KIND, touched, false);
            }
            // Windows 1 and 3 were seen, 2 was confirmed by 3, 4 and 5 were guesses.
            assert_eq!(page.degree(&settings), degree + 1);
            assert_eq!(page.level, 1);
        }
    }

    #[test]
    fn an_untouched_page_falls_level_by_level_and_stays_armed() {
        let settings = Settings::default();
        let mut page = Page::new(Place::Fast, false);
        page.level = 7;
        for level in (0..7).rev() {
            assert!(!page.observe(&settings, READS, KIND, false, false));
            assert!(!page.is_backed_off());
            assert_eq!(page.level, level);
        }
    }

    #[test]
    fn in_turns_a_window_of_writes_says_nothing_about_reads() {
        let settings = Settings::default();
        let caps = SourceCaps {
            accesses: true,
            writes: true,
            in_turns: true,
        };
        let writes = WindowKind {
            accesses: false,
            writes: true,
            phase_changed: false,
            settled: false,
        };
        let mut page = Page::new(Place::Slow, false);
        page.level = 3;
        page.observe(&settings, caps, writes, false, false);
        assert_eq!((page.level, page.degree(&settings)), (3, 0));
        page.observe(&settings, caps, KIND, false, false);
        assert_eq!(page.level, 2);
        page.observe(&settings, caps, writes, false, true);
        assert_eq!((page.level, page.degree(&settings)), (3, 3));
        assert!(page.is_backed_off());
        // Left alone it counts as written where it was written last.
        page.observe(&settings, caps, KIND, false, false);
        page.observe(&settings, caps, writes, false, false);
        assert_eq!(page.degree(&settings), 3 + 1 + 3);
    }

    #[test]
    fn a_page_that_is_used_rarely_is_asked_about_less_and_counts_what_was_seen() {
        let settings = Settings::default();
        let settled = WindowKind {
            settled: true,
            ..KIND
        };
        let mut page = Page::new(Place::Slow, false);
        page.level = 1;
        for _ in 0..settings.windows {
            page.observe(&settings, READS, settled, false, false);
        }
        let mut armed = true;
        let mut sampled_in = Vec::new();
        for window in 1..=8 {
            if armed {
                sampled_in.push(window);
            }
            armed = page.observe(&settings, READS, settled, true, false);
        }
        // Left alone for three windows; from then on it is one like the others.
        assert_eq!(sampled_in, [1, 5, 8]);
        assert_eq!(page.degree(&settings), 3, "what was seen");
        page.observe(&settings, READS, settled, false, false);
        page.reset_back_off();
        assert!(!page.is_backed_off());
    }

    #[test]
    fn eight_bytes_are_all() {
        assert_eq!(size_of::<Page>(), 8);
    }
}
