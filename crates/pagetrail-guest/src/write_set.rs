//! [`WriteSet`]: the dirty pages of memory of the own program, by the machine in a guest, and
//! natively by the library `pagetrail`.
//!
//! The machine keeps one set for the program. So what one [`WriteSet`] takes of it is pending for
//! all others that have the page, too.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::vec::Vec;

use pagetrail::{Choice, Error, PageRange, PageSet, Result, Target, Watch};

use crate::{Guest, Kinds, PAGE, Range};

/// The number of ranges that are taken at a time.
const RANGES: usize = 512;

/// All sets of this program that the machine finds the pages of.
static SETS: Mutex<Sets> = Mutex::new(Sets {
    next: 0,
    sets: Vec::new(),
});

#[derive(Debug)]
struct Sets {
    next: u64,
    sets: Vec<Set>,
}

#[derive(Debug)]
struct Set {
    number: u64,
    ranges: PageSet,
    /// Taken of the machine, and not yet by this set's owner.
    pending: PageSet,
}

impl Sets {
    fn all() -> MutexGuard<'static, Self> {
        SETS.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&mut self, ranges: PageSet) -> u64 {
        let number = self.next;
        self.next += 1;
        self.sets.push(Set {
            number,
            ranges,
            pending: PageSet::new(),
        });
        number
    }

    /// Takes the pages of one set by `take`, which adds those of a range that it has taken also
    /// where it fails.
    fn take(
        &mut self,
        number: u64,
        mut take: impl FnMut(PageRange, &mut PageSet) -> Result<()>,
    ) -> Result<PageSet> {
        let is_it = |set: &&Set| set.number == number;
        let ranges = self.sets.iter().find(is_it).map(|set| set.ranges.clone());
        let (mut taken, mut outcome) = (PageSet::new(), Ok(()));
        for range in ranges.unwrap_or_default().ranges() {
            outcome = take(*range, &mut taken);
            if outcome.is_err() {
                break;
            }
        }
        for set in &mut self.sets {
            set.pending.union_with(&taken.intersection(&set.ranges));
        }
        outcome?;
        let own = self.sets.iter_mut().find(|set| set.number == number);
        Ok(own
            .map(|set| std::mem::take(&mut set.pending))
            .unwrap_or_default())
    }
}

/// A set of [`SETS`], until it is dropped.
#[derive(Debug)]
struct Entry(u64);

impl Drop for Entry {
    fn drop(&mut self) {
        Sets::all().sets.retain(|set| set.number != self.0);
    }
}

/// The dirty pages of some memory of the own program, since they were last taken.
///
/// There may be several with the same memory; each has all pages that were written since it was
/// last taken. Where `PAGETRAIL_SOFTDIRTY_READER` is `collector` the machine's set belongs to the
/// soft-dirty library, and these sets are native ones. In a guest a program that takes or forgets
/// pages by [`Guest::take`] or [`Guest::forget`] keeps them from these sets.
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use pagetrail::PageRange;
/// use pagetrail_guest::WriteSet;
///
/// let heap = PageRange::new(0x7000_0000, 0x7010_0000).unwrap();
/// let mut set = WriteSet::start([heap])?;
/// println!("{} dirty pages", set.take()?.page_count());
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct WriteSet(Source);

#[derive(Debug)]
enum Source {
    Guest(Guest, Entry),
    Native(std::boxed::Box<Watch>),
}

/// Whether the machine's set is taken for a garbage collector by the soft-dirty library, which
/// clears it as a whole (`PAGETRAIL_SOFTDIRTY_READER`, libpagetrail_softdirty(7)).
fn is_collectors() -> bool {
    std::env::var_os("PAGETRAIL_SOFTDIRTY_READER").is_some_and(|reader| reader == "collector")
}

fn failed(error: crate::Error) -> Error {
    Error::Io {
        what: "ask the virtual machine for dirty pages".into(),
        source: std::io::Error::other(error),
    }
}

impl WriteSet {
    /// Starts with an empty set of these ranges of memory.
    ///
    /// # Errors
    ///
    /// Natively: no technique can watch the memory.
    pub fn start(ranges: impl IntoIterator<Item = PageRange>) -> Result<Self> {
        Self::start_with(ranges, Choice::Auto)
    }

    /// Starts with an empty set, by a technique. [`Choice::Auto`] is the machine in a guest.
    ///
    /// # Errors
    ///
    /// The technique does not work here.
    pub fn start_with(
        ranges: impl IntoIterator<Item = PageRange>,
        technique: Choice,
    ) -> Result<Self> {
        let ranges: Vec<PageRange> = ranges.into_iter().collect();
        if technique == Choice::Auto
            && !is_collectors()
            && let Ok(guest) = Guest::open()
        {
            let ranges = ranges.iter().map(|range| range.align_outwards(PAGE));
            let entry = Entry(Sets::all().add(ranges.collect()));
            let mut set = Self(Source::Guest(guest, entry));
            set.take()?;
            return Ok(set);
        }
        let watch = Watch::builder().target(Target::ranges(ranges));
        let watch = watch.technique(technique).start()?;
        Ok(Self(Source::Native(watch.into())))
    }

    /// The name of what finds the pages.
    pub fn technique_name(&self) -> &str {
        match &self.0 {
            Source::Guest(..) => "guest",
            Source::Native(watch) => watch.technique().name(),
        }
    }

    /// Takes the dirty pages, and forgets them.
    ///
    /// # Errors
    ///
    /// The technique fails; the pages come again.
    pub fn take(&mut self) -> Result<PageSet> {
        match &mut self.0 {
            Source::Guest(guest, entry) => {
                Sets::all().take(entry.0, |range, taken| take_of(guest, range, taken))
            }
            Source::Native(watch) => {
                let round = watch.collect()?;
                let dirty = round.dirty().clone();
                round.commit();
                Ok(dirty)
            }
        }
    }
}

fn take_of(guest: &Guest, range: PageRange, dirty: &mut PageSet) -> Result<()> {
    let mut next = range.start();
    let mut ranges = [Range::default(); RANGES];
    while next < range.end() {
        let rest = Range {
            start: next,
            end: range.end(),
        };
        let taken = guest
            .take(rest, Kinds::DIRTY, &mut ranges)
            .map_err(failed)?;
        let found = ranges.iter().take(taken.ranges);
        dirty.extend(found.filter_map(|range| PageRange::new(range.start, range.end)));
        next = taken.next;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    fn pages(from: u64, to: u64) -> PageSet {
        PageRange::new(from << 12, to << 12).into_iter().collect()
    }

    /// The machine has one set; what one takes of it, and what it takes before it fails, comes to
    /// each that has the page.
    #[test]
    fn sets_of_the_same_memory_do_not_take_pages_from_each_other() {
        let mut sets = Sets {
            next: 0,
            sets: Vec::new(),
        };
        let (first, second) = (sets.add(pages(0, 10)), sets.add(pages(5, 20)));
        let mut dirty = pages(3, 8).union(&pages(15, 16));
        let mut fails = false;
        let mut take = |sets: &mut Sets, number| {
            let outcome = sets.take(number, |range, taken| {
                let range: PageSet = [range].into_iter().collect();
                taken.union_with(&dirty.intersection(&range));
                dirty = dirty.difference(&range);
                match fails {
                    true => Err(failed(crate::Error::Refused(5))),
                    false => Ok(()),
                }
            });
            fails = !fails;
            outcome
        };
        assert_eq!(take(&mut sets, first).unwrap(), pages(3, 8));
        assert!(
            take(&mut sets, second)
                .unwrap_err()
                .to_string()
                .contains("error 5")
        );
        assert_eq!(
            take(&mut sets, second).unwrap(),
            pages(5, 8).union(&pages(15, 16))
        );
        assert!(sets.take(first, |_, _| Ok(())).unwrap().is_empty());
    }
}
