//! What a guest writes is in the rounds, by each of KVM's logs: a replica that is kept by rounds
//! alone is equal to the memory, byte for byte.

use crate::sys::guest::{Guest, How};
use crate::sys::memory::Memory;
use pagetrail_vmm::kvm::{Logging, SlotAccess, pre_fault, set_logging};
use pagetrail_vmm::{DirtyLog, OwnWrites, Region, Regions, Round, Start, Tracker};
use std::collections::BTreeMap;

const MIB: u64 = 1 << 20;
const HOW: [How; 3] = [How::Log, How::ManualLog, How::Ring(1 << 20)];
/// The guest's code is in the first page, which KVM may report when it is mapped: it maps a page
/// for writing that is only read, and calls it dirty.
const CODE_BYTES: u64 = 4096;
/// A ring of 256 entries, which the tests fill.
const SHORT_RING: How = How::Ring(4 << 10);

/// Two regions with a hole between them, and numbers in another order than addresses.
fn memories() -> Vec<Memory> {
    let odd = 67 * pagetrail::page_size();
    vec![
        Memory::new(3, 0, 2 * MIB, true),
        Memory::new(1, 16 * MIB, MIB + odd, false),
    ]
}

fn guest(how: How) -> Option<Guest> {
    let guest = Guest::new(how, memories());
    guest
        .map_err(|why| pagetrail_skips::not_here(format!("{how:?}: {why}")))
        .ok()
}

fn tracked(guest: &Guest, start: Start) -> (Tracker, pagetrail_vmm::Consumer, OwnWrites) {
    let own = OwnWrites::new();
    let logs: Vec<Box<dyn DirtyLog>> = vec![guest.log(), Box::new(own.clone())];
    let tracker = Tracker::new(guest.regions(), logs).unwrap();
    let consumer = tracker.consumer(start).unwrap();
    (tracker, consumer, own)
}

/// Memory as it is known from rounds.
struct Replica(BTreeMap<u32, Vec<u8>>);

impl Replica {
    fn new(regions: &Regions) -> Self {
        let zeros = |region: &Region| (region.slot(), vec![0; region.bytes() as usize]);
        Self(regions.iter().map(zeros).collect())
    }

    fn apply(&mut self, round: &Round) {
        for range in round.ranges() {
            let region = round.regions().of_slot(range.slot).unwrap();
            let from = range.region_offset as usize;
            let bytes = self.0.get_mut(&range.slot).unwrap();
            let bytes = &mut bytes[from..from + range.bytes as usize];
            region.copy(range.region_offset, bytes);
        }
    }

    fn assert_equal(&self, memories: &[Memory], about: &str) {
        for memory in memories {
            let (replica, contents) = (&self.0[&memory.slot], memory.contents());
            let differs = (0..contents.len()).find(|at| replica[*at] != contents[*at]);
            assert_eq!(differs, None, "slot {}, {about}", memory.slot);
        }
    }
}

/// Writes at random, by guest and monitor.
fn write(guest: &mut Guest, own: &OwnWrites, tracker: &Tracker, random: &mut fastrand::Rng) {
    let page = pagetrail::page_size();
    for _ in 0..random.u32(0..20) {
        let memory = random.usize(0..2);
        let (start, bytes) = (
            guest.memories[memory].guest_address,
            guest.memories[memory].bytes,
        );
        // The first page has the code.
        let offset = random.u64(page..bytes - 8) & !3;
        let stride = random.u32(1..3) * page as u32;
        let most = (bytes - offset - 4) / u64::from(stride) + 1;
        let count = random.u64(1..=most.min(100)) as u32;
        let value = random.u32(..);
        match random.bool() {
            true => guest.write(start + offset, count, stride, value, || {
                tracker.drain().unwrap()
            }),
            false => {
                guest.memories[memory].write(offset, &value.to_ne_bytes());
                own.mark(start + offset, 4);
            }
        }
    }
}

#[test]
fn a_replica_from_rounds_equals_memory() {
    for how in HOW.into_iter().chain([SHORT_RING]) {
        let Some(mut guest) = guest(how) else {
            continue;
        };
        let seed = u64::from(std::process::id());
        let mut random = fastrand::Rng::with_seed(seed);
        let (tracker, consumer, own) = tracked(&guest, Start::Everything);
        let mut replica = Replica::new(&guest.regions());
        for _ in 0..crate::times(40) {
            write(&mut guest, &own, &tracker, &mut random);
            let round = consumer.collect().unwrap();
            // Some snapshots fail, when all of it or a part was written.
            match random.u32(0..4) {
                0 => drop(round),
                1 => {
                    replica.apply(&round);
                    round.abort();
                }
                _ => {
                    replica.apply(&round);
                    round.commit();
                }
            }
        }
        let round = consumer.collect().unwrap();
        replica.apply(&round);
        round.commit();
        replica.assert_equal(&guest.memories, &format!("{how:?}, seed {seed}"));
        // And nothing is dirty where nothing was written.
        let none = consumer.collect().unwrap().ranges().next().is_none();
        assert!(none || guest.rings.was_overrun(), "{how:?}");
    }
}

#[test]
fn rounds_have_the_pages_that_were_written_and_no_others() {
    let page = pagetrail::page_size();
    for how in HOW {
        let Some(mut guest) = guest(how) else {
            continue;
        };
        let (tracker, consumer, _) = tracked(&guest, Start::Now);
        let drain = || tracker.drain().unwrap();
        guest.write(5 * page, 2, page as u32, 1, drain);
        guest.write(16 * MIB + 3 * page, 1, page as u32, 1, drain);
        let round = consumer.collect().unwrap();
        let found: Vec<_> = round
            .ranges()
            .filter(|range| range.guest_address >= CODE_BYTES)
            .map(|range| {
                (
                    range.slot,
                    range.guest_address,
                    range.bytes,
                    range.file_offset,
                )
            })
            .collect();
        let expected = [
            // The memfd's first page is not the guest's.
            (3, 5 * page, 2 * page, Some(6 * page)),
            (1, 16 * MIB + 3 * page, page, None),
        ];
        assert_eq!(found, expected, "{how:?}");
        round.commit();
        // The same pages again: they were write-protected again.
        guest.write(5 * page, 2, page as u32, 2, drain);
        let round = consumer.collect().unwrap();
        let dirty = round.dirty().of_slot(3).unwrap();
        assert!(dirty.ranges().any(|run| run == (5..7)), "{how:?}");
        assert!(round.dirty().count() <= 3, "{how:?}");
        assert_eq!(round.index(), 1);
    }
}

/// A ring holds fewer pages than the guest writes.
#[test]
fn a_full_ring_loses_nothing() {
    let page = pagetrail::page_size();
    let Some(mut guest) = guest(SHORT_RING) else {
        return;
    };
    let (tracker, consumer, _) = tracked(&guest, Start::Now);
    guest.write(page, 511, page as u32, 7, || tracker.drain().unwrap());
    assert!(guest.full > 0, "the ring was never full");
    let round = consumer.collect().unwrap();
    let mut found: Vec<u64> = round
        .dirty()
        .of_slot(3)
        .unwrap()
        .ranges()
        .flatten()
        .collect();
    if guest.rings.was_overrun() {
        pagetrail_skips::not_here("KVM fills a dirty ring beyond its end before the vCPU exits");
        assert!(found.into_iter().eq(0..512));
    } else {
        found.retain(|page| *page != 0);
        assert!(found.into_iter().eq(1..512));
    }
}

/// Rounds are collected while the guest runs, and read at once: what is written after a page was
/// read is in the next round (rust-vmm/kvm#344: rings that are reset after the contents were read).
#[test]
fn a_replica_kept_while_the_guest_runs_is_equal_in_the_end() {
    for how in HOW {
        let Some(mut guest) = guest(how) else {
            continue;
        };
        let page = pagetrail::page_size() as u32;
        let (tracker, consumer, _) = tracked(&guest, Start::Everything);
        let mut replica = Replica::new(&guest.regions());
        let draining = &tracker;
        std::thread::scope(|scope| {
            let guest = &mut guest;
            let vcpu_thread = scope.spawn(move || {
                for value in 0..crate::times(60) {
                    let full = || draining.drain().unwrap();
                    guest.write(u64::from(page) * 8 + 64, 60, page, value, full);
                }
            });
            while !vcpu_thread.is_finished() {
                let round = consumer.collect().unwrap();
                replica.apply(&round);
                round.commit();
            }
        });
        let round = consumer.collect().unwrap();
        replica.apply(&round);
        round.commit();
        replica.assert_equal(&guest.memories, &format!("{how:?}"));
    }
}

#[test]
fn a_memslot_that_does_not_log_is_named() {
    let page = pagetrail::page_size();
    let Some(mut guest) = guest(How::Nothing) else {
        return;
    };
    let (_, consumer, _) = tracked(&guest, Start::Everything);
    let error = consumer.collect().unwrap_err().to_string();
    assert!(error.contains("KVM_MEM_LOG_DIRTY_PAGES"), "{error}");
    for region in &guest.regions() {
        set_logging(guest.vm(), region, SlotAccess::ReadWrite, Logging::On).unwrap();
    }
    consumer.collect().unwrap().commit();
    guest.write(9 * page, 1, 4, 1, || {});
    let round = consumer.collect().unwrap();
    assert!(round.dirty().of_slot(3).unwrap().contains(9));
    assert!(round.dirty().count() <= 2);
}

/// A number that KVM keeps of a virtual machine, in debugfs: in a directory that has the number of
/// the thread that made it, which is this one.
fn statistic(guest: &Guest, name: &str) -> Option<u64> {
    use std::os::fd::AsRawFd;
    let thread = rustix::thread::gettid().as_raw_nonzero();
    let fd = guest.vm().as_raw_fd();
    let path = format!("/sys/kernel/debug/kvm/{thread}-{fd}/{name}");
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// That all of these tests are about the processor's own log, where that is wanted.
#[test]
#[ignore = "for a processor that has it: cargo xtask ooh pml"]
fn page_modification_logging_is_what_kvm_uses() {
    let path = "/sys/module/kvm_intel/parameters/pml";
    assert_eq!(std::fs::read_to_string(path).unwrap().trim(), "Y");
}

/// What a log costs the guest: without the processor's, KVM write-protects, and the first write to
/// a page in each round is an exit.
#[test]
#[expect(clippy::print_stdout, reason = "the counts are in the book")]
fn a_page_costs_an_exit_in_each_round_unless_the_processor_logs() {
    const PAGES: u64 = 400;
    let pml = std::fs::read_to_string("/sys/module/kvm_intel/parameters/pml");
    let is_logged = pml.is_ok_and(|pml| pml.trim() == "Y");
    for how in HOW {
        let Some(mut guest) = guest(how) else {
            continue;
        };
        if statistic(&guest, "exits").is_none() {
            return pagetrail_skips::not_here("KVM shows no counts in debugfs");
        }
        let page = pagetrail::page_size();
        let (tracker, consumer, _) = tracked(&guest, Start::Now);
        let written = |guest: &mut Guest| {
            let before = statistic(guest, "exits").unwrap();
            let drain = || tracker.drain().unwrap();
            guest.write(page, PAGES as u32, page as u32, 7, drain);
            statistic(guest, "exits").unwrap() - before
        };
        let first = written(&mut guest);
        consumer.collect().unwrap().commit();
        let again = written(&mut guest);
        let found = consumer.collect().unwrap().dirty().count();
        println!(
            "{how:?}: {PAGES} pages took {first} exits, and {again} in the round after, in which \
             {found} are dirty; the processor logs: {is_logged}"
        );
        assert!(found >= PAGES);
        match is_logged {
            true => assert!(again < PAGES / 2, "{again}"),
            false => assert!(again >= PAGES, "{again}"),
        }
    }
}

/// What KVM has mapped ahead of the guest costs it no fault.
#[test]
fn memory_that_is_mapped_ahead_costs_the_guest_no_fault() {
    let faults_of = |ahead: bool| -> Option<u64> {
        let mut guest = guest(How::Nothing)?;
        let offers = pagetrail_vmm::kvm::Offers::of(guest.vm()).unwrap();
        if !offers.pre_fault {
            pagetrail_skips::not_here("KVM_PRE_FAULT_MEMORY: Linux 6.11");
            return None;
        }
        if statistic(&guest, "pf_taken").is_none() {
            pagetrail_skips::not_here("KVM shows no counts in debugfs");
            return None;
        }
        let (start, bytes) = (guest.memories[1].guest_address, guest.memories[1].bytes);
        // It is there, as memory is that was moved or restored. (Of memory that was never written,
        // KVM maps zeros that may not be written.)
        for offset in (0..bytes).step_by(pagetrail::page_size() as usize) {
            guest.memories[1].write(offset, &[1]);
        }
        if ahead {
            pre_fault(guest.vcpu(), start..start + bytes).unwrap();
            let missing = pre_fault(guest.vcpu(), 64 * MIB..65 * MIB).unwrap_err();
            assert!(missing.to_string().contains("0x4000000"), "{missing}");
        }
        let before = statistic(&guest, "pf_taken")?;
        let page = pagetrail::page_size();
        guest.write(start, (bytes / page) as u32, page as u32, 7, || {});
        Some(statistic(&guest, "pf_taken")? - before)
    };
    let (Some(without), Some(with)) = (faults_of(false), faults_of(true)) else {
        return;
    };
    let pages = memories()[1].bytes / pagetrail::page_size();
    // The code may cost one in either.
    assert!(without >= pages, "{without} faults for {pages} pages");
    assert!(with < pages / 10, "{with} faults for {pages} pages");
}
