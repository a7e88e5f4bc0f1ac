//! [`GuestFrames`]: guest-physical memory, handed out by the guest kernel.

use crate::Error;
use crate::machine::{Gpa, HUGE_PAGES};

/// The free pages of a guest. A page handed out may hold anything: the caller clears it.
#[derive(Debug)]
pub(crate) struct GuestFrames {
    next: u64,
    end: u64,
    free: Vec<Gpa>,
}

impl GuestFrames {
    /// All of `pages` pages, but page 0.
    pub(crate) fn new(pages: u64) -> Self {
        Self {
            next: 1,
            end: pages,
            free: Vec::new(),
        }
    }

    pub(crate) fn allocate(&mut self) -> Result<Gpa, Error> {
        if let Some(page) = self.free.pop() {
            return Ok(page);
        }
        self.allocate_run(1, 1)
    }

    /// `pages` adjacent pages, the first of which has a number divisible by `align`.
    pub(crate) fn allocate_run(&mut self, pages: u64, align: u64) -> Result<Gpa, Error> {
        let start = self.next.next_multiple_of(align);
        let end = start
            .checked_add(pages)
            .filter(|&end| end <= self.end)
            .ok_or(Error::OutOfGuestMemory)?;
        self.free.extend((self.next..start).map(page));
        self.next = end;
        Ok(page(start))
    }

    pub(crate) fn allocate_huge(&mut self) -> Result<Gpa, Error> {
        self.allocate_run(HUGE_PAGES, HUGE_PAGES)
    }

    pub(crate) fn release(&mut self, page: Gpa) {
        self.free.push(page);
    }
}

fn page(number: u64) -> Gpa {
    Gpa::default().add_pages(number)
}
