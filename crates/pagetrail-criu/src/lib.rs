//! The program CRIU beside a checkpoint store.
//!
//! `pagetrail-checkpoint` speaks CRIU's page-server protocol and reads its images, and starts no
//! program. Here [`Engine`] is the program `criu` of this machine: finding it, starting it, and
//! what it said when it failed. [`Scratch`] is a directory for its images, [`Lazy`] the half of a
//! lazy restore that gives out pages, [`Chain`] takes checkpoints one after the other, [`lineage`]
//! knows which one a process comes from, and [`check_peer`] decides who may ask for pages over TCP.
#![deny(unsafe_code)]

mod chain;
mod engine;
mod error;
mod lazy;
pub mod lineage;
mod peer;
mod scratch;
mod tracking;

pub use chain::Chain;
pub use engine::{Engine, is_log, reason, start_with};
pub use error::{Error, Result};
pub use lazy::Lazy;
pub use peer::check as check_peer;
pub use scratch::Scratch;
