//! Sub-page heaps: from dirty pages of their aliases to dirty sub-pages.
//!
//! A heap of `pagetrail-alloc` maps its memory once per sub-page of a page and returns each object
//! through the alias of the sub-page in which it begins, so a dirty page of an alias is a dirty
//! sub-page of the physical page. [`description`] reads a heap's description of itself
//! (`docs/heap-format.md`), [`slab`] computes which bytes are reached through an alias,
//! [`subpages`] resolves pages to sub-pages, [`areas`] decides where whole pages are cheaper, and
//! [`heaps`] follows the heaps of one process from round to round.

mod areas;
mod description;
pub(crate) mod heaps;
mod slab;
pub(crate) mod subpages;
