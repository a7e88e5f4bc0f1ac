//! The kernel's interfaces, one small file each. All `unsafe` of this crate is here.
//!
//! The program's memory is this process's memory, at the same addresses. These files promise to
//! Rust that they touch only memory of the program; [`crate::memory`] records which addresses those
//! are.

pub(crate) mod call;
pub(crate) mod child;
pub(crate) mod descriptors;
pub(crate) mod kvm;
pub(crate) mod program_memory;
pub(crate) mod ring;
pub(crate) mod signal;
pub(crate) mod system_memory;
pub(crate) mod thread;
pub(crate) mod vcpu_state;
