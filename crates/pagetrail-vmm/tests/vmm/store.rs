//! Snapshots in a store, and restore on demand: every byte is compared.

use crate::sys::memory::{Memory, regions};
use pagemap_scan::{Faults, Features, Userfaultfd};
use pagetrail::PageRange;
use pagetrail_checkpoint::{Store, WorldWritable, Writer, WriterOptions};
use pagetrail_vmm::store::{LazyRestore, Served, Snapshots, Stopper};
use pagetrail_vmm::{OwnWrites, Start, Tracker};
use rustix::mm::Advice;
use std::os::fd::AsFd;
use std::path::Path;

const MIB: u64 = 1 << 20;
/// `UFFD_FEATURE_EVENT_REMOVE`.
const EVENT_REMOVE: u64 = 1 << 3;
/// `UFFDIO_REGISTER` knows no mode for missing pages alone in `pagemap-scan`.
const MODE: pagemap_scan::Mode = pagemap_scan::Mode::WriteProtectAndMissing;

pub(crate) fn memories(shared: bool) -> Vec<Memory> {
    let odd = 5 * pagetrail::page_size();
    vec![
        Memory::new(2, 0, MIB, shared),
        Memory::new(0, 8 * MIB, MIB + odd, shared),
    ]
}

pub(crate) fn writer(directory: &Path) -> Writer {
    let store = Store::create(&directory.join("store"), WorldWritable::Refuse).unwrap();
    store.writer(WriterOptions::default()).unwrap()
}

pub(crate) fn opened(directory: &Path) -> Store {
    Store::open(&directory.join("store")).unwrap()
}

fn tracked(memories: &[Memory], start: Start) -> (pagetrail_vmm::Consumer, OwnWrites) {
    let own = OwnWrites::new();
    let tracker = Tracker::new(regions(memories), vec![Box::new(own.clone())]).unwrap();
    (tracker.consumer(start).unwrap(), own)
}

pub(crate) fn contents(memories: &[Memory]) -> Vec<Vec<u8>> {
    memories.iter().map(Memory::contents).collect()
}

/// Ends a restore, also when a test fails.
pub(crate) struct StopOnDrop(pub(crate) Stopper);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// What checkpoint `number` has of these memories.
pub(crate) fn stored(directory: &Path, number: u64, memories: &[Memory]) -> Vec<Vec<u8>> {
    let mut image = opened(directory).image(number).unwrap();
    let read = |memory: &Memory| {
        let end = memory.guest_address + memory.bytes;
        let mut contents = vec![0; memory.bytes as usize];
        let range = PageRange::new(memory.guest_address, end).unwrap();
        image.read(range, &mut contents).unwrap();
        contents
    };
    memories.iter().map(read).collect()
}

/// Writes to random places, as a device.
fn write(memories: &[Memory], own: &OwnWrites, random: &mut fastrand::Rng, count: u32) {
    for _ in 0..count {
        let memory = &memories[random.usize(0..memories.len())];
        let offset = random.u64(0..memory.bytes - 100);
        let bytes: Vec<u8> = (0..random.usize(1..100)).map(|_| random.u8(..)).collect();
        memory.write(offset, &bytes);
        own.mark(memory.guest_address + offset, bytes.len() as u64);
    }
}

/// A userfaultfd at which these memories are registered, or why there is none.
pub(crate) fn registered(memories: &[Memory]) -> Option<Userfaultfd> {
    let features = Features::from_bits(Features::WP_HUGETLBFS_SHMEM.bits() | EVENT_REMOVE);
    let made = Userfaultfd::create(Faults::UserAndKernel)
        .and_then(|fd| Userfaultfd::handshake(fd, features));
    match made {
        Ok(uffd) => {
            for memory in memories {
                let start = memory.host_address();
                uffd.register(start..start + memory.bytes, MODE).unwrap();
            }
            Some(uffd)
        }
        Err(error) => {
            pagetrail_skips::not_here(format!("no userfaultfd for missing pages: {error}"));
            None
        }
    }
}

pub(crate) fn restore(directory: &Path, memories: &[Memory], uffd: &Userfaultfd) -> LazyRestore {
    let image = opened(directory).newest_image().unwrap();
    LazyRestore::new(image, regions(memories), uffd.as_fd()).unwrap()
}

/// A snapshot of random memory, in a directory.
pub(crate) fn one_snapshot(shared: bool) -> (tempfile::TempDir, Vec<Vec<u8>>) {
    let directory = tempfile::tempdir().unwrap();
    let memories = memories(shared);
    let (consumer, own) = tracked(&memories, Start::Everything);
    write(&memories, &own, &mut fastrand::Rng::with_seed(9), 300);
    let mut snapshots = Snapshots::new(writer(directory.path()), consumer);
    snapshots.take().unwrap();
    (directory, contents(&memories))
}

/// firecracker#5696: with several memslots, an increment was written at wrong places.
#[test]
fn each_snapshot_has_the_memory_of_its_instant() {
    let directory = tempfile::tempdir().unwrap();
    let memories = memories(true);
    // A consumer that starts with nothing: the base must be whole all the same.
    let (consumer, own) = tracked(&memories, Start::Now);
    let mut random = fastrand::Rng::with_seed(1);
    write(&memories, &own, &mut random, 50);
    let mut snapshots = Snapshots::new(writer(directory.path()), consumer);
    let mut expected = Vec::new();
    for round in 0..12 {
        write(&memories, &own, &mut random, round);
        let mut snapshot = snapshots.begin().unwrap();
        for _ in 0..random.u32(0..3) {
            snapshot.copy().unwrap();
            write(&memories, &own, &mut random, 3);
        }
        snapshot.copy().unwrap();
        match round % 3 {
            // It fails; firecracker#4545.
            1 => drop(snapshot),
            _ => {
                let manifest = snapshot.publish().unwrap();
                expected.push((manifest.number, contents(&memories)));
            }
        }
    }
    for (number, contents) in expected {
        assert!(
            stored(directory.path(), number, &memories) == contents,
            "checkpoint {number}"
        );
    }
    let empty = snapshots.begin().unwrap();
    assert!(empty.publish().is_err());
    let small = snapshots.take().unwrap();
    assert_eq!(small.cost.copied_pages, 0);
}

/// CubeSandbox and others reclaim a guest's free memory: what was discarded is zeros in the next
/// snapshot, though nobody wrote it.
#[test]
fn discarded_pages_that_are_marked_are_zeros_in_the_next_snapshot() {
    let directory = tempfile::tempdir().unwrap();
    let memories = memories(false);
    let (consumer, own) = tracked(&memories, Start::Everything);
    memories[0].write(0, &[7; 0x8000]);
    let mut snapshots = Snapshots::new(writer(directory.path()), consumer);
    snapshots.take().unwrap();
    memories[0].advise(0x2000, 0x3000, Advice::LinuxDontNeed);
    own.mark(0x2000, 0x3000);
    let number = snapshots.take().unwrap().number;
    let stored = stored(directory.path(), number, &memories);
    assert!(stored == contents(&memories));
    assert!(stored[0][0x2000..0x5000].iter().all(|byte| *byte == 0));
}

#[test]
fn a_lazy_restore_brings_every_byte() {
    for shared in [false, true] {
        let (directory, expected) = one_snapshot(shared);
        let restored = memories(shared);
        let Some(uffd) = registered(&restored) else {
            return;
        };
        let page = pagetrail::page_size();
        let order = [PageRange::new(8 * MIB + 3 * page, 8 * MIB + 9 * page).unwrap()];
        let outside = PageRange::new(1 << 40, 2 << 40).unwrap();
        let mut restore =
            restore(directory.path(), &restored, &uffd).prefetch_first(&[outside, order[0]]);
        std::thread::scope(|scope| {
            let serving = scope.spawn(|| restore.serve().unwrap());
            // A page in the middle is touched before the others.
            let mut touched = vec![0; page as usize];
            restored[1].region().copy(130 * page, &mut touched);
            assert!(touched[..] == expected[1][(130 * page) as usize..(131 * page) as usize]);
            assert_eq!(serving.join().unwrap(), Served::Everything);
        });
        assert_eq!(restore.missing_pages(), 0);
        assert!(contents(&restored) == expected, "shared: {shared}");
    }
}

/// Without prefetch, the order of first touches is known afterwards, and prefetches next time.
#[test]
fn first_touches_are_noted_in_their_order() {
    let (directory, expected) = one_snapshot(false);
    let restored = memories(false);
    let Some(uffd) = registered(&restored) else {
        return;
    };
    let mut restore = restore(directory.path(), &restored, &uffd).without_prefetch();
    let stopper = restore.stopper();
    let page = pagetrail::page_size();
    let touches = [200, 17, 90, 18];
    std::thread::scope(|scope| {
        let ends = StopOnDrop(stopper.clone());
        let serving = scope.spawn(|| restore.serve().unwrap());
        for touch in touches {
            let mut word = [0; 8];
            restored[0].region().copy(touch * page, &mut word);
            assert_eq!(word[..], expected[0][(touch * page) as usize..][..8]);
        }
        drop(ends);
        assert_eq!(serving.join().unwrap(), Served::Stopped);
    });
    let noted: Vec<u64> = restore
        .first_touches()
        .iter()
        .map(|range| range.start() / page)
        .collect();
    // The last came with its neighbour.
    assert_eq!(noted, touches[..3]);
    assert!(restore.missing_pages() > 0);
    std::thread::scope(|scope| {
        let ends = StopOnDrop(stopper.clone());
        let serving = scope.spawn(|| restore.serve().unwrap());
        assert!(contents(&restored) == expected);
        drop(ends);
        serving.join().unwrap();
    });
}

/// cloud-hypervisor#8525: a snapshot of a guest whose pages were not all there yet lost them.
#[test]
fn a_snapshot_while_memory_is_being_restored_is_whole() {
    let (directory, mut expected) = one_snapshot(true);
    let restored = memories(true);
    let Some(uffd) = registered(&restored) else {
        return;
    };
    let mut restore = restore(directory.path(), &restored, &uffd).without_prefetch();
    let stopper = restore.stopper();
    let (consumer, own) = tracked(&restored, Start::Now);
    let mut snapshots = Snapshots::new(writer(directory.path()), consumer);
    let number = std::thread::scope(|scope| {
        let ends = StopOnDrop(stopper.clone());
        let serving = scope.spawn(|| restore.serve().unwrap());
        restored[0].write(0x5008, &[1, 2, 3]);
        own.mark(0x5008, 3);
        let number = snapshots.take().unwrap().number;
        drop(ends);
        serving.join().unwrap();
        number
    });
    expected[0][0x5008..0x500b].copy_from_slice(&[1, 2, 3]);
    assert!(stored(directory.path(), number, &restored) == expected);
}

/// Pages that the guest gives back while it is being restored must not come back from the image.
#[test]
fn pages_discarded_during_a_restore_are_zeros() {
    let (directory, mut expected) = one_snapshot(false);
    let restored = memories(false);
    let Some(uffd) = registered(&restored) else {
        return;
    };
    let mut restore = restore(directory.path(), &restored, &uffd).without_prefetch();
    let stopper = restore.stopper();
    std::thread::scope(|scope| {
        let ends = StopOnDrop(stopper.clone());
        let serving = scope.spawn(|| restore.serve().unwrap());
        let mut word = [0; 8];
        // One of them is there already.
        restored[0].region().copy(0x1_2000, &mut word);
        restored[0].advise(0x1_0000, 0x2_0000, Advice::LinuxDontNeed);
        expected[0][0x1_0000..0x3_0000].fill(0);
        assert!(contents(&restored) == expected);
        drop(ends);
        serving.join().unwrap();
    });
}

#[test]
fn a_checkpoint_of_other_memory_is_refused() {
    let (directory, _) = one_snapshot(false);
    let other = vec![Memory::new(0, 0, 2 * MIB, false)];
    let Some(uffd) = registered(&other) else {
        return;
    };
    let image = opened(directory.path()).newest_image().unwrap();
    let error = LazyRestore::new(image, regions(&other), uffd.as_fd()).unwrap_err();
    assert!(
        error.to_string().contains("checkpoint 1 has none at"),
        "{error}"
    );
}
