//! [`Pool`]: fast memory shared among several targets. It moves fast memory from targets that need
//! less than their share to those that need more.
//!
//! HMM-V, section 4.4. Each target has a share of its own, and its allowance lies between a lower
//! and an upper percentage of that share. A target that demands less than its allowance returns the
//! rest to the pool; those that demand more divide what the pool has in proportion to what they
//! lack. Ours: what is left then goes to targets that demand no more but use more in most windows,
//! since by the paper's share of 80% a target whose memory is all hot demands only four fifths.

use std::collections::BTreeMap;

use super::Demand;
use super::settings::Settings;

/// A target as the pool knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// The share of the target, in bytes.
    pub initial: u64,
    /// The fast memory that the target may use at present.
    pub size: u64,
    /// The demand of the target, if it is known.
    pub demand: Option<Demand>,
}

/// A target cannot get the share that was requested.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PoolError {
    /// The pool has too little left.
    #[error("{wanted} bytes of fast memory wanted, {free} are left in the pool")]
    Full {
        /// Bytes that were requested.
        wanted: u64,
        /// Bytes that are available.
        free: u64,
    },
    /// The pool already has a member of this name.
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
    /// Makes a pool of this many bytes, all free.
    pub fn new(total: u64) -> Self {
        Self {
            total,
            free: total,
            members: BTreeMap::new(),
        }
    }

    /// All bytes of the pool: those that are free and those that members may use.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Bytes that no member may use.
    pub fn free(&self) -> u64 {
        self.free
    }

    /// The members by name.
    pub fn members(&self) -> impl Iterator<Item = (&str, &Member)> {
        self.members.iter().map(|(name, member)| (&**name, member))
    }

    /// Returns a member by name.
    pub fn member(&self, name: &str) -> Option<&Member> {
        self.members.get(name)
    }

    /// Adds a target with a share of its own.
    ///
    /// # Errors
    ///
    /// The pool has less left than the share, or already has a member of this name.
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

    /// Removes a target; its allowance is free again.
    pub fn leave(&mut self, name: &str) {
        if let Some(member) = self.members.remove(name) {
            self.free += member.size;
        }
    }

    /// Sets the demand of a target.
    pub fn demand(&mut self, name: &str, demand: Demand) {
        if let Some(member) = self.members.get_mut(name) {
            member.demand = Some(demand);
        }
    }

    /// Divides the pool anew. A member whose demand is not known keeps its allowance.
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

    /// Gives free memory to members that have less than some part of their demand.
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
    /// Limits an allowance to what the member may have.
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
