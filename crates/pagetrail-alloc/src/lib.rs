//! An allocator that lets the page tables distinguish writes within a page.
//!
//! Small objects lie in shared memory that is mapped several times, at addresses that are *aliases*
//! of each other. A page is divided into sub-pages ([`SubpageCount`]), and an object is handed out
//! in the alias of the sub-page in which it begins. Each alias has page table entries of its own,
//! so the page that is marked as written there gives the sub-page. The program needs no change, and
//! no more memory is taken than for one mapping, except for page tables.
//!
//! The heap describes its layout for trackers (`docs/heap-format.md`), and `pagetrail` reports
//! dirty sub-pages where it finds such a heap.
//!
//! Objects of a page and more are mapped once; up to 32 KiB they share pages.
//!
//! There are two interfaces: [`GlobalHeap`] is the heap of the process, with a cache per thread,
//! which `libpagetrail_alloc.so` offers to any program as `malloc`; a [`Heap`] is separate from it.
//!
//! The metadata lies apart from the objects, in private memory. An object that is freed twice, not
//! at its beginning, or in another heap than its own ends the program with a line that says so.
//!
//! Pages must have 4096 bytes.
#![deny(unsafe_code)]

mod bin;
mod classes;
mod complaint;
mod fatal;
mod geometry;
mod settings;
mod shape;
mod stats;
mod subpage_count;
mod sys;

pub use stats::Stats;
pub use subpage_count::{BadSubpageCount, SubpageCount};
pub use sys::global;
pub use sys::global::GlobalHeap;
pub use sys::heap::Heap;
