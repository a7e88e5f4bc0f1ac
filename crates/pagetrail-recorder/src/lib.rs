//! Recordings: from the rounds of any [`pagetrail::DirtySource`] to a trail, while it grows.
//!
//! [`Converter`] makes rounds of a trail from those of one source: it follows the mappings, names
//! memory, and attributes pages to the code that wrote them. [`Recorder`] writes the rounds of many
//! sources to one trail, each before it is committed, so that a write that fails loses none.
//! [`Schedule`] computes when the next round is due; of whom it is taken is the caller's business.
//!
//! Where a source fails, the error holds its [`pagetrail::Error`]; where the trail cannot be
//! written, a [`pagetrail_trail::WriteError`].

mod converter;
mod layout;
mod recorder;
mod round;
mod schedule;

pub use converter::{Converted, Converter};
pub use layout::{Changes, Numbered};
pub use recorder::{Recorder, Totals};
pub use round::end;
pub use schedule::Schedule;
