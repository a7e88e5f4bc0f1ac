//! Calls by which the program uses the machine itself (`docs/guest-calls.md`): its own write set,
//! pages that it protects, and aliases that it merges.
//!
//! They are system calls with numbers that Linux does not have, so that a program that runs
//! natively gets `ENOSYS`. A program need not even try: the auxiliary vector of a guest has an
//! entry that says so ([`AUXILIARY`]).

use super::table::Policy;
use super::{EINVAL, Next};
use crate::error::Result;
use crate::guest::Guest;
use crate::memory::own::Protection;
use crate::memory::page_table::kept;
use crate::memory::{PAGE, USER_END};
use crate::rounds::unit_change::UnitChange;
use crate::sys::call::Call;
use crate::sys::program_memory::{read, read_word, write};
use pagetrail::PageRange;

const EFAULT: i64 = -(libc::EFAULT as i64);
const ENOSYS: i64 = -(libc::ENOSYS as i64);
const ENXIO: i64 = -(libc::ENXIO as i64);

/// The version of the calls.
pub(crate) const VERSION: u64 = 1;
/// The kind of the entry of the auxiliary vector whose value is [`VERSION`]: "ptg" and 1.
pub(crate) const AUXILIARY: u64 = 0x7074_6701;
/// The number of the first call.
pub(crate) const FIRST: u64 = 0x2074_6700;
/// The count of numbers that are reserved.
const NUMBERS: u64 = 16;

/// Returns [`VERSION`].
const CALL_VERSION: u64 = FIRST;
/// `(info)`: starts to keep the write set; writes three words: the version, the address of the page
/// tables, and the offset of their root.
const CALL_OPEN: u64 = FIRST + 1;
/// `(start, end, kinds, ranges, capacity, next)`: takes pages.
const CALL_TAKE: u64 = FIRST + 2;
/// `(start, end, mode)`: 0 opens pages, 1 has a write recorded, 2 sends `SIGSEGV` for each.
const CALL_PROTECT: u64 = FIRST + 3;
/// `(array, capacity)`: where writes are recorded from now on; 0 for nowhere.
const CALL_VIOLATIONS: u64 = FIRST + 4;
/// `(changes, count)`: merges and separates aliases.
const CALL_UNITS: u64 = FIRST + 5;
/// `(address)`: the page to which an address is mapped.
const CALL_TARGET: u64 = FIRST + 6;

/// Returns the offset of the words that count calls on descriptors ([`super::descriptor_calls`]).
const CALL_DESCRIPTORS: u64 = FIRST + 7;

/// The most ranges that one call returns, and the most changes that it makes.
const ITEMS_MAX: u64 = 1 << 16;
/// The length in bytes of a record of a write, and of the count before the first.
const RECORD_BYTES: u64 = 24;
const COUNT_BYTES: u64 = 8;

/// Whether this is a number of the machine's own calls.
pub(super) const fn is_own(number: u64) -> bool {
    number.wrapping_sub(FIRST) < NUMBERS
}

/// The policy of these calls.
pub(super) const POLICY: Policy = Policy::Control(perform);

fn perform(guest: &mut Guest, call: &Call) -> Result<Next> {
    let [a, b, c, d, e, f] = call.arguments;
    let result = match call.number {
        CALL_VERSION => VERSION as i64,
        CALL_OPEN => return open(guest, a),
        CALL_TAKE => return take(guest, (a, b), c, (d, e), f),
        CALL_PROTECT => return protect(guest, (a, b), c),
        CALL_VIOLATIONS => violations(guest, a, b)?,
        CALL_UNITS => return units(guest, a, b),
        CALL_TARGET => {
            guest.memory().units().target(a & !(PAGE - 1)) as i64 | (a & (PAGE - 1)) as i64
        }
        CALL_DESCRIPTORS => guest
            .memory()
            .descriptor_calls()
            .map_or(ENXIO, |offset| offset as i64),
        _ => ENOSYS,
    };
    Ok(Next::Return(result))
}

/// A result after which no processor uses an entry of before.
fn flushed(guest: &Guest, result: i64) -> Result<Next> {
    // The calling thread's own processor flushes when it returns.
    if !guest.threads.is_single() {
        guest.memory().flush()?;
    }
    Ok(Next::ReturnAndFlush(result))
}

fn open(guest: &mut Guest, info: u64) -> Result<Next> {
    // Before the set starts, so that no call ends in between that nobody notes.
    guest
        .keeps_own
        .store(true, std::sync::atomic::Ordering::SeqCst);
    let mut memory = guest.memory();
    memory.start_own()?;
    let words = [VERSION, memory.tables_address(), memory.root()];
    drop(memory);
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let written = put(guest, info, &bytes)?;
    Ok(Next::ReturnAndFlush(if written { 0 } else { EFAULT }))
}

/// Writes to the program's memory, and notes that. Returns whether the memory is there, and the
/// program's: the machine's own lies in the same address space.
fn put(guest: &Guest, address: u64, bytes: &[u8]) -> Result<bool> {
    let memory = guest.memory();
    let is_written =
        memory.is_of_program(address, bytes.len() as u64) && write(address, bytes).is_ok();
    drop(memory);
    guest.note_written(address, bytes.len() as u64)?;
    Ok(is_written)
}

/// The pages from one address to another.
fn pages(start: u64, end: u64) -> Option<PageRange> {
    let is_aligned = start.is_multiple_of(PAGE) && end.is_multiple_of(PAGE);
    PageRange::new(start, end).filter(|_| is_aligned && end <= USER_END)
}

fn take(
    guest: &mut Guest,
    (start, end): (u64, u64),
    kinds: u64,
    (list, capacity): (u64, u64),
    next: u64,
) -> Result<Next> {
    let wanted = match kinds {
        1 => kept::KEPT_DIRTY,
        2 => kept::KEPT_ACCESSED,
        3 => kept::KEPT,
        _ => return Ok(Next::Return(EINVAL)),
    };
    let Some(range) = pages(start, end) else {
        return Ok(Next::Return(EINVAL));
    };
    if !guest.memory().keeps_own() {
        return Ok(Next::Return(ENXIO));
    }
    let capacity = capacity.min(ITEMS_MAX) as usize;
    let mut ranges: Vec<PageRange> = Vec::new();
    let mut found = |pages: PageRange| {
        if list == 0 {
            return true;
        }
        let is_full = ranges.len() >= capacity;
        match ranges.last_mut() {
            Some(last) if last.end() == pages.start() => {
                *last = PageRange::new(last.start(), pages.end()).unwrap_or(*last);
                true
            }
            _ if !is_full => {
                ranges.push(pages);
                true
            }
            _ => false,
        }
    };
    let done = guest.memory().take_own(range, wanted, &mut found)?;
    let bytes: Vec<u8> = ranges
        .iter()
        .flat_map(|range| [range.start(), range.end()])
        .flat_map(u64::to_le_bytes)
        .collect();
    let is_written = (bytes.is_empty() || put(guest, list, &bytes)?)
        && (next == 0 || put(guest, next, &done.to_le_bytes())?);
    if !is_written {
        // Nobody knows of these pages now.
        let mut memory = guest.memory();
        ranges
            .iter()
            .try_for_each(|range| memory.mark_own(*range, wanted))?;
        drop(memory);
        return flushed(guest, EFAULT);
    }
    flushed(guest, ranges.len() as i64)
}

fn protect(guest: &mut Guest, (start, end): (u64, u64), mode: u64) -> Result<Next> {
    let protection = match mode {
        0 => Protection::Open,
        1 => Protection::Recorded,
        2 => Protection::Handled,
        _ => return Ok(Next::Return(EINVAL)),
    };
    let Some(range) = pages(start, end) else {
        return Ok(Next::Return(EINVAL));
    };
    let mut memory = guest.memory();
    if !memory.keeps_own() {
        return Ok(Next::Return(ENXIO));
    }
    memory.protect_own(range, protection);
    drop(memory);
    flushed(guest, 0)
}

fn violations(guest: &Guest, array: u64, capacity: u64) -> Result<i64> {
    if array != 0 && (!array.is_multiple_of(8) || !put(guest, array, &[0; COUNT_BYTES as usize])?) {
        return Ok(EFAULT);
    }
    let mut memory = guest.memory();
    Ok(match memory.record_at(array, capacity) {
        true => 0,
        false => ENXIO,
    })
}

/// Records a write to a protected page: by an instruction, or, without one, by the kernel.
pub(crate) fn record(guest: &Guest, address: u64, instruction: Option<u64>) -> Result<()> {
    let memory = guest.memory();
    let Some((array, capacity)) = memory.recorded_at() else {
        return Ok(());
    };
    // Under the memory's lock, so that each record has a place of its own.
    // What the program has unmapped since may be the machine's by now.
    let is_there = |address, bytes| memory.is_of_program(address, bytes);
    if !is_there(array, COUNT_BYTES) {
        return Ok(());
    }
    let count = read_word(array).unwrap_or(u64::MAX);
    let mut bytes = [0; RECORD_BYTES as usize];
    bytes[..8].copy_from_slice(&address.to_le_bytes());
    bytes[8..16].copy_from_slice(&instruction.unwrap_or(0).to_le_bytes());
    bytes[16..20].copy_from_slice(&guest.run_state.thread().to_le_bytes());
    bytes[20..].copy_from_slice(&u32::from(instruction.is_none()).to_le_bytes());
    let place = count
        .checked_mul(RECORD_BYTES)
        .and_then(|offset| array.checked_add(offset)?.checked_add(COUNT_BYTES));
    let place = place.filter(|place| count < capacity && is_there(*place, RECORD_BYTES));
    if let Some(place) = place {
        // Where the array is gone there is no record; the page is in the write set all the same.
        let _ = write(place, &bytes);
    }
    let _ = write(array, &count.saturating_add(1).to_le_bytes());
    drop(memory);
    guest.note_written(array, COUNT_BYTES)?;
    place.map_or(Ok(()), |place| guest.note_written(place, RECORD_BYTES))
}

/// Records the writes of the kernel to protected pages since the last call.
pub(crate) fn record_unrecorded(guest: &Guest) -> Result<()> {
    let pages = guest.memory().take_unrecorded();
    for page in pages.iter_units(PAGE) {
        record(guest, page, None)?;
    }
    Ok(())
}

fn units(guest: &mut Guest, list: u64, count: u64) -> Result<Next> {
    if count > ITEMS_MAX {
        return Ok(Next::Return(EINVAL));
    }
    let mut bytes = vec![0; count as usize * UnitChange::WORDS * 8];
    if read(list, &mut bytes).is_err() {
        return Ok(Next::Return(EFAULT));
    }
    let word = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_le_bytes);
    let changes: Vec<UnitChange> = bytes
        .chunks_exact(UnitChange::WORDS * 8)
        .map(|chunk| {
            let mut words = [0; UnitChange::WORDS];
            words
                .iter_mut()
                .zip(chunk.chunks_exact(8))
                .for_each(|(to, from)| *to = word(from));
            UnitChange::of_words(words)
        })
        .collect();
    guest.change_units(&changes)?;
    flushed(guest, 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_not_the_kernels() {
        // x86-64 has numbers to a few hundred, and those of the x32 ABI, with bit 30.
        const { assert!(FIRST > 1 << 20 && FIRST + NUMBERS < 1 << 30) };
        assert!(is_own(CALL_VERSION) && is_own(CALL_TARGET) && !is_own(FIRST + NUMBERS));
        assert!(!is_own(libc::SYS_getpid as u64) && !is_own(u64::MAX));
        let natively = crate::sys::call::call(FIRST as libc::c_long, &[]);
        assert_eq!(natively, ENOSYS);
    }

    #[test]
    fn ranges_are_whole_pages_of_a_program() {
        assert!(pages(PAGE, 3 * PAGE).is_some());
        for (start, end) in [
            (PAGE + 1, 3 * PAGE),
            (PAGE, 2 * PAGE + 8),
            (PAGE, PAGE),
            (2 * PAGE, PAGE),
            (PAGE, USER_END + PAGE),
            (PAGE, !(PAGE - 1)),
        ] {
            assert_eq!(pages(start, end), None);
        }
    }
}
