//! [`Areas`]: which classes of a heap's objects to hand out in whole pages, by what tracking them
//! by sub-pages has cost. Pure.
//!
//! Objects cannot move, but the next slab of a class can hand all of its objects out in the first
//! alias: a fault for each page then, instead of one for each sub-page that is written. That costs
//! nothing where slabs are used anew between two rounds, as those of a nursery are: such pages
//! count as written whole anyway. It does cost where objects stay, and are written one by one
//! later. So a class is merged while most of its faults are in slabs that were used anew, and
//! separated when its merged slabs turn out to stay: for longer each time (exponential back-off).

use super::slab::Word;

/// The number of classes of objects of less than a page.
const CLASSES: usize = 47;
/// The number of rounds after which is decided.
const WINDOW: u32 = 4;
/// Fewer pages say nothing.
const PAGES_MIN: u64 = 32;
/// Of so many merged pages that are written, one may be of a slab that stays.
const STAYING_MAX: u64 = 8;
/// The number of windows for which a class stays separated, the first time and at most.
const REST: u32 = 8;
const REST_MAX: u32 = 1024;

/// What is known of each class, from round to round.
#[derive(Debug)]
pub(crate) struct Areas {
    classes: [Class; CLASSES],
    rounds: u32,
}

/// Counts of a window, and what came of those before.
#[derive(Clone, Copy, Debug, Default)]
struct Class {
    /// Faults in pages of which sub-pages are distinguished.
    faults: u64,
    /// Faults in slabs that were used anew since the last round, and the pages of these.
    renewed_faults: u64,
    renewed_pages: u64,
    /// Pages of merged slabs, and those of them that were in the same use before.
    merged_pages: u64,
    staying_pages: u64,
    is_merged: bool,
    /// The number of windows until the class may be merged again.
    rest: u32,
    next_rest: u32,
}

impl Default for Areas {
    fn default() -> Self {
        Self {
            classes: [Class::default(); CLASSES],
            rounds: 0,
        }
    }
}

/// The number of the class with objects of `size` bytes, in `docs/heap-format.md`: steps of 16
/// bytes up to 256, then eight to each doubling.
fn class_of(size: u64) -> Option<usize> {
    let class = match size {
        0 => return None,
        1..=256 => size.div_ceil(16) - 1,
        _ => {
            // The power of two below the size.
            let doubling = 63 - (size - 1).leading_zeros();
            let steps = (size - (1 << doubling)).div_ceil((1 << doubling) / 8);
            16 + u64::from(doubling - 8) * 8 + steps - 1
        }
    };
    usize::try_from(class).ok().filter(|class| *class < CLASSES)
}

impl Areas {
    /// Takes in a page that is written: its slab's word now, the number of its aliases that are
    /// written, and whether the slab was in the same use before.
    pub(crate) fn note(&mut self, subpages_per_page: u32, word: Word, aliases: u32, is_same: bool) {
        let class = class_of(word.size()).filter(|_| subpages_per_page > 1);
        let Some(class) = class.and_then(|class| self.classes.get_mut(class)) else {
            return;
        };
        // In its first use a slab has not been used anew, though all of its pages are new.
        let is_renewed = !is_same && word.generation() > 1;
        if word.is_merged() {
            class.merged_pages += 1;
            class.staying_pages += u64::from(!is_renewed);
            return;
        }
        class.faults += u64::from(aliases);
        if is_renewed {
            class.renewed_faults += u64::from(aliases);
            class.renewed_pages += 1;
        }
    }

    /// Ends a round. Returns a bit for each class whose next slabs are to be merged, when something
    /// was decided.
    pub(crate) fn end_round(&mut self) -> Option<u64> {
        self.rounds += 1;
        if !self.rounds.is_multiple_of(WINDOW) {
            return None;
        }
        let bits = self.classes.iter_mut().enumerate().map(|(at, class)| {
            class.decide();
            u64::from(class.is_merged) << at
        });
        Some(bits.fold(0, |all, bit| all | bit))
    }
}

impl Class {
    fn decide(&mut self) {
        let counted = std::mem::take(self);
        (self.is_merged, self.rest, self.next_rest) =
            (counted.is_merged, counted.rest, counted.next_rest);
        if self.is_merged {
            let stays = counted.staying_pages * STAYING_MAX > counted.merged_pages;
            if counted.merged_pages >= PAGES_MIN && stays {
                self.is_merged = false;
                self.rest = self.next_rest.max(REST);
                self.next_rest = (self.rest * 2).min(REST_MAX);
            }
            return;
        }
        if self.rest > 0 {
            self.rest -= 1;
            return;
        }
        // At least half of the faults in these slabs are saved, and these are most of all.
        self.is_merged = counted.renewed_pages >= PAGES_MIN
            && counted.renewed_faults >= 2 * counted.renewed_pages
            && counted.renewed_faults * 2 >= counted.faults;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A slab of objects of 48 bytes: class 2.
    fn word(is_merged: bool, generation: u64) -> Word {
        Word(48 | 16 << 16 | u64::from(is_merged) << 31 | generation << 32)
    }

    fn window(areas: &mut Areas, mut round: impl FnMut(&mut Areas)) -> u64 {
        (1..WINDOW).for_each(|_| {
            round(areas);
            assert_eq!(areas.end_round(), None);
        });
        round(areas);
        areas.end_round().unwrap()
    }

    fn pages(areas: &mut Areas, word: Word, count: u64, aliases: u32, is_same: bool) {
        (0..count).for_each(|_| areas.note(8, word, aliases, is_same));
    }

    #[test]
    fn sizes_have_the_classes_of_the_format() {
        let classes = [
            (16, 0),
            (256, 15),
            (288, 16),
            (512, 23),
            (576, 24),
            (1024, 31),
            (2048, 39),
            (2304, 40),
            (3840, 46),
        ];
        for (size, class) in classes {
            assert_eq!(class_of(size), Some(class), "{size}");
        }
        assert_eq!([class_of(0), class_of(4096)], [None; 2]);
    }

    #[test]
    fn a_nursery_is_merged_until_its_slabs_stay() {
        let mut areas = Areas::default();
        let nursery = |areas: &mut Areas| pages(areas, word(false, 5), 100, 8, false);
        assert_eq!(window(&mut areas, nursery), 1 << 2);
        let merged = |areas: &mut Areas| pages(areas, word(true, 7), 100, 1, false);
        for _ in 0..5 {
            assert_eq!(window(&mut areas, merged), 1 << 2);
        }
        // What is merged is written in the same use, round after round.
        let staying = |areas: &mut Areas| pages(areas, word(true, 7), 100, 1, true);
        assert_eq!(window(&mut areas, staying), 0);
        // It is merged again after a rest, which is longer each time.
        let mut rests = Vec::new();
        for _ in 0..3 {
            rests.push((0..).find(|_| window(&mut areas, nursery) != 0).unwrap());
            assert_eq!(window(&mut areas, staying), 0);
        }
        assert_eq!(rests, [REST, 2 * REST, 4 * REST]);
    }

    #[test]
    fn what_stays_or_is_written_sparsely_is_not_merged() {
        for (generation, aliases, is_same) in [(1, 8, false), (5, 8, true), (5, 1, false)] {
            let mut areas = Areas::default();
            let round = |areas: &mut Areas| {
                pages(areas, word(false, generation), 1000, aliases, is_same);
            };
            assert_eq!(window(&mut areas, round), 0);
        }
        // Most faults are in slabs that stay.
        let mut areas = Areas::default();
        let round = |areas: &mut Areas| {
            pages(areas, word(false, 5), 100, 8, false);
            pages(areas, word(false, 5), 900, 1, true);
        };
        assert_eq!(window(&mut areas, round), 0);
    }
}
