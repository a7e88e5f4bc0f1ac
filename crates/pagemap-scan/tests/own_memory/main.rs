//! The types on this process's own memory: what was written is selected, and nothing else.

mod sys;

use pagemap_scan::{
    Categories, Entry, Errno, Faults, Features, Filled, Mode, Pagemap, Query, Userfaultfd, Vector,
    Zeros, page_size,
};
use std::ops::Range;
use sys::Mapping;

const PAGES: u64 = 32;

fn numbers(pagemap: &Pagemap, range: &Range<u64>, query: Query) -> Result<Vec<u64>, Errno> {
    let mut found = Vec::new();
    pagemap.scan(range.clone(), query, &mut Vector::new(), |pages, _| {
        let first = (pages.start - range.start) / page_size();
        found.extend(first..(pages.end - range.start) / page_size());
    })?;
    Ok(found)
}

/// None, said as a skipped test, where the kernel lacks something.
fn tracked(features: Features, mode: Mode) -> Option<(Userfaultfd, Mapping, Range<u64>)> {
    let fd = Userfaultfd::create(Faults::UserMode).expect("userfaultfd(2), user mode only");
    let uffd = match Userfaultfd::handshake(fd, features) {
        Ok(uffd) => uffd,
        Err(errno) => {
            pagetrail_skips::not_here(format!("userfaultfd handshake: {errno}"));
            return None;
        }
    };
    let memory = Mapping::new(PAGES);
    let range = memory.range();
    uffd.register(range.clone(), mode).unwrap();
    Some((uffd, memory, range))
}

#[test]
fn a_scan_selects_what_was_written_since_the_last() {
    let Some((uffd, mut memory, range)) = tracked(Features::WP_ASYNC, Mode::WriteProtect) else {
        return;
    };
    let pagemap = Pagemap::own().unwrap();
    let query = Query::WRITTEN_SINCE_LAST_SCAN;
    for number in 0..PAGES {
        memory.write(number);
    }
    let all: Vec<u64> = (0..PAGES).collect();
    assert_eq!(numbers(&pagemap, &range, query).unwrap(), all);
    assert_eq!(numbers(&pagemap, &range, query).unwrap(), []);
    for number in [0, 7, 8, PAGES - 1] {
        memory.write(number);
    }
    let look = Query {
        write_protect: false,
        ..query
    };
    let written = [0, 7, 8, PAGES - 1];
    assert_eq!(numbers(&pagemap, &range, look).unwrap(), written);
    assert_eq!(numbers(&pagemap, &range, query).unwrap(), written);
    assert_eq!(numbers(&pagemap, &range, query).unwrap(), []);

    // Without the registration there is no answer.
    uffd.unregister(range.clone()).unwrap();
    assert_eq!(numbers(&pagemap, &range, query), Err(Errno::PERM));
}

#[test]
fn categories_are_reported_and_select_by_absence() {
    let Some((_uffd, mut memory, range)) = tracked(Features::WP_ASYNC, Mode::WriteProtect) else {
        return;
    };
    let pagemap = Pagemap::own().unwrap();
    for number in 0..PAGES {
        memory.write(number);
    }
    pagemap.write_protect(range.clone()).unwrap();
    memory.write(5);
    let clean = Query {
        inverted: Categories::WRITTEN,
        all_of: Categories::WRITTEN | Categories::PRESENT,
        ..Query::ALL
    };
    let found = numbers(&pagemap, &range, clean).unwrap();
    let expected: Vec<u64> = (0..PAGES).filter(|&number| number != 5).collect();
    assert_eq!(found, expected);

    let mut kinds = Vec::new();
    let report = Query {
        report: Categories::WRITTEN | Categories::PRESENT | Categories::FILE,
        ..Query::ALL
    };
    let fifth = memory.page(5);
    pagemap
        .scan(fifth.clone(), report, &mut Vector::new(), |pages, has| {
            kinds.push((pages, has));
        })
        .unwrap();
    assert_eq!(kinds, [(fifth, Categories::WRITTEN | Categories::PRESENT)]);
}

#[test]
fn classic_entries_agree_with_the_scan() {
    let Some((_uffd, mut memory, range)) = tracked(Features::WP_ASYNC, Mode::WriteProtect) else {
        return;
    };
    let pagemap = Pagemap::own().unwrap();
    memory.write(2);
    pagemap.write_protect(range.clone()).unwrap();
    memory.write(3);
    let mut entries = [Entry::default(); 2];
    let start = memory.page(2).start;
    assert_eq!(pagemap.entries(start, &mut entries).unwrap(), 2);
    let [protected, written] = entries;
    assert!(protected.is_present() && written.is_present());
    assert!(protected.is_write_protected() && !written.is_write_protected());
    assert!(!written.is_file() && !written.is_swapped());
    assert!(!protected.is_marker() && !written.is_marker());
}

#[test]
fn accesses_are_seen_where_the_kernel_can() {
    let features = Features::RWP | Features::RWP_ASYNC;
    let Some((uffd, mut memory, range)) = tracked(features, Mode::ReadWriteProtect) else {
        return;
    };
    let pagemap = Pagemap::own().unwrap();
    for number in 0..PAGES {
        memory.write(number);
    }
    uffd.protect_from_access(range.clone()).unwrap();
    memory.read(9);
    let accessed = Query {
        all_of: Categories::ACCESSED,
        ..Query::ALL
    };
    assert_eq!(numbers(&pagemap, &range, accessed).unwrap(), [9]);
}

#[test]
fn nothing_but_whole_pages_of_the_registration_is_filled() {
    let features = Features::PAGEFAULT_FLAG_WP;
    let Some((uffd, memory, range)) = tracked(features, Mode::WriteProtectAndMissing) else {
        return;
    };
    let zeros = Zeros::new(page_size() as usize).unwrap();
    let first = memory.page(0);
    uffd.fill(first.clone(), &zeros, Filled::Writable).unwrap();
    let again = uffd.fill(first.clone(), &zeros, Filled::Writable);
    assert_eq!(
        again,
        Err(Errno::EXIST),
        "a page that exists keeps its contents"
    );
    let two = first.start..first.end + page_size();
    assert_eq!(uffd.fill(two, &zeros, Filled::Writable), Err(Errno::INVAL));
    let backwards = Range {
        start: first.end,
        end: first.start,
    };
    assert_eq!(
        uffd.fill(backwards.clone(), &zeros, Filled::Writable),
        Err(Errno::INVAL)
    );
    assert_eq!(uffd.protect(backwards), Err(Errno::INVAL));
    uffd.unregister(range).unwrap();
    assert_eq!(memory.read(0), 0);
}
