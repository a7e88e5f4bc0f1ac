//! The papers' tables again: each value of a paper beside ours, with how ours came about.
//!
//! One file per paper, one function per table or figure. A [`Row`] says by its [`Provenance`]
//! whether its value could have differed from the paper's at all; [`Printed`] and [`Modelled`]
//! numbers keep the two apart. What was recorded elsewhere is as good as its [`recording`] says.
//! What a paper only states in words is a [`Statement`], listed also where it fails.

pub mod catalog;
mod claim;
pub mod flexible;
pub mod flexible_guests;
pub mod hmmv;
pub mod hmmv_huge;
pub mod ooh;
pub mod ooh_formulas;
pub mod ooh_influence;
pub mod ooh_logs;
pub mod ooh_machines;
pub mod ooh_programs;
mod provenance;
pub mod recording;
mod row;
pub mod xen;
pub mod xen_counts;
mod xen_kvm;
pub mod xen_native;

pub use claim::Claim;
pub use provenance::{Modelled, Number, OfRun, Printed, Provenance};
pub use row::{Measurement, Quantity, Row, Source, Statement, Table, Value, Verdict};

#[cfg(test)]
mod tests;
