//! [`Recorder`]: writes the rounds of a source to a trail, each before it is committed.

use std::fs::File;

use anyhow::Result;
use pagetrail::{AccessKind, DirtySource, Region, UntrackedRegion};
use pagetrail_trail::{End, Event, Header, Round, StackTable, Writer};

use super::output::Output;
use crate::recording::layout::Layout;
use crate::recording::round;
use crate::recording::stacks::Stacks;

/// Counts of a recording so far.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Totals {
    /// Number of rounds.
    pub(crate) rounds: u32,
    /// Pages written, summed over the rounds.
    pub(crate) page_writes: u64,
    /// Pages written in the last round.
    pub(crate) last_pages: u64,
    /// Child processes of the target, which are not recorded.
    pub(crate) children: u32,
    /// Length of all rounds.
    pub(crate) duration_ns: u64,
    /// Time for collecting rounds.
    pub(crate) collect_ns: u64,
    /// Time for which the target was stopped in rounds.
    pub(crate) stopped_ns: u64,
    /// Page faults that tracking caused, where they are counted.
    pub(crate) faults: Option<u64>,
}

/// A trail that is being written. Its file is truncated only when the first round is written.
pub(crate) struct Recorder<'a> {
    output: &'a Output,
    header: Header,
    writer: Option<Writer<&'a File>>,
    layout: Layout,
    totals: Totals,
    /// Samples which code writes.
    stacks: Option<Stacks>,
    /// Call stacks that the trail does not have yet.
    new_stacks: StackTable,
}

impl<'a> Recorder<'a> {
    /// Makes a recorder that begins the trail with its first round.
    pub(crate) fn new(output: &'a Output, header: Header) -> Self {
        Self {
            output,
            layout: Layout::naming(header.pid),
            header,
            writer: None,
            totals: Totals::default(),
            stacks: None,
            new_stacks: StackTable::default(),
        }
    }

    /// Samples which code writes from now on.
    pub(crate) fn with_stacks(mut self, stacks: Option<Stacks>) -> Self {
        self.stacks = stacks;
        self
    }

    /// What samples which code writes.
    pub(crate) fn stacks(&self) -> Option<&Stacks> {
        self.stacks.as_ref()
    }

    /// Collects a round, writes it, and commits it.
    pub(crate) fn take_round(&mut self, source: &mut dyn DirtySource) -> Result<()> {
        let began = self.stacks.as_ref().map(Stacks::mark);
        let collected = source.collect()?;
        let mut round = round::convert(round::index(&collected)?, &collected);
        if let Some((stacks, began)) = self.stacks.as_mut().zip(began)
            && round.access_kind == AccessKind::Writes
        {
            let (attribution, new) = stacks.attribute(began, &round.written);
            round.attribution = Some(attribution);
            self.new_stacks.append(new);
        }
        self.keep(round, collected.regions(), collected.untracked())?;
        collected.commit();
        Ok(())
    }

    /// Writes a round and the changes of the mappings found in it.
    fn keep(
        &mut self,
        mut round: Round,
        regions: &[Region],
        untracked: &[UntrackedRegion],
    ) -> Result<()> {
        let index = round.index;
        let changes = self
            .layout
            .update(index, regions, untracked, &round.written);
        let writer = match &mut self.writer {
            Some(writer) => writer,
            empty => empty.insert(Writer::create(self.output.begin()?, &self.header)?),
        };
        for gone in &changes.gone {
            let last_round = gone.mapping.last_round.unwrap_or(index);
            writer.mapping_gone(gone.index, last_round)?;
        }
        for appeared in &changes.appeared {
            writer.mapping(&appeared.mapping)?;
        }
        if !self.new_stacks.is_empty() {
            writer.stacks(&std::mem::take(&mut self.new_stacks))?;
        }
        round
            .events
            .extend(changes.notes.into_iter().map(Event::Note));
        writer.round(&round)?;
        self.totals.rounds = index + 1;
        self.totals.last_pages = round.written.page_count();
        self.totals.page_writes += self.totals.last_pages;
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

    /// Facts of the whole recording.
    pub(crate) fn header(&self) -> &Header {
        &self.header
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
        let header = pagetrail_report::testing::program(0).header;
        let output = Output::open(&path).unwrap();
        let recorder = Recorder::new(&output, header.clone());
        assert_eq!(recorder.finish(&End::Exited(3)).unwrap().rounds, 0);
        assert_eq!(fs::read(&path).unwrap(), earlier);
        let mut recorder = Recorder::new(&output, header);
        recorder.keep(Round::default(), &[], &[]).unwrap();
        assert_ne!(fs::read(&path).unwrap(), earlier);
    }
}
