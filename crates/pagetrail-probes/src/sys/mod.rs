//! The kernel's interfaces, and all unsafe code.

pub(crate) mod bpf;
pub(crate) mod event;
pub(crate) mod nothing;
pub(crate) mod tracefs;
