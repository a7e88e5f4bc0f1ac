//! The program CRIU beside a checkpoint store.
//!
//! `pagetrail-checkpoint` speaks CRIU's page-server protocol and reads its images, and starts no
//! program. Here [`Engine`] is the program `criu` of this machine: finding it, starting it, and
//! what it said when it failed. [`Chain`] takes checkpoints of a process that [`check_target`]
//! finds to be one that CRIU can save; [`lineage`] knows which checkpoint a process comes from.
//! [`Restored`] is a process started anew, [`ProcessCopy`] one in namespaces of its own.
//! [`check_peer`] decides who may ask for pages over TCP.
#![deny(unsafe_code)]

mod chain;
mod copies;
mod engine;
mod error;
mod lazy;
pub mod lineage;
mod memory;
mod peer;
mod restore;
mod scratch;
mod target;
mod tracking;

pub use chain::Chain;
pub use copies::{FirstProcess, ProcessCopy};
pub use engine::Engine;
pub use error::{Error, Result};
pub use peer::check as check_peer;
pub use restore::{Given, RestoreOptions, Restored, check_addresses, check_kind};
pub use target::{SHELL_JOB, check as check_target};
