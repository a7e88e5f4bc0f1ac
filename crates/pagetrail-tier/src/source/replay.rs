//! [`Replay`]: a recorded trail as a source: what a policy would have done.
//!
//! A round is a window. A recording does not know which pages existed before they were touched: they come into being with
//! their first touch, all small.

use std::io::BufRead;

use pagetrail::{Mapped, Noticed, PageSet};
use pagetrail_trail::{Reader, Record, Round};

use super::{Ability, Source};
use crate::error::{Error, Result};
use crate::policy::{Sample, Tells};

/// The rounds of a trail, one by one.
pub struct Replay<R> {
    reader: Reader<R>,
    /// The next round.
    next: Option<Round>,
    tells: Tells,
    existing: PageSet,
}

impl<R: BufRead + Send> Replay<R> {
    /// Opens a recording.
    ///
    /// # Errors
    ///
    /// It is none, or damaged.
    pub fn open(input: R) -> Result<Self> {
        let mut replay = Self {
            reader: Reader::open(input)?,
            next: None,
            tells: Tells::default(),
            existing: PageSet::new(),
        };
        // The first two rounds tell whether they take turns; one is kept, the other told from the technique.
        replay.next = replay.read()?;
        let first = replay.next.as_ref().map(|round| round.noticed);
        let accesses = replay.reader.header().technique == "access-scan";
        replay.tells = Tells {
            accesses,
            writes: first == Some(Noticed::Writes),
            in_turns: accesses && first == Some(Noticed::Writes),
        };
        Ok(replay)
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
    fn ability(&self) -> Ability {
        Ability {
            name: "replay",
            tells: self.tells,
            pages: true,
            // What was not asked about is in the recording all the same.
            spares: true,
        }
    }

    fn window(&mut self) -> Result<Sample> {
        let round = self.next.take().ok_or(Error::Over)?;
        self.next = self.read()?;
        self.existing.union_with(&round.written);
        let touched = Some(round.written);
        Ok(match round.noticed {
            Noticed::Accesses => Sample {
                accessed: touched,
                written: None,
            },
            Noticed::Writes => Sample {
                accessed: None,
                written: touched,
            },
        })
    }

    fn rearm(&mut self, _: &PageSet) -> Result<()> {
        Ok(())
    }

    fn mapped(&mut self) -> Result<Mapped> {
        Ok(Mapped {
            present: self.existing.clone(),
            ..Mapped::default()
        })
    }

    fn mapped_within(&mut self, addresses: &PageSet) -> Result<Mapped> {
        Ok(Mapped {
            present: self.existing.intersection(addresses),
            ..Mapped::default()
        })
    }
}
