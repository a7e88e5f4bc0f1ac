//! The work that is measured, natively and as a guest.
#![allow(unsafe_code, reason = "mappings and bare calls")]

use std::hint::black_box;
use std::ptr;

use serde_json::{Value, json};

use crate::clock::{measured, ticks_per_instruction};

const PAGE: usize = 4096;
/// The bytes that are mapped and touched, from one end to the other.
pub(crate) const TOUCHED_BYTES: usize = 1 << 30;
/// The bytes that are written repeatedly.
const REWRITTEN_BYTES: usize = 16 << 20;
const REWRITES: usize = 20;
/// The system calls in the shorter of two loops; the other has twice as many.
pub(crate) const CALLS: u64 = 10_000;

/// A piece of work and its name.
pub(crate) struct Work {
    pub(crate) name: &'static str,
    /// Whether the work is also measured while it is recorded.
    pub(crate) is_recorded: bool,
    run: fn() -> Value,
}

/// All pieces of work.
pub(crate) const ALL: &[Work] = &[
    Work {
        name: "getpid",
        is_recorded: true,
        run: || {
            calls(&mut || {
                // SAFETY: getpid(2) has no arguments and cannot fail.
                unsafe { libc::syscall(libc::SYS_getpid) };
            })
        },
    },
    Work {
        name: "read of 1 byte",
        is_recorded: true,
        run: reads,
    },
    Work {
        name: "touch 1 GiB",
        is_recorded: false,
        run: || {
            let memory = map(TOUCHED_BYTES);
            json!({ "first": measured(|| write_all(memory, TOUCHED_BYTES)) })
        },
    },
    Work {
        name: "write 16 MiB again, 20 times",
        is_recorded: true,
        run: || {
            let memory = map(REWRITTEN_BYTES);
            let first = measured(|| write_all(memory, REWRITTEN_BYTES));
            let again = measured(|| {
                for _ in 0..REWRITES {
                    write_all(memory, REWRITTEN_BYTES);
                }
            });
            json!({ "first": first, "again": again })
        },
    },
    Work {
        name: "k-means",
        is_recorded: true,
        run: || twice(Points::new, Points::cluster),
    },
    Work {
        name: "matrix multiply",
        is_recorded: true,
        run: || twice(Matrices::new, Matrices::multiply),
    },
    Work {
        name: "sort",
        is_recorded: true,
        run: || twice(Numbers::new, Numbers::sort),
    },
];

impl Work {
    pub(crate) fn named(name: &str) -> Option<&'static Self> {
        ALL.iter().find(|work| work.name == name)
    }

    /// Does the work, and returns what it took.
    pub(crate) fn run(&self) -> Value {
        let mut result = (self.run)();
        result["nothing"] = measured(|| ());
        result["ticks_per_instruction"] = ticks_per_instruction().into();
        result
    }
}

/// Runs loops of two lengths, so that their difference has nothing that happens only once.
fn calls(call: &mut dyn FnMut()) -> Value {
    let mut repeat = |times: u64| measured(|| (0..times).for_each(|_| call()));
    // A warm-up for the processor and KVM.
    repeat(CALLS / 10);
    json!({ "first": repeat(CALLS), "again": repeat(2 * CALLS) })
}

fn reads() -> Value {
    // SAFETY: the path is a C string with a terminating zero byte.
    let zero = unsafe { libc::open(c"/dev/zero".as_ptr(), libc::O_RDONLY) };
    calls(&mut || {
        let mut byte = 0u8;
        // SAFETY: `byte` has room for the one byte that is read.
        let read = unsafe { libc::read(zero, (&raw mut byte).cast(), 1) };
        assert_eq!(read, 1, "/dev/zero has bytes");
    })
}

fn map(bytes: usize) -> *mut u8 {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: without MAP_FIXED the kernel places the mapping where nothing else is.
    let at = unsafe { libc::mmap(ptr::null_mut(), bytes, protection, flags, -1, 0) };
    assert_ne!(at, libc::MAP_FAILED, "there is room");
    at.cast()
}

fn write_all(memory: *mut u8, bytes: usize) {
    for offset in (0..bytes).step_by(PAGE) {
        // SAFETY: `offset` is below `bytes`, which the caller has mapped writable at `memory`.
        unsafe { ptr::write_volatile(memory.add(offset), 1) };
    }
}

/// Measures the work with memory that is touched for the first time, and again with the same
/// memory.
fn twice<T>(new: fn() -> T, work: fn(&mut T) -> u64) -> Value {
    let mut kept = None;
    let mut sum = 0;
    let first = measured(|| {
        let mut state = new();
        sum = work(&mut state);
        kept = Some(state);
    });
    let again = measured(|| {
        if let Some(state) = &mut kept {
            work(state);
        }
    });
    json!({ "first": first, "again": again, "checksum": sum })
}

/// Numbers that look random.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn fraction(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

const DIMENSIONS: usize = 8;
const CLUSTERS: usize = 16;
type Point = [f64; DIMENSIONS];

struct Points(Vec<Point>);

impl Points {
    fn new() -> Self {
        let mut random = Random(7);
        Self(
            (0..40_000)
                .map(|_| std::array::from_fn(|_| random.fraction()))
                .collect(),
        )
    }

    /// Lloyd's algorithm, ten times; the size of the first cluster.
    fn cluster(&mut self) -> u64 {
        let mut centres: Vec<Point> = self.0[..CLUSTERS].to_vec();
        let mut counts = [0u64; CLUSTERS];
        for _ in 0..10 {
            let mut sums = [[0.0; DIMENSIONS]; CLUSTERS];
            counts = [0; CLUSTERS];
            for point in &self.0 {
                let distance = |centre: &Point| -> f64 {
                    let pairs = centre.iter().zip(point);
                    pairs.map(|(a, b)| (a - b) * (a - b)).sum()
                };
                let (mut nearest, mut least) = (0, f64::MAX);
                for (index, centre) in centres.iter().enumerate() {
                    let far = distance(centre);
                    if far < least {
                        (nearest, least) = (index, far);
                    }
                }
                counts[nearest] += 1;
                for (sum, value) in sums[nearest].iter_mut().zip(point) {
                    *sum += value;
                }
            }
            for ((centre, sum), count) in centres.iter_mut().zip(sums).zip(counts) {
                *centre = sum.map(|sum| sum / count.max(1) as f64);
            }
        }
        counts[0]
    }
}

const SIDE: usize = 320;

struct Matrices {
    a: Vec<f64>,
    b: Vec<f64>,
    product: Vec<f64>,
}

impl Matrices {
    fn new() -> Self {
        let mut random = Random(11);
        let mut filled = || (0..SIDE * SIDE).map(|_| random.fraction()).collect();
        Self {
            a: filled(),
            b: filled(),
            product: vec![0.0; SIDE * SIDE],
        }
    }

    fn multiply(&mut self) -> u64 {
        self.product.fill(0.0);
        for (row, out) in self.a.chunks(SIDE).zip(self.product.chunks_mut(SIDE)) {
            for (factor, values) in row.iter().zip(self.b.chunks(SIDE)) {
                for (sum, value) in out.iter_mut().zip(values) {
                    *sum += factor * value;
                }
            }
        }
        black_box(&self.product)[SIDE] as u64
    }
}

struct Numbers(Random);

impl Numbers {
    fn new() -> Self {
        Self(Random(13))
    }

    fn sort(&mut self) -> u64 {
        let mut numbers: Vec<u64> = (0..2_000_000).map(|_| self.0.next()).collect();
        numbers.sort_unstable();
        black_box(&numbers)[0]
    }
}
