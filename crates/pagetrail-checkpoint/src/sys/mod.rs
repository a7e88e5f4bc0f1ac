//! The kernel's interfaces of this crate, and the only place where `unsafe` stands.
#![allow(
    unsafe_code,
    reason = "the fence: kernel interfaces are unsafe, everything above is safe"
)]

pub(crate) mod kcmp;
pub(crate) mod kept;
pub(crate) mod mapping;
pub(crate) mod sockopt;
