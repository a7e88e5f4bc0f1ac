//! [`Processes`]: the processes of a guest, sampled by what its kernel offers, with their pages by
//! guest-physical addresses.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use pagetrail::{Mapped, PageRange, PageSet};
use pagetrail_report::size::Size;
use pagetrail_tier::Result;
use pagetrail_tier::source::{Frames, Source};

use super::wire::{PAGE_BYTES, Used};
use crate::config::SourceKind;
use crate::find;

/// A process that cannot be watched is tried again after so long.
const REFUSED_AGAIN: Duration = Duration::from_secs(60);
/// A host waits while processes are begun with: the others come next time.
const SEARCH_MAX: Duration = Duration::from_secs(1);
/// Set in the address of a unit that is a huge page.
const HUGE: u64 = 1;
const HUGE_BYTES: u64 = 2 << 20;

/// The processes of a guest that its agent samples.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Which {
    /// These.
    Pids(Vec<u32>),
    /// All of a control group and of those below it.
    Cgroup(PathBuf),
    /// All that have so much memory.
    Larger(Size),
}

impl Which {
    fn find(&self) -> Vec<u32> {
        let mut found = match self {
            Self::Pids(pids) => pids.clone(),
            Self::Cgroup(cgroup) => find::in_control_group(cgroup),
            Self::Larger(size) => {
                let is_large = |pid: &u32| resident(*pid) >= size.bytes().max(1);
                find::all_processes().filter(is_large).collect()
            }
        };
        found.retain(|pid| *pid != std::process::id());
        found
    }
}

/// Bytes that a process has in memory; none of the kernel's threads has.
fn resident(pid: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/statm")).unwrap_or_default();
    let pages = text
        .split_whitespace()
        .nth(1)
        .and_then(|word| word.parse::<u64>().ok());
    pages.unwrap_or(0).saturating_mul(pagetrail::page_size())
}

/// A process, and where its pages were when they were last looked at.
struct Watched {
    source: Box<dyn Source>,
    frames: Frames,
    /// Guest-physical addresses, ascending, with the process's own, in which [`HUGE`] may be set.
    places: Vec<(u64, u64)>,
}

/// The processes that are sampled.
pub(super) struct Processes {
    which: Which,
    kind: SourceKind,
    window: Duration,
    watched: BTreeMap<u32, Watched>,
    refused: BTreeMap<u32, Instant>,
}

impl Processes {
    pub(super) fn new(which: Which, kind: SourceKind, window: Duration) -> Self {
        Self {
            which,
            kind,
            window,
            watched: BTreeMap::new(),
            refused: BTreeMap::new(),
        }
    }

    /// Finds processes anew, and where their pages are; what could not be watched is said.
    pub(super) fn mapped(&mut self, say: &mut dyn FnMut(String)) -> Result<PageSet> {
        self.search(say)?;
        let mut all = PageSet::new();
        self.each(say, |watched, _| {
            let mapped = watched.source.mapped()?;
            watched.places = watched.places_of(&mapped)?;
            all.union_with(&physical(&watched.places));
            Ok(())
        });
        Ok(all)
    }

    fn search(&mut self, say: &mut dyn FnMut(String)) -> Result<()> {
        let found = self.which.find();
        self.watched.retain(|pid, _| found.contains(pid));
        self.refused
            .retain(|pid, then| found.contains(pid) && then.elapsed() < REFUSED_AGAIN);
        let began = Instant::now();
        for pid in found {
            if began.elapsed() > SEARCH_MAX {
                break;
            }
            if self.watched.contains_key(&pid) || self.refused.contains_key(&pid) {
                continue;
            }
            let start = || -> Result<Watched> {
                Ok(Watched {
                    frames: Frames::open(pid)?,
                    source: self.kind.start(pid, self.window)?,
                    places: Vec::new(),
                })
            };
            match start() {
                Ok(watched) => {
                    self.watched.insert(pid, watched);
                }
                Err(error) if error.means_end() => {}
                // It is the same for all others.
                Err(error) if error.is_machine_limit() => return Err(error),
                Err(error) => {
                    say(format!("process {pid}: {error}"));
                    self.refused.insert(pid, Instant::now());
                }
            }
        }
        Ok(())
    }

    /// Does something with each; those that have ended are let go.
    fn each(
        &mut self,
        say: &mut dyn FnMut(String),
        mut work: impl FnMut(&mut Watched, u32) -> Result<()>,
    ) {
        self.watched
            .retain(|pid, watched| match work(watched, *pid) {
                Ok(()) => true,
                Err(error) => {
                    // A process that ends meanwhile is an error of reading, too.
                    if !error.means_end() && resident(*pid) > 0 {
                        say(format!("process {pid}: {error}"));
                        self.refused.insert(*pid, Instant::now());
                    }
                    false
                }
            });
    }

    /// Ends a window.
    pub(super) fn used(&mut self, say: &mut dyn FnMut(String)) -> Used {
        let mut used = Used::default();
        self.each(say, |watched, _| {
            let sample = watched.source.window()?;
            for (set, all) in [
                (sample.accessed, &mut used.accessed),
                (sample.written, &mut used.written),
            ] {
                let Some(set) = set else {
                    continue;
                };
                // Pages move in physical memory as well.
                let mapped = watched.source.mapped_within(&set)?;
                let places = watched.places_of(&mapped)?;
                all.get_or_insert_default().union_with(&physical(&places));
                watched.remember(places);
            }
            Ok(())
        });
        used
    }

    /// The next use of these pages is to be reported.
    pub(super) fn rearm(&mut self, pages: &PageSet, say: &mut dyn FnMut(String)) {
        self.each(say, |watched, _| {
            let own: PageSet = watched.own(pages);
            match own.is_empty() {
                true => Ok(()),
                false => watched.source.rearm(&own),
            }
        });
    }

    pub(super) fn suspend(&mut self, say: &mut dyn FnMut(String)) {
        self.each(say, |watched, _| watched.source.suspend());
    }
}

impl Watched {
    fn places_of(&self, mapped: &Mapped) -> Result<Vec<(u64, u64)>> {
        let frames = self.frames.of(&mapped.present, &mapped.huge)?;
        let mut places: Vec<(u64, u64)> = frames
            .into_iter()
            // The page of zeros, and what is being moved, have none.
            .filter(|(_, frame)| *frame != 0)
            .map(|(range, frame)| {
                let huge = match range.bytes() == HUGE_BYTES {
                    true => HUGE,
                    false => 0,
                };
                (frame * pagetrail::page_size(), range.start() | huge)
            })
            .collect();
        places.sort_unstable();
        Ok(places)
    }

    /// Adds places, each of which takes that of another page that was there.
    fn remember(&mut self, new: Vec<(u64, u64)>) {
        self.places.extend(new);
        // Stable: of two at one place the later one is the last.
        self.places.sort_by_key(|(physical, _)| *physical);
        self.places.reverse();
        self.places.dedup_by_key(|(physical, _)| *physical);
        self.places.reverse();
    }

    /// The process's own addresses of guest-physical pages.
    fn own(&self, pages: &PageSet) -> PageSet {
        let mut own = Vec::new();
        for range in pages.ranges() {
            // A huge page may begin before the range.
            let first = range.start().saturating_sub(HUGE_BYTES - PAGE_BYTES);
            let from = self
                .places
                .partition_point(|(physical, _)| *physical < first);
            for (physical, address) in &self.places[from..] {
                if *physical >= range.end() {
                    break;
                }
                let bytes = unit_bytes(*address);
                if physical + bytes > range.start() {
                    let start = address & !HUGE;
                    own.extend(PageRange::new(start, start + bytes));
                }
            }
        }
        own.sort_unstable();
        own.into_iter().collect()
    }
}

fn unit_bytes(address: u64) -> u64 {
    match address & HUGE {
        0 => pagetrail::page_size(),
        _ => HUGE_BYTES,
    }
}

/// Guest-physical pages of places, which ascend.
fn physical(places: &[(u64, u64)]) -> PageSet {
    let ranges = places.iter().filter_map(|(physical, address)| {
        PageRange::new(*physical, physical + unit_bytes(*address))
    });
    ranges.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Silent;

    impl Source for Silent {
        fn info(&self) -> pagetrail_tier::source::SourceInfo {
            pagetrail_tier::source::SourceInfo {
                name: "silent",
                caps: pagetrail_tier::SourceCaps::default(),
                pages: true,
                saves_faults: true,
            }
        }
        fn window(&mut self) -> Result<pagetrail_tier::Sample> {
            Ok(pagetrail_tier::Sample::default())
        }
        fn rearm(&mut self, _: &PageSet) -> Result<()> {
            Ok(())
        }
        fn mapped(&mut self) -> Result<Mapped> {
            Ok(Mapped::default())
        }
        fn mapped_within(&mut self, _: &PageSet) -> Result<Mapped> {
            Ok(Mapped::default())
        }
    }

    fn set(ranges: &[(u64, u64)]) -> PageSet {
        let ranges = ranges.iter();
        ranges
            .filter_map(|(start, end)| PageRange::new(*start, *end))
            .collect()
    }

    #[test]
    fn physical_pages_are_found_in_the_process_again() {
        let mut watched = Watched {
            source: Box::new(Silent),
            frames: Frames::open(std::process::id()).unwrap(),
            places: Vec::new(),
        };
        watched.remember(vec![(0x20_0000, 0x7000_0000 | HUGE), (0x5000, 0x1000)]);
        watched.remember(vec![(0x9000, 0x2000)]);
        assert_eq!(
            watched.own(&set(&[(0x5000, 0x6000)])),
            set(&[(0x1000, 0x2000)])
        );
        assert_eq!(
            watched.own(&set(&[(0x5000, 0xa000)])),
            set(&[(0x1000, 0x3000)])
        );
        // In the midst of a huge page.
        assert_eq!(
            watched.own(&set(&[(0x3f_f000, 0x40_0000)])),
            set(&[(0x7000_0000, 0x7020_0000)])
        );
        assert!(watched.own(&set(&[(0x40_0000, 0x50_0000)])).is_empty());
        // Another page has come to that place.
        watched.remember(vec![(0x5000, 0x8000)]);
        assert_eq!(
            watched.own(&set(&[(0x5000, 0x6000)])),
            set(&[(0x8000, 0x9000)])
        );
        assert_eq!(
            physical(&watched.places),
            set(&[(0x5000, 0x6000), (0x9000, 0xa000), (0x20_0000, 0x40_0000)])
        );
    }
}
