//! The live view: what a program writes now.
//!
//! [`state::TopState`] takes rounds in, [`view::draw`] puts it on a screen, [`view::action`] says what a
//! key means. Who collects the rounds, waits for keys and owns the terminal is not decided here.

pub(crate) mod state;
pub(crate) mod view;
