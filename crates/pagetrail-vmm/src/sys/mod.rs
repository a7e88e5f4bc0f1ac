//! The kernel's interfaces, a file each, and all `unsafe` of this crate.

pub(crate) mod kvm;
pub(crate) mod memory;
pub(crate) mod ring;
pub(crate) mod shared;
pub(crate) mod userfaultfd;
