//! The calls, one small file each, and the only place with `unsafe` code.
#![allow(
    unsafe_code,
    reason = "the fence: kernel interfaces are unsafe, everything above is safe"
)]

pub(crate) mod pagemap;
pub(crate) mod userfaultfd;
pub(crate) mod zeros;
