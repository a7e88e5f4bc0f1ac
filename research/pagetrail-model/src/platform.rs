//! [`Platform`]: the machine as a guest kernel sees it.
//!
//! Guest-physical addresses, instructions, hypercalls; exits are handled behind its back. A guest
//! kernel is written against this type alone and can therefore not get hold of a host-physical
//! address.

use std::collections::BTreeSet;

use crate::Error;
use crate::Events;
use crate::hypervisor::{Handled, Hypercall, Hypervisor, Reply, Stopped};
use crate::machine::{
    Cpu, Field, Gpa, Gva, Hardware, Hpa, PageFault, PhysicalMemory, Tag, Translation, Trap, Vcpu,
    Vector,
};
use crate::ring::Words;

/// Where a kernel sees guest-physical address 0 in its own address space (Linux:
/// `page_offset_base`).
const DIRECT_MAP: Gva = Gva::new(0xffff_8880_0000_0000);

/// How an access by a program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Done,
    PageFault(PageFault),
    Interrupt(Vector),
}

/// A vCPU of a virtual machine, and everything that its guest can reach from there.
pub(crate) struct Platform<'a> {
    pub(crate) memory: &'a mut PhysicalMemory,
    pub(crate) cpus: &'a mut [Cpu],
    pub(crate) vcpus: &'a mut [Vcpu],
    pub(crate) hypervisor: &'a mut Hypervisor,
    pub(crate) events: &'a mut Events,
    /// The vCPU that the guest code runs on.
    pub(crate) current: usize,
}

impl Platform<'_> {
    #[inline]
    fn hardware(&mut self) -> Hardware<'_> {
        let vcpu = &mut self.vcpus[self.current];
        Hardware {
            cpu: &mut self.cpus[vcpu.cpu],
            memory: self.memory,
            vcpu,
            events: self.events,
        }
    }

    /// Stops the vCPU and lets the hypervisor do something.
    pub(crate) fn exit<T>(
        &mut self,
        handler: impl FnOnce(&mut Hypervisor, &mut Stopped<'_>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let Self {
            memory,
            cpus,
            vcpus,
            hypervisor,
            events,
            current,
        } = self;
        handler(
            hypervisor,
            &mut Stopped {
                memory,
                cpus,
                vcpus,
                events,
                current: *current,
            },
        )
    }

    fn handle(&mut self, trap: Trap) -> Result<Handled, Error> {
        match trap {
            Trap::PageFault(fault) if self.is_shadowed() => {
                self.exit(|hypervisor, stopped| hypervisor.shadow_fault(stopped, fault))
            }
            Trap::PageFault(fault) => Ok(Handled::Deliver(fault)),
            Trap::EptViolation { gpa, .. } => {
                self.exit(|hypervisor, stopped| hypervisor.ept_violation(stopped, gpa))
            }
            Trap::PmlFull => {
                self.exit(|hypervisor, stopped| hypervisor.pml_full(stopped))?;
                Ok(Handled::Retry)
            }
        }
    }

    /// One access by the program that runs on this vCPU, until it completes or the kernel is
    /// needed.
    #[inline]
    pub(crate) fn user_access(&mut self, gva: Gva, write: bool) -> Result<Outcome, Error> {
        loop {
            if let Some(vector) = self.vcpus[self.current].posted.take() {
                self.events.interrupts += 1;
                return Ok(Outcome::Interrupt(vector));
            }
            let trap = match self.hardware().access(gva, write) {
                Ok(_) => return Ok(Outcome::Done),
                Err(trap) => trap,
            };
            match self.handle(trap)? {
                Handled::Retry => {}
                Handled::Emulated => return Ok(Outcome::Done),
                Handled::Deliver(fault) => {
                    self.events.page_faults += 1;
                    return Ok(Outcome::PageFault(fault));
                }
            }
        }
    }

    /// An access by the kernel through its direct map.
    fn reach(&mut self, gpa: Gpa, write: bool) -> Result<Hpa, Error> {
        if self.is_shadowed() {
            return self.exit(|hypervisor, stopped| {
                hypervisor.back(stopped.memory, gpa)?;
                Ok(hypervisor
                    .translate(stopped.memory, gpa)
                    .expect("just backed"))
            });
        }
        // The kernel's own translations are not modelled, hence not its walks either.
        let walk_reads = self.events.ept_walk_reads;
        loop {
            match self
                .hardware()
                .access_physical(gpa, write, DIRECT_MAP.add(gpa.get()))
            {
                Ok(hpa) => {
                    self.events.ept_walk_reads = walk_reads;
                    return Ok(hpa);
                }
                Err(trap) => self.handle(trap)?,
            };
        }
    }

    /// Fills a page with zeros.
    pub(crate) fn zero(&mut self, page: Gpa) -> Result<(), Error> {
        if self.is_shadowed() {
            self.exit(|hypervisor, stopped| {
                hypervisor.shadow_overwrite(stopped, page);
                Ok(())
            })?;
        }
        let page = self.reach(page, true)?;
        self.memory.clear(page);
        Ok(())
    }

    /// Writes an entry of a page table that may be in use.
    pub(crate) fn write_entry(&mut self, slot: Gpa, entry: u64) -> Result<(), Error> {
        if self.is_shadowed() && self.shadow_table_write(slot, entry, false)? {
            return Ok(());
        }
        self.write(slot, entry)
    }

    /// Clears an entry of a page table that may be in use, at once (Linux: `ptep_get_and_clear`).
    pub(crate) fn take_entry(&mut self, slot: Gpa) -> Result<u64, Error> {
        let entry = self.read(slot)?;
        if self.is_shadowed() && self.shadow_table_write(slot, 0, true)? {
            return Ok(entry);
        }
        self.write(slot, 0)?;
        Ok(entry)
    }

    /// Switches to the page tables at `cr3`, keeping the TLB entries of other PCIDs.
    pub(crate) fn load_cr3(&mut self, cr3: Gpa, pcid: u16) -> Result<(), Error> {
        let vcpu = &mut self.vcpus[self.current];
        vcpu.cr3 = cr3;
        vcpu.pcid = pcid;
        if self.is_shadowed() {
            self.shadow_load_cr3(cr3)
        } else {
            Ok(())
        }
    }

    /// Drops the translation of one page of an address space, on all vCPUs.
    pub(crate) fn flush_page(&mut self, pcid: u16, gva: Gva) {
        self.events.tlb_page_flushes += 1;
        if self.is_shadowed() {
            self.shadow_invlpg();
        }
        for vcpu in self.vcpus.iter() {
            self.cpus[vcpu.cpu]
                .tlb
                .flush_page(Tag { pcid, ..vcpu.tag() }, gva);
        }
    }

    /// Drops all translations of an address space, on all vCPUs.
    pub(crate) fn flush_space(&mut self, pcid: u16) {
        self.events.tlb_flushes += 1;
        for vcpu in self.vcpus.iter() {
            self.cpus[vcpu.cpu]
                .tlb
                .flush_pcid(Tag { pcid, ..vcpu.tag() });
        }
    }

    pub(crate) fn hypercall(&mut self, call: Hypercall<'_>) -> Result<Reply, Error> {
        self.exit(|hypervisor, stopped| hypervisor.hypercall(stopped, call))
    }

    /// `vmread` of a field of the shadow VMCS; `None` where the hypervisor does not allow it.
    pub(crate) fn vmread(&mut self, field: Field) -> Option<u64> {
        let shadow = self.vcpus[self.current].vmcs.shadow;
        match (field, shadow) {
            (Field::GuestPmlIndex, Some(shadow)) => {
                self.events.vmreads += 1;
                Some(shadow.guest_pml.index.into())
            }
            _ => {
                self.events.vm_exits += 1;
                None
            }
        }
    }

    /// `vmwrite` of a field of the shadow VMCS; says whether the hypervisor allows it.
    pub(crate) fn vmwrite(&mut self, field: Field, value: u64) -> Result<bool, Error> {
        let Some(shadow) = &mut self.vcpus[self.current].vmcs.shadow else {
            self.events.vm_exits += 1;
            return Ok(false);
        };
        match field {
            Field::GuestPmlIndex => shadow.guest_pml.index = value as u16,
            Field::GuestPmlAddress => {
                while let Err(trap) = self.hardware().vmwrite_guest_pml_address(Gpa::new(value)) {
                    self.handle(trap)?;
                }
            }
        }
        self.events.vmwrites += 1;
        Ok(true)
    }

    #[inline]
    pub(crate) fn is_shadowed(&self) -> bool {
        matches!(
            self.vcpus[self.current].vmcs.translation,
            Translation::Shadow { .. }
        )
    }

    /// Whether the processor could log: EPT, with accessed and dirty flags.
    pub(crate) fn has_pml(&self) -> bool {
        matches!(self.vcpus[self.current].vmcs.translation, Translation::Nested(ept) if ept.accessed_dirty)
    }

    pub(crate) fn is_nested(&self) -> bool {
        matches!(
            self.vcpus[self.current].vmcs.translation,
            Translation::Nested(_)
        )
    }

    /// Starts a round of logging by shadow tables, see [`Hypervisor::shadow_round`].
    pub(crate) fn shadow_round(&mut self) -> BTreeSet<(Gpa, Gva)> {
        let Self {
            memory,
            cpus,
            vcpus,
            hypervisor,
            events,
            current,
        } = self;
        hypervisor.shadow_round(&mut Stopped {
            memory,
            cpus,
            vcpus,
            events,
            current: *current,
        })
    }

    fn shadow_table_write(&mut self, slot: Gpa, entry: u64, exchange: bool) -> Result<bool, Error> {
        self.exit(|hypervisor, stopped| {
            hypervisor.shadow_table_write(stopped, slot, entry, exchange)
        })
    }

    fn shadow_load_cr3(&mut self, cr3: Gpa) -> Result<(), Error> {
        self.exit(|hypervisor, stopped| hypervisor.shadow_load_cr3(stopped, cr3))
    }

    fn shadow_invlpg(&mut self) {
        self.events.vm_exits += 1;
        self.events.sh_invlpg += 1;
    }
}

impl Words for Platform<'_> {
    fn read(&mut self, at: Gpa) -> Result<u64, Error> {
        let at = self.reach(at, false)?;
        Ok(self.memory.read(at))
    }

    fn write(&mut self, at: Gpa, value: u64) -> Result<(), Error> {
        let at = self.reach(at, true)?;
        self.memory.write(at, value);
        Ok(())
    }
}
