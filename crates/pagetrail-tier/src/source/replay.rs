//! [`Replay`]: a recorded trail as a source: what a policy would have done.
//!
//! A round is a window, whichever technique recorded it; two rounds of the same time, one of writes
//! and one of accesses, are one window with both, as HMM-V's scanner of a guest's page tables does
//! (`pagetrail record --vm --access`). A recording does not know which pages existed before they
//! were touched, or which were given back: they come into being with their first touch, all small,
//! and stay.

use std::collections::VecDeque;
use std::io::BufRead;

use pagetrail::{AccessKind, Mapped, PageSet};
use pagetrail_trail::{Reader, Record, Round};

use super::{Source, SourceInfo};
use crate::error::{Error, Result};
use crate::policy::{Sample, SourceCaps};

/// Rounds that tell what all of a recording notices: writes and accesses take turns, if there are
/// both.
const TURNS: usize = 2;

/// The rounds of a trail, one by one.
pub struct Replay<R> {
    reader: Reader<R>,
    /// The next rounds.
    ahead: VecDeque<Round>,
    caps: SourceCaps,
    existing: PageSet,
}

impl<R: BufRead + Send> Replay<R> {
    /// Opens a recording.
    ///
    /// # Errors
    ///
    /// It is none, or damaged, or of a machine with other pages.
    pub fn open(input: R) -> Result<Self> {
        let reader = Reader::open(input)?;
        let (theirs, ours) = (reader.header().page_size, pagetrail::page_size());
        if theirs != ours {
            let reason = format!("a recording of pages of {theirs} bytes, where they have {ours}");
            return Err(Error::NotHere(reason));
        }
        let mut replay = Self {
            reader,
            ahead: VecDeque::with_capacity(TURNS),
            caps: SourceCaps::default(),
            existing: PageSet::new(),
        };
        while replay.ahead.len() < TURNS
            && let Some(round) = replay.read()?
        {
            replay.ahead.push_back(round);
        }
        let notices = |kind| replay.ahead.iter().any(|round| round.access_kind == kind);
        let (accesses, writes) = (notices(AccessKind::Accesses), notices(AccessKind::Writes));
        replay.caps = SourceCaps {
            accesses,
            writes,
            in_turns: accesses && writes && !replay.is_pair(),
        };
        Ok(replay)
    }

    /// Whether the next two rounds are of the same time.
    fn is_pair(&self) -> bool {
        let [writes, accesses] = [self.ahead.front(), self.ahead.get(1)];
        matches!((writes, accesses), (Some(writes), Some(accesses)) if accesses.covers_same_interval(writes))
    }

    fn take(&mut self) -> Result<Round> {
        let round = self.ahead.pop_front().ok_or(Error::Over)?;
        let next = self.read()?;
        self.ahead.extend(next);
        Ok(round)
    }

    fn read(&mut self) -> Result<Option<Round>> {
        loop {
            match self.reader.next_record()? {
                Some(Record::Round(round)) => return Ok(Some(round)),
                Some(_) => {}
                None => return Ok(None),
            }
        }
    }
}

impl<R: BufRead + Send> Source for Replay<R> {
    fn info(&self) -> SourceInfo {
        SourceInfo {
            name: "replay",
            caps: self.caps,
            pages: true,
            // What was not sampled is in the recording all the same.
            saves_faults: true,
        }
    }

    fn window(&mut self) -> Result<Sample> {
        let rounds = 1 + u8::from(self.is_pair());
        let mut sample = Sample::default();
        for _ in 0..rounds {
            let round = self.take()?;
            self.existing.union_with(&round.written);
            let pages = match round.access_kind {
                AccessKind::Accesses => &mut sample.accessed,
                AccessKind::Writes => &mut sample.written,
            };
            // What is reported only because its mapping is new was not touched for that.
            *pages = Some(round.written.difference(&round.newly_mapped));
        }
        Ok(sample)
    }

    fn rearm(&mut self, _: &PageSet) -> Result<()> {
        Ok(())
    }

    fn mapped(&mut self) -> Result<Mapped> {
        Ok(Mapped::in_memory(self.existing.clone()))
    }

    fn mapped_within(&mut self, addresses: &PageSet) -> Result<Mapped> {
        Ok(Mapped::in_memory(self.existing.intersection(addresses)))
    }
}

#[cfg(test)]
mod tests {
    use pagetrail::{PageRange, page_size};
    use pagetrail_trail::{Header, Writer};

    use super::*;

    fn pages(pages: &[u64]) -> PageSet {
        let range = |page: &u64| PageRange::new(page * page_size(), (page + 1) * page_size());
        pages.iter().filter_map(range).collect()
    }

    /// A trail of a technique nobody knows, which noticed these pages in one round after the other.
    fn trail(page_size: u64, rounds: &[(AccessKind, &[u64], &[u64])]) -> Vec<u8> {
        trail_at(page_size, |index| index, rounds)
    }

    /// A recording with rounds that begin at these times.
    fn trail_at(
        page_size: u64,
        start_ns: impl Fn(u64) -> u64,
        rounds: &[(AccessKind, &[u64], &[u64])],
    ) -> Vec<u8> {
        let header = Header {
            page_size,
            technique: "some".into(),
            ..Header::default()
        };
        let mut writer = Writer::create(Vec::new(), &header).unwrap();
        for (index, (access_kind, touched, fresh)) in rounds.iter().enumerate() {
            let round = Round {
                index: index as u32,
                access_kind: *access_kind,
                start_ns: start_ns(index as u64),
                duration_ns: 1,
                written: pages(touched),
                newly_mapped: pages(fresh),
                ..Round::default()
            };
            writer.round(&round).unwrap();
        }
        writer.finish(&pagetrail_trail::End::Gone).unwrap()
    }

    #[test]
    fn it_tells_what_its_rounds_tell() {
        use AccessKind::{Accesses, Writes};
        let caps = |kinds: &[AccessKind]| {
            let rounds: Vec<_> = kinds.iter().map(|kind| (*kind, &[][..], &[][..])).collect();
            let bytes = trail(page_size(), &rounds);
            let caps = Replay::open(&bytes[..]).unwrap().info().caps;
            (caps.accesses, caps.writes, caps.in_turns)
        };
        assert_eq!(caps(&[Accesses, Accesses, Accesses]), (true, false, false));
        assert_eq!(caps(&[Writes, Writes]), (false, true, false));
        assert_eq!(caps(&[Writes, Accesses, Writes]), (true, true, true));
        assert_eq!(caps(&[Accesses, Writes]), (true, true, true));
        assert_eq!(caps(&[]), (false, false, false));
    }

    #[test]
    fn rounds_are_windows_until_it_is_over() {
        let bytes = trail(
            page_size(),
            &[
                (AccessKind::Writes, &[1, 2, 9], &[9]),
                (AccessKind::Accesses, &[1, 5], &[]),
            ],
        );
        let mut replay = Replay::open(&bytes[..]).unwrap();
        let writes = replay.window().unwrap();
        assert_eq!(
            (writes.accessed, writes.written),
            (None, Some(pages(&[1, 2])))
        );
        assert_eq!(replay.mapped().unwrap().present, pages(&[1, 2, 9]));
        let accesses = replay.window().unwrap();
        assert_eq!(
            (accesses.accessed, accesses.written),
            (Some(pages(&[1, 5])), None)
        );
        let within = replay.mapped_within(&pages(&[5, 6])).unwrap();
        assert_eq!(within.present, pages(&[5]));
        assert!(replay.window().unwrap_err().means_end());
    }

    #[test]
    fn rounds_of_the_same_time_are_one_window() {
        use AccessKind::{Accesses, Writes};
        let rounds: [(AccessKind, &[u64], &[u64]); 5] = [
            (Writes, &[1], &[]),
            (Accesses, &[1, 2], &[]),
            (Writes, &[], &[]),
            (Accesses, &[7], &[]),
            // Cut off.
            (Writes, &[3], &[]),
        ];
        let bytes = trail_at(page_size(), |index| index / 2, &rounds);
        let mut replay = Replay::open(&bytes[..]).unwrap();
        let caps = replay.info().caps;
        assert!(caps.accesses && caps.writes && !caps.in_turns, "{caps:?}");
        for (written, accessed) in [
            (&[1][..], Some(&[1, 2][..])),
            (&[], Some(&[7])),
            (&[3], None),
        ] {
            let sample = replay.window().unwrap();
            assert_eq!(sample.written, Some(pages(written)));
            assert_eq!(sample.accessed, accessed.map(pages));
        }
        assert!(replay.window().unwrap_err().means_end());
        assert_eq!(replay.mapped().unwrap().present, pages(&[1, 2, 3, 7]));
    }

    #[test]
    fn pages_of_another_size_are_refused() {
        let bytes = trail(page_size() * 4, &[]);
        let refused = Replay::open(&bytes[..])
            .err()
            .map(|error| error.to_string());
        assert!(refused.is_some_and(|reason| reason.contains("16384")));
    }
}
