//! Sub-page heaps: from the pages of their windows to units, the parts of physical pages.
//!
//! A heap of `pagetrail-alloc` maps its memory once per part and hands each object out in the window of the part in which it
//! begins, so a written page of a window is a written part of the page behind it. [`description`] reads what a heap says of
//! itself (`docs/heap-format.md`), [`slab`] says which bytes a part's window reaches, [`units`] makes units of pages, and
//! [`heaps`] follows the heaps of one process from round to round.

mod description;
pub(crate) mod heaps;
mod slab;
pub(crate) mod units;
