//! Writes to some pages of its own memory, and asks the kernel which ones they were.

#![allow(clippy::print_stdout, reason = "an example says what it found")]

use pagemap_scan::{Faults, Features, Mode, Pagemap, Query, Userfaultfd, Vector, page_size};
use std::io;

fn main() -> io::Result<()> {
    let page = page_size();
    // Whole pages of a vector that is large enough to have some.
    let mut memory = vec![0_u8; 64 * page as usize];
    let start = (memory.as_ptr() as u64).next_multiple_of(page);
    let range = start..start + 62 * page;
    let offset = (start - memory.as_ptr() as u64) as usize;

    let fd = Userfaultfd::create(Faults::UserMode)?;
    let uffd = Userfaultfd::handshake(fd, Features::WP_ASYNC)?;
    uffd.register(range.clone(), Mode::WriteProtect)?;
    let pagemap = Pagemap::own()?;
    let mut vector = Vector::new();
    // Pages that were never protected read as written: the first scan only protects.
    let query = Query::WRITTEN_SINCE_LAST_SCAN;
    pagemap.scan(range.clone(), query, &mut vector, |_, _| {})?;

    for number in [3, 4, 5, 40] {
        memory[offset + number * page as usize] = 1;
    }
    pagemap.scan(range, query, &mut vector, |pages, _| {
        let first = (pages.start - start) / page;
        let last = (pages.end - start) / page - 1;
        println!("written: pages {first} to {last}");
    })?;
    drop(memory);
    Ok(())
}
