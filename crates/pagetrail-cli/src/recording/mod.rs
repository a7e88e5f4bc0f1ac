//! Everything that a round passes through on its way into a trail file.
//!
//! [`recorder::Recorder`] collects rounds, of each process into its [`part`]. [`round`] converts
//! each to the trail's types, [`layout::Layout`] finds the mappings that changed,
//! [`stacks::Stacks`] samples which code wrote, and [`output::Output`] is the file that receives
//! them. [`progress::Progress`] shows a line on the terminal meanwhile. The command decides when to
//! take a round.

pub(crate) mod layout;
pub(crate) mod metrics;
pub(crate) mod output;
mod part;
pub(crate) mod progress;
pub(crate) mod recorder;
pub(crate) mod round;
pub(crate) mod stacks;
