//! The trail: what a program wrote over time, as `pagetrail record` keeps it.
//!
//! [`Trail`] and its parts say what a recording holds.
#![forbid(unsafe_code)]

mod model;
pub use model::{End, Event, Header, Mapping, Round, Trail};
