//! `pagetrail bench`: the tables of the OoH paper (I and IV) measured on this machine.
//!
//! A writer that knows what it wrote ([`workload`], [`child`]) is tracked by each technique
//! ([`measure`]); every round is checked against it ([`oracle`]) before a time is kept. What comes
//! out are [`results`], shown as text ([`table`]) or as a page ([`page`], [`chart`]). The words "on
//! tracked" and "on tracker" are defined in docs/bench-format.md.

pub(crate) mod args;
mod chart;
pub(crate) mod child;
mod definitions;
pub(crate) mod measure;
pub(crate) mod memory;
pub(crate) mod oracle;
pub(crate) mod page;
mod predicted;
pub(crate) mod results;
pub(crate) mod suite;
pub(crate) mod table;
mod workload;

pub(crate) use pagetrail_report::size;

#[cfg(test)]
pub(crate) mod testing;
