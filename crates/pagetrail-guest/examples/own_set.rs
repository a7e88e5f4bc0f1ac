//! Writes to three pages of a vector, and prints which pages the machine says were written;
//! natively says that there is no machine. `pagetrail vm run -- target/debug/examples/own_set`.

#![allow(clippy::print_stdout, reason = "the result")]

use pagetrail_guest::{Error, Guest, Kinds, Protection, Range, Violations};

const PAGE: u64 = 4096;
static RECORDS: Violations<8> = Violations::new();

fn main() -> Result<(), Error> {
    let guest = match Guest::open() {
        Ok(guest) => guest,
        Err(error) => {
            println!("{error}");
            return Ok(());
        }
    };
    let mut memory = vec![1u8; 64 * PAGE as usize];
    let start = (memory.as_ptr() as u64).next_multiple_of(PAGE);
    let offset = (start - memory.as_ptr() as u64) as usize;
    let heap = Range {
        start,
        end: start + 32 * PAGE,
    };
    guest.forget(heap, Kinds::ALL)?;
    guest.record(Some(&RECORDS))?;
    guest.protect(heap, Protection::Recorded)?;
    for page in [3, 4, 9] {
        memory[offset + page * PAGE as usize] = 2;
    }
    let mut found = [Range::default(); 4];
    assert!(guest.bits(start + 9 * PAGE).contains(Kinds::DIRTY));
    assert!(!guest.bits(start + 8 * PAGE).contains(Kinds::DIRTY));
    let taken = guest.take(heap, Kinds::DIRTY, &mut found)?;
    assert_eq!((taken.ranges, taken.next), (2, heap.end));
    for range in &found[..taken.ranges] {
        let first = (range.start - start) / PAGE;
        println!("pages {first} to {}", (range.end - start) / PAGE - 1);
    }
    let records = (0..8).map_while(|number| RECORDS.get(number));
    let pages: Vec<u64> = records
        .map(|record| (record.address - start) / PAGE)
        .collect();
    assert_eq!((RECORDS.count(), &pages[..]), (3, &[3, 4, 9][..]));
    guest.record::<0>(None)
}
