//! Arenas of CPython's object allocator (`Objects/obmalloc.c`): pools of 16 KiB (from 3.10 on) or
//! 4 KiB, each with a header whose last field follows from another.

use pagetrail::PageRange;

use super::memory::Memory;

/// `POOL_SIZE` with and without `USE_LARGE_POOLS`.
const POOL_SIZES: [u64; 2] = [16 << 10, 4 << 10];
/// Pools of a mapping that are looked at.
const POOLS_MAX: u64 = 64;
/// `sizeof(struct pool_header)`, rounded to `ALIGNMENT`.
const HEADER_BYTES: u32 = 48;
/// `ALIGNMENT`.
const UNIT: u32 = 16;
/// `NB_SMALL_SIZE_CLASSES`.
const CLASSES: u32 = 32;

/// Whether a mapping consists of pools, but for those that were never used.
pub(super) fn is_arena(range: PageRange, memory: &impl Memory) -> bool {
    POOL_SIZES
        .into_iter()
        .any(|pool_bytes| consists_of_pools(range, pool_bytes, memory))
}

fn consists_of_pools(range: PageRange, pool_bytes: u64, memory: &impl Memory) -> bool {
    let first = range.start().next_multiple_of(pool_bytes);
    let count = range.end().saturating_sub(first) / pool_bytes;
    let step = (count / POOLS_MAX).max(1);
    let mut pools = 0;
    for index in (0..count).step_by(step as usize) {
        let Some(header) = memory.words(first + index * pool_bytes) else {
            return false;
        };
        match header {
            [0, 0, 0, 0, 0, 0] => {}
            _ if is_pool(&header, pool_bytes) => pools += 1,
            _ => return false,
        }
    }
    pools > 0
}

fn is_pool(header: &[u64; 6], pool_bytes: u64) -> bool {
    let [used, _, _, _, _, offsets] = *header;
    let class = (header[4] >> 32) as u32;
    let (next, next_max) = (offsets as u32, (offsets >> 32) as u32);
    let block = class.saturating_add(1).saturating_mul(UNIT);
    let pool_bytes = pool_bytes as u32;
    class < CLASSES
        && next_max == pool_bytes - block
        && (HEADER_BYTES..=pool_bytes).contains(&next)
        && (used as u32) <= pool_bytes / UNIT
}
