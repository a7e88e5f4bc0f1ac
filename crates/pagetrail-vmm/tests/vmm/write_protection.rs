//! Memory that the monitor's userfaultfd write-protects, with faults that the kernel resolves and
//! with faults that the monitor does.

use crate::sys::memory::{Memory, regions};
use pagemap_scan::{FAULTS_AT_ONCE, Fault, Faults, Features, Mode, Userfaultfd};
use pagetrail_vmm::userfault::{Protection, WriteFaults};
use pagetrail_vmm::{Consumer, Start, Tracker};
use rustix::io::Errno;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};

const MIB: u64 = 1 << 20;
/// `UFFD_FEATURE_WP_UNPOPULATED`.
const WP_UNPOPULATED: u64 = 1 << 13;

fn memories(shared: bool) -> Vec<Memory> {
    vec![
        Memory::new(0, 0, MIB, shared),
        Memory::new(1, 4 * MIB, MIB, shared),
    ]
}

fn registered(memories: &[Memory], features: u64) -> Option<Userfaultfd> {
    let features = Features::WP_HUGETLBFS_SHMEM.bits() | WP_UNPOPULATED | features;
    let made = Userfaultfd::create(Faults::UserAndKernel)
        .and_then(|fd| Userfaultfd::handshake(fd, Features::from_bits(features)));
    let uffd = made.map_err(|error| pagetrail_skips::not_here(format!("no userfaultfd: {error}")));
    let uffd = uffd.ok()?;
    for memory in memories {
        let start = memory.host_address();
        uffd.register(start..start + memory.bytes, Mode::WriteProtect)
            .unwrap();
    }
    Some(uffd)
}

/// Ends a thread, also when a test fails.
struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Writes to random pages; what was written is in the next round, and after that is not.
fn check(memories: &[Memory], consumer: &Consumer, seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let page = pagetrail::page_size();
    for _ in 0..30 {
        let mut written: Vec<(u32, u64)> = Vec::new();
        for _ in 0..random.u32(0..40) {
            let memory = &memories[random.usize(0..2)];
            let at = random.u64(0..memory.bytes / page);
            memory.write(at * page + random.u64(0..page), &[random.u8(..)]);
            written.push((memory.slot, at));
        }
        written.sort_unstable();
        written.dedup();
        let round = consumer.collect().unwrap();
        let found: Vec<(u32, u64)> = [0, 1]
            .into_iter()
            .flat_map(|slot| {
                let bitmap = round.dirty().of_slot(slot).unwrap();
                bitmap.ranges().flatten().map(move |page| (slot, page))
            })
            .collect();
        assert_eq!(found, written);
        round.commit();
    }
}

#[test]
fn asynchronous_protection_finds_what_was_written() {
    for shared in [false, true] {
        let memories = memories(shared);
        let Some(_uffd) = registered(&memories, Features::WP_ASYNC.bits()) else {
            return;
        };
        let log = Box::new(Protection::new().unwrap());
        let tracker = Tracker::new(regions(&memories), vec![log]).unwrap();
        memories[0].write(5, &[1]);
        check(&memories, &tracker.consumer(Start::Now).unwrap(), 11);
    }
}

#[test]
fn faults_that_the_monitor_resolves_are_what_was_written() {
    for shared in [false, true] {
        let memories = memories(shared);
        let Some(uffd) = registered(&memories, Features::PAGEFAULT_FLAG_WP.bits()) else {
            return;
        };
        let faults = WriteFaults::new(uffd.as_fd()).unwrap();
        let tracker = Tracker::new(regions(&memories), vec![faults.log()]).unwrap();
        memories[0].write(5, &[1]);
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut waiting = [Fault::default(); FAULTS_AT_ONCE];
                while !done.load(Ordering::Acquire) {
                    match uffd.read_faults(&mut waiting) {
                        Ok(count) => waiting[..count].iter().for_each(|fault| {
                            assert!(fault.write_protect && faults.resolve(fault.address).unwrap());
                        }),
                        Err(Errno::AGAIN) => std::thread::yield_now(),
                        Err(error) => panic!("{error}"),
                    }
                }
            });
            let _ends = SetOnDrop(&done);
            check(&memories, &tracker.consumer(Start::Now).unwrap(), 12);
        });
        assert!(!faults.resolve(1 << 45).unwrap());
    }
}

/// firecracker#5274: pages that were swapped out were missing from snapshots by `mincore(2)`.
#[test]
fn pages_that_are_paged_out_are_found() {
    let memories = memories(true);
    let Some(_uffd) = registered(&memories, Features::WP_ASYNC.bits()) else {
        return;
    };
    let log = Box::new(Protection::new().unwrap());
    let tracker = Tracker::new(regions(&memories), vec![log]).unwrap();
    let consumer = tracker.consumer(Start::Now).unwrap();
    memories[0].write(0x3000, &[1; 0x4000]);
    memories[0].advise(0, MIB, rustix::mm::Advice::LinuxPageOut);
    let round = consumer.collect().unwrap();
    let found: Vec<u64> = round
        .dirty()
        .of_slot(0)
        .unwrap()
        .ranges()
        .flatten()
        .collect();
    assert_eq!(found, [3, 4, 5, 6]);
}

#[test]
fn memory_that_is_not_registered_is_named() {
    let memories = memories(false);
    let log = Box::new(Protection::new().unwrap());
    let tracker = Tracker::new(regions(&memories), vec![log]).unwrap();
    let consumer = tracker.consumer(Start::Everything).unwrap();
    let error = consumer.collect().unwrap_err().to_string();
    let expected = ["memory slot", "page map"];
    assert!(expected.iter().any(|word| error.contains(word)), "{error}");
}
