//! The program CRIU beside a checkpoint store.
//!
//! `pagetrail-checkpoint` speaks CRIU's page-server protocol and reads its images, and starts no
//! program. Here [`Engine`] is the program `criu` of this machine: finding it, starting it, and
//! what it said when it failed. [`Scratch`] is a directory for its images, [`Lazy`] the half of a
//! lazy restore that gives out pages, and [`check_peer`] decides who may ask for pages over TCP.
#![deny(unsafe_code)]

mod engine;
mod error;
mod lazy;
mod peer;
mod scratch;

pub use engine::{Engine, is_log, reason, start_with};
pub use error::{Error, Result};
pub use lazy::Lazy;
pub use peer::check as check_peer;
pub use scratch::Scratch;
