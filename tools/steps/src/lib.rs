//! Steps of a test run: where the repository is, what passed, what failed, and what is not possible
//! on this machine.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a task talks to the person who started it"
)]

pub mod lane;
pub mod load;
pub mod packages;
mod processor;
pub mod products;
pub mod recordings;
pub mod repo;
pub mod steps;
pub mod table;
pub mod tally;
pub mod time;
pub mod victims;
