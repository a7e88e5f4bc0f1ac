//! [`Hypervisor`]: one virtual machine as its hypervisor sees it.
//!
//! It backs guest-physical memory on demand, empties page-modification logs, and answers
//! hypercalls. Two parties share a log (OoH paper, section IV-C): each vCPU has the flags
//! `by_guest` and `by_hypervisor`, and what is found in the log goes to the ring buffer of the
//! tracked process, to the hypervisor's own dirty set, or to both.

mod hypercall;
mod shadow;

use std::collections::{BTreeMap, BTreeSet};

pub(crate) use hypercall::{Hypercall, Reply};
use shadow::ShadowPager;
pub(crate) use shadow::{DEVICES, Handled};

use crate::Error;
use crate::Events;
use crate::machine::{Cpu, Ept, Gpa, HUGE_PAGES, Hpa, PhysicalMemory, Pml, Vcpu};
use crate::ring::{Ring, Words};

/// Names a ring buffer to the hypervisor of the machine that registered it, and to no other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RingId(usize);

/// Who uses the log of one vCPU, and the page that it is on.
#[derive(Debug, Default)]
struct Logging {
    page: Option<Hpa>,
    by_guest: Option<RingId>,
    by_hypervisor: bool,
}

/// The state of one virtual machine.
#[derive(Debug)]
pub(crate) struct Hypervisor {
    ept: Ept,
    guest_pages: u64,
    huge_backing: bool,
    logging: Vec<Logging>,
    /// VMCS shadowing is on: the guest may have a log of its own.
    shadowing: bool,
    rings: Vec<Option<Ring>>,
    /// The hypervisor's own log, as for live migration.
    dirty: BTreeSet<Gpa>,
    /// Guest-physical pages that share the memory of another (Lu et al., `ept_map_to`), by number.
    aliases: BTreeMap<u64, u64>,
    /// Write-protected pages that were written (Lu et al.), the oldest first.
    violations: Vec<Gpa>,
    shadow: Option<ShadowPager>,
}

/// What the hypervisor works on while a vCPU is stopped in an exit.
pub(crate) struct Stopped<'a> {
    pub(crate) memory: &'a mut PhysicalMemory,
    pub(crate) cpus: &'a mut [Cpu],
    pub(crate) vcpus: &'a mut [Vcpu],
    pub(crate) events: &'a mut Events,
    pub(crate) current: usize,
}

impl Stopped<'_> {
    /// Drops what the TLBs remember of this machine's extended page tables.
    fn invept(&mut self) {
        for vcpu in self.vcpus.iter() {
            self.cpus[vcpu.cpu].tlb.flush_vpid(vcpu.vmcs.vpid);
            self.events.invepts += 1;
        }
    }
}

impl Hypervisor {
    pub(crate) fn new(ept: Ept, vcpus: usize, guest_bytes: u64, huge_backing: bool) -> Self {
        Self {
            ept,
            guest_pages: guest_bytes / crate::machine::PAGE_BYTES,
            huge_backing,
            logging: (0..vcpus).map(|_| Logging::default()).collect(),
            shadowing: false,
            rings: Vec::new(),
            dirty: BTreeSet::new(),
            aliases: BTreeMap::new(),
            violations: Vec::new(),
            shadow: None,
        }
    }

    /// Handles an exit because of an EPT violation: backs the page, or notes a write to a protected
    /// one.
    pub(crate) fn ept_violation(
        &mut self,
        stopped: &mut Stopped<'_>,
        gpa: Gpa,
    ) -> Result<Handled, Error> {
        stopped.events.vm_exits += 1;
        stopped.events.ept_violations += 1;
        if gpa >= DEVICES {
            return Ok(Handled::Emulated);
        }
        if let Some(leaf) = self.ept.leaf(stopped.memory, gpa) {
            stopped.events.ept_write_faults += 1;
            self.violations.push(gpa.page());
            stopped
                .memory
                .write(leaf.slot, leaf.entry.with_writable(true).0);
        } else {
            self.back(stopped.memory, gpa)?;
        }
        Ok(Handled::Retry)
    }

    /// Gives `gpa` memory if it has none.
    pub(crate) fn back(&mut self, memory: &mut PhysicalMemory, gpa: Gpa) -> Result<(), Error> {
        if gpa.page_number() >= self.guest_pages && !self.aliases.contains_key(&gpa.page_number()) {
            return Err(Error::OutsideGuestMemory(gpa));
        }
        if self.ept.leaf(memory, gpa).is_some() {
            return Ok(());
        }
        if let Some(&to_page) = self.aliases.get(&gpa.page_number()) {
            let to = Gpa::default().add_pages(to_page);
            self.back(memory, to)?;
            let frame = self.translate(memory, to).expect("just backed").page();
            return self.ept.map(memory, gpa.page(), frame, false);
        }
        let huge_end = gpa.huge_page().page_number() + HUGE_PAGES;
        if self.huge_backing && !self.is_logging() && huge_end <= self.guest_pages {
            let frame = memory.allocate_huge()?;
            return self.ept.map(memory, gpa.huge_page(), frame, true);
        }
        let frame = memory.allocate()?;
        self.ept.map(memory, gpa.page(), frame, false)
    }

    pub(crate) fn translate(&self, memory: &PhysicalMemory, gpa: Gpa) -> Option<Hpa> {
        self.ept.leaf(memory, gpa).map(|leaf| leaf.translate(gpa))
    }

    /// Whether somebody may log: then a large page would hide which of its parts was written.
    fn is_logging(&self) -> bool {
        self.shadowing
            || self.logging.iter().any(|logging| logging.by_hypervisor)
            || self.rings.iter().any(Option::is_some)
    }

    /// Handles an exit because of a full log.
    pub(crate) fn pml_full(&mut self, stopped: &mut Stopped<'_>) -> Result<(), Error> {
        stopped.events.vm_exits += 1;
        stopped.events.pml_full_exits += 1;
        self.empty_log(stopped, stopped.current)
    }

    /// Copies the log of a vCPU to those who asked for it, and empties it.
    fn empty_log(&mut self, stopped: &mut Stopped<'_>, vcpu: usize) -> Result<(), Error> {
        let Some(log) = &mut stopped.vcpus[vcpu].vmcs.pml else {
            return Ok(());
        };
        let addresses = log.entries(stopped.memory);
        *log = Pml::empty(log.address);
        let logging = &self.logging[vcpu];
        let ring = logging
            .by_guest
            .and_then(|RingId(id)| self.rings[id].clone());
        if logging.by_hypervisor {
            self.dirty
                .extend(addresses.iter().map(|&address| Gpa::new(address)));
        }
        if let Some(ring) = ring {
            let lost = ring.push(
                &mut HostView {
                    hypervisor: self,
                    memory: stopped.memory,
                },
                &addresses,
            )?;
            if self.logging[vcpu].by_hypervisor {
                // The processor does not see what the hypervisor itself writes.
                self.dirty.extend(ring.pages());
            }
            stopped.events.ring_copies += 1;
            stopped.events.ring_entries += addresses.len() as u64 - lost;
            stopped.events.ring_lost += lost;
        }
        Ok(())
    }

    /// Makes "enable PML" of a vCPU what its two flags say.
    fn update_logging(&mut self, stopped: &mut Stopped<'_>, vcpu: usize) -> Result<(), Error> {
        let logging = &mut self.logging[vcpu];
        let wanted = logging.by_guest.is_some() || logging.by_hypervisor;
        let vmcs = &mut stopped.vcpus[vcpu].vmcs;
        if !wanted {
            vmcs.pml = None;
        } else if vmcs.pml.is_none() {
            let page = match logging.page {
                Some(page) => page,
                None => stopped.memory.allocate()?,
            };
            logging.page = Some(page);
            vmcs.pml = Some(Pml::empty(page));
        }
        Ok(())
    }

    /// Makes small pages of all large ones, before somebody logs.
    fn split_large_pages(&mut self, stopped: &mut Stopped<'_>) -> Result<(), Error> {
        let mut large = Vec::new();
        self.ept.for_each_leaf(stopped.memory, &mut |gpa, entry| {
            if entry.large() {
                large.push(gpa);
            }
            entry
        });
        for gpa in large {
            self.ept.split(stopped.memory, gpa)?;
        }
        stopped.invept();
        Ok(())
    }

    /// Clears the dirty flags of `pages`, so that the next write to each is logged again.
    fn clear_dirty(&mut self, stopped: &mut Stopped<'_>, pages: impl IntoIterator<Item = Gpa>) {
        for gpa in pages {
            let Some(leaf) = self
                .ept
                .leaf(stopped.memory, gpa)
                .filter(|leaf| leaf.entry.dirty())
            else {
                continue;
            };
            stopped
                .memory
                .write(leaf.slot, leaf.entry.with_dirty(false).0);
            stopped.events.dirty_flags_cleared += 1;
        }
        stopped.invept();
    }

    /// Starts the hypervisor's own logging, as a live migration does.
    pub(crate) fn start_log_dirty(&mut self, stopped: &mut Stopped<'_>) -> Result<(), Error> {
        self.split_large_pages(stopped)?;
        for vcpu in 0..self.logging.len() {
            self.empty_log(stopped, vcpu)?;
            self.logging[vcpu].by_hypervisor = true;
            self.update_logging(stopped, vcpu)?;
        }
        let cleared = &mut stopped.events.dirty_flags_cleared;
        self.ept.for_each_leaf(stopped.memory, &mut |_, entry| {
            *cleared += u64::from(entry.dirty());
            entry.with_dirty(false)
        });
        stopped.invept();
        Ok(())
    }

    /// Takes the pages that the machine wrote since the last call.
    pub(crate) fn take_log_dirty(
        &mut self,
        stopped: &mut Stopped<'_>,
    ) -> Result<BTreeSet<Gpa>, Error> {
        for vcpu in 0..self.logging.len() {
            self.empty_log(stopped, vcpu)?;
        }
        let dirty = std::mem::take(&mut self.dirty);
        self.clear_dirty(stopped, dirty.iter().copied());
        Ok(dirty)
    }

    /// Ends the hypervisor's own logging. PML stays on where the guest uses it.
    pub(crate) fn stop_log_dirty(&mut self, stopped: &mut Stopped<'_>) -> Result<(), Error> {
        for vcpu in 0..self.logging.len() {
            self.empty_log(stopped, vcpu)?;
            self.logging[vcpu].by_hypervisor = false;
            self.update_logging(stopped, vcpu)?;
        }
        self.dirty.clear();
        Ok(())
    }
}

/// Guest-physical memory as the hypervisor reaches it: through its own tables, leaving no trace in
/// them.
struct HostView<'a> {
    hypervisor: &'a mut Hypervisor,
    memory: &'a mut PhysicalMemory,
}

impl HostView<'_> {
    fn reach(&mut self, at: Gpa) -> Result<Hpa, Error> {
        self.hypervisor.back(self.memory, at)?;
        Ok(self
            .hypervisor
            .translate(self.memory, at)
            .expect("just backed"))
    }
}

impl Words for HostView<'_> {
    fn read(&mut self, at: Gpa) -> Result<u64, Error> {
        let at = self.reach(at)?;
        Ok(self.memory.read(at))
    }

    fn write(&mut self, at: Gpa, value: u64) -> Result<(), Error> {
        let at = self.reach(at)?;
        self.memory.write(at, value);
        Ok(())
    }
}
