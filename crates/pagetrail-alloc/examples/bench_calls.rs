//! What calls cost that reach the slabs: objects allocated in batches that no cache holds, and
//! freed in order, in reverse or shuffled. Prints nanoseconds for an allocation and a free
//! together, a line per pattern, the least of some repetitions.
//!
//! `cargo run --release -p pagetrail-alloc --example bench_calls [REPETITIONS]`. For a comparison
//! run the binaries of both versions in turn.
#![allow(unsafe_code, reason = "`free` is unsafe to call")]
#![allow(clippy::print_stdout, reason = "the result")]

use std::hint::black_box;
use std::time::Instant;

use pagetrail_alloc::global;

const OBJECTS: usize = 20_000;

/// Allocates all objects, then frees them in the order of `order`; returns nanoseconds per object.
fn batch(sizes: &[usize], order: &[usize], objects: &mut Vec<*mut u8>) -> f64 {
    let began = Instant::now();
    objects.clear();
    objects.extend(sizes.iter().map(|&size| global::allocate(size)));
    for &index in order {
        let object = black_box(objects[index]);
        assert!(!object.is_null(), "no memory");
        // SAFETY: each object was allocated above and is freed once.
        unsafe {
            global::free(object);
        }
    }
    began.elapsed().as_nanos() as f64 / sizes.len() as f64
}

fn main() {
    let repetitions = std::env::args().nth(1).map_or(200, |arg| {
        arg.parse().expect("repetitions are a whole number")
    });
    let mut random = fastrand::Rng::with_seed(1);
    let ascending: Vec<_> = (0..OBJECTS).collect();
    let descending: Vec<_> = (0..OBJECTS).rev().collect();
    let mut shuffled = ascending.clone();
    random.shuffle(&mut shuffled);
    let of_one: Vec<_> = vec![64; OBJECTS];
    let mixed: Vec<_> = (0..OBJECTS).map(|_| random.usize(16..1024)).collect();
    let mut objects = Vec::with_capacity(OBJECTS);
    for (name, sizes, order) in [
        ("64 bytes, in order", &of_one, &ascending),
        ("64 bytes, reverse", &of_one, &descending),
        ("64 bytes, shuffled", &of_one, &shuffled),
        ("mixed, in order", &mixed, &ascending),
        ("mixed, shuffled", &mixed, &shuffled),
    ] {
        let times = (0..repetitions).map(|_| batch(sizes, order, &mut objects));
        println!("{name:20} {:.2}", times.fold(f64::MAX, f64::min));
    }
    let times = (0..repetitions).map(|_| {
        let began = Instant::now();
        for index in 0..OBJECTS {
            let object = global::allocate(16 + index % 64 * 16);
            // SAFETY: the object was allocated a line above and is freed once.
            unsafe {
                global::free(black_box(object));
            }
        }
        began.elapsed().as_nanos() as f64 / OBJECTS as f64
    });
    println!("{:20} {:.2}", "pairs", times.fold(f64::MAX, f64::min));
}
