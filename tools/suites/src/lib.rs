//! Programs and test suites of other projects, run on pagetrail: natively, and in guests with other
//! kernels.
//!
//! Each module is one such program or suite: what it needs, how it runs, and what its result is
//! held against.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a task talks to the person who started it"
)]

pub mod arm64;
pub mod checkpointer;
pub mod collector;
pub mod exact;
pub mod guests;
pub mod intel;
pub mod kvm;
pub mod model;
pub mod ooh;
pub mod posix;
mod python;
pub mod shadow;
pub mod subpage;
pub mod tier_agent;
pub mod tier_guests;
pub mod trees;
pub mod vm_bench;
pub mod vm_programs;
pub mod vm_units;
