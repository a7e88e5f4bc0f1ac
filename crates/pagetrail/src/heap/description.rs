//! The description that a heap gives of itself, byte by byte (`docs/heap-format.md`). It comes from
//! a process that may write anything there.

use crate::page_set::PageRange;

/// The name of the mapping that begins a description.
const NAME: &str = "/memfd:pagetrail-heap";

/// The size of a description in bytes.
pub(crate) const BYTES: usize = 65536;
/// The beginning of a description, without its version.
const MAGIC: &[u8; 7] = b"PTHEAP\0";
/// The versions: from the second on, the heap takes advice.
const VERSIONS: std::ops::RangeInclusive<u8> = 1..=2;
const HEADER_BYTES: usize = 64;
const ENTRY_BYTES: usize = 32;

/// The version from which on the heap takes advice.
const ADVISED_VERSION: u8 = 2;
/// The offset of the word in which a tracker says which classes to merge.
pub(crate) const MERGED_AT: u64 = 32;
/// The length of a description up to the end of that word, in bytes.
pub(crate) const ADVICE_BYTES: usize = 40;

/// The only page and slab sizes of the format, in bytes.
pub(crate) const PAGE: u64 = 4096;
pub(crate) const SLAB: u64 = 65536;
pub(crate) const SLAB_PAGES: u64 = SLAB / PAGE;

/// The largest size of an alias, in bytes.
const ALIAS_BYTES_MAX: u64 = 1 << 30;

/// The most descriptions of one process that are read.
pub(crate) const DESCRIPTIONS_MAX: usize = 64;

/// The most superblocks of one process that are followed: each costs a system call a round.
const SUPERBLOCKS_MAX: usize = 8192;

/// The most slabs of one process that are followed: 64 GiB of small objects. Their tables take 8
/// MiB, of which a few are kept.
const SLABS_MAX: usize = 1 << 20;

/// The most slabs of one process that are followed, each counted once per alias.
const SLABS_IN_ALIASES_MAX: usize = 1 << 23;

/// Memory of a heap: its aliases, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Superblock {
    pub(crate) base: u64,
    pub(crate) alias_bytes: u64,
    /// The address of its table, which has a word of eight bytes for each slab.
    pub(crate) table: u64,
    pub(crate) subpages_per_page: u32,
    /// The address of the heap's description.
    pub(crate) description: u64,
    /// Whether the heap reads what a tracker writes there.
    pub(crate) takes_advice: bool,
}

impl Superblock {
    pub(crate) fn slabs(&self) -> usize {
        (self.alias_bytes / SLAB) as usize
    }

    pub(crate) fn first_alias(&self) -> PageRange {
        let end = self.base + self.alias_bytes;
        PageRange::new(self.base, end).unwrap_or_else(|| unreachable!("aliases have a length"))
    }

    /// The addresses of all aliases; [`superblocks`] has checked that they do not overflow.
    pub(crate) fn aliases(&self) -> PageRange {
        let end = self.base + self.alias_bytes * u64::from(self.subpages_per_page);
        PageRange::new(self.base, end).unwrap_or_else(|| unreachable!("aliases have a length"))
    }
}

/// Whether a mapping of this name is a description.
pub(crate) fn is_named(name: &str) -> bool {
    name.strip_prefix(NAME)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
}

/// The advice that a heap has, from the beginning of its description at `address`; `None` if there
/// is no description of a heap that takes advice.
pub(crate) fn advice(bytes: &[u8], address: u64) -> Option<u64> {
    let word = |at: usize| {
        let word = bytes.get(at..at + 8)?;
        word.try_into().ok().map(u64::from_le_bytes)
    };
    let version = *bytes.get(7)?;
    let takes_advice = bytes.get(..7)? == MAGIC
        && (ADVISED_VERSION..=*VERSIONS.end()).contains(&version)
        && word(24)? == address;
    takes_advice.then(|| word(MERGED_AT as usize)).flatten()
}

/// The superblocks of a heap, from the bytes of its description at `address`; `None` if they are
/// malformed.
pub(crate) fn superblocks(bytes: &[u8], address: u64) -> Option<Vec<Superblock>> {
    let u32_at = |at: usize| {
        bytes
            .get(at..at + 4)?
            .try_into()
            .ok()
            .map(u32::from_le_bytes)
    };
    let u64_at = |at: usize| {
        bytes
            .get(at..at + 8)?
            .try_into()
            .ok()
            .map(u64::from_le_bytes)
    };
    let subpages_per_page = u32_at(12)?;
    let version = *bytes.get(7)?;
    let is_ours = bytes.get(..7)? == MAGIC
        && VERSIONS.contains(&version)
        && u64::from(u32_at(8)?) == PAGE
        && u64::from(u32_at(16)?) == SLAB
        && u64_at(24)? == address
        && subpages_per_page.is_power_of_two()
        && subpages_per_page <= 64;
    if !is_ours {
        return None;
    }
    let count = u32_at(20)? as usize;
    (0..count)
        .map(|index| {
            let at = HEADER_BYTES + index * ENTRY_BYTES;
            let superblock = Superblock {
                base: u64_at(at)?,
                alias_bytes: u64_at(at + 8)?,
                table: u64_at(at + 16)?,
                subpages_per_page,
                description: address,
                takes_advice: version >= ADVISED_VERSION,
            };
            let fits = superblock.alias_bytes.is_power_of_two()
                && (SLAB..=ALIAS_BYTES_MAX).contains(&superblock.alias_bytes)
                && superblock.base.is_multiple_of(PAGE)
                && superblock.base < 1 << 60
                && superblock.slabs() as u64 == u64_at(at + 24)?;
            fits.then_some(superblock)
        })
        .collect()
}

/// Sorts superblocks by address and keeps those that do not overlap and, together, are within the
/// limits: a process may describe what it likes, but must not determine how much memory its tracker
/// uses.
pub(crate) fn within_limits(mut superblocks: Vec<Superblock>) -> Vec<Superblock> {
    superblocks.sort_unstable_by_key(|superblock| (superblock.base, superblock.alias_bytes));
    let (mut slabs, mut in_aliases, mut end) = (0, 0, 0);
    superblocks.retain(|superblock| {
        let aliases = superblock.aliases();
        let all = slabs + superblock.slabs();
        let all_in_aliases =
            in_aliases + superblock.slabs() * superblock.subpages_per_page as usize;
        let fits =
            aliases.start() >= end && all <= SLABS_MAX && all_in_aliases <= SLABS_IN_ALIASES_MAX;
        if fits {
            (slabs, in_aliases, end) = (all, all_in_aliases, aliases.end());
        }
        fits
    });
    superblocks.truncate(SUPERBLOCKS_MAX);
    superblocks
}

#[cfg(test)]
mod tests {
    use super::*;

    fn description() -> Vec<u8> {
        let mut bytes = vec![0; BYTES];
        bytes[..7].copy_from_slice(MAGIC);
        bytes[7] = 1;
        bytes[8..12].copy_from_slice(&4096u32.to_le_bytes());
        bytes[12..16].copy_from_slice(&8u32.to_le_bytes());
        bytes[16..20].copy_from_slice(&65536u32.to_le_bytes());
        bytes[20..24].copy_from_slice(&1u32.to_le_bytes());
        bytes[24..32].copy_from_slice(&0x7000u64.to_le_bytes());
        for (at, word) in [0x10_0000u64, 1 << 24, 0x9000, 256].iter().enumerate() {
            bytes[64 + at * 8..72 + at * 8].copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    #[test]
    fn advice_is_that_of_a_heap_alone() {
        let mut bytes = description();
        bytes[32] = 6;
        assert_eq!(advice(&bytes, 0x7000), None);
        bytes[7] = 2;
        assert_eq!(advice(&bytes[..ADVICE_BYTES], 0x7000), Some(6));
        assert_eq!(advice(&bytes[..ADVICE_BYTES - 1], 0x7000), None);
        assert_eq!(advice(&bytes, 0x8000), None);
        bytes[0] = 0;
        assert_eq!(advice(&bytes, 0x7000), None);
    }

    #[test]
    fn a_description_is_read_and_nonsense_is_not() {
        let superblock = Superblock {
            base: 0x10_0000,
            alias_bytes: 1 << 24,
            table: 0x9000,
            subpages_per_page: 8,
            description: 0x7000,
            takes_advice: false,
        };
        assert_eq!(superblocks(&description(), 0x7000), Some(vec![superblock]));
        assert_eq!(superblocks(&description(), 0x8000), None);
        let mut random = fastrand::Rng::with_seed(1);
        for _ in 0..20_000 {
            let mut bytes = description();
            bytes[random.usize(0..100)] = random.u8(..);
            for superblock in superblocks(&bytes, 0x7000).unwrap_or_default() {
                assert!(superblock.aliases().bytes() >= SLAB);
            }
        }
        assert_eq!(superblocks(&description()[..90], 0x7000), None);
    }

    #[test]
    fn no_process_describes_more_than_its_tracker_can_hold() {
        let superblock = |gib: u64, subpages_per_page: u32| Superblock {
            base: gib << 30,
            alias_bytes: 1 << 30,
            table: 0,
            subpages_per_page,
            description: 0,
            takes_advice: false,
        };
        let apart: Vec<_> = (0..2046).rev().map(|at| superblock(at, 1)).collect();
        let kept = within_limits(apart);
        assert_eq!(kept.len(), 64);
        assert!(kept.is_sorted_by_key(|superblock| superblock.base));
        let small_subpages = (0..64).map(|at| superblock(at * 64, 64)).collect();
        assert_eq!(within_limits(small_subpages).len(), 8);
        // These are in each other's aliases.
        let over = vec![
            superblock(0, 2),
            superblock(0, 2),
            superblock(1, 1),
            superblock(2, 1),
        ];
        assert_eq!(within_limits(over), [superblock(0, 2), superblock(2, 1)]);
        let mut bytes = description();
        bytes[72..80].copy_from_slice(&(1u64 << 31).to_le_bytes());
        bytes[88..96].copy_from_slice(&(1u64 << 15).to_le_bytes());
        assert_eq!(superblocks(&bytes, 0x7000), None);
    }

    #[test]
    fn only_names_of_heaps_are_recognized() {
        assert!(is_named("/memfd:pagetrail-heap (deleted)"));
        assert!(is_named("/memfd:pagetrail-heap"));
        assert!(!is_named("/memfd:pagetrail-heaps (deleted)"));
        assert!(!is_named("/memfd:other (deleted)"));
    }
}
