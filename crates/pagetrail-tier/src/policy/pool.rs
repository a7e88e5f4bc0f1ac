//! [`Pool`]: fast memory shared among several targets. It takes from the sated and gives to the
//! hungry.
//!
//! HMM-V, section 4.4. Each target has a share of its own; what it is allowed at a time lies
//! between a lower and an upper part of that. One that wants less than it has gives the rest to the
//! pool, one that wants more gets it as far as the pool reaches, all in proportion to what they
//! lack. What is left then goes, ours, to those that want no more but use more in most windows: by
//! the paper's share of 80% a target whose memory is all hot would be sated without a fifth of it.

use std::collections::BTreeMap;

use super::Demand;
use super::settings::Settings;

/// What the pool knows of a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// The share of its own, in bytes.
    pub initial: u64,
    /// What it is allowed at the moment.
    pub size: u64,
    /// What it wants and could use, if that is known.
    pub demand: Option<Demand>,
}

/// A target cannot have what it asks for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PoolError {
    /// Not enough is left.
    #[error("{wanted} bytes of fast memory wanted, {free} are left in the pool")]
    Full {
        /// What was asked for.
        wanted: u64,
        /// What there is.
        free: u64,
    },
    /// There is such a member.
    #[error("target '{0}' is in the pool already")]
    Twice(String),
}

/// Fast memory that is shared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pool {
    total: u64,
    free: u64,
    members: BTreeMap<String, Member>,
}

impl Pool {
    /// A pool of so many bytes, all free.
    pub fn new(total: u64) -> Self {
        Self {
            total,
            free: total,
            members: BTreeMap::new(),
        }
    }

    /// All it has: what is free, and what its members are allowed.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// What nobody is allowed.
    pub fn free(&self) -> u64 {
        self.free
    }

    /// The members by name.
    pub fn members(&self) -> impl Iterator<Item = (&str, &Member)> {
        self.members.iter().map(|(name, member)| (&**name, member))
    }

    /// A member.
    pub fn member(&self, name: &str) -> Option<&Member> {
        self.members.get(name)
    }

    /// Adds a target with a share of its own.
    ///
    /// # Errors
    ///
    /// The pool has not so much left, or a member of this name.
    pub fn join(&mut self, name: &str, initial: u64) -> Result<(), PoolError> {
        if self.members.contains_key(name) {
            return Err(PoolError::Twice(name.into()));
        }
        if initial > self.free {
            return Err(PoolError::Full {
                wanted: initial,
                free: self.free,
            });
        }
        self.free -= initial;
        let member = Member {
            initial,
            size: initial,
            demand: None,
        };
        self.members.insert(name.into(), member);
        Ok(())
    }

    /// Takes a target out; what it was allowed is free again.
    pub fn leave(&mut self, name: &str) {
        if let Some(member) = self.members.remove(name) {
            self.free += member.size;
        }
    }

    /// Says how much of a target's memory is hot.
    pub fn demand(&mut self, name: &str, demand: Demand) {
        if let Some(member) = self.members.get_mut(name) {
            member.demand = Some(demand);
        }
    }

    /// Shares anew. A member whose demand is not known keeps what it has.
    pub fn balance(&mut self, settings: &Settings) {
        for member in self.members.values_mut() {
            if let Some(demand) = member.demand {
                let wanted = member.within_limits(demand.wanted, settings);
                self.free += member.size.saturating_sub(wanted);
                member.size = member.size.min(wanted);
            }
        }
        self.give(settings, |demand| demand.wanted);
        self.give(settings, |demand| demand.steady);
    }

    /// Gives what is free to those that have less than some part of their demand.
    fn give(&mut self, settings: &Settings, part: impl Fn(Demand) -> u64) {
        let lacks = self.members.iter().filter_map(|(name, member)| {
            let should = member.within_limits(part(member.demand?), settings);
            Some((name.clone(), should.checked_sub(member.size)?))
        });
        let lacks: Vec<(String, u64)> = lacks.collect();
        let all: u128 = lacks.iter().map(|(_, lack)| u128::from(*lack)).sum();
        if all == 0 {
            return;
        }
        let available = self.free;
        for (name, lack) in lacks {
            let part = u128::from(available) * u128::from(lack) / all;
            // No more than it lacks, so it fits.
            let given = u64::try_from(part).unwrap_or(u64::MAX).min(lack);
            if let Some(member) = self.members.get_mut(&name) {
                member.size += given;
                self.free -= given;
            }
        }
    }
}

impl Member {
    /// As much as it may have of some bytes.
    fn within_limits(&self, bytes: u64, settings: &Settings) -> u64 {
        let part = |percent: u16| {
            let bytes = u128::from(self.initial) * u128::from(percent) / 100;
            u64::try_from(bytes).unwrap_or(u64::MAX)
        };
        let (lower, upper) = (part(settings.lower_percent), part(settings.upper_percent));
        bytes.clamp(lower, upper.max(lower))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is wanted is all that is used.
    fn exactly(bytes: u64) -> Demand {
        Demand {
            wanted: bytes,
            steady: bytes,
        }
    }

    #[test]
    fn the_papers_four_programs() {
        // Section 5.9.1, in MiB: the first lacks, the others have more than they need.
        let mut pool = Pool::new(32 << 10);
        for (name, demand) in [("1", 10 << 10), ("2", 6656), ("3", 6656), ("4", 1 << 10)] {
            pool.join(name, 8 << 10).unwrap();
            pool.demand(name, exactly(demand));
        }
        pool.balance(&Settings::default());
        let sizes: Vec<u64> = pool.members().map(|(_, member)| member.size).collect();
        assert_eq!(sizes, [10 << 10, 6656, 6656, 6 << 10]);
        assert_eq!(pool.free(), 3 << 10);
    }

    #[test]
    fn too_little_is_shared_in_proportion() {
        let mut pool = Pool::new(400);
        for (name, demand) in [("a", 125), ("b", 110), ("c", 90), ("d", 100)] {
            pool.join(name, 100).unwrap();
            pool.demand(name, exactly(demand));
        }
        pool.balance(&Settings::default());
        let size = |name| pool.member(name).unwrap().size;
        assert_eq!(
            [size("a"), size("b"), size("c"), size("d")],
            [107, 102, 90, 100]
        );
        assert_eq!(pool.free(), 1);
    }

    #[test]
    fn what_is_left_goes_to_who_uses_more_than_he_wants() {
        let mut pool = Pool::new(300);
        for (name, steady) in [("all hot", 125), ("half", 60), ("idle", 0)] {
            pool.join(name, 100).unwrap();
            let wanted = steady * 80 / 100;
            pool.demand(name, Demand { wanted, steady });
        }
        pool.balance(&Settings::default());
        let sizes: Vec<u64> = pool.members().map(|(_, member)| member.size).collect();
        assert_eq!(sizes, [125, 75, 75]);
        assert_eq!(pool.free(), 25);
        // Again and again the same.
        let before = pool.clone();
        pool.balance(&Settings::default());
        assert_eq!(pool, before);
    }

    #[test]
    fn who_leaves_gives_everything_back() {
        let mut pool = Pool::new(100);
        pool.join("a", 60).unwrap();
        assert_eq!(
            pool.join("b", 60),
            Err(PoolError::Full {
                wanted: 60,
                free: 40
            })
        );
        assert_eq!(pool.join("a", 1), Err(PoolError::Twice("a".into())));
        pool.leave("a");
        pool.leave("a");
        assert_eq!((pool.free(), pool.total()), (100, 100));
    }
}
