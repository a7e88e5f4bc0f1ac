//! [`WriteSet`]: the dirty pages of memory of the own program, by the machine in a guest, and
//! natively by the library `pagetrail`.

use std::vec::Vec;

use pagetrail::{Choice, Error, PageRange, PageSet, Result, Target, Watch};

use crate::{Guest, Kinds, PAGE, Range};

/// The number of ranges that are taken at a time.
const RANGES: usize = 512;

/// The dirty pages of some memory of the own program, since they were last taken.
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
    /// The ranges, and the pages that were taken by a call that failed later.
    Guest(Guest, Vec<PageRange>, PageSet),
    Native(std::boxed::Box<Watch>),
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
            && let Ok(guest) = Guest::open()
        {
            let ranges = ranges.iter().map(|range| range.align_outwards(PAGE));
            let mut set = Self(Source::Guest(guest, ranges.collect(), PageSet::new()));
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
            Source::Guest(guest, ranges, taken) => {
                for range in ranges {
                    take_of(guest, *range, taken)?;
                }
                Ok(std::mem::take(taken))
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
