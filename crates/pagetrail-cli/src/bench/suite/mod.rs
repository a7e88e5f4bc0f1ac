//! `pagetrail bench --suite`: workloads side by side under several techniques, as a [`definition`]
//! says.
//!
//! A [`writer`] in a process of its own writes as fast as it can, and marks what it wrote when;
//! [`measure`] watches it, checks every round against the marks, and gives [`results`].

mod chart;
pub(crate) mod child;
pub(crate) mod definition;
mod goals;
pub(crate) mod measure;
pub(crate) mod page;
mod program;
pub(crate) mod results;
mod sample;
pub(crate) mod table;
pub(crate) mod writer;
