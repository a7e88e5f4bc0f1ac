//! Functions on the units of a round: what was written of sub-page heaps, told apart within pages.

use super::round::{given, show};
use super::sized;
use crate::failure::{Status, guard};
use crate::handle::Round;
use crate::types::{Range, UnitsInfo};
use pagetrail::{PageSet, Subpages};
use std::mem::MaybeUninit;

/// Tells how much was written of the process's sub-page heaps (libpagetrail_alloc.so) by units, parts of pages.
///
/// `info`: gets it; all zero where there is no such heap. `size`: sizeof(pagetrail_units_info) as the caller knows it.
///
/// PAGETRAIL_STATUS_NO_ROUND: it was ended. BUSY. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn pagetrail_round_get_units_info(
    round: Option<&Round>,
    info: *mut UnitsInfo,
    size: usize,
) -> Status {
    guard(|| {
        given(round)?.round(|round| {
            let facts = round.subpages().map(|units| UnitsInfo {
                parts: units.subpages_per_page(),
                reserved: 0,
                unit_bytes: units.subpage_bytes(),
                count: units.count(),
                page_bytes: units.pages().bytes(),
                window_bytes: units.aliases().bytes(),
            });
            sized::write(info, size, &facts.unwrap_or_default())
        })
    })
}

/// The units that were written of sub-page heaps, as the parts of pages that they are, at the addresses of each heap's first
/// window, whichever window the program has used. As pagetrail_round_written(); none where there is no such heap.
#[unsafe(no_mangle)]
pub extern "C" fn pagetrail_round_units(
    round: Option<&Round>,
    ranges: Option<&mut MaybeUninit<*const Range>>,
    count: Option<&mut MaybeUninit<usize>>,
) -> Status {
    tell(round, ranges, count, Subpages::dirty)
}

/// The bytes that may have changed in sub-page heaps: those of all objects that begin in a written unit, at the addresses of
/// each heap's first window. As pagetrail_round_written(), but not whole pages; none where there is no such heap.
#[unsafe(no_mangle)]
pub extern "C" fn pagetrail_round_unit_bytes(
    round: Option<&Round>,
    ranges: Option<&mut MaybeUninit<*const Range>>,
    count: Option<&mut MaybeUninit<usize>>,
) -> Status {
    tell(round, ranges, count, Subpages::bytes)
}

/// The addresses of all sub-page heaps, all windows: what pagetrail_round_written() gives there, once for each window in which
/// a page was written, the units tell more exactly. As pagetrail_round_written(); none where there is no such heap.
#[unsafe(no_mangle)]
pub extern "C" fn pagetrail_round_unit_windows(
    round: Option<&Round>,
    ranges: Option<&mut MaybeUninit<*const Range>>,
    count: Option<&mut MaybeUninit<usize>>,
) -> Status {
    tell(round, ranges, count, Subpages::aliases)
}

fn tell(
    round: Option<&Round>,
    ranges: Option<&mut MaybeUninit<*const Range>>,
    count: Option<&mut MaybeUninit<usize>>,
    of: impl Fn(&Subpages) -> &PageSet,
) -> Status {
    guard(|| {
        given(round)?.round(|round| match round.subpages() {
            Some(units) => show(of(units), ranges, count),
            None => show(&PageSet::new(), ranges, count),
        })
    })
}
