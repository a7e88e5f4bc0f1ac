//! [`Known`]: the page tables of a guest that are known, each once, however many tables point to
//! it.
//!
//! HMM-V's module in the guest fills a buffer with pointers to last-level tables, and filters
//! double ones by a hash. Here a table is known by its address and level, with the number of
//! entries that point to it, and all levels are known: what is written to an upper one says which
//! tables came and went, so that no buffer is filled anew. Which pages are tables is a bitmap in
//! the layout of KVM's log, so that what is dirty is found by 64 pages at a time.

use super::entry::{self, ENTRIES, TABLE_BYTES, Target, USER_ENTRIES};
use crate::pages::DirtyPages;
use crate::regions::Regions;
use crate::sys::memory::TableMemory;
use std::collections::{BTreeMap, BTreeSet};

/// A table in its role: one page may be a table of several levels, where a guest maps its own
/// tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    level: u8,
    /// Of a root, the half for processes is read alone.
    is_root: bool,
    address: u64,
}

impl Key {
    pub(super) fn root(levels: u8, address: u64) -> Self {
        Self {
            level: levels,
            is_root: true,
            address,
        }
    }

    fn child(self, address: u64) -> Self {
        Self {
            level: self.level - 1,
            is_root: false,
            address,
        }
    }
}

/// A page with the accessed bit: where it is in the table, and where it is in memory.
#[derive(Clone, Copy, Debug)]
struct Leaf {
    index: u64,
    address: u64,
}

#[derive(Debug, Default)]
struct Table {
    /// The tables whose entries point here, and how many do. A root has none.
    parents: BTreeMap<Key, u64>,
    /// The tables that its entries point to, as far as they are known.
    children: Vec<Key>,
    /// Entries that point to tables for which there was no room.
    left_out: u64,
    accessed: Vec<Leaf>,
    /// In which pass it was read last.
    read_in: u64,
    /// In which pass it was last looked up whether it is certain, and whether it was.
    certain: (u64, bool),
}

/// What has become of a table that was pointed to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pointed {
    Known,
    /// It is not in the guest's memory, and has no entries.
    NotMemory,
    NoRoom,
}

/// The tables that roots lead to, and the pages that were accessed through them.
#[derive(Debug)]
pub(super) struct Known {
    memory: TableMemory,
    tables: BTreeMap<Key, Table>,
    /// Pages that are tables, and those of them that were written and not read since.
    pages: DirtyPages,
    unread: DirtyPages,
    /// More tables than this are not known: what a guest can make of its memory has a bound here.
    tables_max: usize,
    /// Tables that have entries for which there was no room.
    partial: BTreeSet<Key>,
    pass: u64,
    /// Tables read in this pass.
    pub(super) read: u64,
}

impl Known {
    pub(super) fn new(memory: TableMemory) -> Self {
        let none = DirtyPages::none_of(memory.regions());
        Self {
            unread: none.clone(),
            pages: none,
            tables_max: tables_max(memory.regions()),
            memory,
            tables: BTreeMap::new(),
            partial: BTreeSet::new(),
            pass: 1,
            read: 0,
        }
    }

    pub(super) fn memory(&self) -> &TableMemory {
        &self.memory
    }

    pub(super) fn len(&self) -> u64 {
        self.tables.len() as u64
    }

    /// Entries that point to tables which another entry points to, too.
    pub(super) fn duplicates(&self) -> u64 {
        let pointing = |table: &Table| table.parents.values().sum::<u64>();
        let tables = self.tables.values().map(pointing);
        tables.map(|entries| entries.saturating_sub(1)).sum()
    }

    /// Entries that point to tables for which there was no room.
    pub(super) fn left_out(&self) -> u64 {
        let partial = self.partial.iter().filter_map(|key| self.tables.get(key));
        partial.map(|table| table.left_out).sum()
    }

    pub(super) fn has(&self, root: Key) -> bool {
        self.tables.contains_key(&root)
    }

    /// Begins a pass, before which these pages were written.
    pub(super) fn begin_pass(&mut self, dirty: &DirtyPages) {
        self.pass += 1;
        self.read = 0;
        self.unread.union_with(&self.pages.intersection(dirty));
    }

    /// Adds a root.
    pub(super) fn acquire(&mut self, root: Key) -> Pointed {
        self.point(root, None)
    }

    /// Says of a root whether a vCPU has it. Returns whether it is certain that it is a table: of
    /// one that no vCPU has, while it was not written.
    pub(super) fn vouch(&mut self, root: Key, is_loaded: bool) -> bool {
        let is_certain = is_loaded
            || !has_any(
                &self.unread,
                self.memory.regions(),
                root.address,
                TABLE_BYTES,
            );
        if let Some(table) = self.tables.get_mut(&root) {
            table.certain = (self.pass, is_certain);
        }
        is_certain
    }

    /// Notes that an entry of `parent` points to a table, or that it is a root; one that is new is
    /// read with all that it leads to.
    fn point(&mut self, key: Key, parent: Option<Key>) -> Pointed {
        if let Some(table) = self.tables.get_mut(&key) {
            if let Some(parent) = parent {
                *table.parents.entry(parent).or_default() += 1;
            }
            // Whether it is certain may have another answer now.
            table.certain.0 = 0;
            return Pointed::Known;
        }
        if self
            .memory
            .regions()
            .at_guest_address(key.address)
            .is_none()
        {
            return Pointed::NotMemory;
        }
        if !self.has_room() {
            return Pointed::NoRoom;
        }
        mark(&mut self.pages, self.memory.regions(), key.address, true);
        let table = Table {
            parents: parent.into_iter().map(|parent| (parent, 1)).collect(),
            certain: (self.pass, true),
            ..Table::default()
        };
        self.tables.insert(key, table);
        self.read(key);
        Pointed::Known
    }

    fn has_room(&self) -> bool {
        self.tables.len() < self.tables_max
    }

    /// Takes back that an entry of `parent` points to a table, or that it is a root.
    pub(super) fn release(&mut self, key: Key, parent: Option<Key>) {
        let Some(table) = self.tables.get_mut(&key) else {
            return;
        };
        if let Some(parent) = parent
            && let Some(entries) = table.parents.get_mut(&parent)
        {
            *entries -= 1;
            if *entries == 0 {
                table.parents.remove(&parent);
            }
        }
        table.certain.0 = 0;
        if !table.parents.is_empty() {
            return;
        }
        let table = self.tables.remove(&key).unwrap_or_default();
        self.partial.remove(&key);
        for child in table.children {
            self.release(child, Some(key));
        }
        if self.roles(key.address).is_empty() {
            let regions = self.memory.regions();
            mark(&mut self.pages, regions, key.address, false);
            mark(&mut self.unread, regions, key.address, false);
        }
    }

    /// Reads the tables anew that were written. Upper ones come first: a table to which nothing
    /// certain points any more is not read, since its page may be anything by now.
    pub(super) fn follow(&mut self) {
        let unread = addresses(&self.unread, self.memory.regions());
        let roles = unread.iter().flat_map(|address| self.roles(*address));
        let mut keys: Vec<Key> = roles.collect();
        keys.sort_unstable();
        for key in keys.into_iter().rev() {
            let table = self.tables.get(&key);
            let is_unread = table.is_some_and(|table| table.read_in != self.pass);
            if is_unread && self.look_up(key) {
                self.read(key);
            }
        }
        if self.has_room() {
            for key in self.partial.clone().into_iter().rev() {
                if self.look_up(key) {
                    self.read(key);
                }
            }
        }
        for address in unread {
            let roles = self.roles(address);
            let is_read = |key: &Key| self.tables[key].read_in == self.pass;
            if roles.iter().all(is_read) {
                mark(&mut self.unread, self.memory.regions(), address, false);
            }
        }
    }

    /// Whether a root leads to a table by tables that are certain; of a root, what was said in this
    /// pass.
    fn look_up(&mut self, key: Key) -> bool {
        let Some(table) = self.tables.get(&key) else {
            return false;
        };
        if key.is_root || table.certain.0 == self.pass {
            return table.certain == (self.pass, true);
        }
        let parents: Vec<Key> = table.parents.keys().copied().collect();
        let is_certain = parents.into_iter().any(|parent| self.look_up(parent));
        if let Some(table) = self.tables.get_mut(&key) {
            table.certain = (self.pass, is_certain);
        }
        is_certain
    }

    /// Whether it is certain that this root is a table now.
    pub(super) fn is_certain(&self, root: Key) -> bool {
        let table = self.tables.get(&root);
        table.is_some_and(|table| table.certain == (self.pass, true))
    }

    /// The tables that have a page with the accessed bit, where it is certain that they are tables.
    fn with_accessed(&mut self) -> Vec<Key> {
        let tables = self.tables.iter();
        let with = tables.filter(|(_, table)| !table.accessed.is_empty());
        let mut keys: Vec<Key> = with.map(|(key, _)| *key).collect();
        keys.retain(|key| self.look_up(*key));
        keys
    }

    /// The tables that a page is.
    fn roles(&self, address: u64) -> Vec<Key> {
        let roles = (1..=5).flat_map(|level| {
            [false, true].map(|is_root| Key {
                level,
                is_root,
                address,
            })
        });
        roles.filter(|key| self.tables.contains_key(key)).collect()
    }

    fn read(&mut self, key: Key) {
        self.read += 1;
        let (mut children, mut accessed) = (Vec::new(), Vec::new());
        let entries = if key.is_root { USER_ENTRIES } else { ENTRIES };
        let words = words(&self.memory, key.address);
        for (index, word) in (0..entries).zip(words) {
            match entry::target(word, key.level) {
                Target::Nothing => {}
                Target::Table(address) => {
                    if self.memory.regions().at_guest_address(address).is_some() {
                        children.push(key.child(address));
                    }
                }
                Target::Page(address) if entry::is_accessed(word) => {
                    accessed.push(Leaf { index, address });
                }
                Target::Page(_) => {}
            }
        }
        let Some(table) = self.tables.get_mut(&key) else {
            return;
        };
        table.read_in = self.pass;
        table.accessed = accessed;
        // A processor writes to upper tables whenever it walks them, and seldom changes them.
        if table.left_out == 0 && table.children == children {
            return;
        }
        let before = std::mem::take(&mut table.children);
        // Those that stay are not let go in between.
        let mut left_out = 0;
        children.retain(|child| {
            let pointed = self.point(*child, Some(key));
            left_out += u64::from(pointed == Pointed::NoRoom);
            pointed == Pointed::Known
        });
        for child in before {
            self.release(child, Some(key));
        }
        match left_out {
            0 => self.partial.remove(&key),
            _ => self.partial.insert(key),
        };
        if let Some(table) = self.tables.get_mut(&key) {
            (table.children, table.left_out) = (children, left_out);
        }
    }

    /// Guest-physical pages with an accessed bit in a table.
    pub(super) fn accessed(&mut self) -> DirtyPages {
        let regions = self.memory.regions().clone();
        let mut pages = DirtyPages::none_of(&regions);
        // Each once: a guest may map a page of 1 GiB in every entry of its tables.
        let mut large = BTreeSet::new();
        for key in self.with_accessed() {
            let bytes = entry::page_bytes(key.level);
            for Leaf { address, .. } in &self.tables[&key].accessed {
                if bytes == TABLE_BYTES {
                    mark(&mut pages, &regions, *address, true);
                } else if parts(&regions, *address, bytes).next().is_some() {
                    large.insert((*address, bytes));
                }
            }
        }
        for (address, bytes) in large {
            insert(&mut pages, &regions, address, bytes);
        }
        pages
    }

    /// Clears the accessed bits of these pages; of a large page, where one of its pages is in the
    /// set. Returns the tables that were written.
    pub(super) fn clear(&mut self, pages: &DirtyPages) -> DirtyPages {
        let mut written = DirtyPages::none_of(self.memory.regions());
        // Of large pages, each is looked up once.
        let mut large = BTreeMap::new();
        for key in self.with_accessed() {
            let regions = self.memory.regions();
            let bytes = entry::page_bytes(key.level);
            let mut is_wanted = |leaf: &Leaf| {
                let look = || has_any(pages, regions, leaf.address, bytes);
                if bytes == TABLE_BYTES || parts(regions, leaf.address, bytes).next().is_none() {
                    return look();
                }
                *large.entry((leaf.address, bytes)).or_insert_with(look)
            };
            let Some(table) = self.tables.get_mut(&key) else {
                continue;
            };
            if !table.accessed.iter().any(&mut is_wanted) {
                continue;
            }
            let words: Vec<u64> = words(&self.memory, key.address).collect();
            table.accessed.retain(|leaf| {
                if !is_wanted(leaf) {
                    return true;
                }
                let word = words[leaf.index as usize];
                // No vCPU runs, so that it is the word that was read.
                let at = key.address + leaf.index * 8;
                if entry::target(word, key.level) == Target::Page(leaf.address) {
                    let cleared = entry::without_accessed(word);
                    self.memory.replace(at, word, cleared);
                }
                false
            });
            mark(&mut written, regions, key.address, true);
        }
        written
    }
}

/// The entries of a table; none where there is no memory.
fn words(memory: &TableMemory, address: u64) -> impl Iterator<Item = u64> + use<> {
    let mut bytes = vec![0; TABLE_BYTES as usize];
    let region = memory.regions().at_guest_address(address);
    match region {
        Some(region) => region.copy(address - region.guest_address(), &mut bytes),
        None => bytes.clear(),
    }
    let (words, _) = bytes.as_chunks();
    let words: Vec<u64> = words.iter().map(|word| u64::from_le_bytes(*word)).collect();
    words.into_iter()
}

/// Adds a page, or takes it out; false where it is not the guest's memory.
fn mark(pages: &mut DirtyPages, regions: &Regions, address: u64, is_in: bool) -> bool {
    let region = regions.at_guest_address(address);
    let bitmap = region.and_then(|region| {
        let page = (address - region.guest_address()) / TABLE_BYTES;
        Some((pages.of_slot_mut(region.slot())?, page))
    });
    match bitmap {
        Some((bitmap, page)) if is_in => bitmap.insert(page..page + 1),
        Some((bitmap, page)) => bitmap.remove(page..page + 1),
        None => return false,
    }
    true
}

/// The parts of a page of any size that are memory: the memslot, and pages of it.
fn parts(
    regions: &Regions,
    address: u64,
    bytes: u64,
) -> impl Iterator<Item = (u32, std::ops::Range<u64>)> + '_ {
    regions.iter().filter_map(move |region| {
        let start = address.max(region.guest_address());
        let end = address.saturating_add(bytes);
        let end = end.min(region.guest_address() + region.bytes());
        let page = |address: u64| (address - region.guest_address()) / TABLE_BYTES;
        (start < end).then(|| (region.slot(), page(start)..page(end)))
    })
}

fn insert(pages: &mut DirtyPages, regions: &Regions, address: u64, bytes: u64) {
    for (slot, range) in parts(regions, address, bytes) {
        if let Some(bitmap) = pages.of_slot_mut(slot) {
            bitmap.insert(range);
        }
    }
}

fn has_any(pages: &DirtyPages, regions: &Regions, address: u64, bytes: u64) -> bool {
    let mut parts = parts(regions, address, bytes);
    parts.any(|(slot, mut range)| {
        let bitmap = pages.of_slot(slot);
        bitmap.is_some_and(|bitmap| range.any(|page| bitmap.contains(page)))
    })
}

/// Guest-physical addresses of pages.
fn addresses(pages: &DirtyPages, regions: &Regions) -> Vec<u64> {
    let mut addresses = Vec::new();
    for region in regions {
        let bitmap = pages.of_slot(region.slot());
        let pages = bitmap.into_iter().flat_map(|bitmap| bitmap.ranges());
        let start = region.guest_address();
        addresses.extend(pages.flatten().map(|page| start + page * TABLE_BYTES));
    }
    addresses
}

/// Kernels need one table for 512 pages, and more where programs use few pages in many places. What
/// is kept of a table takes as much memory as five tables at most.
fn tables_max(regions: &Regions) -> usize {
    const ALWAYS: u64 = 4096;
    const PART: u64 = 16;
    (regions.bytes() / TABLE_BYTES / PART).max(ALWAYS) as usize
}
