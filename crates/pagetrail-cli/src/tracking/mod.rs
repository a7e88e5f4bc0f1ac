//! Following a program while it runs: what `record` and `top` have in common.
//!
//! [`find`] finds processes by name, [`start`] turns arguments into a watch, [`layout::Layout`] follows the mappings from round to round,
//! [`round`] puts a round into the trail's terms, [`schedule::Schedule`] says when the next is due, and
//! [`signals::Signals`] what was asked for meanwhile. What becomes of the rounds is the commands' business.

pub(crate) mod find;
pub(crate) mod layout;
pub(crate) mod round;
pub(crate) mod schedule;
pub(crate) mod signals;
pub(crate) mod start;
pub(crate) mod subpage;
