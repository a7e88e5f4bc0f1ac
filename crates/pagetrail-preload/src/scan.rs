//! What `PAGEMAP_SCAN(2const)` returns when a program requests `PAGE_IS_SOFT_DIRTY`.
//!
//! The kernel classifies mapped addresses by the other categories that matter; ours is added by the
//! rules of [`crate::answer`], and the program's masks are applied to the result.
//!
//! The kernel looks each page up to find out whether it belongs to a file, which takes most of the
//! time of a scan. The category is not requested where the watch knows that memory is anonymous.

use crate::answer::{self, View};
use crate::spans::{NOTHING, query};
use crate::sys::kernel::{self, pagemap_scan};
use linux_raw_sys::general::{self as raw, page_region, pm_scan_arg};
use pagetrail::{PageRange, PageSet};
use rustix::fd::RawFd;
use rustix::io::Errno;

const SOFT_DIRTY: u64 = raw::PAGE_IS_SOFT_DIRTY as u64;
const WRITTEN: u64 = raw::PAGE_IS_WRITTEN as u64;
const PRESENT: u64 = raw::PAGE_IS_PRESENT as u64;
const SWAPPED: u64 = raw::PAGE_IS_SWAPPED as u64;
const FILE: u64 = raw::PAGE_IS_FILE as u64;
const REGISTERED: u64 = raw::PAGE_IS_WPALLOWED as u64;
/// What the judgement of a page rests on.
const NEEDED: u64 = REGISTERED | WRITTEN | PRESENT | SWAPPED;

/// Whether a scan asks for soft-dirty pages.
pub(crate) fn concerns(arg: &pm_scan_arg) -> bool {
    (arg.category_mask | arg.category_anyof_mask | arg.category_inverted | arg.return_mask)
        & SOFT_DIRTY
        != 0
}

/// The end of the addresses that the kernel takes from a program (`access_ok`), at least.
const USER_END: u64 = 1 << 63;

/// Whether the kernel refuses a scan before it looks at any page, by `pagemap_scan_get_args` in
/// `fs/proc/task_mmu.c`, as far as the scans that we make ourselves do not meet the same refusal.
pub(crate) fn is_refused(arg: &pm_scan_arg) -> bool {
    let bytes = arg.vec_len.checked_mul(size_of::<page_region>() as u64);
    let vec_end = bytes.and_then(|bytes| arg.vec.checked_add(bytes));
    let is_user = |end: Option<u64>| end.is_some_and(|end| end <= USER_END);
    arg.end < arg.start
        || !is_user(Some(arg.end))
        || (arg.vec == 0 && arg.vec_len != 0)
        || !is_user(vec_end)
}

/// Answers a scan: fills the vector that it names, sets `walk_end`, and returns how many regions
/// there are.
pub(crate) fn run(view: View<'_>, fd: RawFd, arg: &mut pm_scan_arg) -> Result<usize, Errno> {
    if arg.flags & u64::from(raw::PM_SCAN_WP_MATCHING) != 0 {
        // Protecting pages by soft-dirty bits that are protection bits themselves has no meaning.
        return Err(Errno::INVAL);
    }
    let page = pagetrail::page_size();
    arg.end = arg.end.next_multiple_of(page);
    let mut out = Output {
        arg,
        regions: [NOTHING; 64],
        count: 0,
        flushed: 0,
        pages: 0,
        full_at: None,
        failed: None,
    };
    let (start, end) = (out.arg.start, out.arg.end);
    let mut done = start;
    if wants_no_file(out.arg) {
        for range in answer::overlapping(view.anonymous, start, end) {
            part(view, fd, done, range.start(), !0, &mut out)?;
            part(view, fd, range.start(), range.end(), !FILE, &mut out)?;
            done = range.end();
        }
    }
    part(view, fd, done, end, !0, &mut out)?;
    out.flush(out.count);
    match out.failed {
        Some(errno) => Err(errno),
        None => {
            out.arg.walk_end = out.full_at.unwrap_or(end);
            Ok(out.flushed as usize)
        }
    }
}

/// Whether a scan is for pages that are no file's, and for nothing else about files.
fn wants_no_file(arg: &pm_scan_arg) -> bool {
    arg.category_mask & arg.category_inverted & FILE != 0
        && (arg.category_anyof_mask | arg.return_mask) & FILE == 0
        && (arg.category_mask | arg.category_anyof_mask | arg.category_inverted) & SOFT_DIRTY == 0
}

/// Scans a part, asking the kernel for the categories `asked` only.
fn part(
    view: View<'_>,
    fd: RawFd,
    start: u64,
    end: u64,
    asked: u64,
    out: &mut Output<'_>,
) -> Result<(), Errno> {
    let selects = out.arg.category_mask | out.arg.category_anyof_mask | out.arg.category_inverted;
    let mut found = [NOTHING; 256];
    let mut from = start;
    while from < end && out.full_at.is_none() {
        let mut arg = query(from, end);
        arg.flags = out.arg.flags;
        if selects & SOFT_DIRTY == 0 {
            // The kernel can leave out what the program does not want.
            arg.category_inverted = out.arg.category_inverted & asked;
            arg.category_mask = out.arg.category_mask & asked;
            arg.category_anyof_mask = out.arg.category_anyof_mask & asked;
        }
        arg.return_mask = ((selects | out.arg.return_mask) & !SOFT_DIRTY | NEEDED) & asked;
        let count = pagemap_scan(fd, &mut arg, &mut found)?;
        for region in &found[..count] {
            if asked & FILE == 0 && region.categories & REGISTERED == 0 {
                // Another mapping has taken its place.
                part(view, fd, region.start, region.end, !0, out)?;
                continue;
            }
            classify(view, fd, *region, out);
        }
        if arg.walk_end <= from {
            break;
        }
        from = arg.walk_end;
    }
    Ok(())
}

/// Splits a run of like pages where our knowledge changes.
fn classify(view: View<'_>, fd: RawFd, region: page_region, out: &mut Output<'_>) {
    let categories = region.categories;
    if let Some(written) = view.written {
        return classify_by_log(view.armed, written, region, out);
    }
    let mut done = region.start;
    for range in answer::overlapping(view.armed, region.start, region.end) {
        out.add(done, range.start(), categories | SOFT_DIRTY);
        done = range.end();
        if categories & REGISTERED == 0 {
            out.add(range.start(), range.end(), categories | SOFT_DIRTY);
        } else if categories & PRESENT != 0 || categories & (SWAPPED | WRITTEN) == SWAPPED | WRITTEN
        {
            let written = categories & WRITTEN != 0;
            out.add(range.start(), range.end(), with(categories, written));
        } else if categories & SWAPPED != 0 {
            sort_out_markers(fd, range, categories, out);
        } else {
            let mut hole = range.start();
            for shared in answer::overlapping(view.shared, range.start(), range.end()) {
                out.add(hole, shared.start(), categories);
                out.add(shared.start(), shared.end(), categories | SOFT_DIRTY);
                hole = shared.end();
            }
            out.add(hole, range.end(), categories);
        }
    }
    out.add(done, region.end, categories | SOFT_DIRTY);
}

/// Splits a run of like pages where the log's knowledge changes.
fn classify_by_log(armed: &PageSet, written: &PageSet, region: page_region, out: &mut Output<'_>) {
    let categories = region.categories;
    let mut done = region.start;
    for range in answer::overlapping(armed, region.start, region.end) {
        out.add(done, range.start(), categories | SOFT_DIRTY);
        done = range.start();
        for dirty in answer::overlapping(written, range.start(), range.end()) {
            out.add(done, dirty.start(), categories);
            out.add(dirty.start(), dirty.end(), categories | SOFT_DIRTY);
            done = dirty.end();
        }
        out.add(done, range.end(), categories);
        done = range.end();
    }
    out.add(done, region.end, categories | SOFT_DIRTY);
}

fn with(categories: u64, soft_dirty: bool) -> u64 {
    if soft_dirty {
        categories | SOFT_DIRTY
    } else {
        categories
    }
}

/// Clean pages that seem swapped out are that, or our own markers where nothing is: their entries
/// tell.
fn sort_out_markers(fd: RawFd, range: PageRange, categories: u64, out: &mut Output<'_>) {
    let page = pagetrail::page_size();
    let mut entries = [0_u8; 64 * 8];
    let mut from = range.start();
    while from < range.end() {
        let wanted = (((range.end() - from) / page) as usize * 8).min(entries.len());
        let read = kernel::borrow(fd)
            .and_then(|fd| rustix::io::pread(fd, &mut entries[..wanted], from / page * 8).ok())
            .unwrap_or(0);
        if read < 8 {
            out.add(from, range.end(), categories);
            return;
        }
        for entry in entries[..read].chunks_exact(8) {
            let marker = entry
                .try_into()
                .is_ok_and(|entry| answer::is_marker(u64::from_ne_bytes(entry)));
            let categories = if marker {
                categories & !SWAPPED
            } else {
                categories
            };
            out.add(from, from + page, categories);
            from += page;
        }
    }
}

struct Output<'a> {
    arg: &'a mut pm_scan_arg,
    /// What is not in the program's vector yet.
    regions: [page_region; 64],
    count: usize,
    /// How many are there.
    flushed: u64,
    pages: u64,
    /// Where it had to end, because there was no room for more.
    full_at: Option<u64>,
    /// The vector cannot be written.
    failed: Option<Errno>,
}

impl Output<'_> {
    /// Hands the first `count` to the program.
    fn flush(&mut self, count: usize) {
        let at = self.arg.vec + self.flushed * size_of::<page_region>() as u64;
        if let Err(errno) = kernel::copy_out(at, &self.regions[..count]) {
            self.failed.get_or_insert(errno);
        }
        self.flushed += count as u64;
        self.regions.copy_within(count..self.count, 0);
        self.count -= count;
    }

    /// Hands out a run of pages if the program's masks select it; the rules are
    /// `pagemap_scan_is_interesting_page`'s in `fs/proc/task_mmu.c`.
    fn add(&mut self, start: u64, end: u64, categories: u64) {
        if start >= end || self.full_at.is_some() {
            return;
        }
        let arg = &*self.arg;
        let seen = categories ^ arg.category_inverted;
        let selected = seen & arg.category_mask == arg.category_mask
            && (arg.category_anyof_mask == 0 || seen & arg.category_anyof_mask != 0);
        if !selected || self.arg.vec_len == 0 {
            return;
        }
        let page = pagetrail::page_size();
        let room = match arg.max_pages {
            0 => u64::MAX,
            max => max - self.pages,
        };
        let pages = ((end - start) / page).min(room);
        let taken = start + pages * page;
        let categories = categories & arg.return_mask;
        let is_full = self.flushed + self.count as u64 == self.arg.vec_len;
        if self.count == self.regions.len() {
            // The last may grow yet.
            self.flush(self.count - 1);
            if self.failed.is_some() {
                self.full_at = Some(start);
                return;
            }
        }
        match self.regions[..self.count].last_mut() {
            Some(last) if last.end == start && last.categories == categories => last.end = taken,
            _ if is_full => {
                self.full_at = Some(start);
                return;
            }
            _ => {
                self.regions[self.count] = page_region {
                    start,
                    end: taken,
                    categories,
                };
                self.count += 1;
            }
        }
        self.pages += pages;
        if taken < end || pages == room {
            self.full_at = Some(taken);
        }
    }
}
