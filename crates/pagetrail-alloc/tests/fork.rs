//! A forked child has a heap of its own, with what was in it at the fork; neither process sees what
//! the other does.

use pagetrail_alloc::{Heap, SubpageCount, global};
use std::alloc::Layout;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// What a child found.
fn in_child(check: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child calls nothing but its own code and the heap, then ends.
    unsafe {
        let child = libc::fork();
        assert!(child >= 0);
        if child == 0 {
            libc::_exit(i32::from(!check()));
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
        libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
    }
}

fn fill(objects: &[NonNull<u8>], bytes: usize, with: u8) {
    for object in objects {
        // SAFETY: objects of this size.
        unsafe { object.write_bytes(with, bytes) };
    }
}

fn all_are(objects: &[NonNull<u8>], bytes: usize, with: u8) -> bool {
    objects.iter().all(|object| {
        // SAFETY: objects of this size.
        let seen = unsafe { std::slice::from_raw_parts(object.as_ptr(), bytes) };
        seen.iter().all(|&byte| byte == with)
    })
}

#[test]
fn child_and_parent_go_apart() {
    for subpages in SubpageCount::ALL {
        let heap = Heap::new(subpages).unwrap();
        for bytes in [16, 300, 3000, 5000, 100_000] {
            let layout = Layout::from_size_align(bytes, 16).unwrap();
            let new = || heap.allocate(layout).unwrap();
            let objects: Vec<_> = (0..100).map(|_| new()).collect();
            fill(&objects, bytes, 1);
            assert!(in_child(|| {
                let was = all_are(&objects, bytes, 1);
                fill(&objects, bytes, 2);
                let more: [_; 40] = std::array::from_fn(|_| new());
                fill(&more, bytes, 3);
                // Its own child goes apart from it as well.
                let grandchild = in_child(|| {
                    let was = all_are(&objects, bytes, 2) && all_are(&more, bytes, 3);
                    fill(&objects, bytes, 4);
                    was
                });
                let is = all_are(&objects, bytes, 2) && all_are(&more, bytes, 3);
                for object in objects.iter().chain(&more) {
                    // SAFETY: this process does not use the object any more.
                    unsafe { heap.free(*object) };
                }
                was && is && grandchild
            }));
            assert!(
                all_are(&objects, bytes, 1),
                "{subpages} sub-pages, {bytes} bytes"
            );
            let more: Vec<_> = (0..100).map(|_| new()).collect();
            fill(&more, bytes, 5);
            assert!(all_are(&objects, bytes, 1));
            for object in objects.into_iter().chain(more) {
                // SAFETY: the test does not use the object any more.
                unsafe { heap.free(object) };
            }
        }
    }
}

#[test]
fn a_fork_while_threads_allocate_leaves_the_child_a_heap_that_works() {
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        for number in 0..3 {
            let stop = &stop;
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(number);
                while !stop.load(Ordering::Relaxed) {
                    let objects: Vec<_> = (0..200)
                        .map(|_| global::allocate(random.usize(1..6000)))
                        .collect();
                    for object in objects {
                        // SAFETY: the test does not use the object any more.
                        unsafe { global::free(object) };
                    }
                }
            });
        }
        for _ in 0..100 {
            assert!(in_child(|| {
                for bytes in 1..400 {
                    let object = global::allocate(bytes * 13);
                    if object.is_null() {
                        return false;
                    }
                    // SAFETY: it has so many bytes, and is not used any more then.
                    unsafe {
                        object.write_bytes(1, bytes * 13);
                        global::free(object);
                    }
                }
                true
            }));
        }
        stop.store(true, Ordering::Relaxed);
    });
}
