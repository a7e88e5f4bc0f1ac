//! The benchmark of the command `pagetrail`: the tables of the OoH paper (I and IV) measured on
//! this machine, and suites of workloads and programs ([`suite`]).
//!
//! A writer that knows what it wrote ([`child`]) is tracked by each technique ([`measure`]); every
//! round is checked against it ([`oracle`]) before a time is kept. What comes out are [`results`],
//! shown as text ([`table`]) or as a page ([`page`]). The words "on tracked" and "on tracker" are
//! defined in docs/bench-format.md.
//!
//! Writers are processes of the program that measures: it is started again with the arguments
//! `bench --as-writer SIZE` or `bench --as-workload JSON`, and has to call [`child::serve`] or
//! [`suite::writer::serve`] then, as the command `pagetrail` does.

mod chart;
pub mod child;
pub mod definitions;
pub mod infile;
pub mod measure;
pub mod memory;
pub mod metrics;
pub mod oracle;
pub mod page;
mod predicted;
pub mod results;
pub mod suite;
pub mod table;
#[cfg(feature = "test-equipment")]
pub mod testing;
mod workload;

pub use predicted::Predicted;
