//! The kernel's interfaces for sampling, and all `unsafe` of this crate.

pub(crate) mod event;
pub(crate) mod faults;
pub(crate) mod ring;
pub(crate) mod robust_list;
