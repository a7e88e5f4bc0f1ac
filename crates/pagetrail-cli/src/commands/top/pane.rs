//! [`Pane`]: one process of the live view: its last rounds, and what it takes to collect more.

use anyhow::Result;
use pagetrail::DirtySource;
use pagetrail_recorder::Converter;
use pagetrail_stacks::Sampler;
use pagetrail_top::TopState;
use pagetrail_trail::{Header, Mapping};

/// A process of the live view.
pub(super) struct Pane {
    pub(super) state: TopState,
    /// The number of its parent, if that is in view.
    pub(super) parent: Option<u32>,
    converter: Converter,
    /// Mappings that vanished but are still in view.
    past: Vec<Mapping>,
}

impl Pane {
    /// The pane of a process; `sampler` is that of its page faults, where functions are wanted.
    pub(super) fn new(header: Header, parent: Option<u32>, sampler: Option<Sampler>) -> Self {
        let pid = header.pid;
        let mut state = TopState::new(header);
        if sampler.is_some() {
            state.show_functions();
        }
        Self {
            state,
            parent,
            converter: Converter::new(pid, sampler),
            past: Vec::new(),
        }
    }

    /// Collects a round.
    pub(super) fn take_round(&mut self, source: &mut dyn DirtySource) -> Result<()> {
        let converted = self.converter.take_round(source, Ok)?;
        let mut round = converted.round;
        // The state has functions of its own; in its rounds nobody looks for them.
        if let Some(attribution) = round.attribution.take() {
            let page_writes = round.written.page_count();
            self.state
                .push_functions(&attribution, page_writes, converted.stacks);
        }
        let rounds = &self.state.trail().rounds;
        let first_in_view = rounds.first().map_or(round.index, |round| round.index);
        let gone = converted.changes.gone.into_iter();
        self.past.extend(gone.map(|gone| gone.mapping));
        self.past
            .retain(|mapping| mapping.last_round.is_none_or(|last| last >= first_in_view));
        let present = self.converter.present().iter();
        let mut mappings = self.past.clone();
        mappings.extend(present.map(|numbered| numbered.mapping.clone()));
        self.state.push_round(&round, &mappings);
        Ok(())
    }
}
