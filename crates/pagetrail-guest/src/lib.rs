//! What a program can ask of the virtual machine that it runs in (`pagetrail vm`): its own write
//! set, protection of pages, a record of writes, and aliases that are merged.
//!
//! Natively [`Guest::open`] fails with [`Error::NoGuest`], and makes no system call. The crate
//! needs no standard library; with the feature `native`, [`WriteSet`] also works natively.
//!
//! A write that completes before [`Guest::take`] returns is in that set or in the next: one of the
//! program, or of the kernel for a system call that has returned; and memory that was discarded,
//! moved or mapped over. There may be false positives. What another process writes to shared memory
//! is not seen.
#![no_std]
#![deny(unsafe_code)]
#![cfg(target_os = "linux")]

#[cfg(feature = "native")]
extern crate std;

mod sampling;
mod sys;
#[cfg(feature = "native")]
mod write_set;

use core::fmt;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

pub use sampling::Sampling;
use sys::Tables;
#[cfg(feature = "native")]
pub use write_set::WriteSet;

const PAGE: u64 = 4096;
// The kinds of calls; `docs/guest-calls.md`.
const OPEN: u64 = 1;
const TAKE: u64 = 2;
const PROTECT: u64 = 3;
const VIOLATIONS: u64 = 4;
const UNITS: u64 = 5;
const TARGET: u64 = 6;
const DESCRIPTORS: u64 = 7;

/// The number of entries that a look tests at once.
const TESTED: u64 = 8;

/// How often it is tried whether writes show, before they are said not to: another thread may take
/// the page between the write and the look.
const TRIES: u32 = 1000;
/// Writes have shown. The processor stays what it is.
static BITS_SHOW: AtomicBool = AtomicBool::new(false);

/// Why a call has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// The program is no guest of `pagetrail vm`.
    NoGuest,
    /// The processor's bits do not show writes: KVM uses shadow paging.
    NoBits,
    /// The machine refused the call, with this error number (`errno(3)`).
    Refused(i32),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoGuest => f.write_str("this program is no guest of `pagetrail vm`"),
            Self::NoBits => {
                f.write_str("page tables whose bits show writes are missing (EPT or NPT)")
            }
            Self::Refused(number) => {
                write!(f, "the virtual machine refused the call: error {number}")
            }
        }
    }
}

impl core::error::Error for Error {}

/// The result of a call.
pub type Result<T, E = Error> = core::result::Result<T, E>;

/// Addresses from `start` to before `end`, in bytes, both multiples of 4,096.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Range {
    /// The first address.
    pub start: u64,
    /// The first address after the range.
    pub end: u64,
}

/// Kinds of pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kinds(u64);

impl Kinds {
    /// Written since the page was last taken.
    pub const DIRTY: Self = Self(1);
    /// Read, written or executed since the page was last taken.
    pub const ACCESSED: Self = Self(2);
    /// Dirty or accessed.
    pub const ALL: Self = Self(3);

    /// Whether all kinds of `other` are among these.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// The bits of entries of which a page of these kinds has at least one.
    const fn bits(self) -> u64 {
        let dirty = if self.0 & 1 != 0 { 0x440 } else { 0 };
        let accessed = if self.0 & 2 != 0 { 0x820 } else { 0 };
        dirty | accessed
    }
}

/// What happens at the program's writes to a page, beyond what `mprotect(2)` permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protection {
    /// Nothing.
    Open,
    /// The first write to each page is recorded ([`Guest::record`]); then the page is open.
    Recorded,
    /// Each write sends `SIGSEGV` with `SEGV_ACCERR`, as with `mprotect(2)`; the handler opens the
    /// page. What the kernel writes for a system call arrives, and calls no handler.
    Handled,
}

/// What [`Guest::take`] took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// The number of ranges.
    pub ranges: usize,
    /// The address up to which all pages were taken: the end of the range, unless there were more
    /// ranges than room.
    pub next: u64,
}

/// A recorded write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The address that was written to; where the kernel wrote, that of the page.
    pub address: u64,
    /// The address of the instruction; `None` where the kernel wrote for a system call.
    pub instruction: Option<u64>,
    /// The thread (`gettid(2)`).
    pub thread: u32,
}

#[repr(C)]
#[derive(Debug)]
struct Record {
    address: AtomicU64,
    instruction: AtomicU64,
    thread: AtomicU32,
    by_kernel: AtomicU32,
}

/// Memory for `N` recorded writes.
#[repr(C)]
#[derive(Debug)]
pub struct Violations<const N: usize> {
    count: AtomicU64,
    records: [Record; N],
}

impl<const N: usize> Default for Violations<N> {
    fn default() -> Self {
        Self::new()
    }
}

impl<const N: usize> Violations<N> {
    /// Memory without records.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            count: AtomicU64::new(0),
            records: [const {
                Record {
                    address: AtomicU64::new(0),
                    instruction: AtomicU64::new(0),
                    thread: AtomicU32::new(0),
                    by_kernel: AtomicU32::new(0),
                }
            }; N],
        }
    }

    /// The number of violations so far, also of those for which there was no room.
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Acquire)
    }

    /// A record, by its number.
    pub fn get(&self, number: usize) -> Option<Violation> {
        let is_there = (number as u64) < self.count();
        let record = self.records.get(number).filter(|_| is_there)?;
        Some(Violation {
            address: record.address.load(Ordering::Relaxed),
            instruction: match record.by_kernel.load(Ordering::Relaxed) {
                0 => Some(record.instruction.load(Ordering::Relaxed)),
                _ => None,
            },
            thread: record.thread.load(Ordering::Relaxed),
        })
    }
}

/// Which aliases of a run of pages share one guest-physical page; all others are alone.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Units {
    /// The address of the first alias.
    pub base: u64,
    /// The length of an alias in bytes; aliases follow each other.
    pub alias_bytes: u64,
    /// The number of aliases.
    pub aliases: u64,
    /// The number of the first page within an alias.
    pub first: u64,
    /// The number of pages.
    pub pages: u64,
    /// A bit per alias.
    pub merged: u64,
}

/// The program as a guest. Any thread may make calls, and a signal handler. A forked child has the
/// set as it was at the fork, and its own from then on.
#[derive(Clone, Copy, Debug)]
pub struct Guest {
    tables: Tables,
    root: u64,
    /// The number of the word that counts calls on descriptors that have begun, before that of
    /// those that have ended; 0 where the machine counts none.
    descriptor_calls: u64,
}

/// An entry of the page tables at which a walk ends.
struct Leaf {
    /// Its number among all words of the tables.
    number: u64,
    /// 0 is the lowest.
    level: u32,
    entry: u64,
}

fn made(result: i64) -> Result<u64> {
    u64::try_from(result).map_err(|_| match -result as i32 {
        libc::ENOSYS => Error::NoGuest,
        number => Error::Refused(number),
    })
}

/// What an entry at which a walk ends says of its pages (`docs/guest-calls.md`).
fn kinds_of(entry: u64) -> Kinds {
    let is_dirty = entry & 0x400 != 0 || entry & 0x41 == 0x41;
    let is_accessed = entry & 0x800 != 0 || entry & 0x21 == 0x21;
    Kinds(u64::from(is_dirty) | u64::from(is_accessed) << 1)
}

/// Whether a write shows, and after the page was forgotten the next one as well. All threads try
/// the same page, so one may forget the write of another: a try that fails says nothing by itself.
fn shows_writes(
    shown: &AtomicBool,
    write: impl Fn(),
    is_dirty: impl Fn() -> bool,
    forget: impl Fn() -> Result<()>,
) -> Result<bool> {
    let shows = || {
        for _ in 0..TRIES {
            if shown.load(Ordering::Relaxed) {
                return true;
            }
            write();
            if is_dirty() {
                return true;
            }
            core::hint::spin_loop();
        }
        false
    };
    for _ in 0..2 {
        if !shows() {
            return Ok(false);
        }
        if shown.load(Ordering::Relaxed) {
            return Ok(true);
        }
        forget()?;
    }
    shown.store(true, Ordering::Relaxed);
    Ok(true)
}

impl Guest {
    /// Whether the program is a guest that can make calls.
    pub fn is_here() -> bool {
        sys::version() >= 1
    }

    /// Starts to keep the write set, from now on. If that has been started, nothing changes.
    ///
    /// # Errors
    ///
    /// [`Error::NoGuest`] natively; [`Error::NoBits`] where KVM uses shadow paging, which is tried.
    pub fn open() -> Result<Self> {
        let mut words = [0; 3];
        made(sys::call(OPEN, [words.as_mut_ptr() as u64, 0, 0, 0, 0, 0]))?;
        let [_, tables, root] = words;
        // A machine without these counts is no worse for all else.
        let descriptor_calls = made(sys::call(DESCRIPTORS, [0; 6])).unwrap_or(0) / 8;
        let guest = Self {
            tables: Tables::at(tables),
            root,
            descriptor_calls,
        };
        let tried = sys::page_to_try();
        let page = Range {
            start: tried,
            end: tried + PAGE,
        };
        let shows = shows_writes(
            &BITS_SHOW,
            sys::write_to_try,
            || guest.bits(tried).contains(Kinds::DIRTY),
            || guest.forget(page, Kinds::DIRTY),
        )?;
        match shows {
            true => Ok(guest),
            false => Err(Error::NoBits),
        }
    }

    /// What is known of the page with an address, from the page tables: no VM exit, and no fault.
    pub fn bits(&self, address: u64) -> Kinds {
        kinds_of(self.leaf(address).entry)
    }

    /// A number that stays the same as long as no thread closes a descriptor, or puts another in
    /// its place: what was known of a descriptor then still holds. `None` while one does, where a
    /// thread or a child has descriptors of its own in this memory, and where the machine does not
    /// count. No VM exit, and no fault.
    pub fn descriptor_changes(&self) -> Option<u64> {
        if self.descriptor_calls == 0 {
            return None;
        }
        // In this order: if both are equal, none was under way when the second was read.
        let ended = self.tables.word(self.descriptor_calls + 1);
        let begun = self.tables.word(self.descriptor_calls);
        (begun == ended).then_some(begun)
    }

    /// Calls `found` with each page of a range that is of one of these kinds, ascending, by the
    /// page tables: no VM exit, and no fault. Nothing is forgotten, so that writes of other threads
    /// meanwhile may be seen or not, as by [`Self::bits`].
    ///
    /// A page that is not mapped may be among them.
    pub fn look(&self, range: Range, kinds: Kinds, mut found: impl FnMut(u64)) {
        let mut page = range.start & !(PAGE - 1);
        while page < range.end {
            let leaf = self.leaf(page);
            // On the lowest level, all that follows in the same table is leaves.
            let bytes = PAGE << (9 * leaf.level.max(1));
            let end = (page & !(bytes - 1)).saturating_add(bytes).min(range.end);
            let is_one = |entry| kinds_of(entry).0 & kinds.0 != 0;
            if leaf.level == 0 {
                let mut number = leaf.number;
                let mut first = page;
                while first < end {
                    // Most memory has no page to be found, so that one test is for several entries.
                    let left = (end - first) / PAGE;
                    let count = if left < TESTED { 1 } else { TESTED };
                    let any = (0..count).fold(0, |any, n| any | self.tables.word(number + n));
                    if any & kinds.bits() != 0 {
                        (0..count)
                            .filter(|n| is_one(self.tables.word(number + n)))
                            .for_each(|n| found(first + n * PAGE));
                    }
                    number += count;
                    first += count * PAGE;
                }
            } else if is_one(leaf.entry) {
                (page..end).step_by(PAGE as usize).for_each(&mut found);
            }
            page = end;
        }
    }

    /// Whether the program can write to each page of a range now without a fault, by the page
    /// tables: no VM exit, and no fault. A page that was never touched is none of these.
    pub fn is_writable(&self, range: Range) -> bool {
        /// Present, and writable.
        const OPEN: u64 = 3;
        let mut page = range.start & !(PAGE - 1);
        while page < range.end {
            let leaf = self.leaf(page);
            if leaf.entry & OPEN != OPEN {
                return false;
            }
            let bytes = PAGE << (9 * leaf.level);
            page = (page & !(bytes - 1)).saturating_add(bytes);
        }
        true
    }

    /// The entry at which a walk for an address ends.
    fn leaf(&self, address: u64) -> Leaf {
        let mut at = self.root;
        let mut level = 3;
        loop {
            let number = at / 8 + (address >> (12 + 9 * level) & 511);
            let entry = self.tables.word(number);
            if level == 0 || entry & 1 == 0 || entry & 0x80 != 0 {
                return Leaf {
                    number,
                    level,
                    entry,
                };
            }
            at = entry & 0x000f_ffff_ffff_f000;
            level -= 1;
        }
    }

    /// Takes the pages of these kinds in a range, ascending, and forgets them: the next write makes
    /// a page dirty again. What has no room in `ranges` stays.
    ///
    /// The program has one set: pages that are taken here come to nobody else, also not to a
    /// `WriteSet` of the same memory. Of one with such sets, take only other memory.
    ///
    /// # Errors
    ///
    /// The range is not of whole pages, or empty.
    pub fn take(&self, range: Range, kinds: Kinds, ranges: &mut [Range]) -> Result<Taken> {
        let mut next = range.end;
        let arguments = [
            range.start,
            range.end,
            kinds.0,
            ranges.as_mut_ptr() as u64,
            ranges.len() as u64,
            &raw mut next as u64,
        ];
        let count = made(sys::call(TAKE, arguments))?;
        Ok(Taken {
            ranges: count as usize,
            next,
        })
    }

    /// Forgets the pages of these kinds in a range, for everybody: see [`Self::take`].
    ///
    /// # Errors
    ///
    /// As of [`Self::take`].
    pub fn forget(&self, range: Range, kinds: Kinds) -> Result<()> {
        made(sys::call(TAKE, [range.start, range.end, kinds.0, 0, 0, 0])).map(|_| ())
    }

    /// Sets what happens at the program's writes to a range.
    ///
    /// # Errors
    ///
    /// As of [`Self::take`].
    pub fn protect(&self, range: Range, protection: Protection) -> Result<()> {
        let mode = match protection {
            Protection::Open => 0,
            Protection::Recorded => 1,
            Protection::Handled => 2,
        };
        made(sys::call(PROTECT, [range.start, range.end, mode, 0, 0, 0])).map(|_| ())
    }

    /// Has writes recorded in `violations` from now on, with a count of 0; `None` for nowhere. To
    /// read records while other threads write, pass other memory first.
    ///
    /// # Errors
    ///
    /// The machine refuses the memory.
    pub fn record<const N: usize>(&self, violations: Option<&'static Violations<N>>) -> Result<()> {
        let address = violations.map_or(0, |violations| &raw const *violations as u64);
        made(sys::call(VIOLATIONS, [address, N as u64, 0, 0, 0, 0])).map(|_| ())
    }

    /// Merges and separates aliases. What is not aliases of the same memory is skipped.
    ///
    /// # Errors
    ///
    /// There are more than 65,536 changes.
    pub fn change_units(&self, changes: &[Units]) -> Result<()> {
        let arguments = [changes.as_ptr() as u64, changes.len() as u64, 0, 0, 0, 0];
        made(sys::call(UNITS, arguments)).map(|_| ())
    }

    /// The address, in the alias whose page an address is mapped to: the address itself, unless it
    /// is merged.
    ///
    /// # Errors
    ///
    /// The machine refuses the call.
    pub fn target(&self, address: u64) -> Result<u64> {
        made(sys::call(TARGET, [address, 0, 0, 0, 0, 0]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Another thread forgets what this one writes, now and then.
    #[test]
    fn a_write_that_another_thread_takes_is_tried_again() {
        let (shown, dirty, writes) = (
            AtomicBool::new(false),
            AtomicBool::new(false),
            AtomicU32::new(0),
        );
        let write = || {
            let is_taken = writes.fetch_add(1, Ordering::Relaxed) % 4 != 3;
            dirty.store(!is_taken, Ordering::Relaxed);
        };
        let is_dirty = || dirty.load(Ordering::Relaxed);
        let forget = || {
            dirty.store(false, Ordering::Relaxed);
            Ok(())
        };
        assert_eq!(shows_writes(&shown, write, is_dirty, forget), Ok(true));
        assert_eq!(writes.load(Ordering::Relaxed), 8);
        // Known from then on.
        assert_eq!(shows_writes(&shown, write, || false, forget), Ok(true));
        assert_eq!(writes.load(Ordering::Relaxed), 8);
    }

    #[test]
    fn writes_that_never_show_are_found_out() {
        let shown = AtomicBool::new(false);
        let outcome = shows_writes(&shown, || (), || false, || Ok(()));
        assert_eq!(outcome, Ok(false));
        let outcome = shows_writes(&shown, || (), || true, || Err(Error::Refused(22)));
        assert_eq!(outcome, Err(Error::Refused(22)));
        assert!(!shown.load(Ordering::Relaxed));
    }

    /// The root at word 512, with a table of each level and an entry for 2 MiB beside the lowest.
    #[test]
    fn a_look_finds_what_the_bits_of_each_page_say() {
        const DIRTY: u64 = 0x41;
        let words = [const { AtomicU64::new(0) }; 5 * 512];
        let set = |number: usize, word: u64| words[number].store(word, Ordering::Relaxed);
        set(512, 2 << 12 | 1);
        set(2 * 512, 3 << 12 | 1);
        // A GiB that is not present keeps that it was written.
        set(2 * 512 + 1, 0x400);
        set(3 * 512, 4 << 12 | 1);
        set(3 * 512 + 1, DIRTY | 0x80);
        for page in [0, 3, 4, 511] {
            set(4 * 512 + page, DIRTY);
        }
        // Accessed.
        set(4 * 512 + 7, 0x21);
        let guest = Guest {
            tables: Tables::at(&raw const words as u64),
            root: 4096,
            descriptor_calls: 0,
        };
        assert_eq!(guest.descriptor_changes(), None);
        for (start, end) in [
            (0, 1030),
            (1, 512),
            (4, 5),
            (600, 610),
            (1 << 18, (1 << 18) + 5),
        ] {
            for kinds in [Kinds::DIRTY, Kinds::ACCESSED, Kinds::ALL] {
                let range = Range {
                    start: start * PAGE,
                    end: end * PAGE,
                };
                let mut next = start;
                let is_one = |page: u64| guest.bits(page * PAGE).0 & kinds.0 != 0;
                guest.look(range, kinds, |page| {
                    assert!((next..page / PAGE).all(|page| !is_one(page)), "{page:#x}");
                    assert!(is_one(page / PAGE) && page < range.end, "{page:#x}");
                    next = page / PAGE + 1;
                });
                assert!((next..end).all(|page| !is_one(page)), "{start} to {end}");
            }
        }
        // Writable: two pages, one of them only to be read, and 2 MiB.
        set(4 * 512, DIRTY | 2);
        set(4 * 512 + 2, 3);
        set(3 * 512 + 1, DIRTY | 0x82);
        for (start, end, is) in [
            (0, 1, true),
            (0, 2, false),
            (2, 3, true),
            (2, 4, false),
            (512, 1024, true),
            (1000, 1025, false),
            (1 << 18, (1 << 18) + 1, false),
        ] {
            let range = Range {
                start: start * PAGE + 8,
                end: end * PAGE,
            };
            assert_eq!(guest.is_writable(range), is, "{start} to {end}");
        }
        let mut count = 0;
        let all = Range {
            start: 0,
            end: 1024 * PAGE,
        };
        guest.look(all, Kinds::DIRTY, |_| count += 1);
        assert_eq!(count, 4 + 512);
    }

    #[test]
    fn descriptors_are_known_while_no_call_closes_one() {
        let words = [const { AtomicU64::new(7) }; 8];
        let guest = Guest {
            tables: Tables::at(&raw const words as u64),
            root: 0,
            descriptor_calls: 2,
        };
        assert_eq!(guest.descriptor_changes(), Some(7));
        words[2].store(8, Ordering::Relaxed);
        assert_eq!(guest.descriptor_changes(), None);
        words[3].store(8, Ordering::Relaxed);
        assert_eq!(guest.descriptor_changes(), Some(8));
    }

    #[test]
    fn natively_nothing_is_here() {
        if Guest::is_here() {
            return;
        }
        assert_eq!(Guest::open().err(), Some(Error::NoGuest));
    }
}
