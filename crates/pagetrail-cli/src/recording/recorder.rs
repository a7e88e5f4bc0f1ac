//! [`Recorder`]: rounds from a watch into a trail, each written before it is committed.

use std::io::Write;

use anyhow::Result;
use pagetrail::{GivenUp, Region, Watch};
use pagetrail_trail::{End, Event, Header, Round, Writer};

use crate::tracking::layout::Layout;
use crate::tracking::round;

/// What was recorded so far.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Totals {
    /// Rounds.
    pub(crate) rounds: u32,
    /// Pages written, summed over the rounds.
    pub(crate) page_writes: u64,
    /// Pages written in the last round.
    pub(crate) last_pages: u64,
    /// Child processes of the target, which are not recorded.
    pub(crate) children: u32,
}

/// A trail being written.
pub(crate) struct Recorder<W> {
    writer: Writer<W>,
    layout: Layout,
    totals: Totals,
}

impl<W: Write> Recorder<W> {
    /// Begins the trail.
    pub(crate) fn begin(output: W, header: &Header) -> Result<Self> {
        Ok(Self {
            writer: Writer::create(output, header)?,
            layout: Layout::default(),
            totals: Totals::default(),
        })
    }

    /// Collects a round, writes it, and commits it.
    pub(crate) fn take_round(&mut self, watch: &mut Watch) -> Result<()> {
        let collected = watch.collect()?;
        let round = round::convert(round::index(&collected)?, &collected);
        self.keep(round, collected.regions(), collected.given_up())?;
        collected.commit();
        Ok(())
    }

    /// Writes a round, which found these mappings.
    pub(crate) fn keep(
        &mut self,
        mut round: Round,
        regions: &[Region],
        given_up: &[GivenUp],
    ) -> Result<()> {
        let index = round.index;
        let changes = self.layout.update(index, regions, given_up, &round.written);
        for gone in &changes.gone {
            let last_round = gone.mapping.last_round.unwrap_or(index);
            self.writer.mapping_gone(gone.index, last_round)?;
        }
        for appeared in &changes.appeared {
            self.writer.mapping(&appeared.mapping)?;
        }
        round
            .events
            .extend(changes.notes.into_iter().map(Event::Note));
        self.writer.round(&round)?;
        self.totals.rounds = index + 1;
        self.totals.last_pages = round.written.pages();
        self.totals.page_writes += self.totals.last_pages;
        for event in &round.events {
            if let Event::Children(count) = event {
                self.totals.children = self.totals.children.max(*count);
            }
        }
        Ok(())
    }

    /// What was recorded so far.
    pub(crate) fn totals(&self) -> &Totals {
        &self.totals
    }

    /// Ends the trail.
    pub(crate) fn finish(self, end: &End) -> Result<Totals> {
        self.writer.finish(end)?;
        Ok(self.totals)
    }
}
