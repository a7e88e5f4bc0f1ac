//! Programs on this machine: until when one is waited for ([`Limits`]), what it leaves behind
//! ([`Leftovers`]), and how it is run under a tracker ([`tracker`]).

pub mod leftovers;
mod limits;
mod memory;
pub mod tracker;

pub use leftovers::Leftovers;
pub use limits::{Limits, Over, set_apart};
pub use memory::available_bytes;
