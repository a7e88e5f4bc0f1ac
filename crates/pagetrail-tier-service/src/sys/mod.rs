//! The kernel's interfaces that have no safe wrapper, and all `unsafe` of this crate.

pub(crate) mod vsock;
