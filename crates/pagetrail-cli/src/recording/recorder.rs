//! [`Recorder`]: writes the rounds of sources to a trail, each before it is committed.

use std::collections::BTreeMap;
use std::fs::File;

use anyhow::Result;
use pagetrail::{AccessKind, DirtySource, Region, UntrackedRegion};
use pagetrail_trail::{End, Event, Header, Process, Round, Writer};

use super::output::Output;
use super::part::Part;
use crate::recording::round;
use crate::recording::stacks::{Sampled, Stacks};

/// Counts of a recording so far.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Totals {
    /// Number of rounds: of the process that has most of them.
    pub(crate) rounds: u32,
    /// Pages written, summed over the rounds.
    pub(crate) page_writes: u64,
    /// Pages written in the last round, of all processes.
    pub(crate) last_pages: u64,
    /// Child processes of the targets, which are not recorded.
    pub(crate) children: u32,
    /// Length of all rounds.
    pub(crate) duration_ns: u64,
    /// Time for collecting rounds.
    pub(crate) collect_ns: u64,
    /// Time for which the target was stopped in rounds.
    pub(crate) stopped_ns: u64,
    /// Page faults that tracking caused, where they are counted.
    pub(crate) faults: Option<u64>,
    /// Processes in the trail.
    pub(crate) processes: u32,
    /// Processes that began and ended between two rounds.
    pub(crate) short_lives: u64,
}

/// A trail that is being written. Its file is truncated only when the first round is written.
pub(crate) struct Recorder<'a> {
    output: &'a Output,
    writer: Option<Writer<&'a File>>,
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
    sampled: Option<Sampled>,
}

impl<'a> Recorder<'a> {
    /// Makes a recorder that begins the trail with its first round.
    pub(crate) fn new(output: &'a Output) -> Self {
        Self {
            output,
            writer: None,
            first: None,
            parts: BTreeMap::new(),
            numbers: BTreeMap::new(),
            totals: Totals::default(),
            early_short_lives: Vec::new(),
            sampled: None,
        }
    }

    /// Adds a process, which is in the trail from its first round on; `member` is its number, and
    /// the parent of `process` has one of these numbers.
    pub(crate) fn add(&mut self, member: u32, process: Process, stacks: Option<Stacks>) {
        self.first.get_or_insert_with(|| process.header.clone());
        self.parts.insert(member, Part::new(process, stacks));
    }

    /// What was sampled about which code writes, if that was asked for.
    pub(crate) fn sampled(&self) -> Option<Sampled> {
        let living = self.parts.values().filter_map(|part| part.stacks.as_ref());
        let living = living.map(Stacks::sampled);
        living.chain(self.sampled).reduce(Sampled::and)
    }

    /// Begins to count the pages of a round anew.
    pub(crate) fn begin_round(&mut self) {
        self.totals.last_pages = 0;
    }

    /// Collects a round of a process, writes it, and commits it.
    pub(crate) fn take_round(&mut self, member: u32, source: &mut dyn DirtySource) -> Result<()> {
        let Some(part) = self.parts.get_mut(&member) else {
            return Ok(());
        };
        let began = part.stacks.as_ref().map(Stacks::mark);
        let collected = source.collect()?;
        let mut round = round::convert(round::index(&collected)?, &collected);
        if let Some((stacks, began)) = part.stacks.as_mut().zip(began)
            && round.access_kind == AccessKind::Writes
        {
            let (attribution, new) = stacks.attribute(began, &round.written);
            round.attribution = Some(attribution);
            part.new_stacks.append(new);
        }
        self.keep(member, round, collected.regions(), collected.untracked())?;
        collected.commit();
        Ok(())
    }

    /// Writes a round and the changes of the mappings found in it.
    fn keep(
        &mut self,
        member: u32,
        mut round: Round,
        regions: &[Region],
        untracked: &[UntrackedRegion],
    ) -> Result<()> {
        let index = round.index;
        let number = self.number(member)?;
        let (Some(part), Some(writer)) = (self.parts.get_mut(&member), &mut self.writer) else {
            return Ok(());
        };
        writer.select(number)?;
        let changes = part
            .layout
            .update(index, regions, untracked, &round.written);
        for gone in &changes.gone {
            let last_round = gone.mapping.last_round.unwrap_or(index);
            writer.mapping_gone(gone.index, last_round)?;
        }
        for appeared in &changes.appeared {
            writer.mapping(&appeared.mapping)?;
        }
        if !part.new_stacks.is_empty() {
            writer.stacks(&std::mem::take(&mut part.new_stacks))?;
        }
        round
            .events
            .extend(changes.notes.into_iter().map(Event::Note));
        writer.round(&round)?;
        self.totals.rounds = self.totals.rounds.max(index + 1);
        let pages = round.written.page_count();
        self.totals.last_pages += pages;
        self.totals.page_writes += pages;
        self.totals.duration_ns += round.duration_ns;
        self.totals.collect_ns += round.collect_ns;
        self.totals.stopped_ns += round.stopped_ns;
        if let Some(faults) = round.faults {
            *self.totals.faults.get_or_insert(0) += faults;
        }
        for event in &round.events {
            if let Event::Children(count) = event {
                self.totals.children = self.totals.children.max(*count);
            }
        }
        Ok(())
    }

    /// Facts of the whole recording, by its first process; `None` before there is one.
    pub(crate) fn header(&self) -> Option<&Header> {
        self.first.as_ref()
    }

    /// The number of a process in the trail, which it enters now if it is not there yet. The first
    /// begins the trail.
    fn number(&mut self, member: u32) -> Result<u32> {
        let Some(part) = self.parts.get_mut(&member) else {
            return Ok(0);
        };
        if let Some(number) = part.number {
            return Ok(number);
        }
        // A parent that ended before its first round is not there.
        let parent = part.process.parent;
        part.process.parent = parent.and_then(|parent| self.numbers.get(&parent).copied());
        let number = match &mut self.writer {
            Some(writer) => writer.process(&part.process)?,
            empty => {
                let mut writer = Writer::create(self.output.begin()?, &part.process.header)?;
                for (at_ns, count) in self.early_short_lives.drain(..) {
                    writer.short_lives(at_ns, count)?;
                }
                *empty = Some(writer);
                0
            }
        };
        part.number = Some(number);
        self.numbers.insert(member, number);
        self.totals.processes += 1;
        Ok(number)
    }

    /// Records that a process has ended while others go on; `at_ns` is since the recording began.
    pub(crate) fn ended(&mut self, member: u32, at_ns: u64, end: &End) -> Result<()> {
        let Some(part) = self.parts.remove(&member) else {
            return Ok(());
        };
        let sampled = part.stacks.as_ref().map(Stacks::sampled);
        self.sampled = self.sampled.into_iter().chain(sampled).reduce(Sampled::and);
        if let (Some(number), Some(writer)) = (part.number, &mut self.writer) {
            writer.process_ended(number, at_ns, end)?;
        }
        Ok(())
    }

    /// Records that processes began and ended between two rounds; `at_ns` is since the recording
    /// began.
    pub(crate) fn short_lives(&mut self, at_ns: u64, count: u64) -> Result<()> {
        self.totals.short_lives += count;
        // The first round begins the trail.
        match &mut self.writer {
            Some(writer) => writer.short_lives(at_ns, count)?,
            None => self.early_short_lives.push((at_ns, count)),
        }
        Ok(())
    }

    /// Counts of the recording so far.
    pub(crate) fn totals(&self) -> &Totals {
        &self.totals
    }

    /// Writes the end of the trail if it has begun.
    pub(crate) fn finish(self, end: &End) -> Result<Totals> {
        if let Some(writer) = self.writer {
            writer.finish(end)?;
        }
        Ok(self.totals)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn an_earlier_recording_stays_until_the_first_round() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pagetrail.trail");
        let mut earlier = Vec::new();
        pagetrail_report::testing::program(2)
            .write(&mut earlier)
            .unwrap();
        fs::write(&path, &earlier).unwrap();
        let process = Process {
            header: pagetrail_report::testing::program(0).header,
            ..Process::default()
        };
        let output = Output::open(&path).unwrap();
        let mut recorder = Recorder::new(&output);
        recorder.add(0, process.clone(), None);
        assert_eq!(recorder.finish(&End::Exited(3)).unwrap().rounds, 0);
        assert_eq!(fs::read(&path).unwrap(), earlier);
        let mut recorder = Recorder::new(&output);
        recorder.add(0, process, None);
        recorder.keep(0, Round::default(), &[], &[]).unwrap();
        assert_ne!(fs::read(&path).unwrap(), earlier);
    }
}
