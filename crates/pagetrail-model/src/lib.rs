//! A machine in software, to run designs for dirty-page tracking that need other hardware than
//! this.
//!
//! The machine has what such designs touch: physical memory, guest and extended page tables, a TLB,
//! page-modification logging, VMCS shadowing, posted interrupts, page faults and exits. It runs
//! each technique's algorithm, counts [`Events`].
//!
//! Everything is deterministic, in safe Rust, and depends on nothing. What is modelled and what is
//! not is listed in this crate's README.
#![forbid(unsafe_code)]

pub mod cost;
mod error;
mod events;
mod guest;
mod host;
mod hypervisor;
pub mod machine;
mod platform;
pub mod reproduce;
mod ring;
mod run;
pub mod technique;
pub mod trace;
pub mod workload;
mod write_set;

pub use error::Error;
pub use events::Events;
pub use host::{Host, HostConfig, Paging, ProcessId, VcpuId, VmConfig, VmId};
pub use run::{Report, Round, RunConfig, RunError, RunErrorKind, run};
pub use write_set::WriteSet;
