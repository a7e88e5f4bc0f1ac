//! [`Converter`]: the rounds of one source as rounds of a trail.

use anyhow::Result;
use pagetrail::{AccessKind, DirtySource};
use pagetrail_stacks::{Sampler, Summary};
use pagetrail_trail::{Event, Round, StackTable};

use super::layout::{Changes, Layout, Numbered};
use super::round;

/// Makes rounds of a trail from the rounds of one source.
pub struct Converter {
    layout: Layout,
    /// Samples which code writes.
    sampler: Option<Sampler>,
    /// Call stacks of rounds that nobody has.
    stacks: StackTable,
}

/// A round of a trail, and what has changed since the round before.
#[derive(Debug)]
pub struct Converted {
    /// The round.
    pub round: Round,
    /// Mappings that came and went.
    pub changes: Changes,
    /// Call stacks that no earlier round had.
    pub stacks: StackTable,
}

impl Converter {
    /// A converter for the rounds of process `pid`; `sampler` is that of its page faults, where the
    /// code that writes is wanted.
    #[must_use]
    pub fn new(pid: u32, sampler: Option<Sampler>) -> Self {
        Self {
            layout: Layout::naming(pid),
            sampler,
            stacks: StackTable::default(),
        }
    }

    /// Collects a round, hands it to `keep`, and commits it once that has succeeded: otherwise its
    /// pages are in the source's next round.
    ///
    /// # Errors
    ///
    /// Those of the source, and those of `keep`.
    pub fn take_round<T>(
        &mut self,
        source: &mut dyn DirtySource,
        keep: impl FnOnce(Converted) -> Result<T>,
    ) -> Result<T> {
        let began = self.sampler.as_ref().map(Sampler::mark);
        let collected = source.collect()?;
        let mut round = round::convert(round::index(&collected)?, &collected);
        if let Some((sampler, began)) = self.sampler.as_mut().zip(began)
            && round.access_kind == AccessKind::Writes
        {
            let (attribution, new) = sampler.attribute(began, &round.written);
            round.attribution = Some(attribution);
            self.stacks.append(new);
        }
        let mut changes = self.layout.update(
            round.index,
            collected.regions(),
            collected.untracked(),
            &round.written,
        );
        let notes = std::mem::take(&mut changes.notes).into_iter();
        round.events.extend(notes.map(Event::Note));
        let kept = keep(Converted {
            round,
            changes,
            stacks: std::mem::take(&mut self.stacks),
        })?;
        collected.commit();
        Ok(kept)
    }

    /// The mappings of the last round, in ascending order of addresses.
    #[must_use]
    pub fn present(&self) -> &[Numbered] {
        self.layout.present()
    }

    /// What was sampled so far.
    #[must_use]
    pub fn sampled(&self) -> Option<Summary> {
        self.sampler.as_ref().map(Sampler::summary)
    }
}
