//! The kernel's interfaces of this crate, and the only place where `unsafe` stands.
#![allow(
    unsafe_code,
    reason = "the fence: kernel interfaces are unsafe, everything above is safe"
)]

pub(crate) mod guard;
pub(crate) mod memory;
pub(crate) mod missing;
pub(crate) mod ptrace;
pub(crate) mod spawn;
pub(crate) mod stub;
