//! The walker against the rules of the manual, on tables built by hand.

use super::*;
use crate::machine::{PostedInterrupts, ShadowVmcs, Tlb, TlbGeometry, Vmcs};

const AT: Gva = Gva::new(0x7f12_3456_7000);
/// Guest-physical addresses of the guest's tables (root first) and of the page.
const TABLES: [Gpa; 4] = [
    Gpa::new(0x1000),
    Gpa::new(0x2000),
    Gpa::new(0x3000),
    Gpa::new(0x4000),
];
const PAGE: Gpa = Gpa::new(0x5000);

struct Bench {
    memory: PhysicalMemory,
    cpu: Cpu,
    vcpu: Vcpu,
    events: Events,
    ept: Ept,
}

impl Bench {
    /// One page, writable, mapped at `AT` and the next address after it, backed by EPT.
    fn new(accessed_dirty: bool) -> Self {
        let mut memory = PhysicalMemory::new(16 << 20);
        let ept = Ept::new(&mut memory, accessed_dirty).unwrap();
        let mut hpa_of = |gpa| {
            let frame = memory.allocate().unwrap();
            ept.map(&mut memory, gpa, frame, false).unwrap();
            frame
        };
        let tables = TABLES.map(&mut hpa_of);
        hpa_of(PAGE);
        for (i, table) in tables.into_iter().enumerate() {
            let next = TABLES.get(i + 1).copied().unwrap_or(PAGE);
            let index = AT.table_index(4 - i as u32);
            memory.write(table.add(index * 8), Pte::to(next).with_writable(true).0);
        }
        let vmcs = Vmcs {
            translation: Translation::Nested(ept),
            vpid: 1,
            pml: None,
            shadow: None,
        };
        let vcpu = Vcpu {
            vmcs,
            cr3: TABLES[0],
            pcid: 1,
            cpu: 0,
            posted: PostedInterrupts::default(),
        };
        let cpu = Cpu {
            tlb: Tlb::new(TlbGeometry::default()).unwrap(),
        };
        Self {
            memory,
            cpu,
            vcpu,
            events: Events::default(),
            ept,
        }
    }

    fn access(&mut self, write: bool) -> Result<Hpa, Trap> {
        let Self {
            memory,
            cpu,
            vcpu,
            events,
            ..
        } = self;
        Hardware {
            memory,
            cpu,
            vcpu,
            events,
        }
        .access(AT, write)
    }

    fn with_pml(mut self) -> Self {
        self.vcpu.vmcs.pml = Some(Pml::empty(self.memory.allocate().unwrap()));
        self
    }

    fn logged(&self) -> Vec<u64> {
        self.vcpu.vmcs.pml.unwrap().entries(&self.memory)
    }

    /// Accessed and dirty flag of the EPT entry of `gpa`.
    fn ept_flags(&self, gpa: Gpa) -> (bool, bool) {
        let entry = self.ept.leaf(&self.memory, gpa).unwrap().entry;
        (entry.accessed(), entry.dirty())
    }

    fn clear_ept_flags(&mut self) {
        self.ept
            .for_each_leaf(&mut self.memory, &mut |_, entry| EptEntry(entry.0 & !0x300));
        self.cpu.tlb.flush_vpid(1);
    }

    fn guest_leaf(&self) -> Pte {
        let table = self
            .ept
            .leaf(&self.memory, TABLES[3])
            .unwrap()
            .translate(TABLES[3]);
        Pte(self.memory.read(table.add(AT.table_index(1) * 8)))
    }
}

#[test]
fn a_cold_walk_in_two_dimensions_reads_24_entries() {
    let mut bench = Bench::new(false);
    let hpa = bench.access(false).unwrap();
    assert_eq!(
        hpa,
        bench.ept.leaf(&bench.memory, PAGE).unwrap().translate(PAGE)
    );
    assert_eq!(
        (bench.events.walk_reads, bench.events.ept_walk_reads),
        (4, 20)
    );
}

#[test]
fn walking_guest_tables_dirties_and_logs_them() {
    let mut bench = Bench::new(true).with_pml();
    bench.access(false).unwrap();
    assert_eq!(bench.logged(), TABLES.map(Gpa::get));
    assert!(
        TABLES
            .iter()
            .all(|&table| bench.ept_flags(table) == (true, true))
    );
    assert_eq!(
        bench.ept_flags(PAGE),
        (true, false),
        "the page was only read"
    );
    bench.access(true).unwrap();
    assert_eq!(bench.logged().last(), Some(&PAGE.get()));
    assert_eq!(bench.events.pml_entries, 5);
}

#[test]
fn without_accessed_dirty_flags_the_walk_is_a_read_and_nothing_is_marked() {
    let mut bench = Bench::new(false);
    bench.access(true).unwrap();
    for gpa in TABLES.into_iter().chain([PAGE]) {
        assert_eq!(bench.ept_flags(gpa), (false, false));
    }
    assert!(
        bench.guest_leaf().dirty(),
        "the guest's own flags do not depend on it"
    );
}

#[test]
fn a_write_protected_guest_table_is_a_violation_only_with_accessed_dirty_flags() {
    for accessed_dirty in [false, true] {
        let mut bench = Bench::new(accessed_dirty);
        bench.access(false).unwrap(); // sets the guest's accessed flags
        let leaf = bench.ept.leaf(&bench.memory, TABLES[2]).unwrap();
        bench
            .memory
            .write(leaf.slot, leaf.entry.with_writable(false).0);
        bench.cpu.tlb.flush_vpid(1);
        let violates = matches!(
            bench.access(false),
            Err(Trap::EptViolation { write: true, .. })
        );
        assert_eq!(violates, accessed_dirty);
    }
}

#[test]
fn a_full_log_exits_before_any_flag_is_set() {
    let mut bench = Bench::new(true).with_pml();
    bench.access(false).unwrap();
    bench.vcpu.vmcs.pml.as_mut().unwrap().index = 0xffff;
    assert_eq!(bench.access(true), Err(Trap::PmlFull));
    assert_eq!(bench.ept_flags(PAGE), (true, false));
    // Software empties the log, and the access completes and is logged.
    bench.vcpu.vmcs.pml.as_mut().unwrap().index = 511;
    bench.access(true).unwrap();
    assert_eq!(
        (bench.logged(), bench.ept_flags(PAGE)),
        (vec![PAGE.get()], (true, true))
    );
}

#[test]
fn a_full_log_exits_for_an_accessed_flag_too() {
    let mut bench = Bench::new(true).with_pml();
    bench.access(true).unwrap();
    // Clear the accessed flag of the page only, so that no dirty flag has to change.
    let leaf = bench.ept.leaf(&bench.memory, PAGE).unwrap();
    bench.memory.write(leaf.slot, leaf.entry.0 & !0x100);
    bench.cpu.tlb.flush_vpid(1);
    bench.vcpu.vmcs.pml.as_mut().unwrap().index = 0xffff;
    assert_eq!(bench.access(false), Err(Trap::PmlFull));
}

#[test]
fn a_page_is_logged_once_until_its_dirty_flag_is_cleared_and_flushed() {
    let mut bench = Bench::new(true).with_pml();
    for _ in 0..3 {
        bench.access(true).unwrap();
    }
    assert_eq!(bench.events.pml_entries, 5);
    bench.clear_ept_flags();
    bench.access(true).unwrap();
    assert_eq!(bench.events.pml_entries, 10);
}

#[test]
fn clearing_a_dirty_flag_without_a_flush_loses_the_next_write() {
    // The reason for every INVEPT: the TLB remembers that the flag was set.
    let mut bench = Bench::new(true).with_pml();
    bench.access(true).unwrap();
    bench
        .ept
        .for_each_leaf(&mut bench.memory, &mut |_, entry| entry.with_dirty(false));
    bench.access(true).unwrap();
    assert_eq!(bench.ept_flags(PAGE), (true, false));
}

#[test]
fn a_read_only_page_faults_and_a_stale_tlb_entry_does_not_hide_new_rights() {
    let mut bench = Bench::new(true);
    let table = bench
        .ept
        .leaf(&bench.memory, TABLES[3])
        .unwrap()
        .translate(TABLES[3]);
    let slot = table.add(AT.table_index(1) * 8);
    bench.memory.write(slot, Pte::to(PAGE).0);
    let fault = Trap::PageFault(PageFault {
        gva: AT,
        write: true,
        present: true,
    });
    assert_eq!(bench.access(true), Err(fault));
    bench.access(false).unwrap();
    assert!(
        bench.guest_leaf().with_accessed(true) == bench.guest_leaf() && !bench.guest_leaf().dirty()
    );
    // More rights need no flush: the processor walks again before it faults.
    bench
        .memory
        .write(slot, Pte::to(PAGE).with_writable(true).0);
    bench.access(true).unwrap();
    assert!(bench.guest_leaf().dirty());
}

#[test]
fn epml_logs_both_addresses_and_interrupts_itself_at_the_last_slot() {
    let mut bench = Bench::new(true).with_pml();
    let log = bench.memory.allocate().unwrap();
    let guest_pml = Pml {
        address: log,
        index: 1,
    };
    bench.vcpu.vmcs.shadow = Some(ShadowVmcs { guest_pml });
    bench.access(true).unwrap();
    let guest_log = |bench: &Bench| bench.vcpu.vmcs.shadow.unwrap().guest_pml.index;
    assert_eq!(bench.memory.read(log.add(8)), AT.get());
    assert_eq!(bench.logged().last(), Some(&PAGE.get()));
    assert_eq!((guest_log(&bench), bench.events.self_ipis), (0, 0));
    bench.clear_ept_flags();
    bench.access(true).unwrap();
    assert_eq!((guest_log(&bench), bench.events.self_ipis), (0xffff, 1));
    assert_eq!(bench.vcpu.posted.take(), Some(Vector::GuestPmlFull));
    assert_eq!(bench.vcpu.posted.take(), None);
}
