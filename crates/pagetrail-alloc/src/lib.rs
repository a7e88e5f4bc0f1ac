//! An allocator that lets the page tables tell writes apart within a page.
//!
//! Small objects lie in shared memory that is mapped several times. A page is divided into [`Parts`], and an object is handed
//! out in the mapping, the *window*, of the part in which it begins. Each window has page table entries of its own, so those
//! that say which pages were written say, of this heap, which part. Nothing in the program changes, and no more memory is
//! taken than for one mapping, but for page tables.
//!
//! The heap tells its layout to whoever watches (`docs/heap-format.md`), and `pagetrail` reports *units*, parts of pages, where
//! it finds one.
//!
//! Objects of a page and more are mapped once; up to 32 KiB they share pages.
//!
//! Two faces: [`GlobalHeap`] is the heap of the process, with a cache per thread, the same as `libpagetrail_alloc.so` offers to
//! any program as `malloc`; a [`Heap`] is one apart.
//!
//! The books are kept apart from the objects, in private memory. An object that is freed twice, not at its beginning, or in
//! another heap than its own ends the program with a line that says so.
//!
//! It is made for pages of 4096 bytes.
#![deny(unsafe_code)]

mod classes;
mod geometry;
mod parts;
mod settings;
mod stats;
mod sys;

pub use parts::{BadParts, Parts};
pub use stats::Stats;
pub use sys::global;
pub use sys::global::GlobalHeap;
pub use sys::heap::Heap;
