//! The hardware: memory, processors, and the tables that they walk.
//!
//! One file per piece. Nothing here knows about operating systems: an access either completes or
//! ends in a trap, and the software above ([`Host`](crate::Host)) decides what follows.

mod address;
mod cpu;
mod ept;
mod memory;
mod page_table;
mod pml;
mod tlb;
mod vmcs;
mod walk;

pub use address::{Gpa, Gva, HUGE_BYTES, HUGE_PAGES, Hpa, PAGE_BYTES};
pub use memory::PhysicalMemory;
pub use pml::PML_ENTRIES;
pub(crate) use tlb::Tag;
pub use tlb::{Tlb, TlbGeometry};

pub(crate) use cpu::{Cpu, PostedInterrupts, Vcpu, Vector};
pub(crate) use ept::Ept;
pub(crate) use page_table::Pte;
pub(crate) use pml::Pml;
pub(crate) use vmcs::{Field, ShadowVmcs, Translation, Vmcs};
pub(crate) use walk::{Hardware, PageFault, Trap};
