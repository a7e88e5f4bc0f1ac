//! A machine with two kinds of memory in software, and programs on it whose every access is known.
//!
//! The loop that runs on it is the real one: [`Machine`] hands out a
//! [`Source`](crate::source::Source) and a [`Mover`](crate::mover::Mover). Nothing here has a
//! latency of its own: time is priced ([`Prices`]), accesses by where their page is, and faults,
//! scans and moved bytes by what they cost. Say so wherever such a number is shown.

mod cache;
mod graph;
mod machine;
mod price;
mod program;
mod run;
mod trail;
mod workload;

pub use cache::{memory_mode, memory_mode_window};
pub use graph::{betweenness, breadth_first, page_rank, shortest_paths};
pub use machine::{Machine, Report, SimulatedMover, SimulatedSource};
pub use price::{Bill, Prices};
pub use program::{Accesses, Program, Recorded};
pub use run::{Outcome, RunOptions, Window, run, run_perfect};
pub use trail::recorded;
pub use workload::{Workload, WorkloadKind};
