//! CRIU's pagemap images (`images/pagemap.proto`, `criu/include/magic.h`): which pages follow each
//! other in a file of pages. Pure.

use super::images::LazyPages;
use super::protobuf::{Value, field, fields, message, messages};
use super::protocol::{IN_PARENT, LAZY, PRESENT};
use pagetrail::PageSet;
use std::ops::ControlFlow;

/// Of every image file but raw ones.
const COMMON_MAGIC: u32 = 0x5456_4319;
/// Of a pagemap.
const PAGEMAP_MAGIC: u32 = 0x5608_4025;

/// The most pages that an entry says: CRIU up to 4.1 counts a part of them in an `int`.
const ENTRY_PAGES_MAX: u64 = 1 << 28;

/// A pagemap and the pages that belong to its file, in their order.
pub(super) struct Pagemap {
    pub(super) image: Vec<u8>,
    pub(super) present: PageSet,
}

/// Fields of `pagemap_head` and `pagemap_entry`. Since CRIU 4.2 the number of pages has a second,
/// longer field.
const PAGES_ID: u64 = 1;
const ADDRESS: u64 = 1;
const PAGES_SHORT: u64 = 2;
const INHERITED: u64 = 3;
const FLAGS: u64 = 4;
const PAGES: u64 = 5;

/// Pages that follow each other, by a pagemap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) address: u64,
    pub(super) pages: u64,
    pub(super) flags: u32,
}

/// Reads a pagemap: the number of its file of pages, and its entries; `None` if it is none.
pub(super) fn parse(image: &[u8]) -> Option<(u32, Vec<Entry>)> {
    let magic = [COMMON_MAGIC, PAGEMAP_MAGIC].map(u32::to_le_bytes);
    let is_one = image.starts_with(&magic.concat());
    let (mut pages_id, mut entries) = (None, Vec::new());
    messages(image, |message| {
        let read = match pages_id {
            None => fields(message, |at, value| {
                if let (PAGES_ID, Value::Number(number)) = (at, value) {
                    pages_id = u32::try_from(number).ok();
                }
            })
            .and(pages_id.map(drop)),
            Some(_) => entry(message).map(|entry| entries.push(entry)),
        };
        read.map_or(ControlFlow::Break(()), ControlFlow::Continue)
    })?;
    pages_id.filter(|_| is_one).map(|id| (id, entries))
}

fn entry(message: &[u8]) -> Option<Entry> {
    let (mut entry, mut short, mut flags) = (Entry::default(), 0, None);
    fields(message, |at, value| match (at, value) {
        (ADDRESS, Value::Number(number)) => entry.address = number,
        (PAGES_SHORT, Value::Number(number)) => short = number,
        // What there was before there were flags.
        (INHERITED, Value::Number(1)) => entry.flags = IN_PARENT,
        (FLAGS, Value::Number(number)) => flags = Some(number),
        (PAGES, Value::Number(number)) => entry.pages = number,
        _ => {}
    })?;
    if entry.pages == 0 {
        entry.pages = short;
    }
    match flags {
        Some(flags) => entry.flags = u32::try_from(flags).ok()?,
        None if entry.flags == 0 => entry.flags = PRESENT,
        None => {}
    }
    Some(entry)
}

impl Pagemap {
    /// The pagemap of a space whose addresses begin at `base` in the sets. If `leave_lazy`, pages
    /// that may be restored when they are first touched are not in the file.
    pub(super) fn new(
        pages_id: u32,
        (pages, lazy): (&PageSet, &PageSet),
        base: u64,
        page_size: u64,
        of_lazy: LazyPages,
    ) -> Self {
        let mut image = COMMON_MAGIC.to_le_bytes().to_vec();
        image.extend(PAGEMAP_MAGIC.to_le_bytes());
        let mut head = Vec::new();
        field(&mut head, 1, pages_id.into());
        message(&mut image, &head);
        let eager = pages.difference(lazy);
        let both = eager.ranges().iter().map(|range| (range, PRESENT));
        let (flags, present) = match of_lazy {
            LazyPages::LeftToServer => (LAZY, eager.clone()),
            LazyPages::Written => (LAZY | PRESENT, pages.clone()),
        };
        let both = both.chain(lazy.ranges().iter().map(|range| (range, flags)));
        let mut entries: Vec<_> = both.collect();
        entries.sort_unstable();
        for (range, flags) in entries {
            let entry_bytes = ENTRY_PAGES_MAX * page_size;
            for start in (range.start()..range.end()).step_by(entry_bytes as usize) {
                let bytes = entry_bytes.min(range.end() - start);
                let mut entry = Vec::new();
                field(&mut entry, 1, start - base);
                field(&mut entry, 2, bytes / page_size);
                field(&mut entry, 4, flags.into());
                message(&mut image, &entry);
            }
        }
        Self { image, present }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagetrail::PageRange;

    fn set(base: u64, ranges: &[(u64, u64)]) -> PageSet {
        let range = |&(from, to)| PageRange::new(base + from * 4096, base + to * 4096);
        ranges.iter().filter_map(range).collect()
    }

    #[test]
    fn entries_ascend_and_say_what_is_lazy() {
        let base = 3 << 48;
        let (pages, lazy) = (set(base, &[(1, 4), (300, 301)]), set(base, &[(2, 3)]));
        let head = [
            &[0x19, 0x43, 0x56, 0x54, 0x25, 0x40, 0x08, 0x56][..],
            &[2, 0, 0, 0, 8, 5],
        ]
        .concat();
        let rest = |lazy_flags| {
            [
                &[7, 0, 0, 0, 8, 0x80, 0x20, 16, 1, 32, 4][..],
                &[7, 0, 0, 0, 8, 0x80, 0x40, 16, 1, 32, lazy_flags],
                &[7, 0, 0, 0, 8, 0x80, 0x60, 16, 1, 32, 4],
                &[8, 0, 0, 0, 8, 0x80, 0x80, 0x4b, 16, 1, 32, 4],
            ]
            .concat()
        };
        let all = Pagemap::new(5, (&pages, &lazy), base, 4096, LazyPages::Written);
        assert_eq!(all.image, [head.clone(), rest(6)].concat());
        assert_eq!(all.present, pages);
        let some = Pagemap::new(5, (&pages, &lazy), base, 4096, LazyPages::LeftToServer);
        assert_eq!(some.image, [head, rest(2)].concat());
        assert_eq!(some.present, set(base, &[(1, 2), (3, 4), (300, 301)]));
    }
}
