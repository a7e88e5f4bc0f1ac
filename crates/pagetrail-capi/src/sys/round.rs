//! Functions on rounds.

use super::{shared, sized};
use crate::failure::{Failure, Status, guard, invalid, null};
use crate::handle::{Round, Watch};
use crate::types::{
    self, Event, PAGETRAIL_EVENT_CHILDREN, PAGETRAIL_EVENT_EXEC, PAGETRAIL_EVENT_NOTE,
    PAGETRAIL_TRACK_ACCESSES, PAGETRAIL_TRACK_WRITES, Range, RoundInfo, UntrackedRegion,
};
use pagetrail::{AccessKind, PageSet};
use std::fmt;
use std::mem::MaybeUninit;

/// The watch that a round belongs to.
pub(super) fn given(round: Option<&Round>) -> Result<&Watch, Failure> {
    let round = round.ok_or_else(|| null("round is a null pointer"))?;
    // SAFETY: a round's pointer is its watch's: `pagetrail_watch_collect` makes no others.
    Ok(unsafe { &*std::ptr::from_ref(round).cast::<Watch>() })
}

/// Gets facts about a round.
///
/// `info`: gets them. `size`: sizeof(pagetrail_round_info) as the caller knows it.
///
/// PAGETRAIL_STATUS_NO_ROUND: it was ended. BUSY. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn pagetrail_round_get_info(
    round: Option<&Round>,
    info: *mut RoundInfo,
    size: usize,
) -> Status {
    guard(|| {
        given(round)?.round(|round| {
            let cost = round.cost();
            let facts = RoundInfo {
                index: round.index(),
                began_ns: types::nanoseconds(round.began()),
                duration_ns: types::nanoseconds(round.duration()),
                collect_ns: types::nanoseconds(cost.collect),
                stopped_ns: types::nanoseconds(cost.stopped),
                faults: cost.faults.unwrap_or(u64::MAX),
                blind_ns: types::nanoseconds(cost.blind),
                access_kind: match round.access_kind() {
                    AccessKind::Writes => PAGETRAIL_TRACK_WRITES,
                    AccessKind::Accesses => PAGETRAIL_TRACK_ACCESSES,
                },
                reserved: 0,
                written_bytes: round.dirty().bytes(),
                written_count: round.dirty_ranges().len() as u64,
                event_count: round.events().len() as u64,
                untracked_count: round.untracked().len() as u64,
            };
            sized::write(info, size, &facts)
        })
    })
}

/// The written pages as they lie in the library: ranges in ascending order, whole pages, neither
/// overlapping nor touching.
///
/// `ranges`: gets a pointer to the first (not to be followed where the count is 0), which belongs
/// to the round and stays until it is ended. `count`: gets how many there are.
///
/// PAGETRAIL_STATUS_NO_ROUND: it was ended. BUSY. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn pagetrail_round_written(
    round: Option<&Round>,
    ranges: Option<&mut MaybeUninit<*const Range>>,
    count: Option<&mut MaybeUninit<usize>>,
) -> Status {
    guard(|| given(round)?.round(|round| show(round.dirty(), ranges, count)))
}

/// The written pages that are reported only because their mapping is new, or new to the watch: they
/// may have been written before the watch knew the mapping. Arguments and errors are those of
/// pagetrail_round_written().
#[unsafe(no_mangle)]
pub extern "C" fn pagetrail_round_newly_mapped(
    round: Option<&Round>,
    ranges: Option<&mut MaybeUninit<*const Range>>,
    count: Option<&mut MaybeUninit<usize>>,
) -> Status {
    guard(|| given(round)?.round(|round| show(round.newly_mapped(), ranges, count)))
}

pub(super) fn show(
    set: &PageSet,
    ranges: Option<&mut MaybeUninit<*const Range>>,
    count: Option<&mut MaybeUninit<usize>>,
) -> Result<(), Failure> {
    let (Some(ranges), Some(count)) = (ranges, count) else {
        return Err(null("ranges or count is a null pointer"));
    };
    let view = sized::view(set.ranges());
    ranges.write(view.as_ptr());
    count.write(view.len());
    Ok(())
}

/// Copies the written pages to a buffer of the caller's, which stays when the round is ended.
///
/// `buffer`: room for `capacity` ranges; may be null where that is 0. `count`: gets how many ranges
/// the round has, also when they do not fit.
///
/// PAGETRAIL_STATUS_BUFFER_TOO_SMALL: only the first `capacity` ranges were copied; the round is
/// open as before. NO_ROUND: it was ended. BUSY. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn pagetrail_round_copy(
    round: Option<&Round>,
    buffer: *mut Range,
    capacity: usize,
    count: Option<&mut MaybeUninit<usize>>,
) -> Status {
    guard(|| {
        let count = count.ok_or_else(|| null("count is a null pointer"))?;
        given(round)?.round(|round| {
            let ranges = sized::view(round.dirty().ranges());
            sized::copy(ranges, buffer, capacity)?;
            count.write(ranges.len());
            match ranges.len() > capacity {
                true => Err(Failure::Misuse(
                    Status::BufferTooSmall,
                    "the round has more ranges than the buffer has room for",
                )),
                false => Ok(()),
            }
        })
    })
}

/// Gets whether the page at an address was written; takes time logarithmic in the number of ranges.
///
/// `contains`: gets it.
///
/// PAGETRAIL_STATUS_NO_ROUND: it was ended. BUSY. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn pagetrail_round_contains(
    round: Option<&Round>,
    address: u64,
    contains: Option<&mut MaybeUninit<bool>>,
) -> Status {
    guard(|| {
        let contains = contains.ok_or_else(|| null("contains is a null pointer"))?;
        given(round)?.round(|round| {
            contains.write(round.dirty().contains(address));
            Ok(())
        })
    })
}

/// Gets what happened to the target since the last committed round, one event at a time.
///
/// `index`: 0 to pagetrail_round_info.event_count - 1. `event`: gets the event. `size`:
/// sizeof(pagetrail_event) as the caller knows it.
///
/// PAGETRAIL_STATUS_INVALID_ARGUMENT: there are not so many. NO_ROUND: it was ended. BUSY. Any
/// thread.
#[unsafe(no_mangle)]
pub extern "C" fn pagetrail_round_event(
    round: Option<&Round>,
    index: usize,
    event: *mut Event,
    size: usize,
) -> Status {
    guard(|| {
        given(round)?.round(|round| {
            let found = round.events().get(index);
            let found = found.ok_or_else(|| invalid("the round has not so many events"))?;
            let (kind, count, text) = match found {
                pagetrail::Event::Exec { command } => {
                    (PAGETRAIL_EVENT_EXEC, 0, types::text(Words(command)))
                }
                pagetrail::Event::Children { count } => (
                    PAGETRAIL_EVENT_CHILDREN,
                    *count,
                    types::text(format_args!("{count} child processes, not tracked")),
                ),
                pagetrail::Event::Note(note) => (PAGETRAIL_EVENT_NOTE, 0, types::text(note)),
                other => (
                    PAGETRAIL_EVENT_NOTE,
                    0,
                    types::text(format_args!("{other:?}")),
                ),
            };
            sized::write(event, size, &Event { kind, count, text })
        })
    })
}

/// Words with blanks between them.
struct Words<'a>(&'a [String]);

impl fmt::Display for Words<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, word) in self.0.iter().enumerate() {
            let blank = if i == 0 { "" } else { " " };
            write!(f, "{blank}{word}")?;
        }
        Ok(())
    }
}

/// Names the writable regions that the technique cannot watch, and says what is done about them,
/// one at a time.
///
/// `index`: 0 to pagetrail_round_info.untracked_count - 1. `untracked`: gets the region. `size`:
/// sizeof(pagetrail_untracked) as the caller knows it.
///
/// PAGETRAIL_STATUS_INVALID_ARGUMENT: there are not so many. NO_ROUND: it was ended. BUSY. Any
/// thread.
#[unsafe(no_mangle)]
pub extern "C" fn pagetrail_round_untracked(
    round: Option<&Round>,
    index: usize,
    untracked: *mut UntrackedRegion,
    size: usize,
) -> Status {
    guard(|| {
        given(round)?.round(|round| {
            let found = round.untracked().get(index);
            let found = found.ok_or_else(|| invalid("the round has not so many such regions"))?;
            let fact = UntrackedRegion {
                range: Range {
                    start: found.region.range.start(),
                    end: found.region.range.end(),
                },
                compared: u32::from(found.compared),
                reserved: 0,
                text: types::text(found),
            };
            sized::write(untracked, size, &fact)
        })
    })
}

/// Ends the round: the caller has taken its pages, which are reported again when they are written
/// again.
///
/// PAGETRAIL_STATUS_NO_ROUND: it was ended before. BUSY. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn pagetrail_round_commit(round: *mut Round) -> Status {
    guard(|| given(shared(round))?.close(true))
}

/// Ends the round without taking it: its pages come back in the next one. For work that failed (a
/// full disk, an aborted collection).
///
/// PAGETRAIL_STATUS_NO_ROUND: it was ended before. BUSY. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn pagetrail_round_give_back(round: *mut Round) -> Status {
    guard(|| given(shared(round))?.close(false))
}
