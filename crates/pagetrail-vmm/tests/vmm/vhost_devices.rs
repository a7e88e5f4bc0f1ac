//! Devices of the kernel that write to a guest's memory and log it: vhost-net, which receives what
//! comes over the loopback interface, and vhost-vsock. The guest's driver is this test; no KVM is
//! needed, but the modules `vhost_net` and `vhost_vsock`, and root.
#![expect(
    clippy::print_stdout,
    reason = "what the kernel does not log is in the book"
)]

use crate::sys::memory::{Memory, regions};
use crate::sys::vhost::{Device, Rings, begin_to_connect, frames_of};
use pagetrail_vmm::{Consumer, DirtyLog, OwnWrites, Start, Tracker, VhostLog};
use std::collections::BTreeSet;
use std::sync::atomic::{Ordering, fence};
use std::thread;
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;
const PAGE: u64 = 4096;
/// `VHOST_F_LOG_ALL`, `VHOST_NET_F_VIRTIO_NET_HDR`, `VIRTIO_F_VERSION_1`.
const LOGS: u64 = 1 << 26;
const HAS_HEADER: u64 = 1 << 27;
const VERSION_1: u64 = 1 << 32;
/// What such a device writes before a frame.
const HEADER_BYTES: u64 = 12;
/// A type of frames for experiments (IEEE 802).
const FRAME_TYPE: u16 = 0x88b5;
const LENGTH: u32 = 64;
/// `VRING_DESC_F_WRITE`: the device writes, and the driver reads.
const DEVICE_WRITES: u16 = 2;
const TIME_MAX: Duration = Duration::from_secs(60);

/// What the guest reads: at any address, where regions are copied by whole words.
fn contents_at(memory: &Memory, address: u64, bytes: usize) -> Vec<u8> {
    let offset = address - memory.guest_address;
    let (start, end) = (
        offset / PAGE * PAGE,
        (offset + bytes as u64).div_ceil(PAGE) * PAGE,
    );
    let mut pages = vec![0; (end - start) as usize];
    memory.region().copy(start, &mut pages);
    let from = (offset - start) as usize;
    pages[from..from + bytes].to_vec()
}

/// The driver's side of a queue: three pages of its rings, one after the other.
struct Queue<'a> {
    memory: &'a Memory,
    own: &'a OwnWrites,
    rings: Rings,
    offered: u8,
}

impl<'a> Queue<'a> {
    fn new(memory: &'a Memory, own: &'a OwnWrites, first_page: u64) -> Self {
        let at = memory.guest_address + first_page * PAGE;
        let rings = Rings {
            descriptors: at,
            available: at + PAGE,
            used: at + 2 * PAGE,
            length: LENGTH,
        };
        Self {
            memory,
            own,
            rings,
            offered: 0,
        }
    }

    /// The guest writes.
    fn write(&self, address: u64, bytes: &[u8]) {
        let offset = address - self.memory.guest_address;
        self.memory.write(offset, bytes);
        self.own.mark(address, bytes.len() as u64);
    }

    /// Offers a buffer that the device may write to.
    ///
    /// Memory is written byte by byte, so that no number here may have more than one that changes.
    fn offer(&mut self, address: u64, bytes: u32) {
        let number = u64::from(self.offered) % u64::from(LENGTH);
        let mut descriptor = address.to_le_bytes().to_vec();
        descriptor.extend(bytes.to_le_bytes());
        descriptor.extend(DEVICE_WRITES.to_le_bytes());
        descriptor.extend([0; 2]);
        self.write(self.rings.descriptors + number * 16, &descriptor);
        let entry = self.rings.available + 4 + number * 2;
        self.write(entry, &(number as u16).to_le_bytes());
        fence(Ordering::Release);
        self.offered = self.offered.checked_add(1).unwrap();
        self.write(self.rings.available + 2, &[self.offered]);
    }

    /// Waits until the device has used all that was offered; false if it does not.
    fn is_used_up(&self) -> bool {
        let began = Instant::now();
        while began.elapsed() < TIME_MAX {
            let used = contents_at(self.memory, self.rings.used + 2, 2);
            if used == u16::from(self.offered).to_le_bytes() {
                return true;
            }
            thread::sleep(Duration::from_millis(1));
        }
        false
    }
}

/// A copy of the memory that is kept by rounds, and the pages of the last one.
struct Replica {
    consumer: Consumer,
    contents: Vec<u8>,
}

impl Replica {
    fn follow(&mut self, memory: &Memory) -> BTreeSet<u64> {
        let round = self.consumer.collect().unwrap();
        for range in round.ranges() {
            let start = range.region_offset as usize;
            let bytes = &mut self.contents[start..start + range.bytes as usize];
            memory.region().copy(range.region_offset, bytes);
        }
        let pages = round.dirty().of_slot(memory.slot).unwrap();
        let pages = pages.ranges().flatten().collect();
        round.commit();
        pages
    }
}

fn tracked(memory: &Memory, logs: Vec<Box<dyn DirtyLog>>) -> Replica {
    let tracker = Tracker::new(regions(std::slice::from_ref(memory)), logs).unwrap();
    Replica {
        consumer: tracker.consumer(Start::Now).unwrap(),
        contents: memory.contents(),
    }
}

/// A frame of the loopback interface, whose addresses are zeros.
fn frame(random: &mut fastrand::Rng) -> Vec<u8> {
    let mut frame = vec![0; 12];
    frame.extend(FRAME_TYPE.to_be_bytes());
    frame.extend((0..random.usize(60..1500)).map(|_| random.u8(1..)));
    frame
}

/// The numbers of the pages with these bytes.
fn pages(memory: &Memory, address: u64, bytes: u64) -> impl Iterator<Item = u64> + use<> {
    let offset = address - memory.guest_address;
    offset / PAGE..(offset + bytes).div_ceil(PAGE)
}

#[test]
fn frames_that_the_kernel_receives_are_in_the_rounds() {
    const PER_ROUND: u64 = 20;
    let memory = Memory::new(0, 4 * MIB, MIB, false);
    let (device, socket, sender) = match (
        Device::open("/dev/vhost-net"),
        frames_of(FRAME_TYPE),
        frames_of(0),
    ) {
        (Ok(device), Ok(socket), Ok(sender)) => (device, socket, sender),
        (device, socket, sender) => {
            let errors = [device.err(), socket.err(), sender.err()];
            return pagetrail_skips::not_here(format!("{:?}", errors.iter().flatten().next()));
        }
    };
    let mut device = device;
    let wanted = LOGS | HAS_HEADER | VERSION_1;
    assert_eq!(device.features() & wanted, wanted);
    let (vhost, own) = (VhostLog::new(5 * MIB).unwrap(), OwnWrites::new());
    let logs: Vec<Box<dyn DirtyLog>> = vec![Box::new(vhost.clone()), Box::new(own.clone())];
    let mut replica = tracked(&memory, logs);
    device.set_memory(&memory);
    device.set_log(&vhost);
    device.set_features(HAS_HEADER | VERSION_1);
    let mut queue = Queue::new(&memory, &own, 1);
    device.add_queue(&memory, queue.rings);
    device.receive_from(0, &socket);
    let mut random = fastrand::Rng::with_seed(22);
    for round in 0..10 {
        // The first without a log, as it is before a migration or a snapshot begins.
        let is_logged = round > 0;
        if round == 1 {
            device.set_features(wanted);
            replica.contents = memory.contents();
        }
        let mut expected = BTreeSet::new();
        let mut frames = Vec::new();
        for at in 0..PER_ROUND {
            // Each has two pages of its own, and begins somewhere in the first.
            let address = memory.guest_address + (16 + at * 2) * PAGE + random.u64(0..PAGE);
            let frame = frame(&mut random);
            let bytes = HEADER_BYTES + frame.len() as u64;
            queue.offer(address, 2048);
            expected.extend(pages(&memory, address, bytes));
            frames.push((address, frame));
        }
        device.kick(0);
        // Whatever the driver wrote is in this round; the device has nothing to write yet.
        let before = replica.follow(&memory);
        assert!(before.is_subset(&[1, 2, 3].into()), "{before:?}");
        for (_, frame) in &frames {
            let sent = rustix::io::write(&sender, frame).unwrap();
            assert_eq!(sent, frame.len());
        }
        assert!(queue.is_used_up(), "frames are lost in round {round}");
        for (address, frame) in &frames {
            let received = contents_at(&memory, address + HEADER_BYTES, frame.len());
            assert!(received == *frame, "{address:#x}");
        }
        // A bit may be set a moment after the driver has seen what is used.
        let began = Instant::now();
        let mut found = replica.follow(&memory);
        while is_logged && replica.contents != memory.contents() {
            assert!(began.elapsed() < TIME_MAX, "round {round} lacks pages");
            thread::sleep(Duration::from_millis(1));
            found.extend(replica.follow(&memory));
        }
        if is_logged {
            // The page of the used ring, too.
            expected.insert(3);
            found.insert(3);
            assert_eq!(found, expected, "round {round}");
        } else {
            // The queue is logged by a flag of its own.
            assert!(found.is_subset(&[3].into()), "{found:?}");
            assert!(replica.contents != memory.contents());
        }
    }
}

/// vhost-vsock logs its used ring alone: drivers/vhost/vsock.c has no call of `vhost_log_write`, so
/// that a monitor has to mark the receive queue's buffers itself. A kernel that logs them passes,
/// too.
#[test]
fn of_a_connection_to_a_guest_the_used_ring_is_logged() {
    const GUEST: u32 = 0x2222;
    let memory = Memory::new(0, 0, MIB, false);
    let mut device = match Device::open("/dev/vhost-vsock") {
        Ok(device) => device,
        Err(error) => return pagetrail_skips::not_here(error),
    };
    let wanted = LOGS | VERSION_1;
    assert_eq!(device.features() & wanted, wanted);
    let (vhost, own) = (VhostLog::new(MIB).unwrap(), OwnWrites::new());
    let logs: Vec<Box<dyn DirtyLog>> = vec![Box::new(vhost.clone()), Box::new(own.clone())];
    let mut replica = tracked(&memory, logs);
    device.set_memory(&memory);
    device.set_log(&vhost);
    device.set_features(wanted);
    let mut received = Queue::new(&memory, &own, 1);
    let sent = Queue::new(&memory, &own, 5);
    device.add_queue(&memory, received.rings);
    device.add_queue(&memory, sent.rings);
    device.connect_as(GUEST.into());
    let buffer = 16 * PAGE;
    received.offer(buffer, 2048);
    device.kick(0);
    replica.follow(&memory);
    let _connection = match begin_to_connect(GUEST) {
        Ok(connection) => connection,
        Err(error) => return pagetrail_skips::not_here(error),
    };
    assert!(received.is_used_up(), "the device sends no request");
    let began = Instant::now();
    let mut found = replica.follow(&memory);
    while !found.contains(&3) {
        assert!(began.elapsed() < TIME_MAX, "{found:?}");
        thread::sleep(Duration::from_millis(1));
        found.extend(replica.follow(&memory));
    }
    // The request has the guest's number in it.
    let request = contents_at(&memory, buffer, 44);
    assert_eq!(request[8..12], GUEST.to_le_bytes());
    println!("vhost-vsock logs what it receives: {}", found.contains(&16));
    found.remove(&16);
    assert_eq!(found, [3].into());
}
