//! [`Common`]: shared memory that several processes of a tree have mapped, read once for all of
//! them instead of once for each.
//!
//! It is divided into blocks, by its device and inode ([`identity`]). The process that comes first
//! reads a block, and leaves the hashes of its pages to the others, with the contents of those that
//! were new to it. What it has not left, each of the others reads itself: an image lacks nothing
//! because another was taken with it.
//!
//! A table is of one time: one of what was read while the processes ran, another of what was read
//! while all stood still.

pub(crate) mod identity;

use crate::hash::Hash;
use identity::Devices;
use pagetrail::{PageRange, PageSet, Region, page_size};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// The size of a block, in bytes.
const BLOCK_BYTES: u64 = 1 << 20;

/// A part of shared memory, the same for all processes that have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Block {
    device: (u32, u32),
    inode: u64,
    number: u64,
}

/// Where a process has a block.
#[derive(Clone, Debug)]
pub(crate) struct Piece {
    pub(crate) block: Block,
    /// Addresses, each with the number of its first page in the block.
    places: Vec<(PageRange, usize)>,
}

impl Piece {
    /// The addresses, in the order in which they are read.
    pub(crate) fn ranges(&self) -> Vec<PageRange> {
        self.places.iter().map(|(range, _)| *range).collect()
    }

    /// Each page, by its address and its number in the block, in the order of [`Self::ranges`].
    pub(crate) fn pages(&self) -> impl Iterator<Item = (u64, usize)> + '_ {
        self.places.iter().flat_map(|(range, first)| {
            let addresses = (range.start()..range.end()).step_by(page_size() as usize);
            addresses.zip(*first..)
        })
    }
}

/// Divides pages of shared mappings into pieces; gives besides those of which it is not known for
/// sure which other mappings show the same.
pub(crate) fn pieces(
    regions: &[Region],
    contents: &PageSet,
    devices: &Devices,
) -> (Vec<Piece>, PageSet) {
    let mut pieces: BTreeMap<Block, Vec<(PageRange, usize)>> = BTreeMap::new();
    let mut divided = PageSet::new();
    let is_known = |region: &&Region| region.permissions.shared && devices.identify(region);
    for region in regions.iter().filter(is_known) {
        let pages = contents.intersection(&PageSet::from_iter([region.range]));
        for range in pages.ranges() {
            let mut start = range.start();
            while start < range.end() {
                let offset = region.offset + (start - region.range.start());
                let in_block = offset % BLOCK_BYTES;
                let end = range.end().min(start + (BLOCK_BYTES - in_block));
                let block = Block {
                    device: region.device,
                    inode: region.inode,
                    number: offset / BLOCK_BYTES,
                };
                let first = (in_block / page_size()) as usize;
                let part = PageRange::new(start, end).map(|part| (part, first));
                pieces.entry(block).or_default().extend(part);
                start = end;
            }
        }
        divided.union_with(&pages);
    }
    let pieces = pieces.into_iter();
    let pieces = pieces.map(|(block, places)| Piece { block, places });
    (pieces.collect(), contents.difference(&divided))
}

/// What was read of a block.
#[derive(Debug, Default)]
pub(crate) struct Contents {
    /// By the number of the page: its hash, and where in `bytes` its contents are, if they were
    /// left.
    pages: Vec<Option<(Hash, Option<usize>)>>,
    bytes: Vec<u8>,
}

impl Contents {
    /// Notes a page; `contents` are left to others.
    pub(crate) fn note(&mut self, number: usize, hash: Hash, contents: Option<&[u8]>) {
        if self.pages.len() <= number {
            self.pages.resize(number + 1, None);
        }
        let at = contents.map(|_| self.bytes.len());
        self.bytes.extend_from_slice(contents.unwrap_or_default());
        self.pages[number] = Some((hash, at));
    }

    /// The hash of a page, if it was read.
    pub(crate) fn hash(&self, number: usize) -> Option<Hash> {
        let (hash, _) = self.pages.get(number).copied().flatten()?;
        Some(hash)
    }

    /// The contents of a page, if they were left.
    pub(crate) fn page(&self, number: usize) -> Option<&[u8]> {
        let (_, at) = self.pages.get(number).copied().flatten()?;
        let at = at?;
        self.bytes.get(at..at + page_size() as usize)
    }
}

enum Progress {
    Underway,
    /// Nothing where reading failed.
    Done(Option<Arc<Contents>>),
}

struct Inside {
    blocks: HashMap<Block, Progress>,
    /// How much may still be left to others, in bytes.
    room: u64,
}

/// What the processes of a tree have read of their shared memory at one time.
pub(crate) struct Common {
    inside: Mutex<Inside>,
    changed: Condvar,
    devices: Mutex<identity::Known>,
}

impl Common {
    /// Keeps contents of at most so many bytes.
    pub(crate) fn new(bytes_max: u64) -> Self {
        Self {
            inside: Mutex::new(Inside {
                blocks: HashMap::new(),
                room: bytes_max,
            }),
            changed: Condvar::new(),
            devices: Mutex::default(),
        }
    }

    fn inside(&self) -> MutexGuard<'_, Inside> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// On which devices the memory of a process is known by its inode.
    pub(crate) fn devices(&self, pid: u32) -> Arc<Devices> {
        let devices = self.devices.lock();
        devices.unwrap_or_else(PoisonError::into_inner).of(pid)
    }

    /// Forgets everything.
    pub(crate) fn clear(&self) {
        self.inside().blocks.clear();
    }

    /// Undertakes to read a block; `None` if another has.
    pub(crate) fn claim(&self, block: Block) -> Option<Claim<'_>> {
        let mut inside = self.inside();
        if inside.blocks.contains_key(&block) {
            return None;
        }
        inside.blocks.insert(block, Progress::Underway);
        Some(Claim {
            common: self,
            block,
            contents: None,
        })
    }

    /// What another has read of a block, once it has; `None` if it could not be read.
    pub(crate) fn wait(&self, block: Block) -> Option<Arc<Contents>> {
        let is_underway =
            |inside: &mut Inside| matches!(inside.blocks.get(&block), Some(Progress::Underway));
        let waited = self.changed.wait_while(self.inside(), is_underway);
        let inside = waited.unwrap_or_else(PoisonError::into_inner);
        match inside.blocks.get(&block) {
            Some(Progress::Done(contents)) => contents.clone(),
            _ => None,
        }
    }
}

/// A block that is being read. Dropped without contents, nobody waits for it any longer.
pub(crate) struct Claim<'common> {
    common: &'common Common,
    block: Block,
    contents: Option<Contents>,
}

impl Claim<'_> {
    /// Whether there is room for contents of so many bytes, which is taken then.
    pub(crate) fn take_room(&self, bytes: u64) -> bool {
        let mut inside = self.common.inside();
        let rest = inside.room.checked_sub(bytes);
        inside.room = rest.unwrap_or(inside.room);
        rest.is_some()
    }

    /// Leaves what was read to the others.
    pub(crate) fn leave(mut self, contents: Contents) {
        self.contents = Some(contents);
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        let contents = self.contents.take().map(Arc::new);
        let mut inside = self.common.inside();
        inside.blocks.insert(self.block, Progress::Done(contents));
        drop(inside);
        self.common.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagetrail::Permissions;

    fn region(start: u64, pages: u64, inode: u64, offset: u64) -> Region {
        let range = PageRange::new(start, start + pages * page_size()).unwrap();
        let permissions = Permissions {
            read: true,
            write: true,
            execute: false,
            shared: true,
        };
        let mut region = Region::new(range, permissions);
        (region.device, region.inode, region.offset) = ((0, 1), inode, offset);
        region
    }

    /// Two processes have the same memory at other addresses and from other offsets on.
    #[test]
    fn pages_of_the_same_memory_have_the_same_number_in_the_same_block() {
        let page = page_size();
        let pages = 2 * BLOCK_BYTES / page;
        let first = region(0x1000_0000, pages, 7, 0);
        let second = region(0x2000_1000, pages, 7, 3 * page);
        let other = region(0x3000_0000, 1, 8, 0);
        let devices = Devices::of_file_systems([(0, 1)]);
        let by_offset = |region: &Region| {
            let all = PageSet::from_iter([region.range]);
            let (pieces, rest) = pieces(std::slice::from_ref(region), &all, &devices);
            assert!(rest.is_empty());
            let mut found = BTreeMap::new();
            for piece in &pieces {
                let ranges: PageSet = piece.ranges().into_iter().collect();
                assert_eq!(ranges.page_count(), piece.pages().count() as u64);
                for (address, number) in piece.pages() {
                    let offset = address - region.range.start() + region.offset;
                    found.insert(offset, (piece.block, number));
                }
            }
            assert_eq!(found.len() as u64, all.page_count());
            found
        };
        let (first, second) = (by_offset(&first), by_offset(&second));
        for (offset, place) in &first {
            assert!(second.get(offset).is_none_or(|other| other == place));
        }
        let distinct: std::collections::BTreeSet<_> = first.values().collect();
        assert_eq!(distinct.len(), first.len());
        assert!(
            by_offset(&other)
                .values()
                .all(|place| !first.values().any(|one| one == place))
        );
    }

    #[test]
    fn memory_whose_identity_is_not_sure_is_nobody_elses() {
        let region = region(0x1000_0000, 4, 7, 0);
        let all = PageSet::from_iter([region.range]);
        let (pieces, rest) = pieces(&[region], &all, &Devices::default());
        assert!(pieces.is_empty());
        assert_eq!(rest, all);
    }

    #[test]
    fn who_waits_for_a_block_goes_on_when_it_is_read_and_when_it_cannot_be() {
        let common = Common::new(page_size());
        let block = |number| Block {
            device: (0, 1),
            inode: 7,
            number,
        };
        let claims = [common.claim(block(0)), common.claim(block(1))];
        let [Some(read), Some(fails)] = claims else {
            panic!("nobody else has claimed them");
        };
        assert!(common.claim(block(0)).is_none());
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| common.wait(block(0)));
            let in_vain = scope.spawn(|| common.wait(block(1)));
            let (mut contents, page) = (Contents::default(), vec![5; page_size() as usize]);
            assert!(read.take_room(page_size()) && !read.take_room(page_size()));
            contents.note(3, Hash::of(&page), Some(&page));
            contents.note(1, Hash::of(&page), None);
            read.leave(contents);
            drop(fails);
            let contents = waits.join().unwrap().unwrap();
            assert_eq!(contents.hash(3), Some(Hash::of(&page)));
            assert_eq!(contents.page(3), Some(&page[..]));
            assert_eq!(
                (contents.hash(1), contents.page(1)),
                (Some(Hash::of(&page)), None)
            );
            assert_eq!((contents.hash(2), contents.page(2)), (None, None));
            assert_eq!(contents.hash(9), None);
            assert!(in_vain.join().unwrap().is_none());
        });
    }
}
