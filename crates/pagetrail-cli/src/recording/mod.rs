//! Keeping a recording: the file that takes it, and the words on standard error meanwhile.
//!
//! [`recorder::Recorder`] takes rounds from a watch into an [`output::Output`]; [`progress::Progress`] tells
//! who waits for it. When to take a round is the command's business.

pub(crate) mod output;
pub(crate) mod progress;
pub(crate) mod recorder;
