//! Random use of heaps with every number of sub-pages, against a model that knows what each object
//! holds. Two objects that overlapped anywhere in physical memory, whatever their addresses, would
//! show in each other's contents.

#![allow(clippy::print_stdout, reason = "tests print their seed")]

use pagetrail_alloc::{Heap, SubpageCount};
use std::alloc::Layout;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::ptr::NonNull;

/// An object as the model knows it: filled with a pattern of its own.
struct Object {
    place: NonNull<u8>,
    bytes: usize,
    pattern: u64,
}

impl Object {
    fn fill(&mut self, from: usize) {
        for at in from..self.bytes {
            let byte = (self.pattern.wrapping_add(at as u64)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            // SAFETY: the heap says that the object has so many bytes.
            unsafe { self.place.add(at).write((byte >> 56) as u8) };
        }
    }

    fn check(&self, bytes: usize) {
        for at in 0..bytes {
            let byte = (self.pattern.wrapping_add(at as u64)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            // SAFETY: `place` has at least `bytes` bytes, as allocated.
            let found = unsafe { self.place.add(at).read() };
            assert_eq!(found, (byte >> 56) as u8, "byte {at} of {:?}", self.place);
        }
    }
}

/// Mostly small, some around a page, few large; zero as well.
fn size(random: &mut fastrand::Rng) -> usize {
    match random.u32(0..2000) {
        0..40 => 0,
        40..1300 => random.usize(1..=256),
        1300..1800 => random.usize(1..=4200),
        1800..1980 => random.usize(1..=40_000),
        1980..1999 => random.usize(1..=400_000),
        _ => random.usize(16 << 20..=17 << 20),
    }
}

fn subpage_of(address: usize, subpages: SubpageCount) -> usize {
    address % 4096 * subpages.count() as usize / 4096
}

#[test]
fn objects_keep_their_contents_whatever_happens_around_them() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    for subpages in SubpageCount::ALL {
        let mut random = fastrand::Rng::with_seed(seed ^ u64::from(subpages.count()));
        let heap = Heap::new(subpages).unwrap();
        let mut objects: Vec<Object> = Vec::new();
        for step in 0..6000 {
            let full = objects.len() > 1500;
            match random.u32(0..10) {
                0..6 if !full => {
                    let bytes = size(&mut random);
                    let align = 1
                        << match random.u32(0..10) {
                            0 => random.u32(5..15),
                            _ => random.u32(0..5),
                        };
                    let layout = Layout::from_size_align(bytes, align).unwrap();
                    let place = heap.allocate(layout).unwrap();
                    assert_eq!(place.as_ptr() as usize % align.max(16), 0);
                    assert!(heap.usable(place) >= bytes.max(1));
                    let mut object = Object {
                        place,
                        bytes: heap.usable(place),
                        pattern: random.u64(..),
                    };
                    object.fill(0);
                    objects.push(object);
                }
                6 if !full => {
                    let bytes = size(&mut random);
                    let place = heap.allocate_zeroed(bytes).unwrap();
                    // SAFETY: the object has so many bytes.
                    let zeroed = unsafe { std::slice::from_raw_parts(place.as_ptr(), bytes) };
                    assert!(zeroed.iter().all(|&byte| byte == 0));
                    let pattern = random.u64(..);
                    let mut object = Object {
                        place,
                        bytes,
                        pattern,
                    };
                    object.fill(0);
                    objects.push(object);
                }
                7 if !objects.is_empty() => {
                    let index = random.usize(..objects.len());
                    let object = &mut objects[index];
                    let bytes = size(&mut random).max(1);
                    // SAFETY: the old place is not used any more.
                    object.place = unsafe { heap.reallocate(object.place, bytes) }.unwrap();
                    object.check(object.bytes.min(bytes));
                    object.bytes = bytes;
                    object.fill(0);
                }
                _ if !objects.is_empty() => {
                    let index = random.usize(..objects.len());
                    let object = objects.swap_remove(index);
                    object.check(object.bytes);
                    // SAFETY: the test does not use the object any more.
                    unsafe { heap.free(object.place) };
                }
                _ => {}
            }
            if step % 1000 == 0 {
                objects.iter().for_each(|object| object.check(object.bytes));
            }
        }
        for object in objects {
            object.check(object.bytes);
            // SAFETY: the test does not use the object any more.
            unsafe { heap.free(object.place) };
        }
    }
}

#[test]
fn small_objects_fill_pages_in_the_aliases_of_their_subpages() {
    for subpages in SubpageCount::ALL {
        let heap = Heap::new(subpages).unwrap();
        let layout = Layout::from_size_align(64, 16).unwrap();
        let objects: Vec<usize> = (0..10_000)
            .map(|_| heap.allocate(layout).unwrap().as_ptr() as usize)
            .collect();
        // In one superblock: the aliases begin 16 MiB apart.
        let base = objects.iter().min().unwrap() & !((2 << 20) - 1);
        let mut offsets: Vec<usize> = Vec::new();
        for &object in &objects {
            let (alias, offset) = ((object - base) >> 24, (object - base) & ((1 << 24) - 1));
            assert_eq!(alias, subpage_of(object, subpages), "{subpages} sub-pages");
            offsets.push(offset);
        }
        // Dense in physical memory, whatever the number of aliases.
        offsets.sort_unstable();
        offsets.dedup();
        assert_eq!(offsets.len(), objects.len());
        assert!(offsets.last().unwrap() - offsets[0] < 10_000 * 64 + 65536);
        assert_eq!(heap.stats().mappings, subpages.count() as usize);
    }
}

#[test]
fn all_aliases_show_the_same_bytes() {
    for subpages in SubpageCount::ALL {
        let heap = Heap::new(subpages).unwrap();
        // Objects that cross sub-pages, and pages.
        for bytes in [48, 240, 1000, 3000] {
            let layout = Layout::from_size_align(bytes, 16).unwrap();
            let objects: Vec<_> = (0..200).map(|_| heap.allocate(layout).unwrap()).collect();
            for (number, object) in objects.iter().enumerate() {
                // SAFETY: it has so many bytes.
                unsafe { object.write_bytes(number as u8, bytes) };
            }
            let base = objects.iter().min().unwrap().as_ptr() as usize & !((2 << 20) - 1);
            for (number, object) in objects.iter().enumerate() {
                let offset = (object.as_ptr() as usize - base) & ((1 << 24) - 1);
                for subpage in 0..subpages.count() as usize {
                    let alias = (base + (subpage << 24) + offset) as *const u8;
                    // SAFETY: all aliases are mapped, and no thread writes.
                    let seen = unsafe { std::slice::from_raw_parts(alias, bytes) };
                    assert!(seen.iter().all(|&byte| byte == number as u8));
                }
            }
        }
    }
}

/// Bytes of memory that is mapped at the addresses from `start` on, each once however often it is
/// mapped (`proc_pid_smaps(5)`).
fn resident(start: usize, bytes: usize) -> usize {
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mut here = false;
    let mut kib = 0;
    for line in smaps.lines() {
        if let Some((from, _)) = line.split_once('-')
            && let Ok(from) = usize::from_str_radix(from, 16)
        {
            here = (start..start + bytes).contains(&from);
        } else if let Some(pss) = line.strip_prefix("Pss:").filter(|_| here) {
            kib += pss.trim().trim_end_matches(" kB").parse::<usize>().unwrap();
        }
    }
    kib << 10
}

/// Bytes of the pages that are there at these addresses (`proc_pid_pagemap(5)`).
fn present(addresses: Range<usize>) -> usize {
    let pagemap = File::open("/proc/self/pagemap").unwrap();
    let mut entries = vec![0; addresses.len() / 4096 * 8];
    let at = addresses.start as u64 / 4096 * 8;
    pagemap.read_exact_at(&mut entries, at).unwrap();
    let present = entries.chunks_exact(8).filter(|entry| entry[7] & 0x80 != 0);
    present.count() * 4096
}

#[test]
fn mappings_grow_with_the_logarithm_and_memory_comes_back() {
    let heap = Heap::new(SubpageCount::new(64).unwrap()).unwrap();
    let layout = Layout::from_size_align(3840, 16).unwrap();
    let objects: Vec<_> = (0..40_000)
        .map(|_| heap.allocate(layout).unwrap())
        .collect();
    let stats = heap.stats();
    assert_eq!(stats.superblock_bytes, 256 << 20);
    assert_eq!(stats.mappings, 5 * 64);
    for object in &objects {
        // SAFETY: it has so many bytes.
        unsafe { object.write_bytes(7, 3840) };
    }
    // The first superblock, of 16 MiB, and full.
    let base = objects[0].as_ptr() as usize & !((2 << 20) - 1);
    assert_eq!(resident(base, 64 * (16 << 20)), 16 << 20);
    for object in objects {
        // SAFETY: the test does not use the object any more.
        unsafe { heap.free(object) };
    }
    let kept = resident(base, 64 * (16 << 20));
    assert!(kept < 6 << 20, "{kept} bytes are still there");
}

#[test]
fn objects_of_a_page_and_a_bit_share_pages() {
    const MANY: usize = 2000;
    for subpages in SubpageCount::ALL {
        for bytes in [4200, 4368, 8464, 16_656, 28_000] {
            let heap = Heap::new(subpages).unwrap();
            let layout = Layout::from_size_align(bytes, 16).unwrap();
            let objects: Vec<_> = (0..MANY).map(|_| heap.allocate(layout).unwrap()).collect();
            for object in &objects {
                // SAFETY: it has so many bytes.
                unsafe { object.write_bytes(7, bytes) };
            }
            // Mapped once, whatever the number of sub-pages: superblocks of 16, 16 and 32 MiB at
            // most.
            assert!(heap.stats().mappings <= 3, "{:?}", heap.stats());
            let addresses = objects.iter().map(|object| object.as_ptr() as usize);
            let base = addresses.clone().min().unwrap() & !((2 << 20) - 1);
            let first = base..base + (16 << 20);
            let count = addresses.filter(|address| first.contains(address)).count();
            let taken = present(first.clone());
            assert!(
                taken < count * bytes * 6 / 5,
                "{count} objects of {bytes} bytes take {taken}"
            );
            for object in objects {
                // SAFETY: the test does not use the object any more.
                unsafe { heap.free(object) };
            }
            let kept = present(first);
            assert!(kept < 4 << 20, "{kept} bytes are still there");
        }
    }
}

#[test]
fn what_cannot_be_had_is_none_and_loses_nothing() {
    let heap = Heap::new(SubpageCount::DEFAULT).unwrap();
    let layout = Layout::from_size_align(64, 16).unwrap();
    let object = heap.allocate(layout).unwrap();
    // SAFETY: it has so many bytes.
    unsafe { object.write_bytes(7, 64) };
    for bytes in [isize::MAX as usize - 65536, 1 << 62, 1 << 50] {
        let layout = Layout::from_size_align(bytes, 16).unwrap();
        assert_eq!(heap.allocate(layout), None);
        assert_eq!(heap.allocate_zeroed(bytes), None);
        // SAFETY: it stays where it is.
        assert_eq!(unsafe { heap.reallocate(object, bytes) }, None);
    }
    assert_eq!(heap.allocate_zeroed(usize::MAX), None);
    // SAFETY: the object still has the bytes that were written to it.
    unsafe {
        assert_eq!(*object.cast::<[u8; 64]>().as_ptr(), [7; 64]);
        heap.free(object);
    }
}
