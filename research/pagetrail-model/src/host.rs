//! [`Host`]: memory, processors and virtual machines, put together and run.
//!
//! Nothing happens by itself: the caller says which process runs on which vCPU and makes its
//! accesses, one after the other. An access goes through hardware, hypervisor and guest kernel
//! until it completes.

use crate::Error;
use crate::Events;
use crate::guest::{Backing, Kernel, Pid};
use crate::hypervisor::Hypervisor;
use crate::machine::{
    Cpu, Ept, Gpa, Gva, PAGE_BYTES, PhysicalMemory, PostedInterrupts, Tlb, TlbGeometry,
    Translation, Vcpu, Vector, Vmcs,
};
use crate::platform::{Outcome, Platform};

/// The machine to build.
#[derive(Clone, Debug)]
pub struct HostConfig {
    /// Physical memory, in bytes. Only what is touched takes memory here.
    pub memory_bytes: u64,
    /// The TLB of each processor.
    pub tlb: TlbGeometry,
}

impl Default for HostConfig {
    /// 16 GiB, as in the OoH paper.
    fn default() -> Self {
        Self {
            memory_bytes: 16 << 30,
            tlb: TlbGeometry::default(),
        }
    }
}

/// How a virtual machine's addresses are translated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Paging {
    /// No hypervisor. Only one such machine fits on a host, and nothing else beside it.
    Native,
    /// Extended page tables.
    Nested {
        /// Whether the processor keeps accessed and dirty flags in them; PML needs that.
        accessed_dirty: bool,
    },
    /// Shadow page tables.
    Shadow,
}

/// The virtual machine to build.
#[derive(Clone, Debug)]
pub struct VmConfig {
    /// Virtual processors; each gets a processor of its own.
    pub vcpus: usize,
    /// Guest-physical memory, in bytes.
    pub memory_bytes: u64,
    /// How addresses are translated.
    pub paging: Paging,
    /// Whether the hypervisor backs memory with large pages while nobody logs.
    pub huge_backing: bool,
}

impl Default for VmConfig {
    /// As in the OoH paper: one vCPU, 5 GB, EPT.
    fn default() -> Self {
        Self {
            vcpus: 1,
            memory_bytes: 5 << 30,
            paging: Paging::Nested {
                accessed_dirty: true,
            },
            huge_backing: false,
        }
    }
}

/// Names a virtual machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VmId(usize);

/// Names a virtual processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VcpuId {
    vm: usize,
    index: usize,
}

/// Names a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProcessId {
    vm: usize,
    pid: Pid,
}

impl VmId {
    /// The vCPU number `index` of this machine.
    pub const fn vcpu(self, index: usize) -> VcpuId {
        VcpuId { vm: self.0, index }
    }
}

impl ProcessId {
    /// The machine that it runs on.
    pub const fn vm(self) -> VmId {
        VmId(self.vm)
    }

    pub(crate) const fn pid(self) -> Pid {
        self.pid
    }
}

#[derive(Debug)]
struct Vm {
    vcpus: Vec<Vcpu>,
    hypervisor: Hypervisor,
    kernel: Kernel,
    events: Events,
}

/// The whole machine.
#[derive(Debug)]
pub struct Host {
    memory: PhysicalMemory,
    tlb: TlbGeometry,
    cpus: Vec<Cpu>,
    vms: Vec<Vm>,
    next_vpid: u16,
}

impl Host {
    /// A machine without guests.
    pub fn new(config: &HostConfig) -> Result<Self, Error> {
        Tlb::new(config.tlb)?;
        Ok(Self {
            memory: PhysicalMemory::new(config.memory_bytes),
            tlb: config.tlb,
            cpus: Vec::new(),
            vms: Vec::new(),
            next_vpid: 1,
        })
    }

    /// Adds a virtual machine, and a processor for each of its vCPUs.
    pub fn add_vm(&mut self, config: &VmConfig) -> Result<VmId, Error> {
        if config.vcpus == 0 || config.vcpus > 1024 {
            return Err(Error::Unsupported("no vCPU, or more than 1024"));
        }
        if config.memory_bytes < 1 << 20 || config.memory_bytes > 1 << 44 {
            return Err(Error::Unsupported(
                "less than 1 MiB of memory, or more than 16 TiB",
            ));
        }
        let native = config.paging == Paging::Native;
        if native && !self.vms.is_empty() || self.is_native() {
            return Err(Error::Unsupported(
                "a machine without a hypervisor beside another",
            ));
        }
        let accessed_dirty = config.paging
            == Paging::Nested {
                accessed_dirty: true,
            };
        let ept = Ept::new(&mut self.memory, accessed_dirty)?;
        let translation = match config.paging {
            Paging::Native => Translation::Native,
            Paging::Nested { .. } => Translation::Nested(ept),
            Paging::Shadow => Translation::Shadow { root: ept.root },
        };
        let mut vcpus = Vec::new();
        for _ in 0..config.vcpus {
            let vmcs = Vmcs {
                translation,
                vpid: self.next_vpid,
                pml: None,
                shadow: None,
            };
            let next = self
                .next_vpid
                .checked_add(1)
                .filter(|&vpid| vpid < u16::MAX);
            self.next_vpid = next.ok_or(Error::Unsupported("more than 65533 vCPUs"))?;
            let cpu = self.cpus.len();
            self.cpus.push(Cpu {
                tlb: Tlb::new(self.tlb)?,
            });
            vcpus.push(Vcpu {
                vmcs,
                cr3: Gpa::default(),
                pcid: 0,
                cpu,
                posted: PostedInterrupts::default(),
            });
        }
        self.vms.push(Vm {
            vcpus,
            hypervisor: Hypervisor::new(
                ept,
                config.vcpus,
                config.memory_bytes,
                config.huge_backing,
            ),
            kernel: Kernel::new(config.vcpus, config.memory_bytes / PAGE_BYTES),
            events: Events::default(),
        });
        Ok(VmId(self.vms.len() - 1))
    }

    fn is_native(&self) -> bool {
        self.vms
            .iter()
            .any(|vm| vm.vcpus[0].vmcs.translation == Translation::Native)
    }

    /// Processors, for [`migrate`](Self::migrate).
    pub fn cpus(&self) -> usize {
        self.cpus.len()
    }

    /// The host's memory.
    pub fn memory(&self) -> &PhysicalMemory {
        &self.memory
    }

    /// What has happened on a virtual machine so far.
    pub fn events(&self, vm: VmId) -> Events {
        self.vms.get(vm.0).map_or(Events::default(), |vm| vm.events)
    }

    /// The kernel of a machine and what it runs on.
    #[inline]
    fn parts(&mut self, vcpu: VcpuId) -> Result<(&mut Kernel, Platform<'_>), Error> {
        let vm = self
            .vms
            .get_mut(vcpu.vm)
            .ok_or(Error::NoSuch("virtual machine"))?;
        if vcpu.index >= vm.vcpus.len() {
            return Err(Error::NoSuch("vCPU"));
        }
        let Vm {
            vcpus,
            hypervisor,
            kernel,
            events,
        } = vm;
        let platform = Platform {
            memory: &mut self.memory,
            cpus: &mut self.cpus,
            vcpus,
            hypervisor,
            events,
            current: vcpu.index,
        };
        Ok((kernel, platform))
    }

    /// Lets the kernel of a machine do something on `vcpu`, as in a system call.
    pub(crate) fn kernel<T>(
        &mut self,
        vcpu: VcpuId,
        call: impl FnOnce(&mut Kernel, &mut Platform<'_>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let (kernel, mut platform) = self.parts(vcpu)?;
        call(kernel, &mut platform)
    }

    /// Starts a process. It does not run yet.
    pub fn spawn(&mut self, vm: VmId) -> Result<ProcessId, Error> {
        let pid = self.kernel(vm.vcpu(0), |kernel, platform| kernel.spawn(platform))?;
        Ok(ProcessId { vm: vm.0, pid })
    }

    /// Ends a process and frees all that it had.
    pub fn exit(&mut self, process: ProcessId) -> Result<(), Error> {
        self.kernel(process.vm().vcpu(0), |kernel, platform| {
            kernel.exit(platform, process.pid)
        })
    }

    /// Gives a process an area of memory of `bytes` (rounded up to pages) and returns where it
    /// starts.
    pub fn map(&mut self, process: ProcessId, bytes: u64) -> Result<Gva, Error> {
        self.map_backed(process, bytes, Backing::Pages)
    }

    /// Maps guest-physical memory as above, in pages of 2 MiB.
    pub fn map_huge(&mut self, process: ProcessId, bytes: u64) -> Result<Gva, Error> {
        let (_, platform) = self.parts(process.vm().vcpu(0))?;
        if matches!(
            platform.vcpus[0].vmcs.translation,
            Translation::Shadow { .. }
        ) {
            return Err(Error::Unsupported("large pages under shadow paging"));
        }
        self.map_backed(
            process,
            bytes.next_multiple_of(crate::machine::HUGE_BYTES),
            Backing::HugePages,
        )
    }

    /// Gives a process an area whose accesses go to a device of the hypervisor.
    pub fn map_device(&mut self, process: ProcessId, bytes: u64) -> Result<Gva, Error> {
        self.map_backed(process, bytes, Backing::Device)
    }

    pub(crate) fn map_backed(
        &mut self,
        process: ProcessId,
        bytes: u64,
        backing: Backing,
    ) -> Result<Gva, Error> {
        let pages = bytes.div_ceil(PAGE_BYTES);
        self.kernel(process.vm().vcpu(0), |kernel, _| {
            kernel.map(process.pid, pages, backing)
        })
    }

    /// Takes back the area that starts at `start`.
    pub fn unmap(&mut self, process: ProcessId, start: Gva) -> Result<(), Error> {
        self.kernel(process.vm().vcpu(0), |kernel, platform| {
            kernel.unmap(platform, process.pid, start)
        })
    }

    /// Runs a process on a vCPU of its machine, in place of what ran there.
    pub fn schedule(&mut self, process: ProcessId, vcpu: VcpuId) -> Result<(), Error> {
        if process.vm != vcpu.vm {
            return Err(Error::NoSuch("process on this virtual machine"));
        }
        self.kernel(vcpu, |kernel, platform| {
            kernel.schedule(platform, vcpu.index, process.pid)
        })
    }

    /// Moves a vCPU to another processor.
    pub fn migrate(&mut self, vcpu: VcpuId, cpu: usize) -> Result<(), Error> {
        if cpu >= self.cpus.len() {
            return Err(Error::NoSuch("processor"));
        }
        let (_, platform) = self.parts(vcpu)?;
        let moved = &mut platform.vcpus[vcpu.index];
        if moved.cpu != cpu {
            moved.cpu = cpu;
            platform.events.vcpu_migrations += 1;
            // What it left in that TLB on an earlier visit may be out of date.
            platform.cpus[cpu].tlb.flush_vpid(moved.vmcs.vpid);
        }
        Ok(())
    }

    /// One access by the process that runs on `vcpu`.
    #[inline]
    pub fn access(&mut self, vcpu: VcpuId, gva: Gva, write: bool) -> Result<(), Error> {
        let (kernel, mut platform) = self.parts(vcpu)?;
        if kernel.running(vcpu.index).is_none() {
            return Err(Error::Idle);
        }
        platform.events.accesses += 1;
        platform.events.writes += u64::from(write);
        // Each trap removes its cause; a handful is the most that one access can meet.
        for _ in 0..64 {
            match platform.user_access(gva, write)? {
                Outcome::Done => return Ok(()),
                Outcome::PageFault(fault) => kernel.page_fault(&mut platform, fault)?,
                Outcome::Interrupt(vector) => kernel.interrupt(&mut platform, vector)?,
            }
        }
        Err(Error::Livelock(gva))
    }

    /// Injects a timer interrupt, as the hypervisor of Lu et al. does when a sampling period is
    /// over.
    pub(crate) fn inject_timer_to(&mut self, process: ProcessId) -> Result<(), Error> {
        self.kernel(process.vm().vcpu(0), |kernel, platform| {
            if let Some(vcpu) = kernel.process(process.pid)?.on {
                platform.vcpus[vcpu].posted.post(Vector::Timer);
                platform.events.timer_ticks += 1;
            }
            Ok(())
        })
    }

    /// Starts the hypervisor's own logging of a machine, as a live migration does.
    pub fn start_log_dirty(&mut self, vm: VmId) -> Result<(), Error> {
        let (_, mut platform) = self.parts(vm.vcpu(0))?;
        if !platform.has_pml() {
            return Err(Error::Unsupported(
                "PML, which needs EPT with accessed and dirty flags",
            ));
        }
        platform.exit(|hypervisor, stopped| hypervisor.start_log_dirty(stopped))
    }

    /// Takes the guest-physical pages that a machine wrote since the last call.
    pub fn take_log_dirty(&mut self, vm: VmId) -> Result<Vec<Gpa>, Error> {
        let (_, mut platform) = self.parts(vm.vcpu(0))?;
        let dirty = platform.exit(|hypervisor, stopped| hypervisor.take_log_dirty(stopped))?;
        Ok(dirty.into_iter().collect())
    }

    /// Ends it.
    pub fn stop_log_dirty(&mut self, vm: VmId) -> Result<(), Error> {
        let (_, mut platform) = self.parts(vm.vcpu(0))?;
        platform.exit(|hypervisor, stopped| hypervisor.stop_log_dirty(stopped))
    }

    /// The guest-physical page behind `gva`, if it is mapped (what `/proc/PID/pagemap` would say).
    pub fn guest_physical(&mut self, process: ProcessId, gva: Gva) -> Result<Option<Gpa>, Error> {
        self.kernel(process.vm().vcpu(0), |kernel, platform| {
            kernel.process(process.pid)?.space.translate(platform, gva)
        })
    }
}
