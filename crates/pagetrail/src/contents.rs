//! [`pages_with_content`], [`owned_pages`] and [`mapped_pages`]: which pages of a mapping hold something, before anybody reads them.
//!
//! Reading an untouched page of a sparse mapping would make a page table for it, or even a page. This only looks.

use crate::error::{Error, Result};
use crate::page_set::{PageRange, PageSet, page_size};
use crate::proc::status::Status;
use crate::region::Region;
use crate::sys::pagemap::{Pagemap, Query, Vector, category, entry};
use rustix::fs::SeekFrom;
use rustix::io::Errno;
use std::fs::File;

/// The pages of a mapping of process `pid` that are more than untouched memory and more than a copy of the mapped file:
///
/// * private anonymous memory: the pages that exist, in memory or swapped out;
/// * private mappings of files: all pages when writable, else those that the process has come to own;
/// * shared mappings: where the file, or shared memory, has data.
///
/// The others read as zeros, or as the file. Pages may be named that hold zeros.
pub fn pages_with_content(pid: u32, region: &Region) -> Result<PageSet> {
    let of_file = region.inode != 0;
    if region.permissions.shared {
        let all = || PageSet::from_iter([region.range]);
        return Ok(data_of_file(pid, region).unwrap_or_else(all));
    }
    if region.name == "[vdso]" || of_file && region.permissions.write {
        return Ok(PageSet::from_iter([region.range]));
    }
    owned_pages(pid, region)
}

/// The pages of a private mapping that the process has come to own: those of the others that are there are the file's,
/// or the zero page.
pub fn owned_pages(pid: u32, region: &Region) -> Result<PageSet> {
    let mut found = PageSet::new();
    let failed = || Error::io("reading pagemap");
    let pagemap = Pagemap::open(Some(pid)).map_err(failed())?;
    // A marker of a write-protected untouched page looks like a swapped page.
    let swap = Status::of(pid).is_ok_and(|status| status.swap_kib > 0);
    let owned = Query {
        inverted: category::FILE,
        all_of: category::FILE,
        any_of: category::PRESENT | if swap { category::SWAPPED } else { 0 },
        ..Query::default()
    };
    let mut vector = Vector::new();
    match pagemap.scan(region.range, owned, &mut vector, |range| {
        found.insert(range)
    }) {
        Ok(()) => Ok(found),
        // Linux before 6.7.
        Err(Errno::NOTTY) => {
            pagemap
                .matching_entries(region.range, entry::is_owned, &mut found)
                .map_err(failed())?;
            Ok(found)
        }
        Err(errno) => Err(Error::errno("PAGEMAP_SCAN")(errno)),
    }
}

/// What the page tables of a process have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mapped {
    /// Pages in memory, but for the zero page.
    pub present: PageSet,
    /// The part of them that is mapped by huge pages.
    pub huge: PageSet,
    /// Pages that are swapped out.
    pub swapped: PageSet,
}

/// What the page tables of process `pid` have at some addresses. Linux 6.7.
pub fn mapped_pages(pid: u32, addresses: &PageSet) -> Result<Mapped> {
    let mut found = Mapped::default();
    let pagemap = Pagemap::open(Some(pid)).map_err(Error::io("opening pagemap"))?;
    // A marker of a write-protected untouched page looks like a swapped page.
    let swap = Status::of(pid).is_ok_and(|status| status.swap_kib > 0);
    let query = Query {
        inverted: category::PFNZERO,
        all_of: category::PFNZERO,
        any_of: category::PRESENT | if swap { category::SWAPPED } else { 0 },
        report: category::PRESENT | category::HUGE,
        ..Query::default()
    };
    let mut vector = Vector::new();
    for range in addresses.ranges() {
        pagemap
            .scan_kinds(*range, query, &mut vector, |range, kinds| {
                if kinds & category::PRESENT == 0 {
                    found.swapped.insert(range);
                    return;
                }
                found.present.insert(range);
                if kinds & category::HUGE != 0 {
                    found.huge.insert(range);
                }
            })
            .map_err(|errno| match errno {
                Errno::SRCH => Error::Gone { pid },
                errno => Error::errno("PAGEMAP_SCAN")(errno),
            })?;
    }
    Ok(found)
}

/// Where the mapped file has data, in addresses of the mapping; `None` where that cannot be found out.
fn data_of_file(pid: u32, region: &Region) -> Option<PageSet> {
    let (start, end) = (region.range.start(), region.range.end());
    let file = File::open(format!("/proc/{pid}/map_files/{start:x}-{end:x}")).ok()?;
    let mut found = PageSet::new();
    let last = region.offset + region.range.bytes();
    let mut at = region.offset;
    while at < last {
        let data = match rustix::fs::seek(&file, SeekFrom::Data(at)) {
            Ok(data) => data,
            // Nothing but a hole up to the end.
            Err(Errno::NXIO) => break,
            Err(_) => return None,
        };
        let hole = rustix::fs::seek(&file, SeekFrom::Hole(data)).ok()?;
        let from = start + data.min(last) - region.offset;
        let to = start + hole.min(last) - region.offset;
        if let Some(range) = PageRange::new(from, to) {
            found.insert(range.align_outwards(page_size()));
        }
        at = hole.max(at + 1);
    }
    Some(found)
}
