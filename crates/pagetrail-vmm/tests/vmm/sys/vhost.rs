//! Devices of the kernel's vhost over a memory, and what sends to them: the calls of
//! `include/uapi/linux/vhost.h`, packet(7) and vsock(7).

use super::memory::Memory;
use pagetrail_vmm::VhostLog;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{Mode, OFlags};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;

const SET_OWNER: u64 = 0xaf01;
const GET_FEATURES: u64 = 0x8008_af00;
const SET_FEATURES: u64 = 0x4008_af00;
const SET_MEM_TABLE: u64 = 0x4008_af03;
const SET_LOG_BASE: u64 = 0x4008_af04;
const SET_VRING_NUM: u64 = 0x4008_af10;
const SET_VRING_ADDR: u64 = 0x4028_af11;
const SET_VRING_BASE: u64 = 0x4008_af12;
const SET_VRING_KICK: u64 = 0x4008_af20;
const SET_VRING_CALL: u64 = 0x4008_af21;
const NET_SET_BACKEND: u64 = 0x4008_af30;
const VSOCK_SET_GUEST_CID: u64 = 0x4008_af60;
const VSOCK_SET_RUNNING: u64 = 0x4004_af61;
/// `VHOST_VRING_F_LOG`.
const RING_IS_LOGGED: u32 = 1;

/// `struct vhost_memory` with one `struct vhost_memory_region`.
#[repr(C)]
struct MemoryTable {
    regions: u32,
    padding: u32,
    guest_address: u64,
    bytes: u64,
    host_address: u64,
    flags: u64,
}

/// `struct vhost_vring_state`, and `struct vhost_vring_file`, whose number is a descriptor.
#[repr(C)]
struct OfQueue {
    index: u32,
    number: u32,
}

/// `struct vhost_vring_addr`.
#[repr(C)]
struct QueueAddresses {
    index: u32,
    flags: u32,
    descriptors: u64,
    used: u64,
    available: u64,
    used_guest_address: u64,
}

/// Where the three parts of a queue are in guest memory, and how many descriptors it has.
#[derive(Clone, Copy)]
pub(crate) struct Rings {
    pub(crate) descriptors: u64,
    pub(crate) available: u64,
    pub(crate) used: u64,
    pub(crate) length: u32,
}

/// A device of the kernel that works for this process.
pub(crate) struct Device {
    file: OwnedFd,
    /// By which the driver wakes the device, for each queue.
    kicks: Vec<OwnedFd>,
    calls: Vec<OwnedFd>,
}

impl Device {
    pub(crate) fn open(path: &str) -> Result<Self, String> {
        let file = rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
            .map_err(|error| format!("{path}: {error}"))?;
        let device = Self {
            file,
            kicks: Vec::new(),
            calls: Vec::new(),
        };
        device.ask(SET_OWNER, ptr::null::<u64>());
        Ok(device)
    }

    /// A call that reads, or writes, what `argument` points to.
    fn ask<T>(&self, request: u64, argument: *const T) {
        // SAFETY: `T` is what the request names, in the kernel's layout, or has no argument. Memory
        // whose addresses are in it outlives the device, which tests see to by their order.
        let done = unsafe { libc::ioctl(self.file.as_raw_fd(), request as libc::Ioctl, argument) };
        let error = io::Error::last_os_error();
        assert!(done >= 0, "vhost's {request:#x}: {error}");
    }

    pub(crate) fn features(&self) -> u64 {
        let mut features = 0u64;
        self.ask(GET_FEATURES, &raw mut features);
        features
    }

    pub(crate) fn set_features(&self, features: u64) {
        self.ask(SET_FEATURES, &raw const features);
    }

    pub(crate) fn set_memory(&self, memory: &Memory) {
        let table = MemoryTable {
            regions: 1,
            padding: 0,
            guest_address: memory.guest_address,
            bytes: memory.bytes,
            host_address: memory.host_address(),
            flags: 0,
        };
        self.ask(SET_MEM_TABLE, &raw const table);
    }

    pub(crate) fn set_log(&self, log: &VhostLog) {
        let address = log.address();
        self.ask(SET_LOG_BASE, &raw const address);
    }

    /// Adds the next queue, whose rings are in `memory`.
    pub(crate) fn add_queue(&mut self, memory: &Memory, rings: Rings) {
        let index = self.kicks.len() as u32;
        let host = |guest: u64| memory.host_address() + (guest - memory.guest_address);
        let of = |number| OfQueue { index, number };
        self.ask(SET_VRING_NUM, ptr::from_ref(&of(rings.length)));
        self.ask(SET_VRING_BASE, ptr::from_ref(&of(0)));
        let addresses = QueueAddresses {
            index,
            flags: RING_IS_LOGGED,
            descriptors: host(rings.descriptors),
            used: host(rings.used),
            available: host(rings.available),
            used_guest_address: rings.used,
        };
        self.ask(SET_VRING_ADDR, &raw const addresses);
        let event = || eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        let (kick, call) = (event(), event());
        self.ask(SET_VRING_KICK, ptr::from_ref(&of(number(&kick))));
        self.ask(SET_VRING_CALL, ptr::from_ref(&of(number(&call))));
        self.kicks.push(kick);
        self.calls.push(call);
    }

    /// Tells the device that a queue has more descriptors.
    pub(crate) fn kick(&self, queue: usize) {
        rustix::io::write(&self.kicks[queue], &1u64.to_ne_bytes()).unwrap();
    }

    /// Has a network device receive what `socket` does.
    pub(crate) fn receive_from(&self, queue: u32, socket: &OwnedFd) {
        let backend = OfQueue {
            index: queue,
            number: number(socket),
        };
        self.ask(NET_SET_BACKEND, &raw const backend);
    }

    /// Begins to work for connections to a guest of this number.
    pub(crate) fn connect_as(&self, guest: u64) {
        self.ask(VSOCK_SET_GUEST_CID, &raw const guest);
        self.ask(VSOCK_SET_RUNNING, ptr::from_ref(&1i32));
    }
}

fn number(fd: &OwnedFd) -> u32 {
    fd.as_raw_fd() as u32
}

/// The descriptor that a call returned.
fn owned(fd: RawFd, what: &str) -> Result<OwnedFd, String> {
    match fd {
        0.. => {
            // SAFETY: the call has just returned it, and nobody else has it.
            Ok(unsafe { OwnedFd::from_raw_fd(fd) })
        }
        _ => Err(format!("{what}: {}", io::Error::last_os_error())),
    }
}

fn bound<T>(socket: &OwnedFd, address: &T) {
    let length = size_of::<T>() as libc::socklen_t;
    // SAFETY: the address has this length.
    let done = unsafe { libc::bind(socket.as_raw_fd(), ptr::from_ref(address).cast(), length) };
    assert_eq!(done, 0, "{}", io::Error::last_os_error());
}

/// A socket that receives and sends the loopback interface's Ethernet frames of a type.
pub(crate) fn frames_of(type_: u16) -> Result<OwnedFd, String> {
    let protocol = type_.to_be();
    let flags = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
    // SAFETY: the call touches no memory.
    let socket = unsafe { libc::socket(libc::AF_PACKET, flags, 0) };
    let socket = owned(socket, "packet(7)")?;
    // SAFETY: the name is a string that ends with 0.
    let interface = unsafe { libc::if_nametoindex(c"lo".as_ptr()) };
    // SAFETY: zeros are a valid address.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = protocol;
    address.sll_ifindex = interface as i32;
    bound(&socket, &address);
    Ok(socket)
}

/// Begins to connect to a guest, without waiting for its answer.
pub(crate) fn begin_to_connect(guest: u32) -> Result<OwnedFd, String> {
    let flags = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: the call touches no memory.
    let socket = unsafe { libc::socket(libc::AF_VSOCK, flags, 0) };
    let socket = owned(socket, "vsock(7)")?;
    // SAFETY: zeros are a valid address.
    let mut address: libc::sockaddr_vm = unsafe { std::mem::zeroed() };
    address.svm_family = libc::AF_VSOCK as u16;
    address.svm_port = 22;
    address.svm_cid = guest;
    let length = size_of_val(&address) as libc::socklen_t;
    // SAFETY: the address has this length.
    let done = unsafe { libc::connect(socket.as_raw_fd(), (&raw const address).cast(), length) };
    let error = io::Error::last_os_error();
    match done == 0 || error.raw_os_error() == Some(libc::EINPROGRESS) {
        true => Ok(socket),
        false => Err(format!("vsock(7): {error}")),
    }
}
