//! Threads that allocate, hand over and free at random, in the heap of the process; each object
//! carries a stamp of its own.

#![allow(clippy::print_stdout, reason = "tests print their seed")]

use pagetrail_alloc::global;
use std::sync::mpsc;
use std::thread;

/// An object with a stamp at both ends, on its way to another thread.
struct Object {
    place: *mut u8,
    bytes: usize,
    stamp: u64,
}

// SAFETY: only the thread that receives the object uses it.
unsafe impl Send for Object {}

impl Object {
    fn new(random: &mut fastrand::Rng) -> Self {
        let bytes = match random.u32(0..50) {
            0 => random.usize(8..200_000),
            1..10 => random.usize(8..8192),
            _ => random.usize(8..300),
        };
        let place = match random.u32(0..4) {
            0 => global::allocate_zeroed(bytes),
            1 => global::allocate_aligned(bytes, 1 << random.u32(0..13)),
            _ => global::allocate(bytes),
        };
        let mut object = Self {
            place,
            bytes,
            stamp: 0,
        };
        object.stamp(random.u64(..));
        object
    }

    fn stamp(&mut self, stamp: u64) {
        self.stamp = stamp;
        // SAFETY: at least eight bytes.
        unsafe {
            self.place.cast::<u64>().write_unaligned(stamp);
            self.place
                .add(self.bytes - 8)
                .cast::<u64>()
                .write_unaligned(stamp);
        }
    }

    fn check(&self) {
        // SAFETY: `place` has at least `bytes` bytes, as allocated.
        unsafe {
            let ends = [self.place, self.place.add(self.bytes - 8)];
            let seen = ends.map(|end| end.cast::<u64>().read_unaligned());
            // Where the ends overlap, the last one written shows.
            assert_eq!(seen[1], self.stamp, "{:?}", self.place);
            assert!(seen[0] == self.stamp || self.bytes < 16, "{:?}", self.place);
        }
    }

    fn grow(&mut self, random: &mut fastrand::Rng) {
        let bytes = random.usize(8..20_000);
        // SAFETY: the old place is not used any more.
        self.place = unsafe { global::reallocate(self.place, bytes) };
        assert!(!self.place.is_null());
        self.bytes = bytes;
        self.stamp(random.u64(..));
    }

    fn free(self) {
        self.check();
        // SAFETY: the test does not use the object any more.
        unsafe { global::free(self.place) };
    }
}

#[test]
fn threads_hand_objects_to_each_other() {
    const THREADS: usize = 4;
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    // Threads come and go: their caches are used by later ones.
    for generation in 0..6 {
        let (senders, receivers): (Vec<_>, Vec<_>) =
            (0..THREADS).map(|_| mpsc::channel::<Object>()).unzip();
        thread::scope(|scope| {
            for (number, receiver) in receivers.into_iter().enumerate() {
                let senders = senders.clone();
                let seed = seed ^ (generation * THREADS + number) as u64;
                scope.spawn(move || {
                    let mut random = fastrand::Rng::with_seed(seed);
                    let mut mine: Vec<Object> = Vec::new();
                    for _ in 0..20_000 {
                        match random.u32(0..10) {
                            0..4 => mine.push(Object::new(&mut random)),
                            4 if !mine.is_empty() => {
                                let at = random.usize(..mine.len());
                                mine[at].check();
                                mine[at].grow(&mut random);
                            }
                            5..7 if !mine.is_empty() => {
                                let object = mine.swap_remove(random.usize(..mine.len()));
                                // It may have ended already: then the object is lost, as any
                                // program may lose one.
                                let _ = senders[random.usize(..THREADS)].send(object);
                            }
                            _ if !mine.is_empty() => {
                                mine.swap_remove(random.usize(..mine.len())).free();
                            }
                            _ => {}
                        }
                        receiver.try_iter().for_each(Object::free);
                    }
                    mine.into_iter().for_each(Object::free);
                });
            }
            drop(senders);
        });
    }
}
