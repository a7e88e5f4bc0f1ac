//! When to stop a program that is copied while it runs: a rule on numbers of pages, and nothing
//! else.
//!
//! The pages written while some were copied are copied next, and so on. It ends when
//!
//! * so few are left that copying them takes less time than stopping the threads does;
//! * a round leaves more than half of what the one before it left: the program writes about as fast
//!   as we copy, and further rounds would cost processor time and gain nothing;
//! * the rounds are used up.
//!
//! Then the rest is copied while the program stands still, however much it is.

/// How a process is checkpointed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mode {
    /// Copy while it runs, stop it for the rest.
    #[default]
    Precopy,
    /// Stop it, copy, let it go: no page is copied twice, and the pause is as long as that takes.
    Stop,
    /// Copy while it runs, stop it, write-protect the rest, and copy that while it runs on: a
    /// thread that writes to such a page waits until the page has been copied.
    ///
    /// The pause does not grow with what the process writes. A second one, in which nothing is
    /// copied, ends the write protection. Memory that cannot be protected so (shared memory, pages
    /// of files) is copied while the process stands still. See
    /// [`DirtySource::freeze`](pagetrail::DirtySource::freeze) for what it needs and for its
    /// effects on the process.
    Cow,
}

/// Two megabytes are copied in half a millisecond.
const FEW_PAGES: u64 = 512;
const ROUNDS_MAX: u32 = 8;

/// What to do after a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    Copy,
    Stop,
}

/// The rule, with what it remembers.
#[derive(Debug)]
pub(crate) struct Rule {
    rounds: u32,
    before: u64,
}

impl Rule {
    /// Begins with `pages` to copy in the first round.
    pub(crate) fn new(pages: u64) -> Self {
        Self {
            rounds: 0,
            before: pages,
        }
    }

    /// A round has been copied, and `left` pages were written meanwhile.
    pub(crate) fn next(&mut self, left: u64) -> Next {
        self.rounds += 1;
        let before = std::mem::replace(&mut self.before, left);
        if left <= FEW_PAGES || self.rounds == ROUNDS_MAX || left > before / 2 {
            Next::Stop
        } else {
            Next::Copy
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many rounds are copied, and what is left.
    fn rounds(mut pages: u64, left: impl Fn(u64) -> u64) -> (u32, u64) {
        let mut rule = Rule::new(pages);
        loop {
            pages = left(pages);
            if rule.next(pages) == Next::Stop {
                return (rule.rounds, pages);
            }
        }
    }

    #[test]
    fn it_copies_until_little_is_left_or_nothing_is_gained() {
        assert_eq!(rounds(400_000, |pages| pages / 10), (3, 400));
        assert_eq!(rounds(0, |_| 0), (1, 0));
        // A program that writes as fast as it is copied.
        assert_eq!(rounds(400_000, |pages| pages), (1, 400_000));
        assert_eq!(rounds(400_000, |pages| pages * 6 / 10), (1, 240_000));
        // Slow progress comes to an end as well.
        let (used, left) = rounds(u64::MAX / 4, |pages| pages / 2);
        assert_eq!(used, ROUNDS_MAX);
        assert!(left > FEW_PAGES);
    }
}
