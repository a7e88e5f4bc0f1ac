//! The kernel's interfaces for moving pages, and all `unsafe` of this crate.

pub(crate) mod advise;
pub(crate) mod move_pages;
pub(crate) mod node_memory;
pub(crate) mod nodes;
