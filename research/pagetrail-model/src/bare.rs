//! [`BareGuest`]: a guest without a kernel, on page tables of its own, under a hypervisor that
//! logs.
//!
//! It is the guest of `tests/real/kvm.c`, to the address: what KVM reports of that one on a real or
//! emulated processor is what this one must log. Virtual and guest-physical addresses are the same.

use std::collections::BTreeSet;

use crate::hypervisor::{Handled, Hypervisor, Stopped};
use crate::machine::{
    Cpu, Ept, Gpa, Gva, HUGE_BYTES, Hardware, PAGE_BYTES, PhysicalMemory, PostedInterrupts, Pte,
    Tlb, TlbGeometry, Translation, Trap, Vcpu, Vmcs,
};
use crate::{Error, Events};

/// Memory of the guest, all of it mapped.
pub const BYTES: u64 = 64 << 20;
/// The root of its page tables; the two tables below it follow.
pub const ROOT: u64 = 0x1000;
/// The lowest page tables, one for each 2 MiB.
pub const LEAF_TABLES: u64 = 0x10_0000;
/// The page of its program.
pub const CODE: u64 = 0x20_0000;
/// What the program reads and writes.
pub const DATA: u64 = 16 << 20;
/// Where the program reads what to do: a word for each access, its lowest bit set for a write.
pub const STEPS: u64 = 40 << 20;

/// What happened between two collects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BareRound {
    /// Numbers of the guest-physical pages that were logged.
    pub pages: BTreeSet<u64>,
    /// Entries that the processor wrote.
    pub entries: u64,
    /// Exits because the log was full.
    pub full_exits: u64,
}

/// The guest and its hypervisor.
#[derive(Debug)]
pub struct BareGuest {
    memory: PhysicalMemory,
    cpus: [Cpu; 1],
    vcpus: [Vcpu; 1],
    hypervisor: Hypervisor,
    events: Events,
    /// Events up to the last collect.
    mark: Events,
}

impl BareGuest {
    /// A guest that has not run yet. Its hypervisor logs from the start.
    pub fn new() -> Result<Self, Error> {
        let mut memory = PhysicalMemory::new(2 * BYTES);
        let ept = Ept::new(&mut memory, true)?;
        let vmcs = Vmcs {
            translation: Translation::Nested(ept),
            vpid: 1,
            pml: None,
            shadow: None,
        };
        let vcpu = Vcpu {
            vmcs,
            cr3: Gpa::new(ROOT),
            pcid: 0,
            cpu: 0,
            posted: PostedInterrupts::default(),
        };
        let cpu = Cpu {
            tlb: Tlb::new(TlbGeometry::default())?,
        };
        let mut guest = Self {
            memory,
            cpus: [cpu],
            vcpus: [vcpu],
            hypervisor: Hypervisor::new(ept, 1, BYTES, false),
            events: Events::default(),
            mark: Events::default(),
        };
        guest.link(ROOT, 0, ROOT + 0x1000)?;
        guest.link(ROOT + 0x1000, 0, ROOT + 0x2000)?;
        for table in 0..BYTES / HUGE_BYTES {
            let leaf_table = LEAF_TABLES + table * PAGE_BYTES;
            guest.link(ROOT + 0x2000, table, leaf_table)?;
            for entry in 0..512 {
                guest.link(leaf_table, entry, table * HUGE_BYTES + entry * PAGE_BYTES)?;
            }
        }
        guest.exit(|hypervisor, stopped| hypervisor.start_log_dirty(stopped))?;
        Ok(guest)
    }

    /// Writes an entry of a guest table, from outside of the guest.
    fn link(&mut self, table: u64, entry: u64, to: u64) -> Result<(), Error> {
        let at = Gpa::new(table + entry * 8);
        self.hypervisor.back(&mut self.memory, at)?;
        let slot = self.hypervisor.translate(&self.memory, at);
        let pte = Pte::to(Gpa::new(to)).with_writable(true);
        self.memory.write(slot.expect("just backed"), pte.0);
        Ok(())
    }

    fn exit<T>(
        &mut self,
        handle: impl FnOnce(&mut Hypervisor, &mut Stopped<'_>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let mut stopped = Stopped {
            memory: &mut self.memory,
            cpus: &mut self.cpus,
            vcpus: &mut self.vcpus,
            events: &mut self.events,
            current: 0,
        };
        handle(&mut self.hypervisor, &mut stopped)
    }

    /// Runs the program on `steps`: addresses, and whether each is written.
    pub fn run(&mut self, steps: &[(u64, bool)]) -> Result<(), Error> {
        self.access(CODE, false)?;
        for (&(address, write), i) in steps.iter().zip(0..) {
            self.access(STEPS + i * 8, false)?;
            self.access(address, write)?;
        }
        Ok(())
    }

    fn access(&mut self, address: u64, write: bool) -> Result<(), Error> {
        let gva = Gva::new(address);
        // Each trap removes its cause.
        for _ in 0..64 {
            let mut hardware = Hardware {
                memory: &mut self.memory,
                cpu: &mut self.cpus[0],
                vcpu: &mut self.vcpus[0],
                events: &mut self.events,
            };
            match hardware.access(gva, write) {
                Ok(_) => return Ok(()),
                Err(Trap::PmlFull) => self.exit(|hypervisor, at| hypervisor.pml_full(at))?,
                Err(Trap::EptViolation { gpa, .. }) => {
                    let handled = self.exit(|hypervisor, at| hypervisor.ept_violation(at, gpa))?;
                    if !matches!(handled, Handled::Retry) {
                        return Err(Error::OutsideGuestMemory(gpa));
                    }
                }
                Err(Trap::PageFault(_)) => return Err(Error::BadAddress(gva)),
            }
        }
        Err(Error::Livelock(gva))
    }

    /// Takes what was logged since the last call, and arms it again.
    pub fn collect(&mut self) -> Result<BareRound, Error> {
        let pages = self.exit(|hypervisor, at| hypervisor.take_log_dirty(at))?;
        let events = self.events - std::mem::replace(&mut self.mark, self.events);
        Ok(BareRound {
            pages: pages.iter().map(|gpa| gpa.page_number()).collect(),
            entries: events.pml_entries,
            full_exits: events.pml_full_exits,
        })
    }
}
