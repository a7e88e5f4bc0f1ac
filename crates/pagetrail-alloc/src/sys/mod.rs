//! The heap itself, and all `unsafe`: an allocator's memory is out of reach of the compiler's
//! checks.
//!
//! From below: [`map`] makes the kernel's mappings, and [`registry`] and [`lookup`] find them by
//! address; [`pool`], [`slab`], [`superblock`], [`pages`] and [`huge`] keep the metadata, to which
//! [`lasting`] has references; [`cache`] and [`core`] take an object from there to the program and
//! back, by way of [`crate::bin`]; [`whole`] is what happens to a heap as a whole; [`heap`] and
//! [`global`] are the interfaces. What needs no `unsafe` is outside: lists of slabs, arithmetic,
//! messages.
#![allow(
    unsafe_code,
    reason = "the fence: an allocator is unsafe, what surrounds it is safe"
)]

pub(crate) mod cache;
pub(crate) mod core;
pub(crate) mod descriptor;
pub(crate) mod environment;
pub(crate) mod fork;
pub mod global;
pub(crate) mod heap;
pub(crate) mod huge;
pub(crate) mod lasting;
pub(crate) mod lock;
pub(crate) mod lookup;
pub(crate) mod map;
pub(crate) mod pages;
pub(crate) mod pool;
pub(crate) mod registry;
pub(crate) mod slab;
pub(crate) mod superblock;
pub(crate) mod thread;
pub(crate) mod whole;
