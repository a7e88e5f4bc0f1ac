//! KVM: a virtual machine, its memslots, its vCPUs.
//!
//! The crate `kvm-ioctls` has the calls. What it lacks, and what is unsafe there, is here.
#![allow(
    unsafe_code,
    reason = "memslots name memory by address; KVM_RESET_DIRTY_RINGS is not in kvm-ioctls"
)]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};

use kvm_bindings::{
    CpuId, KVM_CAP_DIRTY_LOG_RING, KVM_CAP_DIRTY_LOG_RING_ACQ_REL, KVM_CAP_MAX_VCPUS,
    KVM_CAP_NR_MEMSLOTS, KVM_CAP_SYNC_REGS, KVM_MAX_CPUID_ENTRIES, KVM_MEM_LOG_DIRTY_PAGES,
    KVM_SYNC_X86_REGS, KVM_VCPU_TSC_CTRL, KVM_VCPU_TSC_OFFSET, Msrs, kvm_device_attr,
    kvm_enable_cap, kvm_msr_entry, kvm_regs, kvm_sregs, kvm_userspace_memory_region, kvm_xcrs,
    kvm_xsave,
};
use kvm_ioctls::{Kvm, SyncReg, VcpuExit, VcpuFd, VmFd};

use super::call::call;
use super::descriptors;
use super::ring::Ring;
use crate::error::{Error, Result};

/// The address of three pages that KVM needs on some Intel processors, as in other users of KVM: in
/// the fourth GiB, which no memslot here uses.
const TSS_ADDRESS: usize = 0xfffb_d000;
/// `KVM_EXIT_DIRTY_RING_FULL`.
const EXIT_DIRTY_RING_FULL: u32 = 31;
/// The register that RDTSCP and RDPID read. Linux puts the CPU number there, and from bit 12 on the
/// node.
const MSR_TSC_AUX: u32 = 0xc000_0103;
/// `_IO(KVMIO, 0xc7)`.
const KVM_RESET_DIRTY_RINGS: libc::Ioctl = 0xaec7;
/// `_IOW(KVMIO, 0xe1, struct kvm_device_attr)`, which `kvm-ioctls` has for vCPUs of arm64 alone.
const KVM_SET_DEVICE_ATTR: libc::Ioctl = 0x4018_aee1;

/// How KVM logs dirty pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Log {
    /// KVM logs nothing.
    Off,
    /// KVM fills a dirty ring per vCPU, of this length in bytes.
    Ring(usize),
    /// KVM fills a bitmap per memslot.
    Bitmap,
}

/// A virtual machine.
#[derive(Debug)]
pub(crate) struct Vm {
    kvm: Kvm,
    fd: VmFd,
    log: Log,
}

/// Why a vCPU exited.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// The guest wrote a byte to this port.
    Out(u16),
    /// The vCPU's dirty ring is full.
    RingFull,
    /// A signal arrived.
    Interrupted,
    /// The guest's page tables have an address at which this process has no memory.
    BadMemory,
    /// An exit from which the guest cannot continue.
    Stopped(String),
}

/// Opens `/dev/kvm`, as a descriptor with a high number.
pub(crate) fn open() -> Result<Kvm> {
    let raised = |error: kvm_ioctls::Error| Error::NoKvm(error.into());
    let kvm = Kvm::new().map_err(raised)?;
    // SAFETY: `kvm` is open while it is borrowed.
    let fd = unsafe { moved(kvm.as_raw_fd()) }.map_err(Error::NoKvm)?;
    Ok(adopt(fd))
}

/// Uses an open `/dev/kvm`.
pub(crate) fn adopt(fd: OwnedFd) -> Kvm {
    // SAFETY: the descriptor is of /dev/kvm: the callers have it from a virtual machine.
    // `into_raw_fd` passes its ownership on.
    unsafe { std::os::fd::FromRawFd::from_raw_fd(fd.into_raw_fd()) }
}

fn borrowed(kvm: &Kvm) -> BorrowedFd<'_> {
    // SAFETY: `kvm` owns the descriptor, and the borrow does not outlive it.
    unsafe { BorrowedFd::borrow_raw(kvm.as_raw_fd()) }
}

/// # Safety
///
/// The descriptor must be open during the call.
unsafe fn moved(fd: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: the caller promises that the descriptor is open, and the borrow ends with this call.
    descriptors::out_of_the_way(unsafe { BorrowedFd::borrow_raw(fd) })
}

fn refused(what: &'static str) -> impl FnOnce(kvm_ioctls::Error) -> Error {
    move |error| Error::Refused {
        what,
        source: error.into(),
    }
}

/// The length in bytes of the largest dirty ring that KVM offers; 0 if it has none.
pub(crate) fn ring_bytes_max(kvm: &Kvm) -> usize {
    let offered = |cap| kvm.check_extension_raw(cap).max(0) as usize;
    offered(KVM_CAP_DIRTY_LOG_RING_ACQ_REL.into()).max(offered(KVM_CAP_DIRTY_LOG_RING.into()))
}

/// The most memslots that a virtual machine may have.
pub(crate) fn slots_max(kvm: &Kvm) -> u32 {
    // Kernels without the capability have 32.
    kvm.check_extension_raw(KVM_CAP_NR_MEMSLOTS.into()).max(32) as u32
}

/// The most vCPUs that a virtual machine may have.
pub(crate) fn processors_max(kvm: &Kvm) -> u64 {
    // Kernels without the capability have 4.
    kvm.check_extension_raw(KVM_CAP_MAX_VCPUS.into()).max(4) as u64
}

/// Whether registers come with an exit, without a call (`KVM_CAP_SYNC_REGS`).
pub(crate) fn has_sync_regs(kvm: &Kvm) -> bool {
    kvm.check_extension_raw(KVM_CAP_SYNC_REGS.into()) as u32 & KVM_SYNC_X86_REGS != 0
}

impl Vm {
    /// Creates a virtual machine.
    pub(crate) fn create(log: Log) -> Result<Self> {
        Self::create_by(open()?, log)
    }

    /// Creates another virtual machine, for a process forked from this one, which may no longer be
    /// permitted to open /dev/kvm, or may not see it.
    pub(crate) fn create_another(&self, log: Log) -> Result<Self> {
        let fd = descriptors::out_of_the_way(borrowed(&self.kvm));
        let fd = fd.map_err(Error::system("duplicate a descriptor"))?;
        Self::create_by(adopt(fd), log)
    }

    /// The descriptor of KVM.
    pub(crate) fn kvm(&self) -> BorrowedFd<'_> {
        borrowed(&self.kvm)
    }

    /// Creates a virtual machine by an open `/dev/kvm`.
    pub(crate) fn create_by(kvm: Kvm, log: Log) -> Result<Self> {
        if !has_sync_regs(&kvm) {
            return Err(Error::Lacks(
                "registers that come with an exit (KVM_CAP_SYNC_REGS, Linux 4.18)",
            ));
        }
        let made = descriptors::with_more_numbers(|| kvm.create_vm());
        let made = made.map_err(refused("create a virtual machine"))?;
        // SAFETY: `made` is open while it is borrowed.
        let fd =
            unsafe { moved(made.as_raw_fd()) }.map_err(Error::system("duplicate a descriptor"))?;
        // SAFETY: the descriptor is of a virtual machine, and `into_raw_fd` gave up its ownership.
        let fd = unsafe { kvm.create_vmfd_from_rawfd(fd.into_raw_fd()) };
        let fd = fd.map_err(refused("create a virtual machine"))?;
        let mut vm = Self {
            kvm,
            fd,
            log: Log::Off,
        };
        // Processors before Westmere need it; others ignore it.
        let _ = vm.fd.set_tss_address(TSS_ADDRESS);
        vm.set_log(log)?;
        Ok(vm)
    }

    fn set_log(&mut self, log: Log) -> Result<()> {
        if let Log::Ring(bytes) = log {
            // The newer capability promises an order of memory accesses that x86 has anyway.
            let enabled = [KVM_CAP_DIRTY_LOG_RING_ACQ_REL, KVM_CAP_DIRTY_LOG_RING]
                .into_iter()
                .any(|cap| {
                    let mut wanted = kvm_enable_cap {
                        cap,
                        ..Default::default()
                    };
                    wanted.args[0] = bytes as u64;
                    self.fd.enable_cap(&wanted).is_ok()
                });
            if !enabled {
                return Err(Error::Lacks(
                    "ring of dirty pages (KVM_CAP_DIRTY_LOG_RING, Linux 5.11)",
                ));
            }
        }
        self.log = log;
        Ok(())
    }

    /// The descriptors of KVM and of the virtual machine.
    pub(crate) fn descriptors(&self) -> [RawFd; 2] {
        [self.kvm.as_raw_fd(), self.fd.as_raw_fd()]
    }

    /// How dirty pages are logged.
    pub(crate) fn log(&self) -> Log {
        self.log
    }

    /// The CPUID that KVM supports.
    pub(crate) fn supported_cpuid(&self) -> Result<CpuId> {
        let cpuid = self.kvm.get_supported_cpuid(KVM_MAX_CPUID_ENTRIES);
        cpuid.map_err(refused("report what its processors support"))
    }

    pub(crate) fn processors_max(&self) -> u64 {
        processors_max(&self.kvm)
    }

    pub(crate) fn slots_max(&self) -> u32 {
        slots_max(&self.kvm)
    }

    /// Makes a part of this process's address space guest-physical memory. The guest sees whatever
    /// is mapped there, now or later; its writes are logged if `logged`.
    pub(crate) fn add_slot(
        &self,
        slot: u32,
        physical: u64,
        address: u64,
        bytes: u64,
        logged: bool,
    ) -> Result<()> {
        let region = kvm_userspace_memory_region {
            slot,
            flags: if logged { KVM_MEM_LOG_DIRTY_PAGES } else { 0 },
            guest_phys_addr: physical,
            memory_size: bytes,
            userspace_addr: address,
        };
        // SAFETY: the guest reaches this memory only through page tables of this crate. They map
        // only the program's memory, of which no Rust reference exists, and for ring 0 the
        // machine's own part, which is atomic words.
        let added = unsafe { self.fd.set_user_memory_region(region) };
        added.map_err(refused("add a memslot"))
    }

    /// Fetches and clears a memslot's dirty bitmap: a bit per page.
    pub(crate) fn dirty_bitmap(&self, slot: u32, bytes: u64) -> Result<Vec<u64>> {
        let bitmap = self.fd.get_dirty_log(slot, bytes as usize);
        bitmap.map_err(refused("return a dirty bitmap"))
    }

    /// Re-protects the pages that were taken from the rings.
    pub(crate) fn reset_rings(&self) -> Result<()> {
        loop {
            // SAFETY: the call has no argument, and changes only KVM's page tables and rings of
            // this virtual machine.
            if unsafe { libc::ioctl(self.fd.as_raw_fd(), KVM_RESET_DIRTY_RINGS) } != -1 {
                return Ok(());
            }
            let source = io::Error::last_os_error();
            // Since Linux 6.16 the call returns early for a signal.
            if source.kind() != io::ErrorKind::Interrupted {
                return Err(Error::Refused {
                    what: "reset its dirty rings",
                    source,
                });
            }
        }
    }

    /// Adds a vCPU.
    pub(crate) fn add_cpu(&self, id: u64) -> Result<Cpu> {
        let made = descriptors::with_more_numbers(|| self.fd.create_vcpu(id));
        let made = made.map_err(refused("create a vCPU"))?;
        // SAFETY: `made` is open while it is borrowed.
        let fd =
            unsafe { moved(made.as_raw_fd()) }.map_err(Error::system("duplicate a descriptor"))?;
        let ring = match self.log {
            Log::Ring(bytes) => {
                Some(Ring::map(fd.as_fd(), bytes).map_err(Error::system("map a ring"))?)
            }
            Log::Off | Log::Bitmap => None,
        };
        // SAFETY: the descriptor is of a vCPU, and `into_raw_fd` gave up its ownership.
        let fd = unsafe { self.fd.create_vcpu_from_rawfd(fd.into_raw_fd()) };
        let mut fd = fd.map_err(refused("create a vCPU"))?;
        fd.set_sync_valid_reg(SyncReg::Register);
        Ok(Cpu {
            fd,
            ring,
            cpu_number: None,
            counter_seen: None,
        })
    }
}

/// A vCPU.
#[derive(Debug)]
pub(crate) struct Cpu {
    fd: VcpuFd,
    ring: Option<Ring>,
    /// The host CPU number that the guest was last given.
    cpu_number: Option<usize>,
    /// The time stamp counter at the last run, if the guest's is to be the same.
    counter_seen: Option<u64>,
}

/// After so many ticks without a run, about a second, the guest's counter is set again.
const TICKS_UNWATCHED_MAX: u64 = 1 << 32;

/// The time stamp counter.
pub(crate) fn counter() -> u64 {
    // SAFETY: all 64-bit processors have the instruction, and Linux lets programs use it unless
    // they ask to be stopped (PR_SET_TSC in prctl(2)).
    unsafe { std::arch::x86_64::_rdtsc() }
}

impl Cpu {
    /// Makes the guest's time stamp counter the same as this machine's (Linux 5.16). Returns
    /// whether it is.
    pub(crate) fn share_counter(&mut self) -> bool {
        self.counter_seen = Some(counter());
        let is_set = self.set_counter_offset();
        if !is_set {
            self.counter_seen = None;
        }
        is_set
    }

    fn set_counter_offset(&self) -> bool {
        let offset = 0u64;
        let attribute = kvm_device_attr {
            group: KVM_VCPU_TSC_CTRL,
            attr: KVM_VCPU_TSC_OFFSET.into(),
            addr: &raw const offset as u64,
            flags: 0,
        };
        let at = &raw const attribute;
        // SAFETY: the number fits the structure, which names a word of ours, and both outlive the
        // call. KVM only reads them.
        unsafe { libc::ioctl(self.fd.as_raw_fd(), KVM_SET_DEVICE_ATTR, at) == 0 }
    }

    /// Sets the guest's counter again where KVM may have changed it. When the machine was suspended
    /// and its counter began anew, KVM lets the guest's go on. A thread that was in the guest then
    /// has left it, and comes here first.
    fn keep_counter(&mut self) {
        let Some(seen) = self.counter_seen else {
            return;
        };
        let now = counter();
        self.counter_seen = Some(now);
        if now.wrapping_sub(seen) > TICKS_UNWATCHED_MAX {
            // It was possible before.
            self.set_counter_offset();
        }
    }

    pub(crate) fn descriptor(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// Sets what RDTSCP and RDPID return: the host CPU on which this thread runs, and its node. As
    /// with `getcpu(2)`, the answer holds until the thread is moved; here it is refreshed only at
    /// each run.
    fn set_cpu_number(&mut self) {
        let here = rustix::thread::sched_getcpu();
        if self.cpu_number == Some(here) {
            return;
        }
        self.cpu_number = Some(here);
        let mut node = 0u32;
        call(libc::SYS_getcpu, &[0, &raw mut node as u64]);
        // A processor without these instructions lacks the register.
        let _ = self.set_msrs(&[(MSR_TSC_AUX, u64::from(node) << 12 | here as u64)]);
    }

    /// Runs the guest until the next exit.
    pub(crate) fn run(&mut self) -> Exit {
        self.set_cpu_number();
        self.keep_counter();
        match self.fd.run() {
            Ok(VcpuExit::IoOut(port, _)) => Exit::Out(port),
            Ok(VcpuExit::Unsupported(EXIT_DIRTY_RING_FULL)) => Exit::RingFull,
            Ok(VcpuExit::Intr) => Exit::Interrupted,
            Ok(VcpuExit::MemoryFault { .. }) => Exit::BadMemory,
            Ok(other) => Exit::Stopped(format!("{other:?}")),
            Err(error) => match error.errno() {
                libc::EINTR | libc::EAGAIN => Exit::Interrupted,
                libc::EFAULT | libc::EHWPOISON => Exit::BadMemory,
                _ => Exit::Stopped(error.to_string()),
            },
        }
    }

    /// Whether the vCPU can run: since Linux 6.14 the first run of a machine starts a thread of the
    /// kernel, which counts as one of this process's user. Runs nothing of the guest.
    pub(crate) fn check_that_it_runs(&mut self) -> Result<()> {
        self.fd.set_kvm_immediate_exit(1);
        let error = self.fd.run().err();
        self.fd.set_kvm_immediate_exit(0);
        match error.filter(|error| [libc::EAGAIN, libc::ENOMEM].contains(&error.errno())) {
            None => Ok(()),
            Some(error) => Err(refused("run a vCPU")(error)),
        }
    }

    /// The general registers at the last exit.
    pub(crate) fn regs(&mut self) -> &kvm_regs {
        &self.fd.sync_regs_mut().regs
    }

    /// The general registers, to be changed before the next run.
    pub(crate) fn regs_mut(&mut self) -> &mut kvm_regs {
        self.fd.set_sync_dirty_reg(SyncReg::Register);
        &mut self.fd.sync_regs_mut().regs
    }

    /// Whether an exception is being delivered. If interrupted there, the vCPU delivers it at the
    /// next run, whatever its registers are then.
    pub(crate) fn is_delivering(&self) -> Result<bool> {
        let events = self.fd.get_vcpu_events();
        let exception = events.map_err(refused("return pending events"))?.exception;
        Ok(exception.injected != 0 || exception.pending != 0)
    }

    /// Segments and control registers.
    pub(crate) fn sregs(&self) -> Result<kvm_sregs> {
        self.fd.get_sregs().map_err(refused("return registers"))
    }

    pub(crate) fn set_sregs(&self, sregs: &kvm_sregs) -> Result<()> {
        self.fd.set_sregs(sregs).map_err(refused("set registers"))
    }

    pub(crate) fn set_cpuid(&self, cpuid: &CpuId) -> Result<()> {
        self.fd.set_cpuid2(cpuid).map_err(refused("set CPUID"))
    }

    /// Sets XCR0, which enables components of the extended state.
    pub(crate) fn set_xcr0(&self, parts: u64) -> Result<()> {
        let mut xcrs = kvm_xcrs {
            nr_xcrs: 1,
            ..Default::default()
        };
        xcrs.xcrs[0].value = parts;
        self.fd.set_xcrs(&xcrs).map_err(refused("set XCR0"))
    }

    /// Sets model-specific registers, given as index and value.
    pub(crate) fn set_msrs(&self, values: &[(u32, u64)]) -> Result<()> {
        let entries: Vec<kvm_msr_entry> = values
            .iter()
            .map(|(index, data)| kvm_msr_entry {
                index: *index,
                data: *data,
                ..Default::default()
            })
            .collect();
        let msrs = Msrs::from_entries(&entries).map_err(|_| Error::Lacks("room for registers"))?;
        match self.fd.set_msrs(&msrs) {
            Ok(set) if set == values.len() => Ok(()),
            Ok(_) => Err(Error::Lacks("the registers of SYSCALL")),
            Err(error) => Err(refused("set registers")(error)),
        }
    }

    /// The floating-point and vector registers. Everything that CPUID offers fits into the 4 KiB of
    /// the older call.
    pub(crate) fn xsave(&self) -> Result<Box<kvm_xsave>> {
        let xsave = self.fd.get_xsave().map_err(refused("return registers"))?;
        Ok(Box::new(xsave))
    }

    pub(crate) fn set_xsave(&self, xsave: &kvm_xsave) -> Result<()> {
        // SAFETY: the kernel reads no more than the 4 KiB of the structure: components of the state
        // that need more are masked in CPUID, and never enabled by arch_prctl(2).
        unsafe { self.fd.set_xsave(xsave) }.map_err(refused("set registers"))
    }

    /// Whether the vCPU stopped after an instruction because of single-stepping (`DR6.BS`). Clears
    /// that bit.
    pub(crate) fn take_single_step(&self) -> Result<bool> {
        const SINGLE_STEP: u64 = 1 << 14;
        let mut debugging = self
            .fd
            .get_debug_regs()
            .map_err(refused("return registers"))?;
        let steps = debugging.dr6 & SINGLE_STEP != 0;
        if steps {
            debugging.dr6 &= !SINGLE_STEP;
            let set = self.fd.set_debug_regs(&debugging);
            set.map_err(refused("set registers"))?;
        }
        Ok(steps)
    }

    /// The byte that makes the vCPU exit (`immediate_exit`).
    pub(crate) fn stop_byte(&mut self) -> *mut u8 {
        &raw mut self.fd.get_kvm_run().immediate_exit
    }

    /// The vCPU's dirty ring, if the machine logs that way.
    pub(crate) fn take_ring(&mut self) -> Option<Ring> {
        self.ring.take()
    }
}
