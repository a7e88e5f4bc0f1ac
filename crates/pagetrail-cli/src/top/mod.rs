//! The live view: what a program writes now.
//!
//! [`state::TopState`] takes rounds in, [`view::draw`] puts it on a screen, [`view::action`] says what a
//! key means, and [`screen::Screen`] has the terminal meanwhile. Who collects the rounds is not decided here.

pub(crate) mod screen;
pub(crate) mod state;
pub(crate) mod view;
