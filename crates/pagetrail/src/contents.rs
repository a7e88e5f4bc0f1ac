//! [`pages_with_content`], [`owned_pages`] and [`mapped_pages`]: which pages of a mapping have
//! contents, found without reading them.
//!
//! Reading an untouched page of a sparse mapping would create a page table for it, or even a page.
//! These functions only inspect page tables and files.

use crate::error::{Error, Result};
use crate::page_set::{PageSet, page_size};
use crate::proc::map_files;
use crate::proc::status::may_be_swapped;
use crate::region::Region;
use crate::sys::pagemap::{Categories, Entry, OWNED, Pagemap, Query, Vector, existing, is_owned};
use rustix::io::Errno;
use std::fs::File;
use std::io;

/// The pages of a mapping of process `pid` that are more than untouched memory and more than a copy
/// of the mapped file:
///
/// * private anonymous memory: the pages that exist, in memory or swapped out;
/// * private file mappings: all pages if writable, otherwise those that the process owns;
/// * shared mappings: the pages for which the file, or the shared memory, has data.
///
/// The other pages read as zeros, or as the file. The result may include pages that contain only
/// zeros.
///
/// # Errors
///
/// [`Error::Io`] if the process's `pagemap` cannot be opened or read.
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

/// The pages of a private mapping that the process owns; its other pages are the file's, or the
/// zero page.
///
/// # Errors
///
/// [`Error::Io`] if the process's `pagemap` cannot be opened or read; [`Error::Gone`] if the
/// process has ended or executed another program.
pub fn owned_pages(pid: u32, region: &Region) -> Result<PageSet> {
    let failed = || Error::io("reading pagemap");
    let pagemap = Pagemap::open(Some(pid)).map_err(failed())?;
    let mut found = PageSet::new();
    let mut elsewhere = PageSet::new();
    let outcome = pagemap.scan_kinds(
        region.range,
        OWNED_WITH_PRESENCE,
        &mut Vector::new(),
        |range, kinds| match kinds.contains(Categories::PRESENT) {
            true => found.insert(range),
            false => elsewhere.insert(range),
        },
    );
    match outcome {
        Ok(()) => {}
        // Linux before 6.7 has no PAGEMAP_SCAN, and no markers without a userfaultfd of ours.
        Err(Errno::NOTTY) => {
            pagemap
                .matching_entries(region.range, is_owned, &mut found)
                .map_err(failed())?;
            return Ok(found);
        }
        Err(Errno::SRCH) => return Err(Error::Gone { pid }),
        Err(errno) => return Err(Error::os("PAGEMAP_SCAN")(errno)),
    }
    if !may_be_swapped(pid) {
        elsewhere = without_markers(&pagemap, &elsewhere).map_err(failed())?;
    }
    found.union_with(&elsewhere);
    Ok(found)
}

/// Selects the pages that a process owns, and markers; says which are in memory.
const OWNED_WITH_PRESENCE: Query = Query {
    report: Categories::PRESENT,
    ..OWNED
};

/// Removes the markers from pages that read as swapped out, where nothing is swapped out: the
/// others are just being migrated to other physical memory, or their huge page is being split.
///
/// Without CAP_SYS_ADMIN entries do not tell, and all pages stay: markers read as zeros, or as the
/// file.
fn without_markers(pagemap: &Pagemap, pages: &PageSet) -> io::Result<PageSet> {
    let exists = |entry: Entry| entry.is_populated() && !entry.is_marker();
    // A call for each page table (2 MiB with 4 KiB pages), instead of one for each run of pages.
    let table = page_size() * (page_size() / 8);
    let ranges = pages.ranges().iter();
    let tables: PageSet = ranges.map(|range| range.align_outwards(table)).collect();
    let mut found = PageSet::new();
    for range in tables.ranges() {
        pagemap.matching_entries(*range, exists, &mut found)?;
    }
    Ok(found.intersection(pages))
}

/// The pages that a process's page tables map.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Mapped {
    /// Pages in memory, except the zero page.
    pub present: PageSet,
    /// The part of `present` that is mapped by huge pages.
    pub huge: PageSet,
    /// Pages that are swapped out.
    pub swapped: PageSet,
}

impl Mapped {
    /// Small pages that are all in memory.
    pub fn in_memory(present: PageSet) -> Self {
        Self {
            present,
            ..Self::default()
        }
    }
}

/// The pages of `addresses` that the page tables of process `pid` map. Linux 6.7.
///
/// # Errors
///
/// [`Error::Gone`] if the process has ended, [`Error::Io`] if its `pagemap` cannot be opened or
/// scanned.
pub fn mapped_pages(pid: u32, addresses: &PageSet) -> Result<Mapped> {
    let mut found = Mapped::default();
    let pagemap = Pagemap::open(Some(pid)).map_err(Error::io("opening pagemap"))?;
    // A marker on a write-protected untouched page reads as a swapped page.
    let swap = may_be_swapped(pid);
    let query = Query {
        inverted: Categories::ZERO,
        all_of: Categories::ZERO,
        any_of: existing(swap),
        report: Categories::PRESENT | Categories::HUGE,
        ..Query::ALL
    };
    let mut vector = Vector::new();
    for range in addresses.ranges() {
        pagemap
            .scan_kinds(*range, query, &mut vector, |range, kinds| {
                if !kinds.contains(Categories::PRESENT) {
                    found.swapped.insert(range);
                    return;
                }
                found.present.insert(range);
                if kinds.contains(Categories::HUGE) {
                    found.huge.insert(range);
                }
            })
            .map_err(|errno| match errno {
                Errno::SRCH => Error::Gone { pid },
                errno => Error::os("PAGEMAP_SCAN")(errno),
            })?;
    }
    Ok(found)
}

/// The addresses of a mapping at which the mapped file has data; `None` if that cannot be found
/// out.
fn data_of_file(pid: u32, region: &Region) -> Option<PageSet> {
    let file = File::open(map_files::link(Some(pid), region.range)).ok()?;
    let mut found = PageSet::new();
    let range = region.range;
    map_files::add_data(&file, range.start(), region.offset, range, &mut found).ok()?;
    Some(found)
}
