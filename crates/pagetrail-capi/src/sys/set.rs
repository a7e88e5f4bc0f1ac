//! Functions on page sets, which belong to the caller and to one thread at a time.

use super::round::show;
use super::sized;
use crate::failure::{Failure, Status, guard, invalid, null};
use crate::types::Range;
use pagetrail::{PageRange, PageSet};
use std::mem::MaybeUninit;

/// A set of addresses, kept as sorted ranges. It is plain data: threads that share one must take
/// turns.
pub struct Set(PageSet);

/// Makes an empty set.
///
/// `set`: gets it, to be freed by pagetrail_set_free().
#[unsafe(no_mangle)]
pub extern "C" fn pagetrail_set_new(set: Option<&mut MaybeUninit<*mut Set>>) -> Status {
    guard(|| {
        let set = set.ok_or_else(|| null("set is a null pointer"))?;
        set.write(Box::into_raw(Box::new(Set(PageSet::new()))));
        Ok(())
    })
}

/// Frees a set. NULL does nothing.
#[unsafe(no_mangle)]
pub extern "C" fn pagetrail_set_free(set: Option<Box<Set>>) {
    drop(set);
}

/// Empties a set; its memory is kept for what comes next.
#[unsafe(no_mangle)]
pub extern "C" fn pagetrail_set_clear(set: Option<&mut Set>) -> Status {
    guard(|| {
        given_mut(set)?.clear();
        Ok(())
    })
}

/// Adds a range. It is cheapest after all others.
///
/// PAGETRAIL_STATUS_INVALID_ARGUMENT: the range is empty, or ends before it starts.
#[unsafe(no_mangle)]
pub extern "C" fn pagetrail_set_insert(set: Option<&mut Set>, range: Range) -> Status {
    guard(|| {
        given_mut(set)?.insert(checked(range)?);
        Ok(())
    })
}

/// Adds `count` ranges in any order, such as those of a round.
///
/// PAGETRAIL_STATUS_INVALID_ARGUMENT: a range is empty, or ends before it starts; then none was
/// added.
#[unsafe(no_mangle)]
pub extern "C" fn pagetrail_set_insert_all(
    set: Option<&mut Set>,
    ranges: *const Range,
    count: usize,
) -> Status {
    guard(|| {
        let set = given_mut(set)?;
        let added = sized::ranges(ranges, count)?
            .iter()
            .map(|range| checked(*range))
            .collect::<Result<PageSet, _>>()?;
        set.union_with(&added);
        Ok(())
    })
}

/// Removes a range, or what of it is in the set.
///
/// PAGETRAIL_STATUS_INVALID_ARGUMENT: the range is empty, or ends before it starts.
#[unsafe(no_mangle)]
pub extern "C" fn pagetrail_set_remove(set: Option<&mut Set>, range: Range) -> Status {
    guard(|| {
        given_mut(set)?.remove(checked(range)?);
        Ok(())
    })
}

/// Adds all of another set, which may be the same.
#[unsafe(no_mangle)]
pub extern "C" fn pagetrail_set_union(set: *mut Set, other: *const Set) -> Status {
    combine(set, other, PageSet::union)
}

/// Keeps what is in another set, too.
#[unsafe(no_mangle)]
pub extern "C" fn pagetrail_set_intersect(set: *mut Set, other: *const Set) -> Status {
    combine(set, other, PageSet::intersection)
}

/// Removes what is in another set.
#[unsafe(no_mangle)]
pub extern "C" fn pagetrail_set_subtract(set: *mut Set, other: *const Set) -> Status {
    combine(set, other, PageSet::difference)
}

/// Replaces `set` by the result of an operation. It takes raw pointers, because both may be the
/// same set.
fn combine(
    set: *mut Set,
    other: *const Set,
    operation: fn(&PageSet, &PageSet) -> PageSet,
) -> Status {
    guard(|| {
        // SAFETY: the caller's sets, or null.
        let result = match unsafe { (set.as_ref(), other.as_ref()) } {
            (Some(set), Some(other)) => operation(&set.0, &other.0),
            _ => return Err(null("a set is a null pointer")),
        };
        // SAFETY: `set` is not null and a set of the caller's, and no reference to it is left.
        unsafe { (*set).0 = result };
        Ok(())
    })
}

/// Gets whether an address is in the set; takes time logarithmic in the number of ranges.
///
/// `contains`: gets it.
#[unsafe(no_mangle)]
pub extern "C" fn pagetrail_set_contains(
    set: Option<&Set>,
    address: u64,
    contains: Option<&mut MaybeUninit<bool>>,
) -> Status {
    guard(|| {
        let contains = contains.ok_or_else(|| null("contains is a null pointer"))?;
        contains.write(given(set)?.contains(address));
        Ok(())
    })
}

/// The bytes in a set, 0 for NULL.
#[unsafe(no_mangle)]
pub extern "C" fn pagetrail_set_bytes(set: Option<&Set>) -> u64 {
    set.map_or(0, |set| set.0.bytes())
}

/// The ranges of a set in ascending order, neither overlapping nor touching.
///
/// `ranges`: gets a pointer to the first (not to be followed where the count is 0), which stays
/// until the set is changed or freed. `count`: gets how many there are.
#[unsafe(no_mangle)]
pub extern "C" fn pagetrail_set_ranges(
    set: Option<&Set>,
    ranges: Option<&mut MaybeUninit<*const Range>>,
    count: Option<&mut MaybeUninit<usize>>,
) -> Status {
    guard(|| show(given(set)?, ranges, count))
}

fn given(set: Option<&Set>) -> Result<&PageSet, Failure> {
    match set {
        Some(set) => Ok(&set.0),
        None => Err(null("set is a null pointer")),
    }
}

fn given_mut(set: Option<&mut Set>) -> Result<&mut PageSet, Failure> {
    match set {
        Some(set) => Ok(&mut set.0),
        None => Err(null("set is a null pointer")),
    }
}

fn checked(range: Range) -> Result<PageRange, Failure> {
    PageRange::new(range.start, range.end)
        .ok_or_else(|| invalid("a range is empty, or ends before it starts"))
}
