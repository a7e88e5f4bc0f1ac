//! The trail: what a program wrote over time, as `pagetrail record` keeps it.
//!
//! [`Trail`] and its parts say what a recording holds, [`Analysis`] and [`Heatmap`] what follows from it.
#![forbid(unsafe_code)]

pub mod analysis;
pub mod heatmap;
mod model;

pub use analysis::Analysis;
pub use heatmap::Heatmap;
pub use model::{End, Event, Header, Mapping, Round, Trail};
