//! Functions on the dirty sub-pages of a round, where the process has sub-page heaps.

use super::round::{given, show};
use super::sized;
use crate::failure::{Status, guard};
use crate::handle::Round;
use crate::types::{Range, SubpagesInfo};
use pagetrail::{PageSet, Subpages};
use std::mem::MaybeUninit;

/// Gets how much of the process's sub-page heaps (libpagetrail_alloc.so) was written, in sub-pages.
///
/// `info`: gets it; all zero where there is no such heap. `size`: sizeof(pagetrail_subpages_info)
/// as the caller knows it.
///
/// PAGETRAIL_STATUS_NO_ROUND: it was ended. BUSY. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn pagetrail_round_get_subpages_info(
    round: Option<&Round>,
    info: *mut SubpagesInfo,
    size: usize,
) -> Status {
    guard(|| {
        given(round)?.round(|round| {
            let facts = round.subpages().map(|subpages| SubpagesInfo {
                subpages_per_page: subpages.subpages_per_page(),
                reserved: 0,
                subpage_bytes: subpages.subpage_bytes(),
                count: subpages.count(),
                page_bytes: subpages.pages().bytes(),
                alias_bytes: subpages.aliases().bytes(),
            });
            sized::write(info, size, &facts.unwrap_or_default())
        })
    })
}

/// The dirty sub-pages of sub-page heaps, as ranges of their size, at the addresses of each
/// heap's first alias, whichever alias the program has used; none where there is no such heap.
/// Arguments and errors are those of pagetrail_round_written().
#[unsafe(no_mangle)]
pub extern "C" fn pagetrail_round_subpages(
    round: Option<&Round>,
    ranges: Option<&mut MaybeUninit<*const Range>>,
    count: Option<&mut MaybeUninit<usize>>,
) -> Status {
    show_subpages(round, ranges, count, Subpages::dirty)
}

/// The bytes that may have changed in sub-page heaps: those of all objects that begin in a dirty
/// sub-page, at the addresses of each heap's first alias; none where there is no such heap.
/// Arguments and errors are those of pagetrail_round_written(), but the ranges are not whole pages.
#[unsafe(no_mangle)]
pub extern "C" fn pagetrail_round_subpage_bytes(
    round: Option<&Round>,
    ranges: Option<&mut MaybeUninit<*const Range>>,
    count: Option<&mut MaybeUninit<usize>>,
) -> Status {
    show_subpages(round, ranges, count, Subpages::bytes)
}

/// The addresses of all aliases of all sub-page heaps; none where there is no such heap. There,
/// pagetrail_round_written() gives a page once for each alias in which it was written, and
/// pagetrail_round_subpages() is more precise. Arguments and errors are those of
/// pagetrail_round_written().
#[unsafe(no_mangle)]
pub extern "C" fn pagetrail_round_subpage_aliases(
    round: Option<&Round>,
    ranges: Option<&mut MaybeUninit<*const Range>>,
    count: Option<&mut MaybeUninit<usize>>,
) -> Status {
    show_subpages(round, ranges, count, Subpages::aliases)
}

fn show_subpages(
    round: Option<&Round>,
    ranges: Option<&mut MaybeUninit<*const Range>>,
    count: Option<&mut MaybeUninit<usize>>,
    of: impl Fn(&Subpages) -> &PageSet,
) -> Status {
    guard(|| {
        given(round)?.round(|round| match round.subpages() {
            Some(subpages) => show(of(subpages), ranges, count),
            None => show(&PageSet::new(), ranges, count),
        })
    })
}
