//! The moves of a [`Page`] through the multi-level queue, by the samples of windows.
//!
//! HMM-V, section 4.1.2. A page of level 0 is sampled in every window. A sampled page that was
//! accessed goes up a level; at level x it then backs off for 2^(x-1) windows, in which it counts
//! as accessed, and is sampled in the window after. A sampled page that was not accessed goes down
//! a level and stays armed: sampling costs nothing until the page is accessed.

use super::{Means, Page, WindowKind, state};
use crate::policy::SourceCaps;
use crate::policy::cursor::Touch;
use crate::policy::settings::Settings;

/// Level from which on a backed-off page counts as accessed, whatever its history.
const SURE: u8 = 4;

impl Page {
    /// Updates the page with the sample of a window; returns whether it must be armed for the next.
    #[inline]
    pub(in crate::policy) fn observe(
        &mut self,
        settings: &Settings,
        means: &Means,
        caps: SourceCaps,
        kind: WindowKind,
        touch: Touch,
    ) -> bool {
        if self.is_backed_off() {
            return self.back_off_further(settings, kind);
        }
        let silent = self.reads | self.writes == 0;
        self.remember(settings, kind, touch);
        self.average(means, kind, touch);
        if kind.writes {
            self.set(state::WROTE, touch.written);
        }
        if touch.any() {
            return self.rise(settings, silent && kind.settled);
        }
        // A page that was not written may have been read, if the source tracks reads in other
        // windows.
        if kind.accesses || !caps.accesses {
            self.sink(settings, caps, kind);
        }
        false
    }

    /// Adds a window to the history.
    #[inline]
    fn remember(&mut self, settings: &Settings, kind: WindowKind, touch: Touch) {
        let mask = u16::MAX >> (16 - settings.windows);
        if kind.accesses {
            self.reads = (self.reads << 1 | u16::from(touch.any())) & mask;
        }
        if kind.writes {
            self.writes = (self.writes << 1 | u16::from(touch.written)) & mask;
        }
    }

    /// Records a window in which the page is backed off; returns whether that was the last.
    #[inline]
    fn back_off_further(&mut self, settings: &Settings, kind: WindowKind) -> bool {
        let is_rare = self.state & state::RARE != 0;
        let counts = !is_rare && !self.counts_answers_only(settings, kind);
        let assumed = Touch {
            accessed: counts,
            written: counts && self.state & state::WROTE != 0,
        };
        self.remember(settings, kind, assumed);
        self.rest -= 1;
        if !is_rare {
            self.slept = self.slept.saturating_add(1);
        } else if self.rest == 0 {
            self.set(state::RARE, false);
        }
        self.rest == 0
    }

    /// Moves the page up a level, after an access; returns whether it must be armed. `rarely_used`:
    /// no other window that is remembered had one.
    #[inline]
    fn rise(&mut self, settings: &Settings, rarely_used: bool) -> bool {
        self.slept = 0;
        self.level = (self.level + 1).min(settings.level_max);
        self.rest = match self.level {
            0 => 0,
            1 if rarely_used && settings.rare_rest > 0 => {
                self.set(state::RARE, true);
                1 + settings.rare_rest
            }
            level => 1 << (level - 1),
        };
        self.rest == 0
    }

    /// Moves the page down a level, after a window that would have seen an access.
    #[inline]
    fn sink(&mut self, settings: &Settings, caps: SourceCaps, kind: WindowKind) {
        if kind.phase_changed && self.slept > 0 {
            (self.reads, self.writes) = (0, 0);
        } else if settings.take_back && self.slept > 0 {
            self.take_back(caps, kind);
        }
        self.slept = 0;
        self.level = self.level.saturating_sub(1);
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

    /// Its temperature.
    #[cfg(test)]
    fn degree(&self, settings: &Settings) -> u16 {
        self.reads.count_ones() as u16 * u16::from(settings.read_weight)
            + self.writes.count_ones() as u16 * u16::from(settings.write_weight)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::table::Place;

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
        seen: 0,
    };

    fn means() -> Means {
        Means::new(0, 8, true)
    }

    fn touch(accessed: bool, written: bool) -> Touch {
        Touch { accessed, written }
    }

    /// In which of `windows` windows a page that is always touched takes a fault.
    fn faults(settings: &Settings, windows: usize) -> Vec<usize> {
        let mut page = Page::new(Place::Slow, false);
        let mut armed = true;
        let mut faults = Vec::new();
        for window in 1..=windows {
            if armed {
                faults.push(window);
            }
            armed = page.observe(settings, &means(), READS, KIND, touch(true, false));
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
            page.observe(
                &settings,
                &means(),
                READS,
                KIND,
                touch(matches!(window, 1 | 3 | 6), false),
            );
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
                page.observe(&settings, &means(), READS, kind, touch(touched, false));
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
                page.observe(&settings, &means(), READS, KIND, touch(touched, false));
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
            assert!(!page.observe(&settings, &means(), READS, KIND, touch(false, false)));
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
            seen: 0,
        };
        let mut page = Page::new(Place::Slow, false);
        page.level = 3;
        page.observe(&settings, &means(), caps, writes, touch(false, false));
        assert_eq!((page.level, page.degree(&settings)), (3, 0));
        page.observe(&settings, &means(), caps, KIND, touch(false, false));
        assert_eq!(page.level, 2);
        page.observe(&settings, &means(), caps, writes, touch(false, true));
        assert_eq!((page.level, page.degree(&settings)), (3, 3));
        assert!(page.is_backed_off());
        // Left alone it counts as written where it was written last.
        page.observe(&settings, &means(), caps, KIND, touch(false, false));
        page.observe(&settings, &means(), caps, writes, touch(false, false));
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
            page.observe(&settings, &means(), READS, settled, touch(false, false));
        }
        let mut armed = true;
        let mut sampled_in = Vec::new();
        for window in 1..=8 {
            if armed {
                sampled_in.push(window);
            }
            armed = page.observe(&settings, &means(), READS, settled, touch(true, false));
        }
        // Left alone for three windows; from then on it is one like the others.
        assert_eq!(sampled_in, [1, 5, 8]);
        assert_eq!(page.degree(&settings), 3, "what was seen");
        page.observe(&settings, &means(), READS, settled, touch(false, false));
        page.reset_back_off();
        assert!(!page.is_backed_off());
    }
}
