//! [`Live`]: the live view on the terminal, on a thread that waits for keys and for rounds, and
//! never for what it takes to collect these.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use crate::{Action, Exchange, Input, ProcessTable, Screen, TopState, Update};

/// Longest time until a request to stop is looked for.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// The live view of one process or several.
#[derive(Default)]
pub struct Live {
    /// The processes in view, by their number in the tree.
    processes: BTreeMap<u32, Process>,
    /// The number of the process that is shown.
    shown: u32,
    /// Whether the table of processes is shown.
    shows_processes: bool,
}

struct Process {
    /// The number of its parent, if that is in view.
    parent: Option<u32>,
    state: TopState,
}

/// Says that the view has closed, when dropped: also after an error or a panic.
struct Closing<'a>(&'a Exchange);

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl Live {
    /// Shows what comes until the user quits, `stop_requested` says so, or there is no more to come
    /// by an error of the other thread. The terminal is then as it was.
    ///
    /// # Errors
    ///
    /// The terminal cannot be read or drawn on.
    pub fn run(
        mut self,
        exchange: &Exchange,
        mut screen: Screen,
        mut stop_requested: impl FnMut() -> bool,
    ) -> io::Result<()> {
        let _closing = Closing(exchange);
        loop {
            let Some(updates) = exchange.take() else {
                return Ok(());
            };
            let mut changed = !updates.is_empty();
            updates.into_iter().for_each(|update| self.update(update));
            if changed {
                self.draw(&mut screen)?;
            }
            changed = true;
            match screen.input(exchange, POLL_INTERVAL)? {
                Some(Input::Action(Action::Quit) | Input::Gone) => return Ok(()),
                Some(Input::Action(action)) => self.act(action),
                Some(Input::Resized) => {}
                Some(Input::Woken) | None => changed = false,
            }
            if stop_requested() {
                return Ok(());
            }
            if changed {
                self.draw(&mut screen)?;
            }
        }
    }

    fn update(&mut self, update: Update) {
        match update {
            Update::Appeared {
                number,
                parent,
                header,
                has_functions,
            } => {
                let mut state = TopState::new(header);
                if has_functions {
                    state.show_functions();
                }
                // Of a control group, it may be the first.
                if !self.processes.contains_key(&self.shown) {
                    self.shown = number;
                }
                self.processes.insert(number, Process { parent, state });
            }
            Update::Round(collected) => {
                let Some(process) = self.processes.get_mut(&collected.number) else {
                    return;
                };
                if let Some(functions) = collected.functions {
                    process.state.push_functions(functions);
                }
                let (present, gone) = (collected.present, collected.gone);
                process.state.push_round(collected.round, present, gone);
            }
            Update::Ended { number, end } if number == self.shown => self.finish(end),
            Update::Ended { number, .. } => drop(self.processes.remove(&number)),
            Update::Over(end) => self.finish(end),
        }
    }

    /// Notes how the process that is shown ended.
    fn finish(&mut self, end: pagetrail_trail::End) {
        if let Some(process) = self.processes.get_mut(&self.shown) {
            process.state.finish(end);
        }
    }

    fn act(&mut self, action: Action) {
        let numbers = || self.processes.keys().copied();
        match action {
            Action::Next => {
                let next = numbers().find(|number| *number > self.shown);
                self.shown = next.or_else(|| numbers().next()).unwrap_or(0);
            }
            Action::Previous => {
                let before = numbers().rev().find(|number| *number < self.shown);
                self.shown = before.or_else(|| numbers().next_back()).unwrap_or(0);
            }
            // A table of one process can be closed, too.
            Action::Processes => {
                self.shows_processes = !self.shows_processes && self.processes.len() > 1;
            }
            Action::Sort | Action::Functions | Action::Quit => {
                for process in self.processes.values_mut() {
                    match action {
                        Action::Sort => process.state.next_sort(),
                        _ => process.state.switch_table(),
                    }
                }
            }
        }
    }

    fn draw(&mut self, screen: &mut Screen) -> io::Result<()> {
        if let Some(process) = self.processes.get_mut(&self.shown) {
            process.state.refresh();
        }
        let processes = self.processes.iter();
        let states = processes.map(|(number, process)| (*number, process.parent, &process.state));
        let table = ProcessTable::new(states, self.shown, self.shows_processes);
        if let Some(process) = self.processes.get(&self.shown) {
            screen.draw(&process.state, &table)?;
        }
        Ok(())
    }
}
