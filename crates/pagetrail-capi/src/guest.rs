//! What pointers to guests and restores point to. A guest's threads may say at any time that they
//! wrote, or that a ring is full; rounds and snapshots are of one thread at a time.

use crate::failure::{Failure, Status, invalid};
use crate::kept::Handle;
use std::ffi::c_void;
use std::os::fd::BorrowedFd;
use std::thread::JoinHandle;

use pagetrail_vmm::kvm::{Log, LogProtection, Ring, VcpuRings};
use pagetrail_vmm::store::{Served, Snapshots, Stopper};
use pagetrail_vmm::{Consumer, DirtyLog, OwnWrites, Regions, Round, Start, Tracker};

/// The memory of a virtual machine, for the program that runs it (a VMM).
///
/// Rounds and saves lock it: a call while another thread is inside one gets PAGETRAIL_STATUS_BUSY.
pub struct Guest {
    pub(crate) tracker: Tracker,
    pub(crate) own: OwnWrites,
    pub(crate) handle: Handle<Inside>,
}

/// The memory of a virtual machine that comes from a store as it is touched.
///
/// Each call locks it: a call while another thread is inside one gets PAGETRAIL_STATUS_BUSY.
pub struct GuestRestore(pub(crate) Handle<Restoring>);

/// What one thread uses at a time.
pub(crate) struct Inside {
    consumer: Consumer,
    round: Option<Round>,
    ranges: Vec<GuestRange>,
    pub(crate) snapshots: Option<Snapshots>,
}

/// A thread that fills memory.
pub(crate) struct Restoring {
    pub(crate) stopper: Stopper,
    pub(crate) thread: Option<JoinHandle<pagetrail_vmm::Result<Served>>>,
}

impl Drop for Restoring {
    fn drop(&mut self) {
        self.stopper.stop();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A memslot of a virtual machine, and where it is mapped in this process.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct GuestRegion {
    /// The number of the memslot, as in KVM_SET_USER_MEMORY_REGION.
    pub slot: u32,
    /// Zero.
    pub reserved: u32,
    /// The guest-physical address of the first byte.
    pub guest_address: u64,
    /// Where the first byte is in this process. The memory stays mapped as long as the library
    /// knows of it.
    pub memory: *mut c_void,
    /// The length, in bytes.
    pub bytes: u64,
}

/// Written pages of a virtual machine.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuestRange {
    /// The guest-physical address of the first byte.
    pub guest_address: u64,
    /// The address of the first byte in this process.
    pub host_address: u64,
    /// The length, in bytes.
    pub bytes: u64,
    /// The number of the memslot.
    pub slot: u32,
    /// Zero.
    pub reserved: u32,
}

/// The guest is one of KVM, pagetrail_guest_options.vm_fd. Without this flag, what is written is
/// known from pagetrail_guest_wrote() alone.
pub const PAGETRAIL_GUEST_KVM: u32 = 1;

/// Which virtual machine, and how its writes are known. Begin with `pagetrail_guest_options options
/// = {0};` (in C++ `{}`), set what differs, and pass `sizeof options`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct GuestOptions {
    /// PAGETRAIL_GUEST_*, combined by |.
    pub flags: u32,
    /// The descriptor of KVM's virtual machine, which is duplicated. Its memslots have
    /// KVM_MEM_LOG_DIRTY_PAGES.
    pub vm_fd: i32,
    /// Its memory.
    pub regions: *const GuestRegion,
    /// How many regions.
    pub region_count: usize,
    /// With dirty rings (KVM_CAP_DIRTY_LOG_RING): the descriptors of all vCPUs, none of which has
    /// run yet. NULL: KVM logs by bitmaps (KVM_GET_DIRTY_LOG, without manual protection).
    pub vcpu_fds: *const i32,
    /// How many vCPUs.
    pub vcpu_count: usize,
    /// The length of a vCPU's ring in bytes, as KVM_ENABLE_CAP has it.
    pub ring_bytes: u32,
    /// Zero.
    pub reserved: u32,
}

impl Guest {
    pub(crate) fn new(
        regions: Regions,
        vm: Option<BorrowedFd<'_>>,
        vcpus: &[BorrowedFd<'_>],
        ring_bytes: u32,
    ) -> Result<Self, Failure> {
        let own = OwnWrites::new();
        let mut logs: Vec<Box<dyn DirtyLog>> = vec![Box::new(own.clone())];
        match vm {
            Some(vm) if vcpus.is_empty() => {
                logs.push(Box::new(Log::new(vm, LogProtection::OnRead)?))
            }
            Some(vm) => {
                let rings = VcpuRings::new(ring_bytes);
                for vcpu in vcpus {
                    rings.add(*vcpu)?;
                }
                logs.push(Box::new(Ring::new(vm, rings, LogProtection::OnRead)?));
            }
            None if vcpus.is_empty() => {}
            None => return Err(invalid("there are vCPUs, and no virtual machine")),
        }
        let tracker = Tracker::new(regions, logs)?;
        let inside = Inside {
            consumer: tracker.consumer(Start::Everything)?,
            round: None,
            ranges: Vec::new(),
            snapshots: None,
        };
        Ok(Self {
            tracker,
            own,
            handle: Handle::new(inside),
        })
    }
}

impl Inside {
    /// Collects a round, and opens it.
    pub(crate) fn collect(&mut self) -> Result<&[GuestRange], Failure> {
        if self.round.is_some() {
            let text = "the round before is open: commit it or give it back first";
            return Err(Failure::Misuse(Status::RoundOpen, text));
        }
        let round = self.consumer.collect()?;
        self.ranges.clear();
        self.ranges.extend(round.ranges().map(|range| GuestRange {
            guest_address: range.guest_address,
            host_address: range.host_address,
            bytes: range.bytes,
            slot: range.slot,
            reserved: 0,
        }));
        self.round = Some(round);
        Ok(&self.ranges)
    }

    /// Ends the open round: by a commit, or so that its pages come back.
    pub(crate) fn close(&mut self, commit: bool) -> Result<(), Failure> {
        let text = "there is no open round: it was committed or given back";
        let round = self.round.take();
        let round = round.ok_or(Failure::Misuse(Status::NoRound, text))?;
        if commit {
            round.commit();
        }
        Ok(())
    }
}

// C calls from any thread.
const _: () = {
    const fn is_shared<T: Sync>() {}
    is_shared::<Guest>();
    is_shared::<Handle<Restoring>>();
};
