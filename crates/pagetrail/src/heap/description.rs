//! What a heap says of itself, byte by byte (`docs/heap-format.md`). It comes from a process that may say anything.

use crate::page_set::PageRange;

/// How the mapping is named that begins a description.
const NAME: &str = "/memfd:pagetrail-heap";

/// Bytes of a description.
pub(crate) const BYTES: usize = 65536;
const MAGIC: &[u8; 8] = b"PTHEAP\0\x01";
const HEADER_BYTES: usize = 64;
const ENTRY_BYTES: usize = 32;

/// The only ones that there are.
pub(crate) const PAGE: u64 = 4096;
pub(crate) const SLAB: u64 = 65536;
pub(crate) const SLAB_PAGES: u64 = SLAB / PAGE;

/// Superblocks are not larger than this.
const WINDOW_BYTES_MAX: u64 = 1 << 40;

/// Memory of a heap: windows behind each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Superblock {
    pub(crate) base: u64,
    pub(crate) window_bytes: u64,
    /// Where the words are that say what its slabs are, eight bytes each.
    pub(crate) table: u64,
    pub(crate) parts: u32,
}

impl Superblock {
    pub(crate) fn slabs(&self) -> usize {
        (self.window_bytes / SLAB) as usize
    }

    pub(crate) fn first_window(&self) -> PageRange {
        let end = self.base + self.window_bytes;
        PageRange::new(self.base, end).unwrap_or_else(|| unreachable!("windows have a length"))
    }

    /// The addresses of all windows; the description was read with room for them.
    pub(crate) fn windows(&self) -> PageRange {
        let end = self.base + self.window_bytes * u64::from(self.parts);
        PageRange::new(self.base, end).unwrap_or_else(|| unreachable!("windows have a length"))
    }
}

/// Whether a mapping of this name is a description.
pub(crate) fn is_named(name: &str) -> bool {
    name.strip_prefix(NAME)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
}

/// The superblocks of a heap, from the bytes of its description, which lies at `address`. None if it makes no sense.
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
    let parts = u32_at(12)?;
    let is_ours = bytes.get(..8)? == MAGIC
        && u64::from(u32_at(8)?) == PAGE
        && u64::from(u32_at(16)?) == SLAB
        && u64_at(24)? == address
        && parts.is_power_of_two()
        && parts <= 64;
    if !is_ours {
        return None;
    }
    let count = u32_at(20)? as usize;
    (0..count)
        .map(|index| {
            let at = HEADER_BYTES + index * ENTRY_BYTES;
            let superblock = Superblock {
                base: u64_at(at)?,
                window_bytes: u64_at(at + 8)?,
                table: u64_at(at + 16)?,
                parts,
            };
            let fits = superblock.window_bytes.is_power_of_two()
                && (SLAB..=WINDOW_BYTES_MAX).contains(&superblock.window_bytes)
                && superblock.base.is_multiple_of(PAGE)
                && superblock.base < 1 << 60
                && superblock.slabs() as u64 == u64_at(at + 24)?;
            fits.then_some(superblock)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn description() -> Vec<u8> {
        let mut bytes = vec![0; BYTES];
        bytes[..8].copy_from_slice(MAGIC);
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
    fn a_description_is_read_and_nonsense_is_not() {
        let superblock = Superblock {
            base: 0x10_0000,
            window_bytes: 1 << 24,
            table: 0x9000,
            parts: 8,
        };
        assert_eq!(superblocks(&description(), 0x7000), Some(vec![superblock]));
        assert_eq!(superblocks(&description(), 0x8000), None);
        let mut random = fastrand::Rng::with_seed(1);
        for _ in 0..20_000 {
            let mut bytes = description();
            bytes[random.usize(0..100)] = random.u8(..);
            for superblock in superblocks(&bytes, 0x7000).unwrap_or_default() {
                assert!(superblock.windows().bytes() >= SLAB);
            }
        }
        assert_eq!(superblocks(&description()[..90], 0x7000), None);
    }

    #[test]
    fn names_are_told_apart() {
        assert!(is_named("/memfd:pagetrail-heap (deleted)"));
        assert!(is_named("/memfd:pagetrail-heap"));
        assert!(!is_named("/memfd:pagetrail-heaps (deleted)"));
        assert!(!is_named("/memfd:other (deleted)"));
    }
}
