//! KVM's logs of what a guest writes.
//!
//! [`Log`] is the bitmap per memslot, which every kernel and processor has; [`Ring`] the ring per
//! vCPU (x86-64 from Linux 5.11 on, arm64 from 6.1 on), whose cost depends on the pages written
//! instead of the guest's size. [`Offers::of`] says what a virtual machine has. Both need memslots
//! that log (`KVM_MEM_LOG_DIRTY_PAGES`): [`set_logging`] sets the flag where the monitor has not.

mod log;
mod ring;

use crate::error::{Error, Result};
use crate::sys::kvm;
use crate::sys::memory::Region;
use std::ops::Range;
use std::os::fd::BorrowedFd;

pub use log::Log;
pub use ring::{Ring, VcpuRings};

const CAP_MANUAL_DIRTY_LOG_PROTECT2: u32 = 168;
const CAP_DIRTY_LOG_RING: u32 = 192;
const CAP_DIRTY_LOG_RING_ACQ_REL: u32 = 223;
const CAP_DIRTY_LOG_RING_WITH_BITMAP: u32 = 225;
const CAP_PRE_FAULT_MEMORY: u32 = 236;

/// `KVM_DIRTY_LOG_MANUAL_PROTECT_ENABLE`.
const MANUAL_PROTECT: u64 = 1;
/// `KVM_DIRTY_LOG_INITIALLY_SET`.
const INITIALLY_SET: u64 = 2;

/// `KVM_MEM_LOG_DIRTY_PAGES`.
const MEM_LOG_DIRTY_PAGES: u32 = 1;
/// `KVM_MEM_READONLY`.
const MEM_READONLY: u32 = 2;

/// What KVM offers a virtual machine for logging.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Offers {
    /// The length in bytes of the largest dirty ring per vCPU; 0 where there are none.
    pub ring_bytes_max: u32,
    /// Whether pages that are written without a vCPU (by arm64's interrupt controller) are in a
    /// bitmap beside the rings, and must be taken from there
    /// (`KVM_CAP_DIRTY_LOG_RING_WITH_BITMAP`).
    pub ring_with_bitmap: bool,
    /// Whether reading the log and write-protecting again can be two steps
    /// (`KVM_CAP_MANUAL_DIRTY_LOG_PROTECT2`).
    pub manual_protect: bool,
    /// Whether a memslot that begins to log can have all its pages dirty at first, instead of
    /// write-protecting them all at once.
    pub initially_set: bool,
    /// Whether processors here see each other's writes in another order than they were made (as
    /// arm64's do): then only the ring with acquire and release is offered.
    pub ring_is_acquire_release: bool,
    /// Whether guest memory can be mapped before the guest touches it ([`pre_fault`], Linux 6.11).
    pub pre_fault: bool,
}

impl Offers {
    /// Asks KVM about a virtual machine.
    ///
    /// # Errors
    ///
    /// The descriptor is not of a virtual machine.
    pub fn of(vm: BorrowedFd<'_>) -> Result<Self> {
        let ask = |cap| kvm::capability(vm, cap).map_err(Error::kvm("say what it offers"));
        let (ring, acquire_release) = (ask(CAP_DIRTY_LOG_RING)?, ask(CAP_DIRTY_LOG_RING_ACQ_REL)?);
        let manual = u64::from(ask(CAP_MANUAL_DIRTY_LOG_PROTECT2)?);
        Ok(Self {
            ring_bytes_max: ring.max(acquire_release),
            ring_with_bitmap: ask(CAP_DIRTY_LOG_RING_WITH_BITMAP)? != 0,
            manual_protect: manual & MANUAL_PROTECT != 0,
            initially_set: manual & INITIALLY_SET != 0,
            ring_is_acquire_release: acquire_release != 0,
            pre_fault: ask(CAP_PRE_FAULT_MEMORY)? != 0,
        })
    }
}

/// Makes reading the log and write-protecting again two steps, with all pages dirty at first where
/// KVM offers that. To be called before a memslot logs; [`Log::new`] then gets
/// [`LogProtection::Manual`].
///
/// # Errors
///
/// KVM does not have it ([`Offers::manual_protect`]).
pub fn enable_manual_protect(vm: BorrowedFd<'_>) -> Result<()> {
    let offers = Offers::of(vm)?;
    let initially_set = if offers.initially_set {
        INITIALLY_SET
    } else {
        0
    };
    kvm::enable(
        vm,
        CAP_MANUAL_DIRTY_LOG_PROTECT2,
        MANUAL_PROTECT | initially_set,
    )
    .map_err(Error::kvm("protect pages by hand"))
}

/// Gives each vCPU a dirty ring of this length in bytes: a power of two, at least a page, and
/// 16 KiB where the processor logs (page-modification logging): the 512 pages of its log must have
/// room after the ring counts as full. To be called before the first vCPU is created; where
/// [`Offers::ring_with_bitmap`], before any memslot is, too.
///
/// # Errors
///
/// KVM does not have rings, or not of this length, or a vCPU exists.
pub fn enable_ring(vm: BorrowedFd<'_>, bytes: u32) -> Result<()> {
    let offers = Offers::of(vm)?;
    let cap = match offers.ring_is_acquire_release {
        true => CAP_DIRTY_LOG_RING_ACQ_REL,
        false => CAP_DIRTY_LOG_RING,
    };
    let what = || Error::kvm(format!("make dirty rings of {bytes} bytes"));
    kvm::enable(vm, cap, bytes.into()).map_err(what())?;
    if offers.ring_with_bitmap {
        kvm::enable(vm, CAP_DIRTY_LOG_RING_WITH_BITMAP, 0).map_err(what())?;
    }
    Ok(())
}

/// Has KVM map guest memory, in bytes of guest-physical addresses and in whole pages, before the
/// guest touches it (`KVM_PRE_FAULT_MEMORY`, Linux 6.11). A page that moved to another node, or
/// that was just restored, costs the guest an exit at its next access; after this it costs none. To
/// be called by the thread that runs the vCPU, between two runs; it takes as long as these exits
/// would, outside of the guest. Memory that was never written is mapped as zeros that may not be
/// written, so that its first write is an exit all the same.
///
/// # Errors
///
/// KVM does not have it ([`Offers::pre_fault`]), or no memslot has some of the memory; what comes
/// before that is mapped then.
pub fn pre_fault(vcpu: BorrowedFd<'_>, guest_addresses: Range<u64>) -> Result<()> {
    let (start, end) = (guest_addresses.start, guest_addresses.end);
    kvm::pre_fault(vcpu, guest_addresses)
        .map_err(Error::kvm(format!("map guest memory {start:#x}..{end:#x}")))
}

/// When a page that was read from KVM's log is write-protected again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogProtection {
    /// As the log is read, all pages at once, by `KVM_GET_DIRTY_LOG`.
    OnRead,
    /// By `KVM_CLEAR_DIRTY_LOG`, for those pages that were read: [`enable_manual_protect`] was
    /// called.
    Manual,
}

/// Whether KVM logs the writes to a memslot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Logging {
    /// It does.
    On,
    /// It does not, or no longer.
    Off,
}

/// What a memslot's flags are besides the logging.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotAccess {
    /// The guest may write.
    ReadWrite,
    /// The guest's writes go to the monitor (`KVM_MEM_READONLY`).
    ReadOnly,
}

/// Makes a memslot log, or no longer. Its other flags are set as said.
///
/// # Errors
///
/// KVM refuses: there is no such memslot, or it has other memory than the region.
pub fn set_logging(
    vm: BorrowedFd<'_>,
    region: &Region,
    access: SlotAccess,
    logging: Logging,
) -> Result<()> {
    let log = match logging {
        Logging::On => MEM_LOG_DIRTY_PAGES,
        Logging::Off => 0,
    };
    let access = if access == SlotAccess::ReadOnly {
        MEM_READONLY
    } else {
        0
    };
    let what = format!("change the logging of memory slot {}", region.slot());
    kvm::set_flags(vm, region, log | access).map_err(Error::kvm(what))
}
