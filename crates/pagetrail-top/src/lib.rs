//! The live view of `pagetrail top`, for a terminal: the last rounds of a process, which mappings
//! and functions they dirtied, and the processes beside it.
//!
//! [`TopState`] holds the last rounds of one process, [`draw`] draws it (a pure function, on any
//! frame of ratatui), [`action`] maps keys to actions, and [`Screen`] controls the terminal.
//! [`Live`] puts these together, for all processes in view.
//!
//! Nothing is collected here: rounds come in the types of `pagetrail-trail`, whatever found them,
//! and from another thread, by an [`Exchange`], so that no key waits for a collect. What takes long
//! with a round is for that thread, too: [`FunctionNames`].

mod exchange;
mod functions;
mod live;
mod processes;
mod screen;
mod state;
mod view;

pub use exchange::{Collected, Collecting, Exchange, Update};
pub use functions::{FunctionNames, FunctionRound};
pub use live::Live;
pub use processes::ProcessTable;
pub use ratatui::crossterm::style::force_color_output;
pub use screen::{Input, Screen};
pub use state::TopState;
pub use view::{Action, action, draw};
