//! What the tests of suites ask of the kernel and safe Rust has no word for; all unsafe code.

pub(crate) mod child;
pub(crate) mod heap_end;
pub(crate) mod mapping;
pub(crate) mod usage;
