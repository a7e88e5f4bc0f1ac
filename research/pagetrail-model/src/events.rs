//! [`Events`]: everything that the machine and its software do, counted.
//!
//! One flat set of counters, so that a phase of a run is the difference of two snapshots and a
//! price is a sum of products. What an event means is said here, what it costs elsewhere.

use std::ops::{Add, AddAssign, Sub};

macro_rules! events {
    ($($(#[doc = $doc:literal])+ $name:ident,)+) => {
        /// Counters of what happened, all starting at zero.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct Events {
            $($(#[doc = $doc])+ pub $name: u64,)+
        }

        impl Events {
            /// Name and value of each counter, in the order of declaration.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name)),+].into_iter()
            }
        }

        impl AddAssign for Events {
            fn add_assign(&mut self, other: Self) {
                $(self.$name += other.$name;)+
            }
        }

        impl Sub for Events {
            type Output = Self;

            /// What happened between the snapshot `earlier` and this one.
            fn sub(self, earlier: Self) -> Self {
                Self { $($name: self.$name - earlier.$name,)+ }
            }
        }
    };
}

events! {
    /// Memory accesses by programs, reads and writes.
    accesses,
    /// Accesses that write.
    writes,
    /// Accesses that found their translation in the TLB, fit for use.
    tlb_hits,
    /// Accesses that needed a walk.
    tlb_misses,
    /// Whole-context TLB flushes.
    tlb_flushes,
    /// TLB flushes of a single page.
    tlb_page_flushes,
    /// Entries of guest page tables (or shadow page tables) that the walker read.
    walk_reads,
    /// Entries of extended page tables that the walker read.
    ept_walk_reads,

    /// Page faults delivered to a guest kernel.
    page_faults,
    /// First touch of a page: a frame is found, zeroed and mapped.
    faults_demand,
    /// First write to a page that was only read so far: the shared zero page is replaced.
    faults_zero_page,
    /// Write to a page whose soft-dirty bit is clear.
    faults_soft_dirty,
    /// Missing or write-protected page under userfaultfd: the tracker is woken and resolves it.
    faults_userfaultfd,
    /// Entries into a guest kernel from user space: faults, system calls, interrupts.
    kernel_entries,
    /// Switches of a vCPU from one process to another, each with a schedule-out and a schedule-in.
    process_switches,
    /// Interrupts taken by a guest.
    interrupts,

    /// VM exits of every kind, hypercalls included.
    vm_exits,
    /// VM exits because the extended page tables do not allow an access.
    ept_violations,
    /// Faults that a write-protected page caused (Lu et al.); the others ask for memory.
    ept_write_faults,
    /// VM exits because the page-modification log is full.
    pml_full_exits,
    /// VM exits because of a page fault under shadow paging.
    shadow_exits,
    /// Hypercalls.
    hypercalls,
    /// SPML: hypercalls that get logging ready for a process.
    spml_inits,
    /// SPML: hypercalls that end it.
    spml_stops,
    /// SPML: hypercalls that turn logging on, at schedule-in.
    enable_logging,
    /// SPML: hypercalls that empty the log and turn logging off, at schedule-out.
    disable_logging,
    /// EPML: hypercalls that turn VMCS shadowing on.
    shadowing_inits,
    /// EPML: hypercalls that turn VMCS shadowing off.
    shadowing_stops,
    /// SPML and EPML: hypercalls that clear dirty flags to start a round.
    clear_dirty_calls,
    /// `vmread` by a guest on a shadow VMCS.
    vmreads,
    /// `vmwrite` by a guest on a shadow VMCS.
    vmwrites,
    /// Flushes of guest-physical translations (INVEPT) by the hypervisor, one per processor.
    invepts,
    /// Moves of a vCPU from one processor to another.
    vcpu_migrations,

    /// Guest-physical addresses that the processor wrote into a page-modification log.
    pml_entries,
    /// Guest-virtual addresses that the processor wrote into a guest-level log (EPML).
    guest_pml_entries,
    /// Entries that found the guest-level log full, with its interrupt still pending (EPML).
    guest_pml_lost,
    /// Interrupts that the processor posted to itself because the guest-level log was full (EPML).
    self_ipis,

    /// Times that a log was copied to a ring buffer.
    ring_copies,
    /// Addresses copied to a ring buffer.
    ring_entries,
    /// Addresses that found a ring buffer full; the next collect reports the whole process.
    ring_lost,
    /// Addresses that a tracker read from a ring buffer.
    ring_reads,

    /// Soft-dirty: `clear_refs` passes over an address space.
    clear_refs,
    /// Page-table entries that `clear_refs` looked at.
    clear_refs_entries,
    /// Page-table entries that a tracker read in /proc/PID/pagemap.
    pagemap_entries,
    /// Comparisons of a linear search from guest-physical to guest-virtual address (SPML).
    reverse_comparisons,
    /// userfaultfd: registrations.
    ufd_registers,
    /// userfaultfd: pages write-protected by ioctl.
    ufd_protects,
    /// userfaultfd: pages resolved by ioctl (unprotected, zero-filled or copied).
    ufd_resolves,
    /// System calls by trackers (ioctl, reads of /proc).
    tracker_calls,

    /// Dirty flags of extended page tables cleared to start a round.
    dirty_flags_cleared,
    /// OoH: pages that the guest module reported itself, because the kernel dirtied them first.
    fresh_pages,

    /// Guest page-table entries rewritten to merge or split units (Lu et al.).
    remaps,
    /// Timer interrupts injected to end a sampling period (Lu et al.).
    timer_ticks,

    /// Shadow paging: page faults that the hypervisor looked at.
    sh_page_fault,
    /// Shadow paging: page faults that the hypervisor resolved.
    sh_fixed,
    /// Shadow paging: page faults on addresses without memory behind them.
    sh_mmio,
    /// Shadow paging: page faults passed on to the guest.
    sh_not_shadow,
    /// Shadow paging: walks of guest page tables in software.
    sh_guest_walks,
    /// Shadow paging: translations made for the instruction emulator.
    sh_gva_to_gfn,
    /// Shadow paging: destinations mapped for the instruction emulator.
    sh_emulate_map,
    /// Shadow paging: guest writes to page tables, emulated.
    sh_emulate_write,
    /// Shadow paging: guest exchanges on page tables, emulated.
    sh_emulate_cmpxchg,
    /// Shadow paging: guest entries validated and propagated after an emulated write.
    sh_map_and_validate,
    /// Shadow paging: shadow page tables made.
    sh_make_shadow,
    /// Shadow paging: entries of the lowest level propagated.
    sh_propagate_l1,
    /// Shadow paging: entries of higher levels propagated.
    sh_propagate_upper,
    /// Shadow paging: writable mappings counted against a frame.
    sh_get_page_and_type,
    /// Shadow paging: loads of CR3.
    sh_update_cr3,
    /// Shadow paging: page invalidations by the guest.
    sh_invlpg,
}

impl Add for Events {
    type Output = Self;

    fn add(mut self, other: Self) -> Self {
        self += other;
        self
    }
}
