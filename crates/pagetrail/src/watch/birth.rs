//! What a process still has of its parent's memory, by page frames: [`Inherited`].
//!
//! A private page of which parent and child have the same frame at the same address has the same
//! content in both: the first write gives the writer a frame of its own (`do_wp_page` in
//! mm/memory.c). It need not be the page of the fork, as both may have moved or discarded memory
//! alike; but it is found in the parent's memory. So the first round of a new process need not
//! hold it, and no fork has to wait for the tracker to find that out.
//!
//! The child's entry is read before and after its parent's. A frame that is the child's both times
//! was not freed in between, so that the parent's, read then, is the same page and no later one
//! that got the same frame. Pages that are merged (`KSM`) have equal frames because their contents
//! are equal.

use crate::page_set::{PageSet, page_size};
use crate::sys::pagemap::{Entry, Pagemap, Vector, is_owned};
use crate::types::Inherited;
use std::io;

/// What a process has of its parent's memory in the tracked part of its own.
///
/// Nothing where this process gets no page frames (`CAP_SYS_ADMIN`), or where the process has
/// executed another program since its birth: then no page is shared.
pub(super) fn inherited(pid: u32, parent: u32, tracked: &PageSet) -> Inherited {
    compare(pid, parent, tracked).unwrap_or_default()
}

fn compare(pid: u32, parent: u32, tracked: &PageSet) -> io::Result<Inherited> {
    let (child, parent) = (Pagemap::open(Some(pid))?, Pagemap::open(Some(parent))?);
    let mut pages = PageSet::new();
    let mut vector = Vector::new();
    for range in tracked.ranges() {
        child.populated(*range, &mut vector, &mut pages)?;
    }
    let page = page_size();
    let mut inherited = Inherited::default();
    for range in pages.ranges() {
        child.beside(&parent, *range, |address, entries| {
            if entries.iter().all(|entry| is_owned(*entry)) {
                inherited.pages.extend_back(address, page);
                if have_one_frame(entries) {
                    inherited.shared.extend_back(address, page);
                }
            }
        })?;
    }
    // Other memory may lie at the same addresses by chance.
    Ok(match inherited.shared.is_empty() {
        true => Inherited::default(),
        false => inherited,
    })
}

fn have_one_frame(entries: [Entry; 3]) -> bool {
    let [first, others @ ..] = entries.map(Entry::frame);
    first.is_some() && others.iter().all(|frame| *frame == first)
}
