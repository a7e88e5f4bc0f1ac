//! What stock KVM counts of a guest with a Linux kernel of its own, where it has shadow page
//! tables, beside the Xen study's counts of its functions (tables 9, 10, 13 and 14).
//!
//! KVM's algorithm is another one: a page table of the guest that it has shadowed may go out of
//! step until the guest flushes its translations, where Xen emulates each write to it. So the
//! shares differ, which says which of the study's costs are still there.

use super::recording::{Pick, Recording};
use super::{Printed, Row};

/// A test of `pagetrail compare` like a load of the study's, and the study's counts of that load.
pub(super) struct Load {
    /// The test's suite and name.
    pub(super) test: (&'static str, &'static str),
    pub(super) sh_page_fault: f64,
    pub(super) not_shadow: f64,
    pub(super) fixed: f64,
    pub(super) emulate_write: f64,
    pub(super) emulate_cmpxchg: f64,
    pub(super) guest_walks: f64,
    pub(super) propagate_l1: f64,
    pub(super) make_shadow: f64,
    pub(super) update_cr3: f64,
}

impl Load {
    /// How often KVM does what the study's functions do, per page fault of the guest.
    pub(super) fn per_fault(&self) -> Vec<Row> {
        let counter = |name: &str| self.of("shadow", &format!("kvm.{name}"));
        let event = |name: &str| self.of("shadow", &format!("probed.events[name={name}].count"));
        let calls = |name: &str| self.of("shadow", &format!("probed.functions[name={name}].calls"));
        let faults = || counter("pf_taken");
        // Of one more run, under probes.
        let probed = || event("kvm:kvm_page_fault");
        let row = |what: &str, function: &str, paper: f64, path: String, over: String| {
            let pick = Pick::new(Recording::KvmPaging, path).over(over);
            let what = format!("KVM, per fault: {what} (there {function})");
            Row::recorded(what, "", Printed(paper) / Printed(self.sh_page_fault), pick).note(WHY)
        };
        vec![
            row(
                "passed on to the guest",
                "not a shadow fault",
                self.not_shadow,
                counter("pf_guest"),
                faults(),
            ),
            row(
                "fixed",
                "fault fixed",
                self.fixed,
                counter("pf_fixed"),
                faults(),
            ),
            row(
                "writes to page tables of the guest",
                "sh_x86_emulate_write and _cmpxchg",
                self.emulate_write + self.emulate_cmpxchg,
                counter("mmu_pte_write"),
                faults(),
            ),
            row(
                "walks of the guest's page tables",
                "guest_walk_tables",
                self.guest_walks,
                event("kvmmmu:kvm_mmu_pagetable_walk"),
                probed(),
            ),
            row(
                "entries set",
                "l1e_propagate_from_guest",
                self.propagate_l1,
                event("kvmmmu:kvm_mmu_set_spte"),
                probed(),
            ),
            row(
                "page tables shadowed",
                "sh_make_shadow",
                self.make_shadow,
                event("kvmmmu:kvm_mmu_get_page"),
                probed(),
            ),
            row(
                "other page tables for the guest",
                "sh_update_cr3",
                self.update_cr3,
                calls("kvm_mmu_new_pgd"),
                calls("kvm_mmu_page_fault"),
            ),
            self.exits(),
        ]
    }

    /// Exits with shadow page tables, over those with nested paging.
    fn exits(&self) -> Row {
        let exits = |paging: &str| self.of(paging, "kvm.exits");
        let pick = Pick::new(Recording::KvmPaging, exits("shadow")).over(exits("nested"));
        let what = "KVM: exits, shadow page tables over nested paging";
        Row::recorded(what, "", None::<Printed>, pick).note(WHY)
    }

    /// What an emulated instruction takes, over what a fault takes, by timed calls of both.
    pub(super) fn emulation_over_fault(&self, emulate_ns: f64, fault_ns: f64) -> Row {
        let mean = |name: &str| {
            let path = format!("probed.functions[name={name}].mean_ns");
            self.of("shadow", &path)
        };
        let pick = Pick::new(Recording::KvmPaging, mean("x86_emulate_instruction"))
            .over(mean("kvm_mmu_page_fault"));
        Row::recorded(
            "KVM, mean of timed calls: emulation over fault (there sh_x86_emulate_write, sh_page_fault)",
            "",
            Printed(emulate_ns) / Printed(fault_ns),
            pick,
        )
        .note(TIMED_WHY)
    }

    fn of(&self, paging: &str, what: &str) -> String {
        let (suite, test) = self.test;
        let environment = if paging == "shadow" {
            "kvm:shadow"
        } else {
            "kvm"
        };
        format!(
            "{paging}.suites[name={suite}].tests[name={test}].environments[environment={environment}].{what}"
        )
    }
}

const WHY: &str = "of our own test of pagetrail compare (MemoryMotion, a web server under load) in a guest of stock KVM \
                   with shadow page tables: another algorithm than Xen's, which lets page tables go out of step \
                   instead of emulating each write; a string instruction is one emulation of many writes";

const TIMED_WHY: &str = "of our own test in a guest of stock KVM with shadow page tables, by a clock that counts the \
                         emulator's steps, and of few emulations: which of the two is longer means something, by how \
                         much does not";
