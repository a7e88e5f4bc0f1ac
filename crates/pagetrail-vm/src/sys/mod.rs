//! The kernel's interfaces, one small file each. All `unsafe` of this crate is here.
//!
//! The program's memory is this process's memory, at the same addresses. What these files promise to Rust is that they
//! touch nothing but what is the program's; which addresses that are is what [`crate::memory`] keeps books of.

pub(crate) mod call;
pub(crate) mod child;
pub(crate) mod descriptors;
pub(crate) mod kvm;
pub(crate) mod program_memory;
pub(crate) mod ring;
pub(crate) mod signal;
pub(crate) mod system_memory;
pub(crate) mod thread;
