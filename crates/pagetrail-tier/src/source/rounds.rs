//! [`Rounds`]: any [`DirtySource`] as a source of accesses: a guest of KVM, whose rounds have reads
//! and writes of the same window.

use std::time::Duration;

use pagetrail::{AccessKind, DirtySource, Mapped, PageSet, State, TrackMode, mapped_pages};

use super::{Source, SourceInfo};
use crate::error::Result;
use crate::policy::{Sample, SourceCaps};

/// The pages that a source of rounds reported. It has re-armed them already: every page is sampled
/// in every window.
pub struct Rounds<S> {
    source: S,
    name: &'static str,
    caps: SourceCaps,
}

impl<S: DirtySource + Send> Rounds<S> {
    /// Makes windows of the rounds of a source that tracks what `track` says; with
    /// [`TrackMode::Alternate`], one that reports both kinds of the same interval.
    pub fn new(source: S, name: &'static str, track: TrackMode) -> Self {
        Self {
            source,
            name,
            caps: SourceCaps {
                accesses: track != TrackMode::Writes,
                writes: track != TrackMode::Accesses,
                in_turns: false,
            },
        }
    }

    /// The addresses of memory that the program uses itself: what of files is only read stays where
    /// the page cache has it.
    fn addresses(&self) -> PageSet {
        let reads = self.caps.accesses;
        let used = self.source.regions().iter().filter(|region| {
            let read = reads && region.permissions.read && region.inode == 0;
            region.is_trackable() && (region.permissions.write || read)
        });
        let untracked = self.source.untracked().iter();
        let untracked: PageSet = untracked.map(|untracked| untracked.region.range).collect();
        let all: PageSet = used.map(|region| region.range).collect();
        all.difference(&untracked)
    }
}

impl<S: DirtySource + Send> Source for Rounds<S> {
    fn info(&self) -> SourceInfo {
        SourceInfo {
            name: self.name,
            caps: self.caps,
            pages: true,
            saves_faults: false,
        }
    }

    fn window(&mut self) -> Result<Sample> {
        let mut sample = Sample::default();
        loop {
            let round = self.source.collect()?;
            let part = match round.access_kind() {
                AccessKind::Accesses => &mut sample.accessed,
                AccessKind::Writes => &mut sample.written,
            };
            part.get_or_insert_default().union_with(round.dirty());
            round.commit();
            if self.source.wait(Duration::ZERO) != State::Ready {
                return Ok(sample);
            }
        }
    }

    fn rearm(&mut self, _: &PageSet) -> Result<()> {
        Ok(())
    }

    fn mapped(&mut self) -> Result<Mapped> {
        let addresses = self.addresses();
        self.mapped_within(&addresses)
    }

    fn mapped_within(&mut self, addresses: &PageSet) -> Result<Mapped> {
        let within = addresses.intersection(&self.addresses());
        Ok(mapped_pages(self.source.pid(), &within)?)
    }
}

#[cfg(test)]
mod tests {
    use pagetrail::{
        Error, Found, Held, PageRange, Permissions, Region, Round, RoundBuffer, RoundCost,
        UntrackedRegion, page_size,
    };

    use super::*;

    const KINDS: [AccessKind; 2] = [AccessKind::Writes, AccessKind::Accesses];

    /// A source that reports the pages of one region, both kinds of the same interval, once.
    struct Once {
        rounds: RoundBuffer,
        regions: Vec<Region>,
        ready: Vec<AccessKind>,
    }

    fn pages(numbers: &[u64]) -> PageSet {
        let page = |number| PageRange::new(number * page_size(), (number + 1) * page_size());
        numbers.iter().filter_map(|number| page(*number)).collect()
    }

    impl Once {
        fn new(written: &[u64], accessed: &[u64]) -> Self {
            let mut rounds = RoundBuffer::new();
            for (kind, numbers) in KINDS.into_iter().zip([written, accessed]) {
                let mut found = Found::default();
                found.dirty = pages(numbers);
                rounds.add(kind, found);
            }
            rounds.end_collect(&KINDS, RoundCost::default());
            let region = |numbers: &[u64], write| {
                let permissions = Permissions {
                    read: true,
                    write,
                    execute: false,
                    shared: false,
                };
                Region::new(pages(numbers).ranges()[0], permissions)
            };
            Self {
                rounds,
                regions: vec![region(&[0, 1, 2, 3], true), region(&[8, 9], false)],
                ready: KINDS.into(),
            }
        }
    }

    impl DirtySource for Once {
        fn pid(&self) -> u32 {
            std::process::id()
        }

        fn technique_name(&self) -> &str {
            "once"
        }

        fn reason(&self) -> &str {
            "a test"
        }

        fn regions(&self) -> &[Region] {
            &self.regions
        }

        fn untracked(&self) -> &[UntrackedRegion] {
            &[]
        }

        fn wait(&mut self, _: Duration) -> State {
            match self.ready.is_empty() {
                true => State::Running,
                false => State::Ready,
            }
        }

        fn collect(&mut self) -> pagetrail::Result<Round<'_>> {
            let gone = Error::Gone { pid: self.pid() };
            if self.ready.is_empty() {
                return Err(gone);
            }
            let kind = self.ready.remove(0);
            self.rounds.round(kind, &self.regions, &[]).ok_or(gone)
        }

        fn release_exit(&mut self) {}

        fn hold(&mut self) -> pagetrail::Result<Box<dyn Held>> {
            Err(Error::OwnProcess { pid: self.pid() })
        }

        fn collect_held(&mut self, _: &dyn Held) -> pagetrail::Result<Round<'_>> {
            self.collect()
        }
    }

    #[test]
    fn a_window_has_both_kinds_of_one_interval() {
        let once = Once::new(&[1], &[1, 3, 9]);
        let mut rounds = Rounds::new(once, "once", TrackMode::Alternate);
        let sample = rounds.window().unwrap();
        assert_eq!(sample.written, Some(pages(&[1])));
        assert_eq!(sample.accessed, Some(pages(&[1, 3, 9])));
        assert!(rounds.source.rounds.is_empty(), "both are committed");
        assert_eq!(rounds.addresses(), pages(&[0, 1, 2, 3, 8, 9]));
        assert!(rounds.window().unwrap_err().means_end());
        let writes = Rounds::new(Once::new(&[1], &[]), "once", TrackMode::Writes);
        assert_eq!(writes.addresses(), pages(&[0, 1, 2, 3]));
    }
}
