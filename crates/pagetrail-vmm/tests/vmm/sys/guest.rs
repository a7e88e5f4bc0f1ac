//! A guest with one vCPU, without paging, that writes given pages.

use super::memory::{Memory, regions};
use kvm_bindings::{KVM_MEM_LOG_DIRTY_PAGES, kvm_userspace_memory_region};
use kvm_ioctls::{Kvm, VcpuExit, VcpuFd, VmFd};
use pagetrail_vmm::kvm::{self, LogProtection, VcpuRings};
use pagetrail_vmm::{DirtyLog, Regions};
use std::os::fd::{AsRawFd, BorrowedFd};

#[cfg(target_arch = "aarch64")]
#[path = "guest_aarch64.rs"]
mod processor;
#[cfg(target_arch = "x86_64")]
#[path = "guest_x86_64.rs"]
mod processor;

/// `KVM_EXIT_DIRTY_RING_FULL`.
const EXIT_DIRTY_RING_FULL: u32 = 31;

/// The shortest ring where the processor has a log, whose 512 pages must have room beyond the
/// point at which the vCPU exits.
const RING_BYTES_PML: u32 = 16 << 10;

/// How KVM logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum How {
    Log,
    ManualLog,
    /// A ring of so many bytes.
    Ring(u32),
    /// Not at all.
    Nothing,
}

/// What the guest's code does: it writes `value` at `count` addresses, `stride` bytes apart.
struct Work {
    address: u64,
    count: u32,
    stride: u32,
    value: u32,
}

pub(crate) struct Guest {
    vcpu: VcpuFd,
    vm: VmFd,
    how: How,
    pub(crate) rings: VcpuRings,
    /// How often the ring was full.
    pub(crate) full: u32,
    pub(crate) memories: Vec<Memory>,
}

impl Guest {
    /// A guest with this memory; the first page of the first holds its code. `Err` says why it
    /// cannot be here.
    pub(crate) fn new(how: How, memories: Vec<Memory>) -> Result<Self, String> {
        memories[0].write(0, &processor::CODE);
        Self::over(how, memories)
    }

    /// A guest whose memory has the code already.
    pub(crate) fn over(how: How, memories: Vec<Memory>) -> Result<Self, String> {
        let kvm = Kvm::new().map_err(|error| format!("no /dev/kvm: {error}"))?;
        let vm = kvm.create_vm().map_err(|error| error.to_string())?;
        // SAFETY: `vm` is open while it is borrowed.
        let borrowed = unsafe { BorrowedFd::borrow_raw(vm.as_raw_fd()) };
        let offers = kvm::Offers::of(borrowed).unwrap();
        let mut bytes = 0;
        match how {
            How::ManualLog if !offers.manual_protect => return Err("no manual protect".into()),
            How::ManualLog => kvm::enable_manual_protect(borrowed).unwrap(),
            How::Ring(_) if offers.ring_bytes_max == 0 => return Err("no dirty rings".into()),
            How::Ring(wanted) => {
                bytes = wanted;
                if kvm::enable_ring(borrowed, bytes).is_err() {
                    // Too short for a processor with a log of its own.
                    bytes = wanted.max(RING_BYTES_PML);
                    kvm::enable_ring(borrowed, bytes).unwrap();
                }
            }
            How::Log | How::Nothing => {}
        }
        let logging = if how == How::Nothing {
            0
        } else {
            KVM_MEM_LOG_DIRTY_PAGES
        };
        for memory in &memories {
            let region = kvm_userspace_memory_region {
                slot: memory.slot,
                flags: logging,
                guest_phys_addr: memory.guest_address,
                memory_size: memory.bytes,
                userspace_addr: memory.host_address(),
            };
            // SAFETY: the memory outlives the virtual machine, which is dropped before it.
            unsafe { vm.set_user_memory_region(region) }.unwrap();
        }
        let vcpu = vm.create_vcpu(0).map_err(|error| error.to_string())?;
        processor::reset(&vm, &vcpu, memories[0].guest_address);
        let rings = VcpuRings::new(bytes);
        if bytes != 0 {
            // SAFETY: `vcpu` is open while it is borrowed.
            let fd = unsafe { BorrowedFd::borrow_raw(vcpu.as_raw_fd()) };
            rings.add(fd).unwrap();
        }
        let full = 0;
        Ok(Self {
            vcpu,
            vm,
            how,
            rings,
            full,
            memories,
        })
    }

    pub(crate) fn vm(&self) -> BorrowedFd<'_> {
        // SAFETY: `vm` is open as long as `self` is borrowed.
        unsafe { BorrowedFd::borrow_raw(self.vm.as_raw_fd()) }
    }

    pub(crate) fn vcpu(&self) -> BorrowedFd<'_> {
        // SAFETY: `vcpu` is open as long as `self` is borrowed.
        unsafe { BorrowedFd::borrow_raw(self.vcpu.as_raw_fd()) }
    }

    pub(crate) fn regions(&self) -> Regions {
        regions(&self.memories)
    }

    /// The log that KVM keeps.
    pub(crate) fn log(&self) -> Box<dyn DirtyLog> {
        match self.how {
            How::Ring(_) => {
                let rings = self.rings.clone();
                Box::new(kvm::Ring::new(self.vm(), rings, LogProtection::OnRead).unwrap())
            }
            How::ManualLog => Box::new(kvm::Log::new(self.vm(), LogProtection::Manual).unwrap()),
            _ => Box::new(kvm::Log::new(self.vm(), LogProtection::OnRead).unwrap()),
        }
    }

    /// Writes `value` at `address` and at `count` - 1 addresses after it, `stride` bytes apart;
    /// `full` is called when the dirty ring is full.
    pub(crate) fn write(
        &mut self,
        address: u64,
        count: u32,
        stride: u32,
        value: u32,
        full: impl Fn(),
    ) {
        let work = Work {
            address,
            count,
            stride,
            value,
        };
        processor::set(&self.vcpu, &work);
        loop {
            match self.vcpu.run() {
                Ok(exit) if processor::is_done(&exit) => return,
                Ok(VcpuExit::Unsupported(EXIT_DIRTY_RING_FULL)) => {
                    self.full += 1;
                    full();
                }
                Ok(exit) => panic!("the guest stopped: {exit:?}"),
                Err(error) if error.errno() == libc::EINTR => {}
                Err(error) => panic!("the guest does not run: {error}"),
            }
        }
    }
}
