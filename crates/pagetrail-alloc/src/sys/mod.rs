//! The heap itself, and all `unsafe`: memory that is handed out is memory that nobody checks any more.
//!
//! From below: [`map`] and [`registry`] are the kernel's mappings and where they are; [`pool`], [`slab`], [`superblock`],
//! [`pages`] and [`huge`] keep books; [`bin`], [`cache`] and [`core`] are the way of an object from them to the program and back,
//! [`complaint`] what is said of what is no object, [`whole`] what happens to a heap as a whole;
//! [`heap`] and [`global`] are the faces. What can be said in numbers alone is in [`crate::classes`] and [`crate::geometry`].
#![allow(
    unsafe_code,
    reason = "the fence: an allocator is unsafe, what surrounds it is safe"
)]

pub(crate) mod bin;
pub(crate) mod cache;
pub(crate) mod complaint;
pub(crate) mod core;
pub(crate) mod descriptor;
pub(crate) mod environment;
pub(crate) mod fatal;
pub(crate) mod fork;
pub mod global;
pub(crate) mod heap;
pub(crate) mod huge;
pub(crate) mod lock;
pub(crate) mod map;
pub(crate) mod pages;
pub(crate) mod pool;
pub(crate) mod registry;
pub(crate) mod slab;
pub(crate) mod superblock;
pub(crate) mod thread;
pub(crate) mod whole;
