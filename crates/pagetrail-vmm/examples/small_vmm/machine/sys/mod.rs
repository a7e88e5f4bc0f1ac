//! Guest memory, and the signal that takes a vCPU thread out of `KVM_RUN`: all that names addresses
//! or can break the process.
#![allow(
    unsafe_code,
    reason = "guest memory, signals and KVM's calls name addresses"
)]

use super::Outcome;
use kvm_bindings::{
    kvm_clock_data, kvm_debugregs, kvm_irqchip, kvm_lapic_state, kvm_mp_state, kvm_msr_entry,
    kvm_pit_state2, kvm_regs, kvm_reinject_control, kvm_sregs, kvm_userspace_memory_region,
    kvm_vcpu_events, kvm_xcrs, kvm_xsave,
};
use kvm_ioctls::{VcpuFd, VmFd};
use pagetrail_vmm::{DeviceMemory, Region, Regions, TableMemory};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

/// The memslot of all memory, and that of a device's.
const SLOT: u32 = 0;
const DEVICE_SLOT: u32 = 1;

/// Anonymous memory of a guest. It is mapped until this is dropped.
#[derive(Debug)]
pub(crate) struct Memory {
    start: *mut u8,
    bytes: u64,
    slot: u32,
    guest_address: u64,
}

// SAFETY: the pointer is to a mapping of the process, which this value owns.
unsafe impl Send for Memory {}
// SAFETY: all access is by volatile writes and atomic loads (`Region::copy`).
unsafe impl Sync for Memory {}

impl Memory {
    /// The memory of a guest, from guest-physical address 0 on.
    pub(crate) fn new(bytes: u64) -> Outcome<Self> {
        Self::mapped(SLOT, 0, bytes)
    }

    /// The memory of the one device that has some.
    pub(crate) fn of_device(guest_address: u64, bytes: u64) -> Outcome<Self> {
        Self::mapped(DEVICE_SLOT, guest_address, bytes)
    }

    fn mapped(slot: u32, guest_address: u64, bytes: u64) -> Outcome<Self> {
        let protection = rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE;
        let flags = rustix::mm::MapFlags::PRIVATE | rustix::mm::MapFlags::NORESERVE;
        // SAFETY: without MAP_FIXED the kernel places the mapping where nothing else is.
        let start = unsafe {
            rustix::mm::mmap_anonymous(ptr::null_mut(), bytes as usize, protection, flags)
        }?;
        let start = start.cast();
        Ok(Self {
            start,
            bytes,
            slot,
            guest_address,
        })
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The memory as a region, which must not outlive it.
    pub(crate) fn region(&self) -> Region {
        // SAFETY: the mapping has these bytes; it is written by volatile writes and by the guest,
        // and its memslot is made from the same numbers. Users of the region keep the memory
        // mapped.
        unsafe { Region::new(self.slot, self.guest_address, self.start, self.bytes) }
    }

    /// The memory as that of a device, which must not outlive it.
    pub(crate) fn device(&self) -> DeviceMemory {
        // SAFETY: the mapping can be written, and nothing else in this program writes a device's.
        unsafe { DeviceMemory::new(self.region()) }
    }

    /// The memory as one that has the guest's page tables, which must not outlive it.
    pub(crate) fn tables(&self) -> Outcome<TableMemory> {
        let regions = Regions::new([self.region()])?;
        // SAFETY: the mapping can be written, and has no references.
        Ok(unsafe { TableMemory::new(regions) })
    }

    /// Writes as a device does. What lies outside the memory is not written, and false is returned.
    pub(crate) fn write(&self, address: u64, bytes: &[u8]) -> bool {
        let end = address.checked_add(bytes.len() as u64);
        if end.is_none_or(|end| end > self.bytes) {
            return false;
        }
        for (at, byte) in bytes.iter().enumerate() {
            // SAFETY: the address is within the mapping, as just checked.
            unsafe { self.start.add(address as usize + at).write_volatile(*byte) };
        }
        true
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: this value owns the mapping.
        let unmapped = unsafe { rustix::mm::munmap(self.start.cast(), self.bytes as usize) };
        debug_assert!(unmapped.is_ok());
    }
}

/// Gives a virtual machine its memory, which must outlive it.
pub(crate) fn plug(vm: &VmFd, memory: &Memory) -> Outcome<()> {
    let region = kvm_userspace_memory_region {
        slot: memory.slot,
        flags: 0,
        guest_phys_addr: memory.guest_address,
        memory_size: memory.bytes,
        userspace_addr: memory.start as u64,
    };
    // SAFETY: the mapping has these bytes, and the caller drops the virtual machine before it.
    Ok(unsafe { vm.set_user_memory_region(region) }?)
}

/// Has the timer interrupt at each of its ticks, whether the last one was acknowledged or not.
///
/// Otherwise KVM waits for the acknowledgement, and a guest that loses one has no ticks any more.
pub(crate) fn tick_on(vm: &VmFd) -> Outcome<()> {
    /// `_IO(KVMIO, 0x71)`.
    const KVM_REINJECT_CONTROL: libc::Ioctl = 0xae71;
    let control = kvm_reinject_control::default();
    // SAFETY: the kernel reads a `kvm_reinject_control`, which `control` is.
    match unsafe { libc::ioctl(vm.as_raw_fd(), KVM_REINJECT_CONTROL, &raw const control) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error().into()),
    }
}

/// Sets the state of the floating-point unit.
pub(crate) fn set_xsave(vcpu: &VcpuFd, xsave: &kvm_xsave) -> Outcome<()> {
    // SAFETY: no feature is on whose state is longer than this structure: those have to be asked
    // for by arch_prctl(2).
    Ok(unsafe { vcpu.set_xsave(xsave) }?)
}

/// The descriptor, for calls of this project's crates.
pub(crate) fn borrowed(fd: &impl AsRawFd) -> BorrowedFd<'_> {
    // SAFETY: the descriptor is open as long as its owner is borrowed.
    unsafe { BorrowedFd::borrow_raw(fd.as_raw_fd()) }
}

/// Lets SIGUSR1 interrupt calls, and do nothing else.
pub(crate) fn take_signals() -> Outcome<()> {
    extern "C" fn nothing(_: libc::c_int) {}
    // SAFETY: zeros are a valid `sigaction`: no flags, an empty mask.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = nothing as extern "C" fn(libc::c_int) as usize;
    // SAFETY: the handler does nothing, so that it may run anywhere.
    match unsafe { libc::sigaction(libc::SIGUSR1, &raw const action, ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error().into()),
    }
}

/// Sends SIGUSR1 to a thread of this process.
pub(crate) fn interrupt(thread: i32) {
    // SAFETY: the call touches no memory. A thread that has ended is not found.
    unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, libc::SIGUSR1) };
}

/// What KVM tells of a virtual machine: integers in the kernel's layout.
///
/// # Safety
///
/// All bytes of a value are initialised, and any bytes are a value.
pub(crate) unsafe trait Plain: Sized {}

macro_rules! plain {
    ($($structure:ty),*) => {$(
        // SAFETY: integers alone, with the padding spelled out: kvm-bindings derives the same for
        // them (`IntoBytes` and `FromBytes` of zerocopy, its feature `serde`).
        unsafe impl Plain for $structure {}
    )*};
}
plain!(
    u32,
    u64,
    kvm_clock_data,
    kvm_debugregs,
    kvm_irqchip,
    kvm_lapic_state,
    kvm_mp_state,
    kvm_msr_entry,
    kvm_pit_state2,
    kvm_regs,
    kvm_sregs,
    kvm_vcpu_events,
    kvm_xcrs,
    kvm_xsave
);

pub(crate) fn bytes_of<T: Plain>(value: &T) -> &[u8] {
    // SAFETY: the bytes are the value's, and initialised (`Plain`).
    unsafe { std::slice::from_raw_parts(ptr::from_ref(value).cast(), size_of::<T>()) }
}

/// Takes a value off the front of `bytes`; `None` if they are too few.
pub(crate) fn take<T: Plain>(bytes: &mut &[u8]) -> Option<T> {
    let (first, rest) = bytes.split_at_checked(size_of::<T>())?;
    *bytes = rest;
    // SAFETY: there are enough bytes, and any are a value (`Plain`).
    Some(unsafe { first.as_ptr().cast::<T>().read_unaligned() })
}
