//! A guest's memory in a store of `pagetrail-checkpoint`.
//!
//! [`Snapshots`] adds increments, [`LazyRestore`] brings pages back when the guest touches them. In
//! the store the memory is at its guest-physical addresses, a mapping per region, so that
//! `pagetrail checkpoint` lists, verifies, compares and prunes these snapshots like others.
//!
//! The state of vCPUs and devices is the monitor's to save.

mod restore;
mod snapshot;

pub use restore::{LazyRestore, Served, Stopper};
pub use snapshot::{Snapshot, Snapshots};
