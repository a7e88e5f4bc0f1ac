//! Programs on this machine: what ends a run early ([`Limits`]), the processes that outlive it
//! ([`Leftovers`]), and runs under a tracker ([`tracker`]).

pub mod leftovers;
mod limits;
mod memory;
pub mod tracker;

pub use leftovers::Leftovers;
pub use limits::{Limits, Over, set_apart};
pub use memory::available_bytes;
