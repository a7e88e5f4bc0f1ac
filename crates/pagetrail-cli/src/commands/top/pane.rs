//! [`Pane`]: one process of the live view: its last rounds, and what it takes to collect more.

use anyhow::Result;
use pagetrail::DirtySource;
use pagetrail_trail::{Event, Header, Mapping};

use super::state::TopState;
use crate::recording::layout::Layout;
use crate::recording::round;
use crate::recording::stacks::Stacks;

/// A process of the live view.
pub(super) struct Pane {
    pub(super) state: TopState,
    /// The number of its parent, if that is in view.
    pub(super) parent: Option<u32>,
    /// Samples which functions write.
    stacks: Option<Stacks>,
    layout: Layout,
    /// Mappings that vanished but are still in view.
    past: Vec<Mapping>,
}

impl Pane {
    pub(super) fn new(header: Header, parent: Option<u32>, stacks: Option<Stacks>) -> Self {
        let layout = Layout::naming(header.pid);
        let mut state = TopState::new(header);
        if stacks.is_some() {
            state.show_functions();
        }
        Self {
            state,
            parent,
            stacks,
            layout,
            past: Vec::new(),
        }
    }

    /// Collects a round.
    pub(super) fn take_round(&mut self, source: &mut dyn DirtySource) -> Result<()> {
        let began = self.stacks.as_ref().map(Stacks::mark);
        let collected = source.collect()?;
        let index = round::index(&collected)?;
        let changes = self.layout.update(
            index,
            collected.regions(),
            collected.untracked(),
            collected.dirty(),
        );
        let mut round = round::convert(index, &collected);
        round
            .events
            .extend(changes.notes.into_iter().map(Event::Note));
        collected.commit();
        if let Some((stacks, began)) = self.stacks.as_mut().zip(began) {
            let (attribution, new) = stacks.attribute(began, &round.written);
            let page_writes = round.written.page_count();
            self.state.push_functions(&attribution, page_writes, new);
        }
        let rounds = &self.state.trail().rounds;
        let first_in_view = rounds.first().map_or(index, |round| round.index);
        self.past
            .extend(changes.gone.into_iter().map(|gone| gone.mapping));
        self.past
            .retain(|mapping| mapping.last_round.is_none_or(|last| last >= first_in_view));
        let present = self.layout.present().iter();
        let mut mappings = self.past.clone();
        mappings.extend(present.map(|numbered| numbered.mapping.clone()));
        self.state.push_round(&round, &mappings);
        Ok(())
    }
}
