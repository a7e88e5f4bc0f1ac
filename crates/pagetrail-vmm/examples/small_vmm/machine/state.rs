//! All that a guest's virtual machine is besides memory and devices: taken from one, given to
//! another.

use super::{Outcome, sys};
use kvm_bindings::{
    KVM_IRQCHIP_IOAPIC, KVM_IRQCHIP_PIC_MASTER, KVM_IRQCHIP_PIC_SLAVE, Msrs, kvm_clock_data,
    kvm_debugregs, kvm_irqchip, kvm_lapic_state, kvm_mp_state, kvm_msr_entry, kvm_pit_state2,
    kvm_regs, kvm_sregs, kvm_vcpu_events, kvm_xcrs, kvm_xsave,
};
use kvm_ioctls::{Kvm, VcpuFd, VmFd};

const CHIPS: [u32; 3] = [
    KVM_IRQCHIP_PIC_MASTER,
    KVM_IRQCHIP_PIC_SLAVE,
    KVM_IRQCHIP_IOAPIC,
];

/// The state of a processor, and of the parts of the machine that KVM emulates.
pub(crate) struct MachineState {
    regs: kvm_regs,
    sregs: kvm_sregs,
    xsave: kvm_xsave,
    xcrs: kvm_xcrs,
    debug: kvm_debugregs,
    lapic: kvm_lapic_state,
    msrs: Vec<kvm_msr_entry>,
    events: kvm_vcpu_events,
    mp: kvm_mp_state,
    chips: Vec<kvm_irqchip>,
    pit: kvm_pit_state2,
    clock: kvm_clock_data,
}

impl MachineState {
    /// Takes the state of a vCPU that is outside `KVM_RUN` and in the middle of no instruction.
    pub(crate) fn of(kvm: &Kvm, vm: &VmFd, vcpu: &VcpuFd) -> Outcome<Self> {
        let mut chips = Vec::new();
        for chip_id in CHIPS {
            let mut chip = kvm_irqchip {
                chip_id,
                ..Default::default()
            };
            vm.get_irqchip(&mut chip)?;
            chips.push(chip);
        }
        Ok(Self {
            // Before the others: it completes what an APIC has begun.
            mp: vcpu.get_mp_state()?,
            regs: vcpu.get_regs()?,
            sregs: vcpu.get_sregs()?,
            xsave: vcpu.get_xsave()?,
            xcrs: vcpu.get_xcrs()?,
            debug: vcpu.get_debug_regs()?,
            lapic: vcpu.get_lapic()?,
            msrs: msrs(kvm, vcpu)?,
            events: vcpu.get_vcpu_events()?,
            chips,
            pit: vm.get_pit2()?,
            clock: vm.get_clock()?,
        })
    }

    /// Gives the state to a vCPU that has never run. Interrupts come after who takes them, and
    /// events that are pending last, as other calls drop them.
    pub(crate) fn set(&self, vm: &VmFd, vcpu: &VcpuFd) -> Outcome<()> {
        let mut clock = self.clock;
        // No more than the time: not on whose clock it was.
        clock.flags = 0;
        vm.set_clock(&clock)?;
        vcpu.set_mp_state(self.mp)?;
        vcpu.set_regs(&self.regs)?;
        vcpu.set_sregs(&self.sregs)?;
        vcpu.set_xcrs(&self.xcrs)?;
        sys::set_xsave(vcpu, &self.xsave)?;
        vcpu.set_debug_regs(&self.debug)?;
        for entry in &self.msrs {
            set_msr(vcpu, entry)?;
        }
        vcpu.set_lapic(&self.lapic)?;
        for chip in &self.chips {
            vm.set_irqchip(chip)?;
        }
        vm.set_pit2(&self.pit)?;
        Ok(vcpu.set_vcpu_events(&self.events)?)
    }
}

impl MachineState {
    /// Adds all of it, for a file.
    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        out.extend(sys::bytes_of(&self.regs));
        out.extend(sys::bytes_of(&self.sregs));
        out.extend(sys::bytes_of(&self.xsave));
        out.extend(sys::bytes_of(&self.xcrs));
        out.extend(sys::bytes_of(&self.debug));
        out.extend(sys::bytes_of(&self.lapic));
        out.extend(sys::bytes_of(&self.events));
        out.extend(sys::bytes_of(&self.mp));
        out.extend(sys::bytes_of(&self.pit));
        out.extend(sys::bytes_of(&self.clock));
        for chip in &self.chips {
            out.extend(sys::bytes_of(chip));
        }
        out.extend(sys::bytes_of(&(self.msrs.len() as u32)));
        for entry in &self.msrs {
            out.extend(sys::bytes_of(entry));
        }
    }

    /// Takes what [`Self::put`] added off the front; `None` if there is too little.
    pub(crate) fn take(bytes: &mut &[u8]) -> Option<Self> {
        Some(Self {
            regs: sys::take(bytes)?,
            sregs: sys::take(bytes)?,
            xsave: sys::take(bytes)?,
            xcrs: sys::take(bytes)?,
            debug: sys::take(bytes)?,
            lapic: sys::take(bytes)?,
            events: sys::take(bytes)?,
            mp: sys::take(bytes)?,
            pit: sys::take(bytes)?,
            clock: sys::take(bytes)?,
            chips: CHIPS
                .iter()
                .map(|_| sys::take(bytes))
                .collect::<Option<_>>()?,
            msrs: {
                let count: u32 = sys::take(bytes)?;
                (0..count)
                    .map(|_| sys::take(bytes))
                    .collect::<Option<_>>()?
            },
        })
    }
}

fn one(index: u32, data: u64) -> Outcome<Msrs> {
    let entry = kvm_msr_entry {
        index,
        data,
        ..Default::default()
    };
    Msrs::from_entries(&[entry]).map_err(|error| format!("{error:?}").into())
}

/// The registers that KVM names and this processor has.
fn msrs(kvm: &Kvm, vcpu: &VcpuFd) -> Outcome<Vec<kvm_msr_entry>> {
    let mut found = Vec::new();
    for index in kvm.get_msr_index_list()?.as_slice() {
        let mut msrs = one(*index, 0)?;
        if vcpu.get_msrs(&mut msrs)? == 1 {
            found.extend_from_slice(msrs.as_slice());
        }
    }
    Ok(found)
}

/// Sets a register. Some cannot be written, and have their value already.
fn set_msr(vcpu: &VcpuFd, entry: &kvm_msr_entry) -> Outcome<()> {
    if vcpu.set_msrs(&one(entry.index, entry.data)?)? == 1 {
        return Ok(());
    }
    let mut now = one(entry.index, 0)?;
    vcpu.get_msrs(&mut now)?;
    match now.as_slice()[0].data == entry.data {
        true => Ok(()),
        false => Err(format!("register {:#x} cannot be set", entry.index).into()),
    }
}
