//! The heap of V8 (Node, Deno, Chromium): chunks that begin with their size and, a few words later,
//! where their objects begin and end (`src/heap/basic-memory-chunk.h`).

use pagetrail::PageRange;

use super::memory::Memory;

/// `kPageSize`: chunks begin at its multiples, and have it as size unless they hold one large
/// object.
const CHUNK_BYTES: u64 = 256 << 10;
/// A chunk's header ends before.
const HEADER_BYTES: u64 = 16 << 10;

/// Whether a mapping begins with a chunk.
pub(super) fn is_heap(range: PageRange, memory: &impl Memory) -> bool {
    let start = range.start();
    if !start.is_multiple_of(CHUNK_BYTES) {
        return false;
    }
    let Some(words) = memory.words::<8>(start) else {
        return false;
    };
    let size = words[0];
    let Some(end) = start.checked_add(size) else {
        return false;
    };
    let objects = start + 8 * words.len() as u64..start + HEADER_BYTES;
    size >= PAGE
        && size.is_multiple_of(PAGE)
        && end <= range.end().next_multiple_of(CHUNK_BYTES)
        && words[1..].windows(2).any(|pair| {
            // A large object need not fill the last page.
            objects.contains(&pair[0]) && (end - PAGE + 1..=end).contains(&pair[1])
        })
}

const PAGE: u64 = 4096;
