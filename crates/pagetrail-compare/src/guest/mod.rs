//! Linux guests that run programs for a comparison, by QEMU: what lies in their memory when they
//! start ([`image`], of `files` in an `archive`), the machine that runs (`running`), what is said
//! to it ([`wire`]), and what KVM counts of it ([`counters`]). [`Guests`] are all of a comparison.

pub mod archive;
pub mod counters;
pub mod elf;
pub mod files;
mod guests;
pub mod image;
pub mod kernel;
pub mod paging;
mod running;
pub mod wire;

pub use crate::sys::machine;
pub use guests::{Guests, Limits, Settings};
