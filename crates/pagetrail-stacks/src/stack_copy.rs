//! [`StackCopy`]: how many bytes of its stack a sample has: as many as the unwinder reads, since
//! each costs the thread that faults.
//!
//! Pure: the caller says how far the unwinder read.

/// The longest copy, in bytes.
pub(crate) const BYTES_MAX: u32 = 8192;
/// The shortest copy: most calls of a C program without deep recursion.
const BYTES_MIN: u32 = 1024;
/// Copies are multiples of this.
const STEP: u32 = 512;
/// Samples after which a copy becomes shorter, at first and at most.
const WINDOW: u32 = 256;
const WINDOW_MAX: u32 = 1 << 16;

/// Chooses the length of the copy.
#[derive(Clone, Debug)]
pub(crate) struct StackCopy {
    bytes: u32,
    /// Samples that were looked at since the last change, and the farthest that was read in one.
    samples: u32,
    reach: u32,
    /// A copy that was too short makes the next window longer: each change replaces all events.
    window: u32,
    was_cut: bool,
}

impl StackCopy {
    /// Begins with the longest copy.
    pub(crate) fn new() -> Self {
        Self {
            bytes: BYTES_MAX,
            samples: 0,
            reach: 0,
            window: WINDOW,
            was_cut: false,
        }
    }

    /// The length at present.
    pub(crate) fn bytes(&self) -> u32 {
        self.bytes
    }

    /// Notes a sample of which `reach` bytes were read; `is_cut` says that a longer copy would have
    /// been read farther.
    pub(crate) fn note(&mut self, reach: usize, is_cut: bool) {
        self.samples = self.samples.saturating_add(1);
        self.reach = self.reach.max(reach.min(BYTES_MAX as usize) as u32);
        self.was_cut |= is_cut;
    }

    /// The new length, if it changes.
    pub(crate) fn change(&mut self) -> Option<u32> {
        let bytes = if std::mem::take(&mut self.was_cut) && self.bytes < BYTES_MAX {
            self.window = (self.window * 2).min(WINDOW_MAX);
            (self.bytes * 2).max(self.reach).min(BYTES_MAX)
        } else if self.samples >= self.window {
            // A quarter more than what was needed, and no change for little.
            let wanted = self.reach.saturating_add(self.reach / 4);
            let wanted = wanted.div_ceil(STEP) * STEP;
            match wanted.clamp(BYTES_MIN, BYTES_MAX) {
                wanted if wanted < self.bytes / 4 * 3 => wanted,
                _ => self.bytes,
            }
        } else {
            return None;
        };
        (self.samples, self.reach) = (0, 0);
        let changes = bytes != self.bytes;
        self.bytes = bytes;
        changes.then_some(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes samples of stacks that are so deep; how often the length changed.
    fn run(copy: &mut StackCopy, depths: impl IntoIterator<Item = u32>) -> u32 {
        let mut changes = 0;
        for depth in depths {
            let has = copy.bytes();
            copy.note(depth.min(has) as usize, depth > has && has < BYTES_MAX);
            changes += u32::from(copy.change().is_some());
        }
        changes
    }

    #[test]
    fn a_copy_becomes_as_short_as_the_stacks() {
        let mut copy = StackCopy::new();
        assert_eq!(run(&mut copy, [300; 1000]), 1);
        assert_eq!(copy.bytes(), BYTES_MIN);
        let mut copy = StackCopy::new();
        run(&mut copy, [2000; 1000]);
        assert_eq!(copy.bytes(), 2560);
        let mut copy = StackCopy::new();
        run(&mut copy, [7000; 1000]);
        assert_eq!(copy.bytes(), BYTES_MAX);
    }

    #[test]
    fn a_deeper_stack_is_cut_once_or_twice() {
        let mut copy = StackCopy::new();
        run(&mut copy, [300; 1000]);
        let mut cut = 0;
        for _ in 0..1000 {
            let has = copy.bytes();
            cut += u32::from(has < 5000);
            run(&mut copy, [5000]);
        }
        assert!(cut <= 3, "{cut}");
        assert!(copy.bytes() >= 5000);
    }

    #[test]
    fn a_rare_deep_stack_does_not_replace_the_events_again_and_again() {
        let mut copy = StackCopy::new();
        let depths = (0..100_000).map(|n| if n % 1000 == 999 { 8000 } else { 200 });
        let changes = run(&mut copy, depths);
        assert!(changes <= 40, "{changes}");
    }

    #[test]
    fn it_never_leaves_its_bounds() {
        let mut random = fastrand::Rng::with_seed(3);
        let mut copy = StackCopy::new();
        for _ in 0..200_000 {
            copy.note(random.usize(..) >> random.u32(0..64), random.u8(..) == 0);
            copy.change();
            assert!((BYTES_MIN..=BYTES_MAX).contains(&copy.bytes()));
            assert_eq!(copy.bytes() % 8, 0);
        }
    }
}
