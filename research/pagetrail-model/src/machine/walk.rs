//! [`Hardware`]: one access, as the processor performs it.
//!
//! A hit in the TLB, or a walk in two dimensions: each of the four guest tables lies at a
//! guest-physical address that the extended page tables translate in their turn, as they do the
//! page itself; 24 entries are read when both use 4 KiB pages. An access that cannot complete ends
//! in a [`Trap`] and has no other effect than accessed and dirty flags that were already set;
//! software mends the cause and tries again.
//!
//! Rules (Intel manual, volume 3, sections 29.3.3 to 29.3.6):
//! * With EPT accessed/dirty flags on, reading a guest table counts as a write: it needs write
//!   permission, sets the dirty flag and is logged.
//! * If a flag would have to be set while PML is on and its index is out of range, the processor
//!   exits and sets nothing. Otherwise it sets the flags, and if a dirty flag changed, logs the
//!   guest-physical address before the access.
//! * Guest flags are set after the rights have been checked, in the order root to leaf.
//!
//! EPML (OoH paper, section IV-D): where the processor logs the guest-physical address of an access
//! by a program, it logs its guest-virtual address to the guest-level log at once, if that is on.
//! Filling the last slot posts an interrupt to itself. The paper does not say what an access to a
//! guest page *table* logs there; it has no address of its own in the program, so: nothing.

use super::address::{Gpa, Gva, HUGE_BYTES, Hpa, PAGE_BYTES};
use super::cpu::{Cpu, Vcpu, Vector};
use super::ept::{Ept, EptEntry};
use super::memory::PhysicalMemory;
use super::page_table::Pte;
use super::pml::Pml;
use super::tlb::Cached;
use super::vmcs::Translation;
use crate::Events;

/// Why an access did not complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trap {
    /// The page tables that the processor walked do not allow it.
    PageFault(PageFault),
    /// The extended page tables do not allow it.
    EptViolation { gpa: Gpa, write: bool },
    /// A flag must be set and the page-modification log is full.
    PmlFull,
}

/// What a page fault tells its handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PageFault {
    pub(crate) gva: Gva,
    pub(crate) write: bool,
    /// The page is present: the fault is about the right to write.
    pub(crate) present: bool,
}

/// What the second dimension says about a page.
#[derive(Clone, Copy, Default)]
struct Resolved {
    hpa: Hpa,
    writable: bool,
    dirty: bool,
    large: bool,
}

/// A processor at work on behalf of a vCPU.
pub(crate) struct Hardware<'a> {
    pub(crate) memory: &'a mut PhysicalMemory,
    pub(crate) cpu: &'a mut Cpu,
    pub(crate) vcpu: &'a mut Vcpu,
    pub(crate) events: &'a mut Events,
}

impl Hardware<'_> {
    /// An access by a program, through the TLB or a walk.
    #[inline]
    pub(crate) fn access(&mut self, gva: Gva, write: bool) -> Result<Hpa, Trap> {
        if let Some(cached) = self.cpu.tlb.look_up(self.vcpu.tag(), gva)
            && (!write || cached.writable && cached.dirty)
        {
            self.events.tlb_hits += 1;
            let page_bytes = if cached.huge { HUGE_BYTES } else { PAGE_BYTES };
            return Ok(cached.page.add(gva.get() % page_bytes));
        }
        self.walk(gva, write)
    }

    fn walk(&mut self, gva: Gva, write: bool) -> Result<Hpa, Trap> {
        self.events.tlb_misses += 1;
        // A shadow table holds host-physical addresses in the same form; `resolve` leaves them
        // alone.
        let mut table = match self.vcpu.vmcs.translation {
            Translation::Shadow { root } => Gpa::new(root.get()),
            Translation::Native | Translation::Nested(_) => self.vcpu.cr3,
        };
        let mut path = [(Gpa::default(), Resolved::default(), Pte::default()); 4];
        let mut depth = 0;
        let mut writable = true;
        let leaf = loop {
            let level = 4 - depth as u32;
            let slot = table.add(gva.table_index(level) * 8);
            let at = self.resolve(slot, self.walks_write(), None)?;
            self.events.walk_reads += 1;
            let entry = Pte(self.memory.read(at.hpa));
            if !entry.present() {
                return Err(Trap::PageFault(PageFault {
                    gva,
                    write,
                    present: false,
                }));
            }
            writable &= entry.writable();
            path[depth] = (slot, at, entry);
            depth += 1;
            if level == 1 || entry.large() {
                break entry;
            }
            table = entry.address();
        };
        if write && !writable {
            return Err(Trap::PageFault(PageFault {
                gva,
                write,
                present: true,
            }));
        }
        for (i, &(slot, at, entry)) in path[..depth].iter().enumerate() {
            let marked = entry
                .with_accessed(true)
                .with_dirty(entry.dirty() || write && i + 1 == depth);
            if marked != entry {
                if !at.writable {
                    return Err(Trap::EptViolation {
                        gpa: slot,
                        write: true,
                    });
                }
                self.memory.write(at.hpa, marked.0);
            }
        }
        let page_bytes = if leaf.large() { HUGE_BYTES } else { PAGE_BYTES };
        let gpa = Gpa::new(leaf.address().get() & !(page_bytes - 1)).add(gva.get() % page_bytes);
        let page = self.resolve(gpa, write, Some(gva))?;
        let huge = leaf.large() && page.large;
        let cached = Cached {
            page: if huge {
                page.hpa.huge_page()
            } else {
                page.hpa.page()
            },
            writable: writable && page.writable,
            dirty: (leaf.dirty() || write) && page.dirty,
            huge,
        };
        self.cpu.tlb.insert(self.vcpu.tag(), gva, cached);
        Ok(page.hpa)
    }

    /// An access by the guest kernel through its direct map, at `gva` in its own address space. The
    /// direct map's own tables and TLB entries are not modelled.
    pub(crate) fn access_physical(&mut self, gpa: Gpa, write: bool, gva: Gva) -> Result<Hpa, Trap> {
        self.resolve(gpa, write, Some(gva)).map(|page| page.hpa)
    }

    /// The translation of a guest-physical address, with all its side effects.
    fn resolve(&mut self, gpa: Gpa, write: bool, gva: Option<Gva>) -> Result<Resolved, Trap> {
        match self.vcpu.vmcs.translation {
            Translation::Native | Translation::Shadow { .. } => Ok(Resolved {
                hpa: Hpa::new(gpa.get()),
                writable: true,
                dirty: true,
                large: true,
            }),
            Translation::Nested(ept) => self.walk_ept(ept, gpa, write, gva),
        }
    }

    fn walk_ept(
        &mut self,
        ept: Ept,
        gpa: Gpa,
        write: bool,
        gva: Option<Gva>,
    ) -> Result<Resolved, Trap> {
        let violation = Trap::EptViolation { gpa, write };
        let mut path = [(Hpa::default(), EptEntry::default()); 4];
        let mut depth = 0;
        let mut writable = true;
        let mut accessed = true;
        let mut table = ept.root;
        let leaf = loop {
            let level = 4 - depth as u32;
            let slot = table.add(gpa.table_index(level) * 8);
            let entry = EptEntry(self.memory.read(slot));
            self.events.ept_walk_reads += 1;
            if !entry.present() {
                return Err(violation);
            }
            writable &= entry.writable();
            accessed &= entry.accessed();
            path[depth] = (slot, entry);
            depth += 1;
            if level == 1 || entry.large() {
                break entry;
            }
            table = entry.address();
        };
        if write && !writable {
            return Err(violation);
        }
        let sets_dirty = write && !leaf.dirty();
        if ept.accessed_dirty && (!accessed || sets_dirty) {
            if self.vcpu.vmcs.pml.is_some_and(|log| log.is_full()) {
                return Err(Trap::PmlFull);
            }
            for (i, &(slot, entry)) in path[..depth].iter().enumerate() {
                let is_leaf = i + 1 == depth;
                let marked = entry
                    .with_accessed()
                    .with_dirty(entry.dirty() || is_leaf && sets_dirty);
                if marked != entry {
                    self.memory.write(slot, marked.0);
                }
            }
            if sets_dirty {
                self.log(gpa, gva);
            }
        }
        let page_bytes = if leaf.large() { HUGE_BYTES } else { PAGE_BYTES };
        Ok(Resolved {
            hpa: leaf.address().add(gpa.get() % page_bytes),
            writable,
            dirty: !ept.accessed_dirty || leaf.dirty() || write,
            large: leaf.large(),
        })
    }

    /// Logs a dirty flag that went from 0 to 1.
    fn log(&mut self, gpa: Gpa, gva: Option<Gva>) {
        if let Some(log) = &mut self.vcpu.vmcs.pml {
            log.push(self.memory, gpa.get());
            self.events.pml_entries += 1;
        }
        let (Some(gva), Some(shadow)) = (gva, &mut self.vcpu.vmcs.shadow) else {
            return;
        };
        if !shadow.is_logging() {
            return;
        }
        if shadow.guest_pml.is_full() {
            // Only the guest kernel can come here, since a program is interrupted before its next
            // access.
            self.events.guest_pml_lost += 1;
            return;
        }
        shadow.guest_pml.push(self.memory, gva.get());
        self.events.guest_pml_entries += 1;
        if shadow.guest_pml.is_full() {
            self.vcpu.posted.post(Vector::GuestPmlFull);
            self.events.self_ipis += 1;
        }
    }

    /// EPML: `vmwrite` of the guest PML address, which the processor translates. 0 turns logging
    /// off.
    pub(crate) fn vmwrite_guest_pml_address(&mut self, gpa: Gpa) -> Result<(), Trap> {
        let address = match gpa.get() {
            0 => Hpa::new(0),
            _ => self.resolve(gpa.page(), true, None)?.hpa,
        };
        if let Some(shadow) = &mut self.vcpu.vmcs.shadow {
            shadow.guest_pml = Pml {
                address,
                ..shadow.guest_pml
            };
        }
        Ok(())
    }

    /// Whether the walker's reads of guest tables count as writes for the extended page tables.
    fn walks_write(&self) -> bool {
        matches!(self.vcpu.vmcs.translation, Translation::Nested(ept) if ept.accessed_dirty)
    }
}

#[cfg(test)]
mod tests;
