//! A machine in software, to run designs for dirty-page tracking that need other hardware than
//! this.
//!
//! The machine has what such designs touch: physical memory, guest and extended page tables, a TLB,
//! page-modification logging, VMCS shadowing, posted interrupts, page faults and exits. It runs
//! each technique's algorithm, counts [`Events`], and puts [prices](cost) on them.
//!
//! Everything is deterministic, in safe Rust, and depends on nothing. What is modelled and what is
//! not is listed in this crate's README.
//!
//! ```
//! use pagetrail_model::cost::{CostTable, Payer, price};
//! use pagetrail_model::technique::TechniqueKind;
//! use pagetrail_model::workload::{Workload, WorkloadKind};
//! use pagetrail_model::{RunConfig, run};
//!
//! let program = Workload { kind: WorkloadKind::Listing1, bytes: 4 << 20, rounds: 1, seed: 0 };
//! let [spml, epml] = [TechniqueKind::Spml, TechniqueKind::Epml].map(|technique| {
//!     let report = run(&RunConfig::new(technique), program.ops()).unwrap();
//!     assert_eq!((report.rounds[0].written, report.rounds[0].missed), (1024, 0));
//!     price(&report.tracking(), report.tracked_bytes, &CostTable::ooh_paper())
//! });
//! assert!(epml.sum_ns(Payer::Tracker) < spml.sum_ns(Payer::Tracker));
//! ```
#![forbid(unsafe_code)]

pub mod bare;
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
