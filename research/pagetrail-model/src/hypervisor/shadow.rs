//! Shadow page tables, as Xen 3.0.4 kept them (the Xen study, section 3.7).
//!
//! The processor walks tables that the hypervisor makes from the guest's: each guest table page in
//! use has a shadow of the same form, filled when a fault asks for an entry. Guest tables that have
//! a shadow are write-protected; each write to one faults and is emulated, validated and propagated
//! at once. A fault has three ways out: *fixed* by the hypervisor, *not a shadow fault* (passed on
//! to the guest), or *mmio*.
//!
//! Left out: prefetching of entries, large pages, tables of the guest's own kernel, and the
//! heuristics by which Xen guesses that a page is no longer a page table (a guest that zeroes it to
//! use it anew ends it).

use std::collections::{BTreeMap, BTreeSet};

use super::{Hypervisor, Stopped};
use crate::Error;
use crate::machine::{Gpa, Gva, Hpa, PageFault, PhysicalMemory, Pte, Translation};

/// Where the guest's devices lie in its physical address space: no memory, each access is emulated.
pub(crate) const DEVICES: Gpa = Gpa::new(1 << 46);

/// How a fault was dealt with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Handled {
    /// The cause is gone: try again.
    Retry,
    /// The access was done by the emulator.
    Emulated,
    /// The guest has to handle it.
    Deliver(PageFault),
}

#[derive(Clone, Copy, Debug)]
struct Shadow {
    table: Hpa,
    level: u32,
}

/// The shadow tables of one virtual machine.
#[derive(Debug, Default)]
pub(crate) struct ShadowPager {
    /// By page number of the guest's table.
    shadows: BTreeMap<u64, Shadow>,
    /// Pages written since the last round, by the root of their address space; `None` while not
    /// logging.
    dirty: Option<BTreeSet<(Gpa, Gva)>>,
}

/// A walk of the guest's tables in software.
struct GuestWalk {
    /// The slots on the path, the root's first.
    slots: [Gpa; 4],
    leaf: Pte,
}

impl Hypervisor {
    fn pager(&mut self) -> &mut ShadowPager {
        self.shadow.get_or_insert_default()
    }

    fn has_shadow(&self, page: Gpa) -> bool {
        self.shadow
            .as_ref()
            .is_some_and(|pager| pager.shadows.contains_key(&page.page_number()))
    }

    fn read_guest(&self, memory: &PhysicalMemory, at: Gpa) -> u64 {
        self.translate(memory, at).map_or(0, |at| memory.read(at))
    }

    fn write_guest(
        &mut self,
        memory: &mut PhysicalMemory,
        at: Gpa,
        value: u64,
    ) -> Result<(), Error> {
        self.back(memory, at)?;
        let at = self.translate(memory, at).expect("just backed");
        memory.write(at, value);
        Ok(())
    }

    /// The guest's own translation of `gva`; `None` if it has none that allows the access.
    fn guest_walk(&self, stopped: &mut Stopped<'_>, fault: PageFault) -> Option<GuestWalk> {
        stopped.events.sh_guest_walks += 1;
        let mut table = stopped.vcpus[stopped.current].cr3;
        let mut slots = [Gpa::default(); 4];
        let mut leaf = Pte::default();
        let mut writable = true;
        for level in (1..=4).rev() {
            let slot = table.add(fault.gva.table_index(level) * 8);
            leaf = Pte(self.read_guest(stopped.memory, slot));
            if !leaf.present() {
                return None;
            }
            writable &= leaf.writable();
            slots[4 - level as usize] = slot;
            table = leaf.address();
        }
        (writable || !fault.write).then_some(GuestWalk { slots, leaf })
    }

    /// The shadow of the guest table on `page`, made if there is none.
    fn shadow_of(
        &mut self,
        stopped: &mut Stopped<'_>,
        page: Gpa,
        level: u32,
    ) -> Result<Hpa, Error> {
        if let Some(shadow) = self.pager().shadows.get(&page.page_number()) {
            return Ok(shadow.table);
        }
        let table = stopped.memory.allocate()?;
        stopped.events.sh_make_shadow += 1;
        self.pager()
            .shadows
            .insert(page.page_number(), Shadow { table, level });
        Ok(table)
    }

    /// Sets the shadow entry of `gva` from the guest's entry `leaf`. A page may be written only
    /// once the guest's dirty flag is set, and while logging only after a write to it was seen.
    fn propagate_leaf(
        &mut self,
        stopped: &mut Stopped<'_>,
        slot: Hpa,
        leaf: Pte,
        seen_write: bool,
    ) -> Result<(), Error> {
        stopped.events.sh_propagate_l1 += 1;
        if !leaf.present() || leaf.address() >= DEVICES {
            stopped.memory.write(slot, 0);
            return Ok(());
        }
        self.back(stopped.memory, leaf.address())?;
        let frame = self
            .translate(stopped.memory, leaf.address())
            .expect("just backed");
        let logging = self.pager().dirty.is_some();
        let writable = leaf.writable() && leaf.dirty() && (seen_write || !logging);
        stopped.events.sh_get_page_and_type += u64::from(writable);
        let entry = Pte::to(Gpa::new(frame.get()))
            .with_writable(writable)
            .with_accessed(true);
        stopped.memory.write(slot, entry.with_dirty(leaf.dirty()).0);
        Ok(())
    }

    /// A page fault on shadow tables.
    pub(crate) fn shadow_fault(
        &mut self,
        stopped: &mut Stopped<'_>,
        fault: PageFault,
    ) -> Result<Handled, Error> {
        stopped.events.vm_exits += 1;
        stopped.events.shadow_exits += 1;
        stopped.events.sh_page_fault += 1;
        let Some(walk) = self.guest_walk(stopped, fault) else {
            stopped.events.sh_not_shadow += 1;
            return Ok(Handled::Deliver(fault));
        };
        if walk.leaf.address() >= DEVICES {
            stopped.events.sh_mmio += 1;
            return Ok(Handled::Emulated);
        }
        // The processor cannot set the guest's flags, since it does not walk the guest's tables.
        let leaf = walk
            .leaf
            .with_accessed(true)
            .with_dirty(walk.leaf.dirty() || fault.write);
        if leaf != walk.leaf {
            self.write_guest(stopped.memory, walk.slots[3], leaf.0)?;
        }
        let root = stopped.vcpus[stopped.current].cr3;
        let mut table = self.shadow_of(stopped, root.page(), 4)?;
        for level in (2..=4).rev() {
            let slot = table.add(fault.gva.table_index(level) * 8);
            let below = walk.slots[5 - level as usize].page();
            let entry = Pte(stopped.memory.read(slot));
            table = self.shadow_of(stopped, below, level - 1)?;
            let wanted = Pte::to(Gpa::new(table.get()))
                .with_writable(true)
                .with_accessed(true);
            if entry.address() != wanted.address() {
                stopped.events.sh_propagate_upper += 1;
                stopped.memory.write(slot, wanted.0);
            }
        }
        let slot = table.add(fault.gva.table_index(1) * 8);
        self.propagate_leaf(stopped, slot, leaf, fault.write)?;
        if fault.write
            && let Some(dirty) = &mut self.pager().dirty
        {
            dirty.insert((root, fault.gva.page()));
        }
        stopped.events.sh_fixed += 1;
        Ok(Handled::Retry)
    }

    /// A guest's write of `value` to `slot`, or its exchange, if that lies in a table that has a
    /// shadow. Says whether it does.
    pub(crate) fn shadow_table_write(
        &mut self,
        stopped: &mut Stopped<'_>,
        slot: Gpa,
        value: u64,
        exchange: bool,
    ) -> Result<bool, Error> {
        if !self.has_shadow(slot.page()) {
            return Ok(false);
        }
        let Shadow { table, level } = self.pager().shadows[&slot.page_number()];
        let events = &mut *stopped.events;
        events.vm_exits += 1;
        events.shadow_exits += 1;
        events.sh_page_fault += 1;
        // The table's own page is propagated (read-only) before the hypervisor finds that it must
        // emulate.
        events.sh_propagate_l1 += 1;
        // The emulator fetches the instruction, reads the operand of an exchange, and maps the
        // destination.
        let operands = 1 + u64::from(exchange);
        events.sh_gva_to_gfn += operands;
        events.sh_emulate_map += 1;
        events.sh_guest_walks += 1 + operands + 1;
        *if exchange {
            &mut events.sh_emulate_cmpxchg
        } else {
            &mut events.sh_emulate_write
        } += 1;
        events.sh_map_and_validate += 1;
        events.sh_fixed += 1;

        let old = Pte(self.read_guest(stopped.memory, slot));
        self.write_guest(stopped.memory, slot, value)?;
        let shadow_slot = table.add(slot.get() % crate::machine::PAGE_BYTES);
        let new = Pte(value);
        if level == 1 {
            self.propagate_leaf(stopped, shadow_slot, new, false)?;
            return Ok(true);
        }
        stopped.events.sh_propagate_upper += 1;
        if old.present() && old.address() != new.address() {
            self.unshadow(stopped.memory, old.address());
        }
        let below = self
            .pager()
            .shadows
            .get(&new.address().page_number())
            .filter(|_| new.present());
        let entry = below.map_or(Pte::default(), |shadow| {
            Pte::to(Gpa::new(shadow.table.get()))
                .with_writable(true)
                .with_accessed(true)
        });
        stopped.memory.write(shadow_slot, entry.0);
        Ok(true)
    }

    /// A guest fills `page` anew: if it was a page table, it no longer is.
    pub(crate) fn shadow_overwrite(&mut self, stopped: &mut Stopped<'_>, page: Gpa) {
        if self.has_shadow(page) {
            stopped.events.vm_exits += 1;
            stopped.events.shadow_exits += 1;
            stopped.events.sh_page_fault += 1;
            stopped.events.sh_guest_walks += 1;
            stopped.events.sh_fixed += 1;
            self.unshadow(stopped.memory, page);
        }
    }

    fn unshadow(&mut self, memory: &mut PhysicalMemory, page: Gpa) {
        let Some(shadow) = self.pager().shadows.remove(&page.page_number()) else {
            return;
        };
        if shadow.level > 1 {
            for i in 0..512 {
                let entry = Pte(self.read_guest(memory, page.add(i * 8)));
                if entry.present() {
                    self.unshadow(memory, entry.address());
                }
            }
        }
        memory.release(shadow.table);
    }

    /// A guest's load of CR3.
    pub(crate) fn shadow_load_cr3(
        &mut self,
        stopped: &mut Stopped<'_>,
        cr3: Gpa,
    ) -> Result<(), Error> {
        stopped.events.vm_exits += 1;
        stopped.events.shadow_exits += 1;
        stopped.events.sh_update_cr3 += 1;
        let root = self.shadow_of(stopped, cr3.page(), 4)?;
        let vcpu = &mut stopped.vcpus[stopped.current];
        vcpu.vmcs.translation = Translation::Shadow { root };
        // Processors of the study had no tags: each load of CR3, and each exit for it, emptied the
        // TLB.
        stopped.events.tlb_flushes += 1;
        stopped.cpus[vcpu.cpu].tlb.flush_vpid(vcpu.vmcs.vpid);
        Ok(())
    }

    /// Starts a round of logging by shadow tables: takes what the last one found, and all rights to
    /// write.
    pub(crate) fn shadow_round(&mut self, stopped: &mut Stopped<'_>) -> BTreeSet<(Gpa, Gva)> {
        let leaves: Vec<Hpa> = self
            .pager()
            .shadows
            .values()
            .filter(|shadow| shadow.level == 1)
            .map(|s| s.table)
            .collect();
        for table in leaves {
            for i in 0..512 {
                let slot = table.add(i * 8);
                let entry = Pte(stopped.memory.read(slot));
                if entry.writable() {
                    stopped.events.dirty_flags_cleared += 1;
                    stopped.memory.write(slot, entry.with_writable(false).0);
                }
            }
        }
        stopped.events.tlb_flushes += 1;
        for vcpu in stopped.vcpus.iter() {
            stopped.cpus[vcpu.cpu].tlb.flush_vpid(vcpu.vmcs.vpid);
        }
        self.pager()
            .dirty
            .replace(BTreeSet::new())
            .unwrap_or_default()
    }

    /// Ends logging by shadow tables. Pages become writable again at their next fault.
    pub(crate) fn shadow_stop(&mut self) {
        self.pager().dirty = None;
    }
}

#[cfg(test)]
mod tests;
