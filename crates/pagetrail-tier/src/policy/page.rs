//! [`Page`]: what the policy remembers of a page, in 8 bytes, and its way through the multi-level queue.
//!
//! HMM-V, section 4.1.2. A page of level 0 is asked about in every window. One that was touched when it was asked about
//! goes up a level; at level x it is then left alone for 2^(x-1) windows, in which it counts as touched, and asked about
//! again in the window after. One that was not touched goes down a level, and stays armed: asking costs nothing until
//! it is touched.

use super::Tells;
use super::settings::Settings;
use super::table::Place;

/// Bits of [`Page::state`].
mod state {
    /// Two bits: absent, fast or slow.
    pub(super) const PLACE: u8 = 0b11;
    /// It cannot be moved.
    pub(super) const FIXED: u8 = 1 << 2;
    /// The last time that it was asked about writes, it was written.
    pub(super) const WROTE: u8 = 1 << 3;
    /// It was left alone, and is asked about before its time.
    pub(super) const SPOT: u8 = 1 << 4;
    /// It is left alone as one that is used rarely: nothing is said of it meanwhile.
    pub(super) const RARE: u8 = 1 << 5;
}

/// From this level on a page was touched so often in a row that it should be in use.
const TRUSTED: u8 = 3;
/// From this level on it counts as touched while it is left alone, whatever was seen before.
const SURE: u8 = 4;

/// What is remembered of a page.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Page {
    /// A bit for each of the last windows that told of accesses, the newest lowest.
    reads: u16,
    /// The same for writes.
    writes: u16,
    /// In the queue.
    level: u8,
    /// For how many windows it is left alone yet.
    rest: u8,
    /// For how many windows it has been left alone since it was asked about last.
    slept: u8,
    state: u8,
}

/// What a window tells, the same for all pages.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    pub(super) accesses: bool,
    pub(super) writes: bool,
    /// Whether all that was known is in doubt: who is not used now has no history.
    pub(super) doubtful: bool,
    /// Whether all of the history that is kept was seen: one without a touch is that of a page that is used rarely.
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

    /// How many kinds of place there are: absent, fast or slow, and each of them with pages that cannot be moved.
    pub(super) const KINDS: usize = 8;

    /// Where it is and whether it cannot be moved, as a small number.
    #[inline]
    pub(super) fn kind(&self) -> usize {
        usize::from(self.state & (state::PLACE | state::FIXED))
    }

    /// What such a number stands for.
    pub(super) fn place_of(kind: usize) -> (Place, bool) {
        let page = Self {
            state: kind as u8,
            ..Self::default()
        };
        (page.place(), page.is_fixed())
    }

    /// Whether it is at the bottom of the queue: a window in which it is not touched is remembered, and that is all.
    #[inline]
    pub(super) fn is_at_the_bottom(&self) -> bool {
        self.level | self.rest | self.slept | self.state & state::SPOT == 0
    }

    /// Takes a window in which it was not touched, at the bottom of the queue.
    #[inline]
    pub(super) fn observe_nothing(&mut self, mask: u16, asked: Asked) {
        self.reads = (self.reads << u8::from(asked.accesses)) & mask;
        self.writes = (self.writes << u8::from(asked.writes)) & mask;
        if asked.writes {
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

    /// Remembers the last windows only.
    pub(super) fn forget_before(&mut self, windows: u8) {
        let mask = u16::MAX >> (16 - windows);
        self.reads &= mask;
        self.writes &= mask;
    }

    /// Whether it is left alone at the moment.
    pub(super) fn is_asleep(&self) -> bool {
        self.rest > 0
    }

    /// Whether it is left alone after having been touched so often in a row that it should be in use.
    pub(super) fn is_trusted(&self) -> bool {
        self.is_asleep() && self.level >= TRUSTED
    }

    /// Whether it was left alone for having been touched so often in a row, and is asked about now.
    #[inline]
    pub(super) fn is_trusted_and_asked(&self) -> bool {
        self.level >= TRUSTED && self.rest == 0 && self.slept > 0
    }

    /// Whether it was touched so often in a row that it should be in use, left alone at the moment or not.
    pub(super) fn should_be_in_use(&self) -> bool {
        self.level >= TRUSTED
    }

    /// Has it asked about in the next window.
    pub(super) fn wake(&mut self) {
        self.rest = 0;
        self.set(state::RARE, false);
    }

    /// Has it asked about in the next window, and whatever it was trusted with it must earn again.
    pub(super) fn doubt(&mut self) {
        self.wake();
        self.level = self.level.min(1);
    }

    /// Has it asked about in the next window, as a sample of those that are left alone.
    pub(super) fn spot_check(&mut self) {
        self.wake();
        self.set(state::SPOT, true);
    }

    /// Has it asked about in one window as a sample, and left alone as before afterwards.
    pub(super) fn glance(&mut self) {
        self.set(state::SPOT, true);
    }

    /// Whether the window that ends asks about it as a sample. It does so once.
    #[inline]
    pub(super) fn take_spot(&mut self) -> bool {
        let spot = self.state & state::SPOT != 0;
        self.state &= !state::SPOT;
        spot
    }

    fn set(&mut self, bit: u8, on: bool) {
        self.state = self.state & !bit | if on { bit } else { 0 };
    }

    /// Takes what a window tells about it; true if it must be armed for the next.
    #[inline]
    pub(super) fn observe(
        &mut self,
        settings: &Settings,
        tells: Tells,
        asked: Asked,
        accessed: bool,
        written: bool,
    ) -> bool {
        let asleep = self.is_asleep();
        let (mut read_bit, mut write_bit) = (accessed || written, written);
        if asleep {
            let counts =
                self.state & state::RARE == 0 && !self.counts_answers_only(settings, asked);
            (read_bit, write_bit) = (counts, counts && self.state & state::WROTE != 0);
        }
        let mask = u16::MAX >> (16 - settings.windows);
        let silent = self.reads | self.writes == 0;
        if asked.accesses {
            self.reads = (self.reads << 1 | u16::from(read_bit)) & mask;
        }
        if asked.writes {
            self.writes = (self.writes << 1 | u16::from(write_bit)) & mask;
        }
        if asleep {
            self.rest -= 1;
            if self.state & state::RARE == 0 {
                self.slept = self.slept.saturating_add(1);
            } else if self.rest == 0 {
                self.set(state::RARE, false);
            }
            return self.rest == 0;
        }
        if asked.writes {
            self.set(state::WROTE, written);
        }
        if accessed || written {
            self.slept = 0;
            self.level = (self.level + 1).min(settings.level_max);
            self.rest = match self.level {
                0 => 0,
                1 if silent && asked.settled && settings.rare_rest > 0 => {
                    self.set(state::RARE, true);
                    1 + settings.rare_rest
                }
                level => 1 << (level - 1),
            };
            return self.rest == 0;
        }
        // That it was not written says nothing about reads, where the source tells of those in other windows.
        if asked.accesses || !tells.accesses {
            if asked.doubtful && self.slept > 0 {
                (self.reads, self.writes) = (0, 0);
            } else if settings.take_back && self.slept > 0 {
                self.take_back(tells, asked);
            }
            self.slept = 0;
            self.level = self.level.saturating_sub(1);
        }
        false
    }

    /// Whether the windows in which it is left alone do not count as touched: once all that is remembered was seen, touches
    /// that meet by chance would outdo pages that are really in use.
    #[inline]
    fn counts_answers_only(&self, settings: &Settings, asked: Asked) -> bool {
        settings.only_answers && asked.settled && self.level < SURE
    }

    /// Erases the windows in which it was taken for touched, behind the newest where that is an answer.
    #[cold]
    fn take_back(&mut self, tells: Tells, asked: Asked) {
        let slept = match tells.in_turns {
            true => self.slept.div_ceil(2),
            false => self.slept,
        };
        let guessed = |answered: bool| {
            let ones = u16::MAX
                .checked_shl(slept.into())
                .map_or(u16::MAX, |above| !above);
            ones << u8::from(answered)
        };
        self.reads &= !guessed(asked.accesses);
        self.writes &= !guessed(asked.writes);
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

    const READS: Tells = Tells {
        accesses: true,
        writes: false,
        in_turns: false,
    };
    const ASKED: Asked = Asked {
        accesses: true,
        writes: false,
        doubtful: false,
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
            armed = page.observe(settings, READS, ASKED, true, false);
        }
        faults
    }

    #[test]
    fn a_page_of_level_x_is_left_alone_for_two_to_the_x_minus_one_windows() {
        let settings = Settings::default();
        // Asked, then left alone for 1, 2, 4, 8, 16, 32, 64, and 64 again.
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
            page.observe(&settings, READS, ASKED, matches!(window, 1 | 3 | 6), false);
            assert_eq!(page.degree(&settings), window);
        }
    }

    #[test]
    fn once_all_is_known_answers_alone_count_at_a_low_level() {
        let settings = Settings::default();
        let degrees = |settled| {
            let asked = Asked { settled, ..ASKED };
            let mut page = Page::new(Place::Slow, false);
            page.reads = 1 << 7;
            [true; 6].map(|touched| {
                page.observe(&settings, READS, asked, touched, false);
                page.degree(&settings)
            })
        };
        // Asked in the windows 1, 3 and 6.
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
                page.observe(&settings, READS, ASKED, touched, false);
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
            assert!(!page.observe(&settings, READS, ASKED, false, false));
            assert!(!page.is_asleep());
            assert_eq!(page.level, level);
        }
    }

    #[test]
    fn in_turns_a_window_of_writes_says_nothing_about_reads() {
        let settings = Settings::default();
        let tells = Tells {
            accesses: true,
            writes: true,
            in_turns: true,
        };
        let writes = Asked {
            accesses: false,
            writes: true,
            doubtful: false,
            settled: false,
        };
        let mut page = Page::new(Place::Slow, false);
        page.level = 3;
        page.observe(&settings, tells, writes, false, false);
        assert_eq!((page.level, page.degree(&settings)), (3, 0));
        page.observe(&settings, tells, ASKED, false, false);
        assert_eq!(page.level, 2);
        page.observe(&settings, tells, writes, false, true);
        assert_eq!((page.level, page.degree(&settings)), (3, 3));
        assert!(page.is_asleep());
        // Left alone it counts as written where it was written last.
        page.observe(&settings, tells, ASKED, false, false);
        page.observe(&settings, tells, writes, false, false);
        assert_eq!(page.degree(&settings), 3 + 1 + 3);
    }

    #[test]
    fn a_page_that_is_used_rarely_is_asked_about_less_and_counts_what_was_seen() {
        let settings = Settings::default();
        let settled = Asked {
            settled: true,
            ..ASKED
        };
        let mut page = Page::new(Place::Slow, false);
        page.level = 1;
        for _ in 0..settings.windows {
            page.observe(&settings, READS, settled, false, false);
        }
        let mut armed = true;
        let mut asked = Vec::new();
        for window in 1..=8 {
            if armed {
                asked.push(window);
            }
            armed = page.observe(&settings, READS, settled, true, false);
        }
        // Left alone for three windows; from then on it is one like the others.
        assert_eq!(asked, [1, 5, 8]);
        assert_eq!(page.degree(&settings), 3, "what was seen");
        page.observe(&settings, READS, settled, false, false);
        page.doubt();
        assert!(!page.is_asleep());
    }

    #[test]
    fn eight_bytes_are_all() {
        assert_eq!(size_of::<Page>(), 8);
    }
}
