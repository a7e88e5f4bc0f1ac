//! The trail: what a program wrote over time, as `pagetrail record` keeps it.
//!
//! [`Trail`] and its parts say what a recording holds, [`Analysis`] and [`Heatmap`] what follows from it.
//! [`Writer`] puts it into a file while it is recorded, [`Reader`] and [`Trail::read`] bring it back;
//! `docs/trail-format.md` documents every byte.
#![forbid(unsafe_code)]

pub mod analysis;
mod error;
mod format;
pub mod heatmap;
mod history;
mod model;
mod pages;
mod payload;
mod reader;
mod units;
mod writer;

pub use analysis::Analysis;
pub use error::{ReadError, WriteError};
pub use format::is_trail;
pub use heatmap::Heatmap;
pub use model::{End, Event, Header, Mapping, Predicted, Round, Trail, UnitWrites};
pub use reader::{Reader, Record};
pub use units::UnitCounts;
pub use writer::Writer;
