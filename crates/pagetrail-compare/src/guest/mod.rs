//! A Linux guest that runs programs for a comparison: what lies in its memory when it starts, what
//! is said to it, and what KVM counts of it.
//!
//! Nothing here starts one: the command does, by QEMU.

pub mod archive;
pub mod counters;
pub mod elf;
pub mod files;
pub mod paging;
pub mod wire;

pub use crate::sys::machine;
