//! KVM's calls for dirty logging, on the descriptor of a virtual machine that somebody else made.
//!
//! `Documentation/virt/kvm/api.rst` has them: 4.8 (`KVM_GET_DIRTY_LOG`), 4.35
//! (`KVM_SET_USER_MEMORY_REGION`), 4.117 (`KVM_CLEAR_DIRTY_LOG`), 4.143 (`KVM_PRE_FAULT_MEMORY`),
//! 8.29 (the ring).
#![allow(unsafe_code, reason = "calls of KVM")]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

const KVM_CHECK_EXTENSION: libc::Ioctl = 0xae03;
/// `_IOW(KVMIO, 0x42, struct kvm_dirty_log)`.
const KVM_GET_DIRTY_LOG: libc::Ioctl = 0x4010_ae42;
/// `_IOW(KVMIO, 0x46, struct kvm_userspace_memory_region)`.
const KVM_SET_USER_MEMORY_REGION: libc::Ioctl = 0x4020_ae46;
/// `_IOW(KVMIO, 0xa3, struct kvm_enable_cap)`.
const KVM_ENABLE_CAP: libc::Ioctl = 0x4068_aea3;
/// `_IOWR(KVMIO, 0xc0, struct kvm_clear_dirty_log)`.
const KVM_CLEAR_DIRTY_LOG: libc::Ioctl = 0xc018_aec0_u32 as libc::Ioctl;
/// `_IOWR(KVMIO, 0xd5, struct kvm_pre_fault_memory)`.
const KVM_PRE_FAULT_MEMORY: libc::Ioctl = 0xc040_aed5_u32 as libc::Ioctl;
/// `_IO(KVMIO, 0xc7)`.
const KVM_RESET_DIRTY_RINGS: libc::Ioctl = 0xaec7;

/// `struct kvm_dirty_log`.
#[repr(C)]
struct DirtyLog {
    slot: u32,
    padding: u32,
    bitmap: u64,
}

/// `struct kvm_clear_dirty_log`.
#[repr(C)]
struct ClearDirtyLog {
    slot: u32,
    pages: u32,
    first_page: u64,
    bitmap: u64,
}

/// `struct kvm_pre_fault_memory`.
#[repr(C)]
struct PreFaultMemory {
    guest_address: u64,
    bytes: u64,
    flags: u64,
    padding: [u64; 5],
}

/// `struct kvm_enable_cap`.
#[repr(C)]
struct EnableCap {
    cap: u32,
    flags: u32,
    args: [u64; 4],
    pad: [u8; 64],
}

/// `struct kvm_userspace_memory_region`.
#[repr(C)]
struct UserMemoryRegion {
    slot: u32,
    flags: u32,
    guest_address: u64,
    bytes: u64,
    host_address: u64,
}

fn outcome(returned: libc::c_int) -> io::Result<u32> {
    match u32::try_from(returned) {
        Ok(value) => Ok(value),
        Err(_) => Err(io::Error::last_os_error()),
    }
}

/// The value of a capability of this virtual machine; 0 where KVM does not have it.
pub(crate) fn capability(vm: BorrowedFd<'_>, cap: u32) -> io::Result<u32> {
    // SAFETY: the argument is a number.
    outcome(unsafe {
        libc::ioctl(
            vm.as_raw_fd(),
            KVM_CHECK_EXTENSION,
            libc::c_ulong::from(cap),
        )
    })
}

/// Enables a capability of this virtual machine.
pub(crate) fn enable(vm: BorrowedFd<'_>, cap: u32, argument: u64) -> io::Result<()> {
    let arg = EnableCap {
        cap,
        flags: 0,
        args: [argument, 0, 0, 0],
        pad: [0; 64],
    };
    // SAFETY: the kernel reads a `kvm_enable_cap`, which `arg` is. The capabilities that this crate
    // enables change how pages are logged, and no memory of this process.
    outcome(unsafe { libc::ioctl(vm.as_raw_fd(), KVM_ENABLE_CAP, &raw const arg) }).map(drop)
}

/// Changes the flags of a memslot that exists.
pub(crate) fn set_flags(vm: BorrowedFd<'_>, region: &crate::Region, flags: u32) -> io::Result<()> {
    let arg = UserMemoryRegion {
        slot: region.slot(),
        flags,
        guest_address: region.guest_address(),
        bytes: region.bytes(),
        host_address: region.host_address(),
    };
    // SAFETY: the kernel reads a `kvm_userspace_memory_region`, which `arg` is, with the memory
    // that the memslot has already (`Region::new`).
    let returned =
        unsafe { libc::ioctl(vm.as_raw_fd(), KVM_SET_USER_MEMORY_REGION, &raw const arg) };
    outcome(returned).map(drop)
}

/// Fills `words` with the bitmap of a region's memslot; `words` has a bit for each of its pages.
pub(crate) fn get_log(
    vm: BorrowedFd<'_>,
    region: &crate::Region,
    words: &mut [u64],
) -> io::Result<()> {
    let pages = region.bytes() / pagetrail::page_size();
    assert!(words.len() as u64 >= pages.div_ceil(64), "bitmap too short");
    let arg = DirtyLog {
        slot: region.slot(),
        padding: 0,
        bitmap: words.as_mut_ptr() as u64,
    };
    // SAFETY: the kernel writes a bit per page of the memslot, rounded up to 64; the memslot has
    // the region's size (`Region::new`), and the bitmap that many bits, as just checked.
    outcome(unsafe { libc::ioctl(vm.as_raw_fd(), KVM_GET_DIRTY_LOG, &raw const arg) }).map(drop)
}

/// Write-protects pages of a memslot again: those with a bit in `words`, whose first bit is that of
/// `first_page`.
pub(crate) fn clear_log(
    vm: BorrowedFd<'_>,
    slot: u32,
    first_page: u64,
    pages: u32,
    words: &[u64],
) -> io::Result<()> {
    assert!(
        words.len() as u64 * 64 >= u64::from(pages),
        "bitmap too short"
    );
    let arg = ClearDirtyLog {
        slot,
        pages,
        first_page,
        bitmap: words.as_ptr() as u64,
    };
    // SAFETY: the kernel reads a bit per page from `words`, which has as many, as just checked.
    outcome(unsafe { libc::ioctl(vm.as_raw_fd(), KVM_CLEAR_DIRTY_LOG, &raw const arg) }).map(drop)
}

/// Write-protects the pages of all ring entries that were given back.
pub(crate) fn reset_rings(vm: BorrowedFd<'_>) -> io::Result<()> {
    loop {
        // SAFETY: the call has no argument, and changes only KVM's page tables and rings.
        match outcome(unsafe { libc::ioctl(vm.as_raw_fd(), KVM_RESET_DIRTY_RINGS) }) {
            // Since Linux 6.16 the call returns early for a signal.
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            outcome => return outcome.map(drop),
        }
    }
}

/// Maps guest memory for a vCPU, all of it.
pub(crate) fn pre_fault(
    vcpu: BorrowedFd<'_>,
    guest_addresses: std::ops::Range<u64>,
) -> io::Result<()> {
    let mut arg = PreFaultMemory {
        guest_address: guest_addresses.start,
        bytes: guest_addresses.end.saturating_sub(guest_addresses.start),
        flags: 0,
        padding: [0; 5],
    };
    while arg.bytes > 0 {
        let before = arg.bytes;
        // SAFETY: the kernel reads and writes a `kvm_pre_fault_memory`, which `arg` is, and touches
        // the guest's memory as the guest itself would.
        let returned = unsafe { libc::ioctl(vcpu.as_raw_fd(), KVM_PRE_FAULT_MEMORY, &raw mut arg) };
        match outcome(returned) {
            // How far it came is in the argument.
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
            Ok(_) if arg.bytes == before => {
                return Err(io::Error::other("KVM makes no progress"));
            }
            Ok(_) => {}
        }
    }
    Ok(())
}
