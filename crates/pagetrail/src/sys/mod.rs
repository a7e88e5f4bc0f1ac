//! The kernel's interfaces, one small file each, and the only place with `unsafe` code.
//!
//! Every type here is safe to use: whatever a caller could get wrong about memory is checked or
//! made impossible here. [`crate::technique`] describes what the calls mean for tracking.
#![allow(
    unsafe_code,
    reason = "the fence: kernel interfaces are unsafe, everything above is safe"
)]

pub(crate) mod child;
pub(crate) mod cpu_clock;
mod fault_access;
pub(crate) mod file_handle;
pub(crate) mod ooh;
#[cfg_attr(
    not(all(feature = "attach", target_arch = "x86_64")),
    allow(dead_code, reason = "most of it is for attaching")
)]
pub(crate) mod own_vec;
pub(crate) mod pagemap;
#[cfg(all(feature = "attach", target_arch = "x86_64"))]
pub(crate) mod ptrace;
pub(crate) mod remote_memory;
#[cfg(all(feature = "attach", target_arch = "x86_64"))]
pub(crate) mod robust_list;
pub(crate) mod same_memory;
pub(crate) mod scratch;
pub(crate) mod segv;
pub(crate) mod shared_words;
#[cfg(all(feature = "attach", target_arch = "x86_64"))]
pub(crate) mod spawn;
#[cfg(all(feature = "attach", target_arch = "x86_64"))]
pub(crate) mod survivor;
pub(crate) mod uffd;
pub(crate) mod urgent;
