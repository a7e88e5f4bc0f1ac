//! [`Tlb`]: a set-associative cache of translations, tagged with VPID and PCID.
//!
//! Replacement is least recently used within a set. Small and large pages have separate banks. An
//! entry tells whether the page may be written and whether its dirty flags are already set: a write
//! through an entry that lacks either must walk again, as on the processor. Paging-structure caches
//! are not modelled.

use super::address::{Gva, HUGE_BYTES, Hpa, PAGE_BYTES};
use crate::Error;

/// Sizes of a TLB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TlbGeometry {
    /// Entries for pages of 4 KiB.
    pub entries: u32,
    /// Associativity of these.
    pub ways: u32,
    /// Entries for pages of 2 MiB.
    pub huge_entries: u32,
    /// Associativity of these.
    pub huge_ways: u32,
}

impl Default for TlbGeometry {
    /// The second-level TLB of the OoH paper's processor (Core i7-8565U: 1536 entries, 12 ways) and
    /// its first-level one for large data pages (32 entries, 4 ways).
    fn default() -> Self {
        Self {
            entries: 1536,
            ways: 12,
            huge_entries: 32,
            huge_ways: 4,
        }
    }
}

/// The address space that an entry belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tag {
    pub(crate) vpid: u16,
    pub(crate) pcid: u16,
}

impl Tag {
    /// The tag above the 36 bits of a virtual page number.
    fn bits(self) -> u64 {
        u64::from(self.vpid) << 48 | u64::from(self.pcid & 0xfff) << 36
    }
}

/// What an entry says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cached {
    /// Start of the page in memory.
    pub(crate) page: Hpa,
    pub(crate) writable: bool,
    /// The dirty flags of all tables are set: a write needs no walk.
    pub(crate) dirty: bool,
    pub(crate) huge: bool,
}

/// A translation look-aside buffer.
#[derive(Clone, Debug)]
pub struct Tlb {
    small: Bank,
    huge: Bank,
    clock: u64,
}

impl Tlb {
    /// An empty TLB.
    pub fn new(geometry: TlbGeometry) -> Result<Self, Error> {
        Ok(Self {
            small: Bank::new(geometry.entries, geometry.ways, PAGE_BYTES)?,
            huge: Bank::new(geometry.huge_entries, geometry.huge_ways, HUGE_BYTES)?,
            clock: 0,
        })
    }

    #[inline]
    pub(crate) fn look_up(&mut self, tag: Tag, gva: Gva) -> Option<Cached> {
        self.clock += 1;
        if let Some(value) = self.small.look_up(tag, gva, self.clock) {
            return Some(unpack(value));
        }
        if self.huge.used == 0 {
            return None;
        }
        self.huge.look_up(tag, gva, self.clock).map(unpack)
    }

    pub(crate) fn insert(&mut self, tag: Tag, gva: Gva, cached: Cached) {
        self.clock += 1;
        let bank = if cached.huge {
            &mut self.huge
        } else {
            &mut self.small
        };
        bank.insert(tag, gva, pack(cached), self.clock);
    }

    /// INVLPG, INVPCID type 0, INVVPID type 0.
    pub(crate) fn flush_page(&mut self, tag: Tag, gva: Gva) {
        for bank in [&mut self.small, &mut self.huge] {
            let key = bank.key(tag, gva);
            bank.flush(|other| other == key);
        }
    }

    /// INVPCID type 1.
    pub(crate) fn flush_pcid(&mut self, tag: Tag) {
        for bank in [&mut self.small, &mut self.huge] {
            bank.flush(|key| key >> 36 == tag.bits() >> 36);
        }
    }

    /// INVVPID type 1; also what INVEPT does to the entries of one vCPU.
    pub(crate) fn flush_vpid(&mut self, vpid: u16) {
        for bank in [&mut self.small, &mut self.huge] {
            bank.flush(|key| key >> 48 == u64::from(vpid));
        }
    }
}

const INVALID: u64 = u64::MAX;
const WRITABLE: u64 = 1;
const DIRTY: u64 = 2;
const HUGE: u64 = 4;

fn pack(cached: Cached) -> u64 {
    let flag = |set: bool, bit: u64| if set { bit } else { 0 };
    cached.page.get()
        | flag(cached.writable, WRITABLE)
        | flag(cached.dirty, DIRTY)
        | flag(cached.huge, HUGE)
}

fn unpack(value: u64) -> Cached {
    Cached {
        page: Hpa::new(value).page(),
        writable: value & WRITABLE != 0,
        dirty: value & DIRTY != 0,
        huge: value & HUGE != 0,
    }
}

/// Entries of one page size. Tags, values and times lie apart: a look-up touches the tags of one
/// set.
#[derive(Clone, Debug)]
struct Bank {
    page_shift: u32,
    sets: usize,
    ways: usize,
    used: usize,
    keys: Vec<u64>,
    values: Vec<u64>,
    last_use: Vec<u64>,
}

impl Bank {
    fn new(entries: u32, ways: u32, page_bytes: u64) -> Result<Self, Error> {
        let sets = entries.checked_div(ways).unwrap_or(0);
        if !sets.is_power_of_two() || sets * ways != entries || entries > 1 << 20 {
            return Err(Error::TlbGeometry { entries, ways });
        }
        let entries = entries as usize;
        Ok(Self {
            page_shift: page_bytes.trailing_zeros(),
            sets: sets as usize,
            ways: ways as usize,
            used: 0,
            keys: vec![INVALID; entries],
            values: vec![0; entries],
            last_use: vec![0; entries],
        })
    }

    fn key(&self, tag: Tag, gva: Gva) -> u64 {
        tag.bits() | (gva.get() & 0xffff_ffff_ffff) >> self.page_shift
    }

    fn set(&self, key: u64) -> std::ops::Range<usize> {
        let first = (key as usize & (self.sets - 1)) * self.ways;
        first..first + self.ways
    }

    #[inline]
    fn look_up(&mut self, tag: Tag, gva: Gva, now: u64) -> Option<u64> {
        let key = self.key(tag, gva);
        let set = self.set(key);
        let way = self.keys[set.clone()]
            .iter()
            .position(|&other| other == key)?;
        self.last_use[set.start + way] = now;
        Some(self.values[set.start + way])
    }

    fn insert(&mut self, tag: Tag, gva: Gva, value: u64, now: u64) {
        let key = self.key(tag, gva);
        let set = self.set(key);
        let slot = set
            .clone()
            .find(|&i| self.keys[i] == key)
            .or_else(|| set.clone().find(|&i| self.keys[i] == INVALID))
            .or_else(|| set.min_by_key(|&i| self.last_use[i]))
            .expect("a set has at least one way");
        self.used += usize::from(self.keys[slot] == INVALID);
        self.keys[slot] = key;
        self.values[slot] = value;
        self.last_use[slot] = now;
    }

    fn flush(&mut self, gone: impl Fn(u64) -> bool) {
        if self.used == 0 {
            return;
        }
        for key in &mut self.keys {
            if *key != INVALID && gone(*key) {
                *key = INVALID;
                self.used -= 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TAG: Tag = Tag { vpid: 1, pcid: 1 };

    fn small(number: u64) -> Cached {
        Cached {
            page: Hpa::new(number * PAGE_BYTES),
            writable: true,
            dirty: false,
            huge: false,
        }
    }

    fn tlb(entries: u32, ways: u32) -> Tlb {
        Tlb::new(TlbGeometry {
            entries,
            ways,
            huge_entries: 4,
            huge_ways: 4,
        })
        .unwrap()
    }

    #[test]
    fn the_least_recently_used_way_of_a_set_goes() {
        let mut tlb = tlb(8, 2); // 4 sets: pages 0, 4 and 8 share one.
        let page = |n: u64| Gva::new(n * PAGE_BYTES);
        tlb.insert(TAG, page(0), small(10));
        tlb.insert(TAG, page(4), small(14));
        assert!(tlb.look_up(TAG, page(0)).is_some());
        tlb.insert(TAG, page(8), small(18));
        assert_eq!(tlb.look_up(TAG, page(4)), None);
        assert_eq!(tlb.look_up(TAG, page(0)), Some(small(10)));
        assert_eq!(tlb.look_up(TAG, page(8).add(123)), Some(small(18)));
    }

    #[test]
    fn tags_keep_address_spaces_apart_and_flushes_hit_only_theirs() {
        let mut tlb = tlb(64, 4);
        let other_pcid = Tag { vpid: 1, pcid: 2 };
        let other_vpid = Tag { vpid: 2, pcid: 1 };
        let all = [TAG, other_pcid, other_vpid];
        let at = Gva::new(0x7000);
        for (i, tag) in all.into_iter().enumerate() {
            tlb.insert(tag, at, small(i as u64 + 1));
            tlb.insert(tag, at.add(PAGE_BYTES), small(i as u64 + 9));
        }
        let hits = |tlb: &mut Tlb, at: Gva| all.map(|tag| tlb.look_up(tag, at).is_some());
        tlb.flush_page(TAG, at);
        assert_eq!(hits(&mut tlb, at), [false, true, true]);
        assert_eq!(hits(&mut tlb, at.add(PAGE_BYTES)), [true, true, true]);
        tlb.flush_pcid(other_pcid);
        assert_eq!(hits(&mut tlb, at), [false, false, true]);
        tlb.flush_vpid(2);
        assert_eq!(hits(&mut tlb, at.add(PAGE_BYTES)), [true, false, false]);
    }

    #[test]
    fn a_large_page_answers_for_all_its_addresses() {
        let mut tlb = tlb(64, 4);
        let cached = Cached {
            page: Hpa::new(HUGE_BYTES),
            writable: true,
            dirty: true,
            huge: true,
        };
        tlb.insert(TAG, Gva::new(HUGE_BYTES * 3), cached);
        assert_eq!(tlb.look_up(TAG, Gva::new(HUGE_BYTES * 4 - 1)), Some(cached));
        assert_eq!(tlb.look_up(TAG, Gva::new(HUGE_BYTES * 4)), None);
        tlb.flush_page(TAG, Gva::new(HUGE_BYTES * 3 + 0x5000));
        assert_eq!(tlb.look_up(TAG, Gva::new(HUGE_BYTES * 3)), None);
    }

    #[test]
    fn impossible_geometries_are_refused() {
        for (entries, ways) in [(0, 0), (8, 0), (0, 4), (12, 4), (9, 4), (u32::MAX, 1)] {
            let geometry = TlbGeometry {
                entries,
                ways,
                ..TlbGeometry::default()
            };
            assert!(Tlb::new(geometry).is_err(), "{entries}/{ways}");
        }
    }
}
