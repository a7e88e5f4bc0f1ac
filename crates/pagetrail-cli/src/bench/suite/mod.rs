//! `pagetrail bench --suite`: workloads side by side under several techniques, as a [`definition`] says.
//!
//! A [`writer`] in a process of its own writes as fast as it can, and marks what it wrote when; [`measure`] watches it, checks
//! every round against the marks, and gives [`results`].

pub(crate) mod child;
pub(crate) mod definition;
pub(crate) mod measure;
mod program;
pub(crate) mod results;
mod sample;
pub(crate) mod table;
pub(crate) mod writer;
