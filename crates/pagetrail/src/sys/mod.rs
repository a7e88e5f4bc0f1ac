//! The kernel's interfaces, one small file each, and the only place with `unsafe` code.
//!
//! Every type here is safe to use: whatever a caller could get wrong about memory is checked or
//! made impossible here. [`crate::technique`] describes what the calls mean for tracking.
#![allow(
    unsafe_code,
    reason = "the fence: kernel interfaces are unsafe, everything above is safe"
)]

pub(crate) mod child;
pub(crate) mod own_vec;
pub(crate) mod pagemap;
pub(crate) mod ptrace;
pub(crate) mod remote_memory;
pub(crate) mod scratch;
pub(crate) mod segv;
pub(crate) mod shared_words;
pub(crate) mod spawn;
pub(crate) mod survivor;
pub(crate) mod uffd;
