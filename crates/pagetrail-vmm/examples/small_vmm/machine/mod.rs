//! A virtual machine monitor as small as can be: a Linux kernel on one vCPU, with a serial port and
//! a device that writes to its memory. It stands for a monitor that has all of that already: what
//! finds dirty pages, and keeps and restores memory, is `pagetrail-vmm`.

mod boot;
mod devices;
mod initrd;
mod state;
pub(crate) mod sys;

use devices::{DeviceState, Devices};
use kvm_bindings::{
    CpuId, KVM_MAX_CPUID_ENTRIES, KVM_PIT_SPEAKER_DUMMY, KVM_STATE_NESTED_GUEST_MODE,
    kvm_pit_config,
};
use kvm_ioctls::{Cap, Kvm, KvmNestedStateBuffer, VcpuExit, VcpuFd, VmFd};
use pagetrail_vmm::kvm::{self, LogProtection, Logging, SlotAccess, VcpuRings};
use pagetrail_vmm::tables::{AddressSpace, Mode};
use pagetrail_vmm::{DirtyLog, OwnWrites, Regions, Tracker};
use state::MachineState;
use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::time::Duration;

pub(crate) use devices::Console;
pub(crate) use sys::Memory;

pub(crate) type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// `KVM_EXIT_DIRTY_RING_FULL`.
const EXIT_DIRTY_RING_FULL: u32 = 31;
/// The length of the vCPU's dirty ring in bytes, where KVM has rings.
const RING_BYTES: u32 = 1 << 20;
/// Three pages that Intel's processors need below 4 GiB and outside memory.
const TSS: usize = 0xfffb_d000;

/// No firmware, no PCI: what is on this machine is said here.
///
/// `nolapic`: without tables of a firmware's, Linux takes interrupts from the old controllers
/// alone, through a pin of the local APIC (LVT0) that it masks while it sets the APIC up. A tick
/// that comes just then is never delivered, and none after it: KVM looks whether the pin is masked
/// when the controllers' output rises, not when the pin is unmasked, and the output stays up.
/// Where time passes slowly, as in emulation, that was two of five boots. Without the APIC nothing
/// could say that a missing page has come, so that `no-kvmapf` has the guest wait for it.
const COMMAND_LINE: &str = "console=ttyS0 quiet loglevel=4 panic=-1 reboot=t acpi=off pci=off \
                            nokaslr mitigations=off no_timer_check tsc=reliable lpj=4000000 \
                            random.trust_cpu=on 8250.nr_uarts=1 iomem=relaxed \
                            nolapic no-kvmapf";

/// What a guest has to run.
pub(crate) struct Software<'a> {
    /// A bzImage.
    pub(crate) kernel: &'a Path,
    /// The one program, linked statically, and a word for it.
    pub(crate) init: &'a Path,
    pub(crate) word: &'a str,
    /// A kernel module, which the program finds as `/module.ko`.
    pub(crate) module: Option<&'a Path>,
}

/// All of a guest but its memory.
pub(crate) struct State {
    machine: MachineState,
    devices: DeviceState,
}

/// How a file with such a state begins.
const STATE_MAGIC: &[u8] = b"small_vmm state 1\n";

impl State {
    /// All of it, for a file.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = STATE_MAGIC.to_vec();
        self.machine.put(&mut bytes);
        self.devices.put(&mut bytes);
        bytes
    }

    /// What [`Self::to_bytes`] made. Whether KVM takes it is not known before it is restored.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Outcome<Self> {
        let bytes = bytes.strip_prefix(STATE_MAGIC);
        let mut bytes = bytes.ok_or("this is no state that this monitor has written")?;
        let state = MachineState::take(&mut bytes).zip(DeviceState::take(&mut bytes));
        match state {
            Some((machine, devices)) if bytes.is_empty() => Ok(Self { machine, devices }),
            _ => Err("the state was cut off, or changed, after it was written".into()),
        }
    }
}

/// A guest of one vCPU. It runs while a thread is in [`Self::run`].
pub(crate) struct Monitor {
    vcpu: VcpuFd,
    vm: Arc<VmFd>,
    kvm: Kvm,
    devices: Devices,
    writes: OwnWrites,
    /// Where KVM has rings.
    rings: Option<VcpuRings>,
    pub(crate) console: Console,
    /// Dropped after the virtual machine.
    pub(crate) memory: Arc<Memory>,
}

impl Monitor {
    /// A guest with a kernel and one program in memory that is empty yet.
    pub(crate) fn new(memory: Arc<Memory>, software: &Software<'_>) -> Outcome<Self> {
        let read = |path: &Path| {
            std::fs::read(path).map_err(|error| format!("{}: {error}", path.display()))
        };
        let module = software.module.map(read).transpose()?;
        let initrd = initrd::with_init(&read(software.init)?, module.as_deref());
        let command_line = format!("{COMMAND_LINE} -- {}", software.word);
        boot::load(&memory, &read(software.kernel)?, &initrd, &command_line)?;
        let monitor = Self::over(memory, None)?;
        boot::enter(&monitor.vcpu)?;
        Ok(monitor)
    }

    /// A guest that goes on where another one was, over memory that has, or gets on demand, what
    /// that one's had.
    pub(crate) fn restored(memory: Arc<Memory>, state: &State) -> Outcome<Self> {
        Self::over(memory, Some(state))
    }

    fn over(memory: Arc<Memory>, state: Option<&State>) -> Outcome<Self> {
        sys::take_signals()?;
        let kvm = Kvm::new()?;
        let vm = Arc::new(kvm.create_vm()?);
        let offers = kvm::Offers::of(sys::borrowed(&*vm))?;
        let rings = (offers.ring_bytes_max != 0)
            .then(|| kvm::enable_ring(sys::borrowed(&*vm), RING_BYTES))
            .transpose()?
            .map(|()| VcpuRings::new(RING_BYTES));
        vm.set_tss_address(TSS)?;
        vm.create_irq_chip()?;
        vm.create_pit2(kvm_pit_config {
            flags: KVM_PIT_SPEAKER_DUMMY,
            ..Default::default()
        })?;
        sys::tick_on(&vm)?;
        sys::plug(&vm, &memory)?;
        let vcpu = vm.create_vcpu(0)?;
        vcpu.set_cpuid2(&cpuid(&kvm)?)?;
        if let Some(rings) = &rings {
            rings.add(sys::borrowed(&vcpu))?;
        }
        // Before the devices, which interrupt again for what was left undone.
        state.map_or(Ok(()), |state| state.machine.set(&vm, &vcpu))?;
        let (console, writes) = (Console::default(), OwnWrites::new());
        let devices = Devices::new(
            vm.clone(),
            memory.clone(),
            console.clone(),
            writes.clone(),
            state.map(|state| &state.devices),
        )?;
        sys::plug(&vm, devices.memory())?;
        Ok(Self {
            vcpu,
            vm,
            kvm,
            devices,
            writes,
            rings,
            console,
            memory,
        })
    }

    /// Begins to log what the guest and the devices write.
    pub(crate) fn track(&self) -> Outcome<Tracker> {
        let (vm, region) = (sys::borrowed(&*self.vm), self.memory.region());
        kvm::set_logging(vm, &region, SlotAccess::ReadWrite, Logging::On)?;
        let guest: Box<dyn DirtyLog> = match &self.rings {
            Some(rings) => Box::new(kvm::Ring::new(vm, rings.clone(), LogProtection::OnRead)?),
            None => Box::new(kvm::Log::new(vm, LogProtection::OnRead)?),
        };
        let logs = vec![guest, Box::new(self.writes.clone())];
        Ok(Tracker::new(Regions::new([region])?, logs)?)
    }

    /// What the guest's processor has in CR3, while the guest does not run.
    pub(crate) fn spaces(&self) -> Outcome<Vec<AddressSpace>> {
        let sregs = self.vcpu.get_sregs()?;
        let space = AddressSpace::of(sregs.cr0, sregs.cr3, sregs.cr4, sregs.efer, self.mode()?);
        Ok(space.into_iter().collect())
    }

    /// Whose registers the processor has: the guest may run guests of its own.
    fn mode(&self) -> Outcome<Mode> {
        let mut nested = KvmNestedStateBuffer::empty();
        if self.kvm.check_extension(Cap::NestedState) {
            self.vcpu.nested_state(&mut nested)?;
        }
        Ok(if self.vcpu.get_vcpu_events()?.smi.smm != 0 {
            Mode::SystemManagement
        } else if u32::from(nested.flags) & KVM_STATE_NESTED_GUEST_MODE != 0 {
            Mode::NestedGuest
        } else {
            Mode::Guest
        })
    }

    /// Lets the guest have what the tracker finds, by a device of its own.
    pub(crate) fn share(&mut self, tracker: &Tracker) {
        self.devices.share(Some(tracker));
    }

    /// How many logs the guest has on.
    pub(crate) fn logs_of_guest(&self) -> usize {
        self.devices.log().active()
    }

    /// Whether KVM logs by rings, and one was filled to its end.
    pub(crate) fn ring_was_overrun(&self) -> bool {
        self.rings.as_ref().is_some_and(VcpuRings::was_overrun)
    }

    /// Runs the guest until `turn` is ended, in the thread that calls. `full` is called when the
    /// vCPU's ring has to be emptied.
    pub(crate) fn run(&mut self, turn: &Turn, full: impl Fn() -> Outcome<()>) -> Outcome<()> {
        let _running = turn.begin();
        while !turn.is_ended.load(Ordering::Acquire) {
            self.step(&full)?;
        }
        // A read of a port that was answered is done with only by the next entry, and an
        // instruction that reads several, by as many.
        self.vcpu.set_kvm_immediate_exit(1);
        while self.step(&full)? != Left::Interrupted {}
        self.vcpu.set_kvm_immediate_exit(0);
        Ok(())
    }

    /// Enters the guest, and does what it left for.
    fn step(&mut self, full: impl Fn() -> Outcome<()>) -> Outcome<Left> {
        match self.vcpu.run() {
            Ok(VcpuExit::IoIn(port, data)) => self.devices.read(port, data),
            Ok(VcpuExit::IoOut(port, data)) => self.devices.write(port, data)?,
            Ok(VcpuExit::MmioRead(address, data)) => self.devices.read_memory(address, data),
            Ok(VcpuExit::MmioWrite(address, data)) => self.devices.write_memory(address, data),
            Ok(VcpuExit::Intr) => {}
            Ok(VcpuExit::Unsupported(EXIT_DIRTY_RING_FULL)) => full()?,
            Ok(VcpuExit::Shutdown) => return Err("the guest has shut down".into()),
            Ok(exit) => return Err(format!("the guest stopped: {exit:?}").into()),
            Err(error) if error.errno() == libc::EINTR => return Ok(Left::Interrupted),
            Err(error) if error.errno() == libc::EAGAIN => {}
            Err(error) => return Err(format!("the guest does not run: {error}").into()),
        }
        Ok(Left::ForMonitor)
    }

    /// Takes the state of a guest that does not run.
    pub(crate) fn state(&self) -> Outcome<State> {
        Ok(State {
            machine: MachineState::of(&self.kvm, &self.vm, &self.vcpu)?,
            devices: self.devices.state(),
        })
    }
}

/// Why a guest was left.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Left {
    /// By a signal, or as was asked for: nothing is to be done for it.
    Interrupted,
    /// For something that the monitor does.
    ForMonitor,
}

/// What KVM can give a guest, for its first processor.
fn cpuid(kvm: &Kvm) -> Outcome<CpuId> {
    let mut cpuid = kvm.get_supported_cpuid(KVM_MAX_CPUID_ENTRIES)?;
    for entry in cpuid.as_mut_slice() {
        match entry.function {
            // One processor, whose APIC has number 0.
            1 => entry.ebx = entry.ebx & 0xffff | 1 << 16,
            0xb | 0x1f => entry.edx = 0,
            _ => {}
        }
    }
    Ok(cpuid)
}

/// The time in which a guest runs in some thread, and its end from another.
#[derive(Debug, Default)]
pub(crate) struct Turn {
    is_ended: AtomicBool,
    was_begun: AtomicBool,
    /// The thread that runs it, 0 if there is none.
    thread: AtomicI32,
}

impl Turn {
    /// Says that this thread runs the guest, until what is returned is dropped.
    fn begin(&self) -> Running<'_> {
        let thread = rustix::thread::gettid().as_raw_nonzero().get();
        self.thread.store(thread, Ordering::Release);
        self.was_begun.store(true, Ordering::Release);
        Running(self)
    }

    /// Whether the guest has run, and runs no more.
    pub(crate) fn is_over(&self) -> bool {
        self.was_begun.load(Ordering::Acquire) && self.thread.load(Ordering::Acquire) == 0
    }

    /// Ends it; when this returns, no thread is in the guest, or will be.
    ///
    /// A signal that comes before the thread is in `KVM_RUN` interrupts nothing, so that it may
    /// take some.
    pub(crate) fn end(&self) {
        self.is_ended.store(true, Ordering::Release);
        loop {
            match self.thread.load(Ordering::Acquire) {
                0 => return,
                thread => sys::interrupt(thread),
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

struct Running<'a>(&'a Turn);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.thread.store(0, Ordering::Release);
    }
}
