//! [`Evidence`]: whether merges that were not made would have been worth it. Pure.

/// The observations before there is a verdict.
const OBSERVED_MIN: u32 = 8;
/// The number of observations that count; older ones fade.
const OBSERVED_MAX: u32 = 64;
/// The number of observations of a whole heap that count: a round has far more pages there.
const OBSERVED_MAX_HEAP: u32 = 1024;
/// What a merge may report for each hundred sub-pages that are written.
const REPORTED_PERCENT: u32 = 104;

/// What was written, and what would have been reported.
#[derive(Clone, Copy, Debug)]
pub(super) struct Evidence {
    observations_max: u32,
    observations: u32,
    written: u32,
    reported: u32,
}

impl Default for Evidence {
    fn default() -> Self {
        Self {
            observations_max: OBSERVED_MAX,
            observations: 0,
            written: 0,
            reported: 0,
        }
    }
}

impl Evidence {
    /// Of all pages of a heap.
    pub(super) fn of_heap() -> Self {
        Self {
            observations_max: OBSERVED_MAX_HEAP,
            ..Self::default()
        }
    }

    /// Adds a page of which these sub-pages were written, where a merge would have reported those.
    pub(super) fn add(&mut self, written: u64, reported: u64) {
        if self.observations == self.observations_max {
            self.observations /= 2;
            self.written /= 2;
            self.reported /= 2;
        }
        self.observations += 1;
        self.written += written.count_ones();
        self.reported += reported.count_ones();
    }

    /// Whether it is known that hardly more than was written would have been reported.
    pub(super) fn permits(&self) -> bool {
        self.observations >= OBSERVED_MIN && !self.reports_more()
    }

    /// Whether it is known that more would have been reported.
    pub(super) fn refuses(&self) -> bool {
        self.observations >= OBSERVED_MIN && self.reports_more()
    }

    fn reports_more(&self) -> bool {
        self.reported * 100 > self.written * REPORTED_PERCENT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_no_verdict_before_enough_was_seen_and_old_evidence_fades() {
        let mut evidence = Evidence::default();
        let verdict = |evidence: &Evidence| (evidence.permits(), evidence.refuses());
        for _ in 0..OBSERVED_MIN - 1 {
            evidence.add(0xff, 0xff);
            assert_eq!(verdict(&evidence), (false, false));
        }
        evidence.add(0xff, 0xff);
        assert_eq!(verdict(&evidence), (true, false));
        for _ in 0..OBSERVED_MAX * 4 {
            evidence.add(0x0f, 0xff);
        }
        assert_eq!(verdict(&evidence), (false, true));
        for _ in 0..OBSERVED_MAX * 8 {
            evidence.add(0xff, 0xff);
        }
        assert_eq!(verdict(&evidence), (true, false));
    }
}
