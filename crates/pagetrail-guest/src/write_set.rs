//! [`WriteSet`]: the dirty pages of memory of the own program, by the machine in a guest, and
//! natively by the library `pagetrail`.

use std::vec::Vec;

use pagetrail::{PageRange, PageSet, Target, Watch};

use crate::{Guest, Kinds, Range};

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

fn failed(error: crate::Error) -> std::io::Error {
    std::io::Error::other(error)
}

impl WriteSet {
    /// Starts with an empty set of these ranges of memory.
    ///
    /// # Errors
    ///
    /// Natively: no technique can watch the memory.
    pub fn start(ranges: impl IntoIterator<Item = PageRange>) -> std::io::Result<Self> {
        let ranges: Vec<PageRange> = ranges.into_iter().collect();
        if let Ok(guest) = Guest::open() {
            let mut set = Self(Source::Guest(guest, ranges, PageSet::new()));
            set.take()?;
            return Ok(set);
        }
        let watch = Watch::builder().target(Target::ranges(ranges)).start();
        let watch = watch.map_err(std::io::Error::other)?;
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
    pub fn take(&mut self) -> std::io::Result<PageSet> {
        match &mut self.0 {
            Source::Guest(guest, ranges, taken) => {
                for range in ranges {
                    take_of(guest, *range, taken)?;
                }
                Ok(std::mem::take(taken))
            }
            Source::Native(watch) => {
                let round = watch.collect().map_err(std::io::Error::other)?;
                let dirty = round.dirty().clone();
                round.commit();
                Ok(dirty)
            }
        }
    }
}

fn take_of(guest: &Guest, range: PageRange, dirty: &mut PageSet) -> std::io::Result<()> {
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
