//! A machine in software, to run designs for dirty-page tracking that need other hardware than this.
//!
//! The machine has what such designs touch: physical memory, guest and extended page tables, a TLB,
//! page-modification logging, VMCS shadowing, posted interrupts, page faults and exits. It runs each
//! technique's algorithm, counts [`Events`].
//!
//! Everything is deterministic, in safe Rust, and depends on nothing. What is modelled and what is not is
//! listed in this crate's README.
#![forbid(unsafe_code)]
#![allow(
    dead_code,
    unused_imports,
    reason = "the software that runs on the machine follows"
)]

mod error;
mod events;
pub mod machine;

pub use error::Error;
pub use events::Events;
