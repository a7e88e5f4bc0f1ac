//! What a read of `pagemap` returns: the kernel's entries, with bit 55 as soft-dirty would have it.
//!
//! * An entry in watched memory that is write-protected (bit 57) was not written since the last
//!   clear; a page without that bit was, or is new.
//! * A mapping that is not under watch (new since the last clear, replaced, refused by the watch)
//!   is soft-dirty as a whole, untouched pages included: the kernel marks new mappings so.
//! * An untouched page of watched private memory is clean. In watched shared memory an entry
//!   without a page may have lost one that was written, and counts as written.
//! * Where a log of dirty pages is read, entries do not tell: a page of armed memory is soft-dirty
//!   if the log has it, and other memory is soft-dirty where it has a page.
//! * A protection marker of ours at an untouched page looks like a swapped page. Readers that may
//!   see swap types get an empty entry in its place.

use crate::spans::{self, Judged};
use pagetrail::{PageRange, PageSet};
use rustix::fd::RawFd;
use rustix::io::Errno;

/// Bits of an entry; `Documentation/admin-guide/mm/pagemap.rst`.
const PRESENT: u64 = 1 << 63;
const SWAPPED: u64 = 1 << 62;
const WRITE_PROTECTED: u64 = 1 << 57;
const SOFT_DIRTY: u64 = 1 << 55;
/// The type of a swapped entry.
const SWAP_TYPE: u64 = 0x1f;
/// `SWP_PTE_MARKER` in `include/linux/swap.h`: always the last type.
const MARKER: u64 = 31;

const ENTRY: usize = size_of::<u64>();

/// The most that the kernel reads at once: `MAX_RW_COUNT` in include/linux/fs.h.
const READ_MAX: usize = 0x7fff_f000;

/// Whether a read of so many bytes is one of whole entries that the kernel would not make shorter.
pub(crate) fn is_plain(count: usize) -> bool {
    count != 0 && count <= READ_MAX && count.is_multiple_of(ENTRY)
}

/// What is known about the memory of one process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct View<'a> {
    /// Armed at the last clear.
    pub(crate) armed: &'a PageSet,
    /// The part of it that is mapped shared.
    pub(crate) shared: &'a PageSet,
    /// The part of it that is private and no file's.
    pub(crate) anonymous: &'a PageSet,
    /// Whether this kernel leaves write-protection bits in mappings that have lost their
    /// registration (`mremap(2)` before Linux 6.13), so that they prove nothing by themselves.
    pub(crate) leaves_bits: bool,
    /// What was written since the clear, where a log tells it and no entry does.
    pub(crate) written: Option<&'a PageSet>,
}

/// Whether an entry is the mark of write-protection on a page that does not exist. Readers without
/// `CAP_SYS_ADMIN` get no swap type, and cannot tell.
pub(crate) fn is_marker(entry: u64) -> bool {
    entry & (PRESENT | SWAPPED | WRITE_PROTECTED) == SWAPPED | WRITE_PROTECTED
        && entry & SWAP_TYPE == MARKER
}

/// Sets bit 55 in entries that were read from `pagemap` through `fd`, from the entry of address
/// `first` on.
pub(crate) fn amend(view: View<'_>, fd: RawFd, first: u64, entries: &mut [u8]) {
    let page = pagetrail::page_size();
    let end = first + (entries.len() / ENTRY) as u64 * page;
    if let Some(written) = view.written {
        return amend_by_log(view.armed, written, first, entries);
    }
    let Found { holes, markers } = mark_written(entries);
    let mut window = Window {
        first,
        page,
        entries,
    };
    let mut done = first;
    for range in overlapping(view.armed, first, end) {
        window.mark_protected(done, range.start());
        done = range.end();
    }
    window.mark_protected(done, end);
    // Where every page exists their own bits tell all; otherwise new mappings have to be found.
    let doubtful = match holes {
        _ if view.leaves_bits => Some((first, end)),
        Some((from, to)) => Some((first + from as u64 * page, first + to as u64 * page)),
        None => None,
    };
    if let Some((from, to)) = doubtful {
        window.mark_unregistered(fd, from, to);
    }
    if holes.is_some() {
        for range in overlapping(view.shared, first, end) {
            window.mark_holes(range);
        }
    }
    if markers {
        hide_markers(window.entries);
    }
}

/// Sets bit 55 where the log has the page, and on the pages of memory that is not armed.
fn amend_by_log(armed: &PageSet, written: &PageSet, first: u64, entries: &mut [u8]) {
    let page = pagetrail::page_size();
    let end = first + (entries.len() / ENTRY) as u64 * page;
    for entry in entries.chunks_exact_mut(ENTRY) {
        put(entry, get(entry) & !SOFT_DIRTY);
    }
    let mut window = Window {
        first,
        page,
        entries,
    };
    let mut done = first;
    for range in overlapping(armed, first, end) {
        mark_all(window.slice(done, range.start()));
        done = range.end();
    }
    mark_all(window.slice(done, end));
    for range in overlapping(written, first, end) {
        window.mark(range);
    }
}

/// Entries of the own memory with nothing in them but bit 55, which untouched pages may have as
/// well; straight from `PAGEMAP_SCAN(2const)`, which looks at page tables alone, where the kernel
/// looks up every page for a full entry.
pub(crate) fn bare(view: View<'_>, fd: RawFd, first: u64, entries: &mut [u8]) -> Result<(), Errno> {
    let page = pagetrail::page_size();
    let end = first + (entries.len() / ENTRY) as u64 * page;
    entries.fill(0);
    let mut window = Window {
        first,
        page,
        entries,
    };
    let mut done = first;
    for range in overlapping(view.armed, first, end) {
        window.mark_foreign(fd, done, range.start())?;
        window.mark_watched(fd, range, view.shared)?;
        done = range.end();
    }
    window.mark_foreign(fd, done, end)
}

/// Sets the bit on all pages that exist: what can be said when nothing is known.
pub(crate) fn mark_all(entries: &mut [u8]) {
    for entry in entries.chunks_exact_mut(ENTRY) {
        let bits = get(entry);
        if bits & (PRESENT | SWAPPED) != 0 {
            put(entry, bits | SOFT_DIRTY);
        }
    }
}

/// What a look at the entries themselves has found.
struct Found {
    /// The first and the last but one entry without a page.
    holes: Option<(usize, usize)>,
    /// Whether there are protection markers.
    markers: bool,
}

/// Judges each entry by its own bits, as is right for watched memory.
fn mark_written(entries: &mut [u8]) -> Found {
    const EXISTS: u64 = PRESENT | SWAPPED;
    let (mut any_hole, mut markers) = (false, false);
    // Without a branch: collectors read thousands of entries for each of their rounds.
    for entry in entries.chunks_exact_mut(ENTRY) {
        let bits = get(entry);
        let exists = bits & EXISTS != 0;
        let protected = bits & WRITE_PROTECTED != 0;
        // No process clears the kernel's own bit 55 while we answer.
        put(
            entry,
            bits & !SOFT_DIRTY | (u64::from(exists & !protected) * SOFT_DIRTY),
        );
        any_hole |= !exists & !protected;
        markers |= is_marker(bits);
    }
    let is_hole = |entry: &[u8]| get(entry) & (EXISTS | WRITE_PROTECTED) == 0;
    let mut all = entries.chunks_exact(ENTRY);
    let holes = match any_hole {
        true => all.clone().position(is_hole).zip(all.rposition(is_hole)),
        false => None,
    };
    Found {
        holes: holes.map(|(first, last)| (first, last + 1)),
        markers,
    }
}

fn hide_markers(entries: &mut [u8]) {
    for entry in entries.chunks_exact_mut(ENTRY) {
        let bits = get(entry);
        if is_marker(bits) {
            put(entry, bits & SOFT_DIRTY);
        }
    }
}

struct Window<'a> {
    /// The address of the first entry.
    first: u64,
    page: u64,
    entries: &'a mut [u8],
}

impl Window<'_> {
    /// Marks protected pages that we have not armed: another userfaultfd protects them, and that
    /// says nothing about our clear.
    fn mark_protected(&mut self, start: u64, end: u64) {
        if start >= end {
            return;
        }
        for entry in self.between(start, end) {
            let bits = get(entry);
            if bits & WRITE_PROTECTED != 0 {
                put(entry, bits | SOFT_DIRTY);
            }
        }
    }

    /// Sets the bit on all that is mapped and not under watch: new since the clear, or replaced.
    fn mark_unregistered(&mut self, fd: RawFd, start: u64, end: u64) {
        let outcome = spans::unregistered(fd, start, end, |from, to| {
            for entry in self.between(from, to) {
                put(entry, get(entry) | SOFT_DIRTY);
            }
        });
        if outcome.is_err() {
            mark_all(self.slice(start, end));
        }
    }

    /// Marks what we have not armed: all pages that exist, since protection there is another
    /// userfaultfd's, and all mapped addresses that no other userfaultfd tracks.
    fn mark_foreign(&mut self, fd: RawFd, start: u64, end: u64) -> Result<(), Errno> {
        if start >= end {
            return Ok(());
        }
        spans::existing_or_unregistered(fd, start, end, |found| self.mark(found))
    }

    /// Where we have armed.
    fn mark_watched(&mut self, fd: RawFd, range: PageRange, shared: &PageSet) -> Result<(), Errno> {
        let (start, end) = (range.start(), range.end());
        let quick = spans::written_or_empty(fd, start, end, |found| self.mark(found));
        if quick != Err(Errno::PERM) {
            return quick;
        }
        spans::written_or_unregistered(fd, start, end, |found, judged| match judged {
            Judged::Dirty => self.mark(found),
            // An entry without a page may have lost one only in shared memory.
            Judged::Empty => {
                for range in overlapping(shared, found.start(), found.end()) {
                    self.mark(range);
                }
            }
        })
    }

    fn mark(&mut self, range: PageRange) {
        for entry in self.between(range.start(), range.end()) {
            put(entry, get(entry) | SOFT_DIRTY);
        }
    }

    fn mark_holes(&mut self, range: PageRange) {
        for entry in self.between(range.start(), range.end()) {
            let bits = get(entry);
            if bits & (PRESENT | SWAPPED | WRITE_PROTECTED) == 0 {
                put(entry, bits | SOFT_DIRTY);
            }
        }
    }

    fn between(&mut self, start: u64, end: u64) -> impl Iterator<Item = &mut [u8]> {
        self.slice(start, end).chunks_exact_mut(ENTRY)
    }

    fn slice(&mut self, start: u64, end: u64) -> &mut [u8] {
        let index = |address: u64| {
            let pages = address.saturating_sub(self.first) / self.page;
            (pages as usize * ENTRY).min(self.entries.len())
        };
        let (from, to) = (index(start), index(end));
        &mut self.entries[from..to.max(from)]
    }
}

/// The parts of a set within a window.
pub(crate) fn overlapping(
    set: &PageSet,
    start: u64,
    end: u64,
) -> impl Iterator<Item = PageRange> + '_ {
    let from = set.ranges().partition_point(|range| range.end() <= start);
    set.ranges()[from..]
        .iter()
        .map_while(move |range| PageRange::new(range.start().max(start), range.end().min(end)))
}

fn get(entry: &[u8]) -> u64 {
    entry.try_into().map_or(0, u64::from_ne_bytes)
}

fn put(entry: &mut [u8], bits: u64) {
    entry.copy_from_slice(&bits.to_ne_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::set;

    const PAGE: u64 = 4096;

    /// Amends entries from page 100 on, where a scan for new mappings fails: then what exists
    /// counts as written.
    fn amended(armed: &PageSet, shared: &PageSet, entries: &[u64]) -> Vec<bool> {
        let view = View {
            armed,
            shared,
            anonymous: &PageSet::new(),
            leaves_bits: false,
            written: None,
        };
        let mut bytes: Vec<u8> = entries
            .iter()
            .flat_map(|entry| entry.to_ne_bytes())
            .collect();
        amend(view, -1, 100 * pagetrail::page_size(), &mut bytes);
        let dirty = |entry: &[u8]| get(entry) & SOFT_DIRTY != 0;
        bytes.chunks_exact(ENTRY).map(dirty).collect()
    }

    #[test]
    fn bits_tell_in_watched_memory_and_nowhere_else() {
        if pagetrail::page_size() != PAGE {
            return pagetrail_skips::not_here("pages are not of 4096 bytes");
        }
        let clean = PRESENT | WRITE_PROTECTED;
        let entries = [
            clean,
            PRESENT,
            SWAPPED,
            SWAPPED | WRITE_PROTECTED,
            clean,
            PRESENT,
        ];
        let all = set(&[(100, 106)]);
        let none = PageSet::new();
        let written = [false, true, true, false, false, true];
        assert_eq!(amended(&all, &none, &entries), written);
        // The kernel's own bits say nothing about our clears.
        let kernels = entries.map(|entry| entry | SOFT_DIRTY);
        assert_eq!(amended(&all, &none, &kernels), written);
        // Somebody else protects what we have not armed.
        let part = set(&[(90, 101), (105, 200)]);
        assert_eq!(
            amended(&part, &none, &entries),
            [false, true, true, true, true, true]
        );
        assert_eq!(amended(&none, &none, &entries), [true; 6]);
    }

    #[test]
    fn what_the_kernel_would_refuse_or_shorten_is_not_answered() {
        assert!(is_plain(8) && is_plain(64) && is_plain(READ_MAX));
        for other in [0, 4, 12, READ_MAX + 8, READ_MAX + 1, usize::MAX - 7] {
            assert!(!is_plain(other), "{other}");
        }
    }

    #[test]
    fn an_untouched_page_is_clean_unless_it_is_shared() {
        if pagetrail::page_size() != PAGE {
            return pagetrail_skips::not_here("pages are not of 4096 bytes");
        }
        let marker = SWAPPED | WRITE_PROTECTED | 1 << 5 | MARKER;
        let entries = [0, marker, 0, marker, PRESENT | WRITE_PROTECTED];
        let all = set(&[(100, 105)]);
        let shared = set(&[(102, 105)]);
        // (The scan that would find new mappings fails here, and marks what exists.)
        let found = amended(&all, &shared, &entries);
        assert!(!found[0] && found[2], "{found:?}");
    }

    #[test]
    fn markers_and_swapped_pages_are_distinguished_by_type() {
        assert!(is_marker(SWAPPED | WRITE_PROTECTED | 1 << 5 | MARKER));
        for other in [
            SWAPPED | MARKER,
            SWAPPED | WRITE_PROTECTED,
            SWAPPED | WRITE_PROTECTED | 7 << 5 | 2,
            PRESENT | WRITE_PROTECTED | MARKER,
            0,
        ] {
            assert!(!is_marker(other), "{other:#x}");
        }
    }

    #[test]
    fn a_log_tells_of_armed_memory_and_of_nothing_else() {
        let page = pagetrail::page_size();
        let (armed, written) = (set(&[(101, 104)]), set(&[(102, 103), (104, 106)]));
        let none = PageSet::new();
        let view = View {
            armed: &armed,
            shared: &none,
            anonymous: &none,
            leaves_bits: false,
            written: Some(&written),
        };
        // Protection is of no account, nor are the kernel's own bits.
        let before = [
            0,
            PRESENT | SOFT_DIRTY,
            PRESENT | WRITE_PROTECTED,
            SWAPPED,
            PRESENT,
            0,
        ];
        let mut bytes: Vec<u8> = before
            .iter()
            .flat_map(|entry| entry.to_ne_bytes())
            .collect();
        amend(view, -1, 100 * page, &mut bytes);
        let dirty: Vec<bool> = bytes
            .chunks_exact(ENTRY)
            .map(|entry| get(entry) & SOFT_DIRTY != 0)
            .collect();
        assert_eq!(dirty, [false, false, true, false, true, true]);
        assert!(
            bytes
                .chunks_exact(ENTRY)
                .zip(before)
                .all(|(entry, before)| { get(entry) & !SOFT_DIRTY == before & !SOFT_DIRTY })
        );
    }
}
