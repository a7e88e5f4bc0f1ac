//! Heaps of allocators in C, and of Go, by what they write at the beginning of their mappings.
//!
//! Sources: glibc `malloc/arena.c` (`heap_info`) and `malloc/malloc.c` (`struct malloc_chunk`,
//! mmapped chunks), jemalloc 5 `base.h` (`base_block_t`), Go `runtime/malloc.go` (arena hints).

use pagetrail::PageRange;

use super::memory::Memory;

/// `HEAP_MAX_SIZE`: heaps of arenas begin at its multiples.
const HEAP_BYTES: u64 = 64 << 20;
/// jemalloc's blocks of metadata begin at multiples of a huge page.
const HUGE_PAGE: u64 = 2 << 20;
/// Smallest unit of every mapping.
const PAGE: u64 = 4096;
/// Blocks of metadata looked for in one mapping.
const BLOCKS_MAX: usize = 512;
/// Where Go's heap begins on Linux, 64-bit.
pub(super) const GO_ARENAS: u64 = 0xc0_0000_0000;
/// No heap of Go is expected to be larger.
const GO_BYTES_MAX: u64 = 64 << 30;

/// Whether a mapping is a heap of an arena of glibc's malloc, or the part that such a heap has not
/// used yet: `heap_info` has its size and its arena, which lies right after the `heap_info` of the
/// arena's first heap.
pub(super) fn is_arena(range: PageRange, memory: &impl Memory) -> bool {
    let start = range.start() & !(HEAP_BYTES - 1);
    if start != range.start() && range.end() != start + HEAP_BYTES {
        return false;
    }
    let Some([arena, previous, size, writable]) = memory.words(start) else {
        return false;
    };
    // What follows the heap when its mapping is read may be a part of it by now.
    if range.start() - start > writable {
        return false;
    }
    let first = arena & !(HEAP_BYTES - 1);
    let is_first = first == start;
    (0x10..0x100).contains(&(arena - first))
        && first > 0
        && (previous == 0) == is_first
        && previous.is_multiple_of(HEAP_BYTES)
        && [size, writable].iter().all(|n| n.is_multiple_of(PAGE))
        && (PAGE..=writable).contains(&size)
        && writable <= HEAP_BYTES
}

/// Whether a mapping consists of blocks that glibc's malloc mapped one by one: each begins with its
/// size and the flag that says so, and they fill the mapping.
pub(super) fn is_mapped_blocks(range: PageRange, memory: &impl Memory) -> bool {
    const FLAGS: u64 = 7;
    const IS_MAPPED: u64 = 2;
    let mut at = range.start();
    for _ in 0..BLOCKS_MAX {
        let Some([before, size]) = memory.words(at) else {
            return false;
        };
        let bytes = size & !FLAGS;
        let left = range.end() - at;
        let is_block = size & FLAGS == IS_MAPPED
            && before < PAGE
            && bytes >= PAGE
            && bytes.is_multiple_of(PAGE)
            && bytes <= left;
        if !is_block {
            return false;
        }
        if bytes == left {
            return true;
        }
        at += bytes;
    }
    true
}

/// Whether a mapping has a block of jemalloc's metadata, which lies among the memory that it hands
/// out: a size, the next block, and the extent that is left in the block up to its end.
pub(super) fn is_jemalloc(range: PageRange, memory: &impl Memory) -> bool {
    let first = range.start().next_multiple_of(HUGE_PAGE);
    let places = (first..range.end()).step_by(HUGE_PAGE as usize);
    places.take(BLOCKS_MAX).any(|block| {
        let Some([bytes, next, _, free, free_bytes]) = memory.words(block) else {
            return false;
        };
        let end = block.checked_add(bytes);
        bytes > 0
            && bytes.is_multiple_of(HUGE_PAGE)
            && next.is_multiple_of(HUGE_PAGE)
            && end.is_some_and(|end| {
                end <= range.end() && free > block && free.checked_add(free_bytes) == Some(end)
            })
    })
}

/// Whether a mapping lies where a Go program has its heap, which grows upwards from a fixed
/// address.
pub(super) fn is_go(range: PageRange) -> bool {
    (GO_ARENAS..GO_ARENAS + GO_BYTES_MAX).contains(&range.start())
}
