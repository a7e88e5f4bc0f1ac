//! `pagetrail bench --suite`: workloads side by side under several techniques, as a [`definition`]
//! says.
//!
//! A [`writer`] in a process of its own writes as fast as it can, and marks what it wrote when;
//! [`measure`] watches it, checks every round against the marks, and gives a [`Suite`] of results.

mod child;
pub mod definition;
mod goals;
mod guard;
pub mod measure;
pub mod page;
mod program;
mod program_run;
mod results;
mod sample;
pub mod table;
mod turns;
pub mod writer;

pub use results::Suite;
