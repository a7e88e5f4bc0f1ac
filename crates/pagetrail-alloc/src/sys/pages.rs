//! [`Pages`]: objects of a page and more, in runs of whole pages of private memory that is mapped
//! once.
//!
//! Arenas have 64 MiB; the 20 bytes of metadata per page lie elsewhere. Free runs are merged with
//! their neighbours, and found by their length. Freed memory goes back to the system when there is
//! much of it.

use super::map;
use super::registry::{self, Hint, Kind};
use crate::fatal;
use crate::geometry::PAGE;
use rustix::io::Errno;
use std::cell::Cell;
use std::ptr::null;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};

pub(crate) const ARENA_BYTES: usize = 1 << ARENA_SHIFT;
const ARENA_SHIFT: u32 = 26;
const ARENA_PAGES: u32 = (ARENA_BYTES / PAGE) as u32;
/// Where the program may have no more addresses.
const ARENA_PAGES_LEAST: u32 = 512;
const ARENAS_MAX: usize = 2048;

/// The longest run that is not a mapping of its own.
pub(crate) const RUN_PAGES_MAX: usize = 4096;

/// Lists of free runs: by their exact length, and one for all that are longer.
const EXACT: usize = 256;
const LISTS: usize = EXACT + 1;

/// Freed memory is given back when there is more of it than this, and than an eighth of what is
/// used.
const FREED_PAGES_MAX: usize = 512;

const NONE: u32 = u32::MAX;

/// The metadata of a page. Only the first and the last page of a run are kept up to date.
struct Page {
    /// At the first page of a run in use, its length; else 0. Read without a lock.
    used: AtomicU32,
    /// Length of the run in pages.
    length: Cell<u32>,
    /// Neighbours in the list of free runs of like length.
    next: Cell<u32>,
    previous: Cell<u32>,
    /// Whether the program has the run.
    state: AtomicU8,
    /// Whether the run is free.
    free: Cell<bool>,
    /// Whether some of a free run may hold something.
    freed: Cell<bool>,
}

/// One arena.
pub(crate) struct Arena {
    base: usize,
    pages: u32,
    number: u32,
    pub(crate) owner: usize,
    table: *mut Page,
}

/// All of a heap.
pub(crate) struct Pages {
    arenas: [*const Arena; ARENAS_MAX],
    count: usize,
    /// Free runs that read as zeros, and those that may hold something.
    free: [Lists; 2],
    used: usize,
    freed: usize,
}

/// Free runs by their length: the first of each list.
struct Lists {
    first: [u32; LISTS],
    /// A bit for each list that is not empty.
    filled: [u64; LISTS.div_ceil(64)],
}

impl Lists {
    const fn new() -> Self {
        Self {
            first: [NONE; LISTS],
            filled: [0; LISTS.div_ceil(64)],
        }
    }

    fn of(length: u32) -> usize {
        (length as usize).min(LISTS) - 1
    }

    /// The first list from this one on that has something.
    fn filled_from(&self, list: usize) -> Option<usize> {
        let (word, bit) = (list / 64, list % 64);
        let rest = self.filled[word] >> bit << bit;
        std::iter::once((word, rest))
            .chain((word + 1..self.filled.len()).map(|word| (word, self.filled[word])))
            .find(|(_, bits)| *bits != 0)
            .map(|(word, bits)| word * 64 + bits.trailing_zeros() as usize)
    }
}

/// A run that was taken.
pub(crate) struct Run {
    pub(crate) start: *mut u8,
    pub(crate) state: *const AtomicU8,
    /// It reads as zeros.
    pub(crate) zeroed: bool,
}

// SAFETY: its pointers are to memory that it alone has, but for runs that are handed out.
unsafe impl Send for Pages {}

impl Arena {
    /// The run that begins at an address: its byte, and its length in pages; `None` if none in use
    /// begins there.
    #[inline]
    pub(crate) fn run_at(&self, address: usize) -> Option<(&AtomicU8, usize)> {
        let offset = address - self.base;
        if !offset.is_multiple_of(PAGE) || offset / PAGE >= self.pages as usize {
            return None;
        }
        // SAFETY: a page of this arena; only its atomic fields are looked at.
        let (state, length) = unsafe {
            let page = self.table.add(offset / PAGE);
            (&(*page).state, &(*page).used)
        };
        match length.load(Ordering::Relaxed) {
            0 => None,
            length => Some((state, length as usize)),
        }
    }
}

impl Pages {
    pub(crate) const fn new() -> Self {
        Self {
            arenas: [null(); ARENAS_MAX],
            count: 0,
            free: [const { Lists::new() }; 2],
            used: 0,
            freed: 0,
        }
    }

    /// How many arenas there are, and how many bytes are used.
    pub(crate) fn size(&self) -> (usize, usize) {
        (self.count, self.used * PAGE)
    }

    /// The description of a page, by the number of its arena and its own.
    fn page(&self, id: u32) -> &Page {
        // SAFETY: ids are of pages of arenas that exist. The fields that are not atomic are reached
        // only under the lock of `Pages`, which the caller holds.
        unsafe { &*self.arena(id).table.add((id % ARENA_PAGES) as usize) }
    }

    fn arena(&self, id: u32) -> &Arena {
        // SAFETY: arenas are never given back before their heap.
        unsafe { &*self.arenas[(id / ARENA_PAGES) as usize] }
    }

    fn address(&self, id: u32) -> usize {
        self.arena(id).base + (id % ARENA_PAGES) as usize * PAGE
    }

    /// A run of `pages`, at a multiple of `align` pages.
    pub(crate) fn take(&mut self, pages: usize, align: usize, owner: usize) -> Result<Run, Errno> {
        let wanted = pages as u32;
        let room = wanted + align as u32 - 1;
        let found = match self.find(room) {
            Some(found) => found,
            None => {
                self.grow(room, owner)?;
                self.find(room).ok_or(Errno::NOMEM)?
            }
        };
        let (length, freed) = self.unlist(found);
        let number = self.address(found) / PAGE;
        let before = (number.next_multiple_of(align) - number) as u32;
        let first = found + before;
        if before > 0 {
            self.list(found, before, freed);
        }
        if length > before + wanted {
            self.list(first + wanted, length - before - wanted, freed);
        }
        self.mark_used(first, wanted);
        self.used += pages;
        Ok(Run {
            state: &raw const self.page(first).state,
            start: self.address(first) as *mut u8,
            zeroed: !freed,
        })
    }

    /// Takes back the run that begins at this address.
    pub(crate) fn give(&mut self, arena: &Arena, address: usize) {
        let first = arena.id_of(address);
        let length = self.page(first).used.swap(0, Ordering::Relaxed);
        if length == 0 || length != self.page(first).length.get() {
            fatal::abort("double free of ", address, "");
        }
        self.used -= length as usize;
        self.insert(first, length, true);
        if self.freed > FREED_PAGES_MAX.max(self.used / 8) {
            self.give_back();
        }
    }

    /// Makes a run in use `pages` long where it is, if there is room.
    pub(crate) fn resize(&mut self, arena: &Arena, address: usize, pages: usize) -> bool {
        let first = arena.id_of(address);
        let (length, wanted) = (self.page(first).length.get(), pages as u32);
        if wanted > length {
            let after = first + length;
            let missing = wanted - length;
            if !self.is_free(after, self.end(first)) || self.page(after).length.get() < missing {
                return false;
            }
            let (room, freed) = self.unlist(after);
            if room > missing {
                self.list(after + missing, room - missing, freed);
            }
        }
        self.mark_used(first, wanted);
        if wanted < length {
            self.insert(first + wanted, length - wanted, true);
        }
        self.used = self.used + pages - length as usize;
        true
    }

    /// The number of the page after the last of an arena.
    fn end(&self, id: u32) -> u32 {
        id - id % ARENA_PAGES + self.arena(id).pages
    }

    /// Whether a free run begins at this page, which may be `end`, the page after the arena.
    fn is_free(&self, id: u32, end: u32) -> bool {
        id < end && self.page(id).free.get()
    }

    fn mark_used(&mut self, first: u32, length: u32) {
        for id in [first, first + length - 1] {
            let page = self.page(id);
            page.free.set(false);
            page.length.set(length);
        }
        self.page(first).used.store(length, Ordering::Relaxed);
    }

    /// Makes pages free, together with free ones next to them of the same kind: `freed` ones may
    /// hold something.
    fn insert(&mut self, mut first: u32, mut length: u32, freed: bool) {
        let end = self.end(first);
        if !first.is_multiple_of(ARENA_PAGES)
            && self.page(first - 1).free.get()
            && self.page(first - 1).freed.get() == freed
        {
            first -= self.page(first - 1).length.get();
            length += self.unlist(first).0;
        }
        let after = first + length;
        if self.is_free(after, end) && self.page(after).freed.get() == freed {
            length += self.unlist(after).0;
        }
        self.list(first, length, freed);
    }

    /// Puts a free run in its list.
    fn list(&mut self, first: u32, length: u32, freed: bool) {
        let list = Lists::of(length);
        let lists = &mut self.free[usize::from(freed)];
        let next = std::mem::replace(&mut lists.first[list], first);
        lists.filled[list / 64] |= 1 << (list % 64);
        for id in [first, first + length - 1] {
            let page = self.page(id);
            page.free.set(true);
            page.freed.set(freed);
            page.length.set(length);
        }
        let page = self.page(first);
        page.next.set(next);
        page.previous.set(NONE);
        if next != NONE {
            self.page(next).previous.set(first);
        }
        if freed {
            self.freed += length as usize;
        }
    }

    /// Takes a free run out of its list: its length, and whether it may hold something.
    fn unlist(&mut self, first: u32) -> (u32, bool) {
        let page = self.page(first);
        let (length, freed) = (page.length.get(), page.freed.get());
        let (next, previous) = (page.next.get(), page.previous.get());
        if next != NONE {
            self.page(next).previous.set(previous);
        }
        if previous != NONE {
            self.page(previous).next.set(next);
        } else {
            let list = Lists::of(length);
            let lists = &mut self.free[usize::from(freed)];
            lists.first[list] = next;
            if next == NONE {
                lists.filled[list / 64] &= !(1 << (list % 64));
            }
        }
        for id in [first, first + length - 1] {
            self.page(id).free.set(false);
        }
        if freed {
            self.freed -= length as usize;
        }
        (length, freed)
    }

    /// A free run of at least this length, one that was in use before if there is one.
    fn find(&self, length: u32) -> Option<u32> {
        let longer = || {
            let mut best: Option<(u32, u32)> = None;
            for lists in &self.free {
                let mut id = lists.first[EXACT];
                while id != NONE {
                    let page = self.page(id);
                    let fits = page.length.get() >= length;
                    if fits && best.is_none_or(|(least, _)| page.length.get() < least) {
                        best = Some((page.length.get(), id));
                    }
                    id = page.next.get();
                }
            }
            best.map(|(_, id)| id)
        };
        let exact = |lists: &Lists| {
            let list = lists.filled_from(Lists::of(length))?;
            (list < EXACT).then(|| lists.first[list])
        };
        let [clean, freed] = &self.free;
        exact(freed).or_else(|| exact(clean)).or_else(longer)
    }

    /// Gives what was freed back to the system.
    fn give_back(&mut self) {
        let mut from = 0;
        while let Some(list) = self.free[1].filled_from(from) {
            from = list;
            let first = self.free[1].first[list];
            let (length, _) = self.unlist(first);
            // SAFETY: the run is free and in no list, so no object is in these pages.
            let emptied = unsafe { map::discard(self.address(first), length as usize * PAGE) };
            if !emptied {
                // It stays what it was, and is tried again with the next.
                self.list(first, length, true);
                return;
            }
            self.insert(first, length, false);
        }
    }

    /// Makes room for a run of this length.
    fn grow(&mut self, length: u32, owner: usize) -> Result<(), Errno> {
        if self.freed > 0 {
            self.give_back();
            if self.find(length).is_some() {
                return Ok(());
            }
        }
        if self.count == ARENAS_MAX {
            return Err(Errno::NOMEM);
        }
        let mut pages = ARENA_PAGES;
        let made = loop {
            match Arena::make(pages, self.count as u32, owner) {
                Err(Errno::NOMEM) if pages > ARENA_PAGES_LEAST.max(length) => pages /= 2,
                made => break made?,
            }
        };
        self.arenas[self.count] = made;
        let first = self.count as u32 * ARENA_PAGES;
        // SAFETY: made a moment ago.
        let pages = unsafe { (*made).pages };
        self.count += 1;
        self.list(first, pages, false);
        if pages < length {
            return Err(Errno::NOMEM);
        }
        Ok(())
    }

    /// Gives everything back to the kernel.
    ///
    /// # Safety
    ///
    /// No run is used any more.
    pub(crate) unsafe fn drop_all(&mut self) {
        for arena in &self.arenas[..self.count] {
            // SAFETY: the caller's runs are not used any more, and the arena and its metadata are
            // mappings of these lengths.
            unsafe {
                let (base, pages) = ((**arena).base, (**arena).pages as usize);
                registry::leave(base, pages * PAGE);
                map::unmap(base as *mut u8, pages * PAGE);
                map::unmap(arena.cast_mut().cast(), metadata_bytes(pages));
            }
        }
        *self = Self::new();
    }
}

/// An arena's description and its table.
fn metadata_bytes(pages: usize) -> usize {
    64 + pages * size_of::<Page>()
}

impl Arena {
    fn make(pages: u32, number: u32, owner: usize) -> Result<*const Self, Errno> {
        const { assert!(size_of::<Arena>() <= 64) };
        let bytes = pages as usize * PAGE;
        let metadata = map::private(metadata_bytes(pages as usize), 64, true)?;
        let base = map::private(bytes, registry::STEP, true);
        let made = base.and_then(|base| {
            let arena = metadata.cast::<Self>();
            // SAFETY: fresh, aligned and large enough. A table of zeros says that no run is in use.
            unsafe {
                arena.write(Self {
                    base: base as usize,
                    pages,
                    number,
                    owner,
                    table: metadata.add(64).cast(),
                });
            }
            registry::enter(base as usize, bytes, Kind::Arena, arena as usize, |_| {
                Hint::NONE
            })?;
            Ok(arena.cast_const())
        });
        if made.is_err() {
            // SAFETY: both mappings were made here, and no pointer to them has left this function.
            unsafe {
                if let Ok(base) = base {
                    map::unmap(base, bytes);
                }
                map::unmap(metadata, metadata_bytes(pages as usize));
            }
        }
        made
    }

    fn id_of(&self, address: usize) -> u32 {
        self.number * ARENA_PAGES + ((address - self.base) / PAGE) as u32
    }
}
