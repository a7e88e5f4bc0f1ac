//! When to copy what was written, and when to copy everything without asking what was: a rule on
//! numbers, and nothing else.
//!
//! Watching costs a fault for each page that is written; copying it back costs the copy. Copying
//! everything costs a copy for every page and no faults. A page that is watched costs about four
//! times a page that is merely copied, so where more than a quarter of the pages are written from
//! one reset to the next, copying everything is cheaper.
//!
//! Then nothing is watched for some resets; after those it is tried again, for programs have
//! phases. Each try that finds that nothing has changed doubles the time to the next.

/// Share of the pages from which on everything is copied. `examples/bench_snapshot.rs` measures it.
pub(crate) const CROSSOVER: f64 = 0.25;
/// Resets that copy everything before watching is tried again, at most.
const BACKOFF_MAX: u32 = 256;

/// What a reset does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// Watch writes, copy back what was written.
    Watch,
    /// Copy everything.
    Copy,
}

/// The rule, with what it remembers.
#[derive(Debug)]
pub(crate) struct Policy {
    /// Resets left that copy everything.
    left: u32,
    backoff: u32,
}

impl Policy {
    pub(crate) fn new() -> Self {
        Self {
            left: 0,
            backoff: 4,
        }
    }

    /// What to do until the next reset.
    pub(crate) fn way(&self) -> Way {
        if self.left > 0 { Way::Copy } else { Way::Watch }
    }

    /// A reset of a watched memory found this share of its pages written.
    pub(crate) fn watched(&mut self, share: f64) {
        if share > CROSSOVER {
            self.left = self.backoff;
            self.backoff = (self.backoff * 2).min(BACKOFF_MAX);
        } else {
            self.backoff = 4;
        }
    }

    /// A reset copied everything.
    pub(crate) fn copied(&mut self) {
        self.left = self.left.saturating_sub(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many of `resets` watch, when each round writes `share`.
    fn watching(policy: &mut Policy, resets: u32, share: f64) -> u32 {
        let mut watching = 0;
        for _ in 0..resets {
            match policy.way() {
                Way::Watch => {
                    watching += 1;
                    policy.watched(share);
                }
                Way::Copy => policy.copied(),
            }
        }
        watching
    }

    #[test]
    fn it_watches_where_little_is_written_and_seldom_asks_otherwise() {
        let mut policy = Policy::new();
        assert_eq!(watching(&mut policy, 1000, 0.01), 1000);
        let asked = watching(&mut policy, 10_000, 0.9);
        assert!((30..60).contains(&asked), "{asked}");
        // A new phase is noticed within the backoff.
        let watched = watching(&mut policy, 1000, 0.01);
        assert!(watched >= 1000 - BACKOFF_MAX, "{watched}");
    }
}
