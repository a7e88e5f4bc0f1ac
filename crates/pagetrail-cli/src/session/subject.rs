//! [`Subject`]: what `record` tracks: a tree of processes, a guest of KVM, or a tree of guests.

use std::time::{Duration, Instant};

use pagetrail::{DirtySource, Origin, Round, State, Tree};
use pagetrail_vm::GuestTree;

/// What is tracked.
pub(crate) enum Subject {
    /// Processes, each with a watch.
    Tree(Box<Tree>),
    /// A guest, which is one source.
    Guest(Box<dyn DirtySource>),
    /// Guests, each a source.
    Guests(Box<GuestTree>),
}

impl Subject {
    /// The source with which a recording begins: the process that was named or started. A control
    /// group may have none yet.
    pub(crate) fn first(&self) -> Option<&dyn DirtySource> {
        match self {
            Self::Tree(tree) => {
                let first = tree.members().first()?;
                Some(first.watch())
            }
            Self::Guest(source) => Some(&**source),
            Self::Guests(tree) => {
                let first = tree.members().first()?;
                Some(first.source())
            }
        }
    }

    /// The PIDs of the processes that were named or started.
    pub(crate) fn roots(&self) -> Vec<u32> {
        match self {
            Self::Tree(tree) => {
                let members = tree.members().iter();
                let roots = members.filter(|member| member.origin() == Origin::Root);
                roots.map(|member| member.pid()).collect()
            }
            Self::Guest(source) => vec![source.pid()],
            Self::Guests(tree) => {
                let members = tree.members().iter();
                let roots = members.filter(|member| member.is_root());
                roots.map(|member| member.source().pid()).collect()
            }
        }
    }

    /// The number of processes that are tracked.
    pub(crate) fn count(&self) -> usize {
        match self {
            Self::Tree(tree) => tree.members().len(),
            Self::Guest(_) => 1,
            Self::Guests(tree) => tree.members().len(),
        }
    }

    /// When the next round is due, of the process whose budget allows one first; `None` where there
    /// is no budget.
    pub(crate) fn next_collect(&self) -> Option<Instant> {
        match self {
            Self::Tree(tree) => {
                let members = tree.members().iter();
                members
                    .filter_map(|member| member.watch().next_collect())
                    .min()
            }
            Self::Guest(source) => source.next_collect(),
            Self::Guests(_) => None,
        }
    }

    /// Waits until the state changes, but at most for `timeout`.
    pub(crate) fn wait(&mut self, timeout: Duration) -> State {
        match self {
            Self::Tree(tree) => tree.wait(timeout),
            Self::Guest(source) => source.wait(timeout),
            Self::Guests(tree) => tree.wait(timeout),
        }
    }

    /// Releases a program that is held at its end.
    pub(crate) fn release_exit(&mut self) {
        match self {
            Self::Tree(tree) => tree.release_exit(),
            Self::Guest(source) => source.release_exit(),
            Self::Guests(tree) => tree.release_exit(),
        }
    }

    /// Takes rounds that nobody wants, so that a guest can go on.
    pub(crate) fn drop_round(&mut self) {
        match self {
            Self::Tree(_) => {}
            Self::Guest(source) => {
                let _ = source.collect().map(Round::commit);
            }
            Self::Guests(tree) => {
                tree.follow();
                for member in tree.members_mut() {
                    if member.is_ready() {
                        let _ = member.source_mut().collect().map(Round::commit);
                    }
                }
            }
        }
    }
}

/// Whether a guest's round is to be taken: its budget allows one by `due`, if that is given, or it
/// has sent one by itself.
pub(crate) fn is_guest_due(source: &mut dyn DirtySource, due: Option<Instant>) -> bool {
    let next = source.next_collect();
    next.zip(due).is_none_or(|(next, due)| next <= due)
        || source.wait(Duration::ZERO) != State::Running
}

#[cfg(test)]
mod tests {
    use std::io;

    use pagetrail::{Error, Held, Region, Result, UntrackedRegion};

    use super::*;

    /// A guest whose next round is due then, and which has sent one by itself or not.
    struct Guest {
        next: Option<Instant>,
        state: State,
    }

    impl Guest {
        fn nothing<T>() -> Result<T> {
            let (what, source) = ("a test".into(), io::Error::other("nothing here"));
            Err(Error::Io { what, source })
        }
    }

    impl DirtySource for Guest {
        fn pid(&self) -> u32 {
            1
        }

        fn technique_name(&self) -> &'static str {
            "none"
        }

        fn reason(&self) -> &'static str {
            ""
        }

        fn attach_stopped(&self) -> Duration {
            Duration::ZERO
        }

        fn regions(&self) -> &[Region] {
            &[]
        }

        fn untracked(&self) -> &[UntrackedRegion] {
            &[]
        }

        fn wait(&mut self, _: Duration) -> State {
            self.state
        }

        fn collect(&mut self) -> Result<Round<'_>> {
            Self::nothing()
        }

        fn next_collect(&self) -> Option<Instant> {
            self.next
        }

        fn release_exit(&mut self) {}

        fn hold(&mut self) -> Result<Box<dyn Held>> {
            Self::nothing()
        }

        fn collect_held(&mut self, _: &dyn Held) -> Result<Round<'_>> {
            Self::nothing()
        }
    }

    #[test]
    fn a_guest_is_due_when_its_budget_allows_or_it_has_sent_a_round() {
        let now = Instant::now();
        let later = now + Duration::from_secs(1);
        let is_due = |next, state, due| is_guest_due(&mut Guest { next, state }, due);
        assert!(!is_due(Some(later), State::Running, Some(now)));
        assert!(is_due(Some(now), State::Running, Some(later)));
        // Without a budget, and in the last round.
        assert!(is_due(None, State::Running, Some(now)));
        assert!(is_due(Some(later), State::Running, None));
        // A ring that is full, the end.
        for state in [State::Ready, State::Exiting, State::Ended(None)] {
            assert!(is_due(Some(later), state, Some(now)), "{state:?}");
        }
    }
}
