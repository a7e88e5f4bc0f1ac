//! [`Recorder`]: writes the rounds of sources to a trail, each before it is committed.

use std::collections::BTreeMap;
use std::io::Write;

use anyhow::Result;
use pagetrail::DirtySource;
use pagetrail_stacks::{Sampler, Summary};
use pagetrail_trail::{End, Event, Header, Process, Round, Writer};

use super::converter::{Converted, Converter};

/// Counts of a recording so far.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct Totals {
    /// Number of rounds: of the process that has most of them.
    pub rounds: u32,
    /// Pages written, summed over the rounds.
    pub page_writes: u64,
    /// Pages written in the last round, of all processes.
    pub last_pages: u64,
    /// Child processes of the targets, which are not recorded.
    pub children: u32,
    /// Length of all rounds.
    pub duration_ns: u64,
    /// Time for collecting rounds.
    pub collect_ns: u64,
    /// Time for which the target was stopped in rounds.
    pub stopped_ns: u64,
    /// Page faults that tracking caused, where they are counted.
    pub faults: Option<u64>,
    /// Processes in the trail.
    pub processes: u32,
    /// Processes that began and ended between two rounds.
    pub short_lives: u64,
}

impl Totals {
    fn add(&mut self, round: &Round) {
        self.rounds = self.rounds.max(round.index + 1);
        let pages = round.written.page_count();
        self.last_pages += pages;
        self.page_writes += pages;
        self.duration_ns += round.duration_ns;
        self.collect_ns += round.collect_ns;
        self.stopped_ns += round.stopped_ns;
        if let Some(faults) = round.faults {
            *self.faults.get_or_insert(0) += faults;
        }
        for event in &round.events {
            if let Event::Children(count) = event {
                self.children = self.children.max(*count);
            }
        }
    }
}

/// Where a trail is written.
type Output<'a> = Box<dyn Write + 'a>;

/// A trail that is being written, with the rounds of one process or many.
///
/// The trail begins with the first round: before that nothing is written, so that an earlier
/// recording stays if there is none.
pub struct Recorder<'a> {
    begin: Box<dyn FnMut() -> Result<Output<'a>> + 'a>,
    writer: Option<Writer<Output<'a>>>,
    /// Facts of the first process.
    first: Option<Header>,
    /// The processes that are recorded now, by their number in the tree.
    parts: BTreeMap<u32, Part>,
    /// The numbers in the trail, by those in the tree.
    numbers: BTreeMap<u32, u32>,
    totals: Totals,
    /// Short lives before the trail began: when, and how many.
    early_short_lives: Vec<(u64, u64)>,
    /// What was sampled in processes that have ended.
    sampled: Option<Summary>,
}

/// A process that is recorded.
struct Part {
    converter: Converter,
    entry: Entry,
}

/// A process in the trail.
struct Entry {
    /// What the trail says of it when it appears.
    process: Process,
    /// Its number in the trail, once it is there.
    number: Option<u32>,
}

impl<'a> Recorder<'a> {
    /// A recorder that begins the trail with its first round; `begin` gives the output, empty or
    /// positioned where the trail is to begin. Records are written one by one, without a buffer.
    pub fn new(begin: impl FnMut() -> Result<Output<'a>> + 'a) -> Self {
        Self {
            begin: Box::new(begin),
            writer: None,
            first: None,
            parts: BTreeMap::new(),
            numbers: BTreeMap::new(),
            totals: Totals::default(),
            early_short_lives: Vec::new(),
            sampled: None,
        }
    }

    /// Adds a process, which is in the trail from its first round on; `member` is a number of the
    /// caller's, and the parent of `process` is one of these numbers. `sampler` is that of its page
    /// faults, where the code that writes is wanted.
    pub fn add(&mut self, member: u32, process: Process, sampler: Option<Sampler>) {
        self.first.get_or_insert_with(|| process.header.clone());
        let part = Part {
            converter: Converter::new(process.header.pid, sampler),
            entry: Entry {
                process,
                number: None,
            },
        };
        self.parts.insert(member, part);
    }

    /// What was sampled about which code writes, if that was asked for.
    #[must_use]
    pub fn sampled(&self) -> Option<Summary> {
        let living = self.parts.values();
        let living = living.filter_map(|part| part.converter.sampled());
        living.chain(self.sampled).reduce(Summary::and)
    }

    /// Begins to count the pages of a round anew.
    pub fn begin_round(&mut self) {
        self.totals.last_pages = 0;
    }

    /// Collects a round of a process, writes it and the changes of its mappings, and commits it. A
    /// process that was not added has none.
    ///
    /// # Errors
    ///
    /// Those of the source, and those of writing the trail; the round is then not committed.
    pub fn take_round(&mut self, member: u32, source: &mut dyn DirtySource) -> Result<()> {
        let Some(mut part) = self.parts.remove(&member) else {
            return Ok(());
        };
        let converter = &mut part.converter;
        let entry = &mut part.entry;
        let taken = converter.take_round(source, |converted| self.keep(member, entry, &converted));
        self.parts.insert(member, part);
        taken
    }

    /// Writes a round of the process that `entry` describes.
    fn keep(&mut self, member: u32, entry: &mut Entry, converted: &Converted) -> Result<()> {
        let number = self.number(member, entry)?;
        let Some(writer) = &mut self.writer else {
            return Ok(());
        };
        let Converted {
            round,
            changes,
            stacks,
        } = converted;
        writer.select(number)?;
        for gone in &changes.gone {
            let last_round = gone.mapping.last_round.unwrap_or(round.index);
            writer.mapping_gone(gone.index, last_round)?;
        }
        for appeared in &changes.appeared {
            writer.mapping(&appeared.mapping)?;
        }
        if !stacks.is_empty() {
            writer.stacks(stacks)?;
        }
        writer.round(round)?;
        self.totals.add(round);
        Ok(())
    }

    /// Facts of the whole recording, by its first process; `None` before there is one.
    pub fn header(&self) -> Option<&Header> {
        self.first.as_ref()
    }

    /// The number of a process in the trail, which it enters now if it is not there yet. The first
    /// begins the trail.
    fn number(&mut self, member: u32, entry: &mut Entry) -> Result<u32> {
        if let Some(number) = entry.number {
            return Ok(number);
        }
        // A parent that ended before its first round is not there.
        let parent = entry.process.parent;
        entry.process.parent = parent.and_then(|parent| self.numbers.get(&parent).copied());
        let number = match &mut self.writer {
            Some(writer) => writer.process(&entry.process)?,
            empty => {
                let mut writer = Writer::create((self.begin)()?, &entry.process.header)?;
                for (at_ns, count) in self.early_short_lives.drain(..) {
                    writer.short_lives(at_ns, count)?;
                }
                *empty = Some(writer);
                0
            }
        };
        entry.number = Some(number);
        self.numbers.insert(member, number);
        self.totals.processes += 1;
        Ok(number)
    }

    /// Records that a process has ended while others go on; `at_ns` is since the recording began.
    pub fn ended(&mut self, member: u32, at_ns: u64, end: &End) -> Result<()> {
        let Some(part) = self.parts.remove(&member) else {
            return Ok(());
        };
        let sampled = part.converter.sampled();
        self.sampled = self.sampled.into_iter().chain(sampled).reduce(Summary::and);
        if let (Some(number), Some(writer)) = (part.entry.number, &mut self.writer) {
            writer.process_ended(number, at_ns, end)?;
        }
        Ok(())
    }

    /// Records that processes began and ended between two rounds; `at_ns` is since the recording
    /// began.
    pub fn short_lives(&mut self, at_ns: u64, count: u64) -> Result<()> {
        self.totals.short_lives += count;
        // The first round begins the trail.
        match &mut self.writer {
            Some(writer) => writer.short_lives(at_ns, count)?,
            None => self.early_short_lives.push((at_ns, count)),
        }
        Ok(())
    }

    /// Counts of the recording so far.
    pub fn totals(&self) -> &Totals {
        &self.totals
    }

    /// Writes the end of the trail if it has begun.
    pub fn finish(self, end: &End) -> Result<Totals> {
        if let Some(writer) = self.writer {
            writer.finish(end)?;
        }
        Ok(self.totals)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::io;

    use pagetrail_trail::StackTable;

    use super::*;
    use crate::layout::Changes;

    /// A recorder of process 0 that says when it begins, and fails so often before it does.
    fn recorder<'a>(begun: &'a Cell<u32>, failures: u32) -> Recorder<'a> {
        let mut recorder = Recorder::new(move || {
            begun.set(begun.get() + 1);
            match begun.get() > failures {
                true => Ok(Box::new(io::sink())),
                false => Err(io::Error::from(io::ErrorKind::StorageFull).into()),
            }
        });
        let process = Process {
            header: pagetrail_report::testing::program(0).header,
            ..Process::default()
        };
        recorder.add(0, process, None);
        recorder
    }

    fn keep(recorder: &mut Recorder<'_>, index: u32) -> Result<()> {
        let mut part = recorder.parts.remove(&0).expect("it was added");
        let converted = Converted {
            round: Round {
                index,
                ..Round::default()
            },
            changes: Changes::default(),
            stacks: StackTable::default(),
        };
        let kept = recorder.keep(0, &mut part.entry, &converted);
        recorder.parts.insert(0, part);
        kept
    }

    #[test]
    fn nothing_is_written_before_the_first_round() {
        let begun = Cell::new(0);
        let unused = recorder(&begun, 0);
        assert_eq!(unused.finish(&End::Exited(3)).unwrap().rounds, 0);
        assert_eq!(begun.get(), 0);
        let mut used = recorder(&begun, 0);
        for index in 0..2 {
            keep(&mut used, index).unwrap();
        }
        assert_eq!(begun.get(), 1);
        let totals = used.finish(&End::Exited(3)).unwrap();
        assert_eq!((totals.rounds, totals.processes), (2, 1));
    }

    #[test]
    fn an_output_that_cannot_begin_is_tried_again() {
        let begun = Cell::new(0);
        let mut recorder = recorder(&begun, 1);
        assert!(keep(&mut recorder, 0).is_err());
        assert_eq!(
            (recorder.totals().rounds, recorder.totals().processes),
            (0, 0)
        );
        keep(&mut recorder, 0).unwrap();
        assert_eq!(recorder.totals().rounds, 1);
    }
}
