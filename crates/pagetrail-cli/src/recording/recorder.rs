//! [`Recorder`]: rounds from a watch into a trail, each written before it is committed.

use std::io::Write;

use anyhow::Result;
use pagetrail::Watch;
use pagetrail_trail::{End, Event, Header, Writer};

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
        let index = round::index(&collected)?;
        let changes = self.layout.update(
            index,
            collected.regions(),
            collected.given_up(),
            collected.pages(),
        );
        for gone in &changes.gone {
            let last_round = gone.mapping.last_round.unwrap_or(index);
            self.writer.mapping_gone(gone.index, last_round)?;
        }
        for appeared in &changes.appeared {
            self.writer.mapping(&appeared.mapping)?;
        }
        let round = round::convert(index, &collected, changes.notes);
        self.writer.round(&round)?;
        collected.commit();
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
