//! Memory that the kernel itself writes to when a thread ends: the word of `CLONE_CHILD_CLEARTID`,
//! by which others wait for that end, and the words of the robust mutexes that it holds.
//!
//! The kernel does not wait for user space in a thread that ends (`handle_userfault` in
//! fs/userfaultfd.c), so these pages must not be protected by a userfaultfd that does. A mutex that
//! is taken after the freeze is in a page that its owner has written, and that is released thereby.
//! Only the mutexes that are held at the instant have to be found.

use crate::attach::hold::HeldThread;
use crate::page_set::{PageRange, PageSet, page_size};
use crate::sys::{remote_memory, robust_list};

/// `NT_PRSTATUS`: the general registers, of which `fs_base` is the 22nd.
const GENERAL: u32 = 1;
const FS_BASE_AT: usize = 21 * 8;
/// How many mutexes of a thread are looked at (`ROBUST_LIST_LIMIT` in `include/linux/futex.h`).
const MUTEXES_MAX: usize = 2048;

/// The pages of the threads of a held process that the kernel writes to at their end.
///
/// Where a C library keeps the word for the end of a thread, only the thread could tell; in all of
/// them it is in the thread's control block, to which the register `fs` points.
pub(super) fn written_by_exits(pid: u32, threads: &[HeldThread]) -> PageSet {
    let mut pages = PageSet::new();
    for thread in threads {
        if let Some(control) = control_block(thread) {
            pages.extend(page_of(control));
            pages.extend(page_of(control + page_size()));
        }
        add_robust(pid, thread.tid, &mut pages);
    }
    pages
}

fn control_block(thread: &HeldThread) -> Option<u64> {
    let general = thread.registers.iter().find(|set| set.note == GENERAL)?;
    let bytes = general.bytes.get(FS_BASE_AT..FS_BASE_AT + 8)?;
    let address = u64::from_le_bytes(bytes.try_into().ok()?);
    (address != 0).then_some(address)
}

fn page_of(address: u64) -> Option<PageRange> {
    let start = address & !(page_size() - 1);
    PageRange::new(start, start.checked_add(page_size())?)
}

/// Adds the pages of the mutexes in the list of a thread (`struct robust_list_head`: the first
/// entry, the distance from an entry to its word, an entry that is being added or taken out).
fn add_robust(pid: u32, tid: u32, pages: &mut PageSet) {
    let Ok(head) = robust_list::head(tid) else {
        return;
    };
    let Some([first, distance, under_way]) = (head != 0).then(|| words(pid, head)).flatten() else {
        return;
    };
    let mut add = |entry: u64| {
        // The lowest bit says of which kind it is.
        pages.extend(page_of((entry & !1).wrapping_add(distance)));
    };
    if under_way != 0 {
        add(under_way);
    }
    let mut entry = first;
    for _ in 0..MUTEXES_MAX {
        if entry & !1 == head {
            return;
        }
        add(entry);
        match words::<1>(pid, entry & !1) {
            Some([next]) => entry = next,
            None => return,
        }
    }
}

fn words<const COUNT: usize>(pid: u32, address: u64) -> Option<[u64; COUNT]> {
    let mut bytes = vec![0; COUNT * 8];
    let whole = remote_memory::read(pid, address, &mut bytes) == Ok(bytes.len());
    let mut found = [0; COUNT];
    for (word, bytes) in found.iter_mut().zip(bytes.chunks_exact(8)) {
        *word = u64::from_le_bytes(bytes.try_into().ok()?);
    }
    whole.then_some(found)
}
