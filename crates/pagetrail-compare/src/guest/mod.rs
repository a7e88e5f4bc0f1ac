//! Linux guests that run programs for a comparison, by QEMU: what lies in their memory when they
//! start ([`image`], of `files` in an `archive`), the machine that runs (`running`), what is said
//! to it ([`wire`]), who answers there ([`agent`]), and what KVM counts of it ([`counters`]).
//! [`Guests`] are all of a comparison.

pub mod agent;
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

pub use guests::{Guests, Settings};
