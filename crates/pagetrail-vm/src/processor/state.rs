//! The initial state of a vCPU: long mode, ring 0, about to enter the program.

use kvm_bindings::{kvm_segment, kvm_sregs, kvm_xsave};

use super::cpuid::Features;
use super::entry::{self, Page, selector};
use crate::memory::SYSTEM_BASE;

/// Protection, an FPU with its own exceptions, write protection in ring 0, alignment checks,
/// paging.
const CR0: u64 = 0x8005_0033;
const CR4_PAE: u64 = 1 << 5;
const CR4_FXSR_AND_SSE: u64 = 3 << 9;
const CR4_FSGSBASE: u64 = 1 << 16;
const CR4_OSXSAVE: u64 = 1 << 18;
/// SYSCALL, long mode enabled and active, no-execute.
const EFER: u64 = 0xd01;

const MSR_STAR: u32 = 0xc000_0081;
const MSR_LSTAR: u32 = 0xc000_0082;
const MSR_SYSCALL_MASK: u32 = 0xc000_0084;
/// Trap, interrupt, direction, I/O privilege, nested task, alignment check: what Linux clears.
const SYSCALL_MASK: u64 = 0x4_7700;

/// The index of the words of the extended state that say which components are there.
pub(super) const PARTS: usize = 128;
/// The length of the legacy area, before these words.
pub(super) const OLD_AREA_BYTES: usize = 512;
/// The components x87 and SSE, which every processor has.
pub(super) const OLD_PARTS: u64 = 0b11;
const FPU_CONTROL: u32 = 0x37f;
const MXCSR: u32 = 0x1f80;
/// The word of MXCSR in the legacy area.
const MXCSR_AT: usize = 6;
/// The words of x87 and SSE in the legacy area: control words and registers.
const X87_WORDS: [std::ops::Range<usize>; 2] = [0..6, 8..40];
const SSE_WORDS: std::ops::Range<usize> = 40..104;

/// Gives x87 and SSE, where they are not `there`, the values with which a program starts. Kernels
/// differ in what they do with MXCSR when neither is marked as there, so that afterwards both are.
pub(super) fn complete(xsave: &mut kvm_xsave, there: u64) {
    let words = &mut xsave.region;
    if there & 1 == 0 {
        for range in X87_WORDS {
            words[range].fill(0);
        }
        words[0] = FPU_CONTROL;
    }
    if there & 2 == 0 {
        words[SSE_WORDS].fill(0);
    }
    // MXCSR belongs to SSE and AVX.
    if there & 0b110 == 0 {
        words[MXCSR_AT] = MXCSR;
    }
    words[PARTS] |= OLD_PARTS as u32;
}

/// `before`, as KVM has created it, with the machine's tables and segments.
pub(super) fn initial(before: kvm_sregs, root: u64, page: Page, has: Features) -> kvm_sregs {
    let mut sregs = before;
    sregs.cr0 = CR0;
    sregs.cr3 = root;
    sregs.cr4 = CR4_PAE | CR4_FXSR_AND_SSE;
    if has.fsgsbase {
        sregs.cr4 |= CR4_FSGSBASE;
    }
    if has.xcr0 != 0 {
        sregs.cr4 |= CR4_OSXSAVE;
    }
    sregs.efer = EFER;
    // As in a 64-bit program under Linux. FS and GS have bases all the same.
    let none = kvm_segment {
        unusable: 1,
        ..Default::default()
    };
    for register in [&mut sregs.ds, &mut sregs.es, &mut sregs.fs, &mut sregs.gs] {
        *register = none;
    }
    set_ring_0(&mut sregs);
    sregs.gdt.base = page.gdt();
    sregs.gdt.limit = entry::GDT_BYTES as u16 - 1;
    sregs.idt.base = SYSTEM_BASE + entry::IDT;
    sregs.idt.limit = entry::IDT_BYTES as u16 - 1;
    sregs.tr = kvm_segment {
        base: page.tss(),
        limit: entry::TSS_BYTES as u32 - 1,
        selector: selector::TSS,
        type_: 11,
        present: 1,
        ..Default::default()
    };
    sregs
}

pub(super) fn set_ring_0(sregs: &mut kvm_sregs) {
    sregs.cs = segment(selector::SYSTEM_CODE, 11, 0);
    sregs.cs.l = 1;
    sregs.cs.db = 0;
    sregs.ss = segment(selector::SYSTEM_DATA, 3, 0);
}

fn segment(selector: u16, type_: u8, privilege: u8) -> kvm_segment {
    kvm_segment {
        limit: u32::MAX,
        selector,
        type_,
        present: 1,
        dpl: privilege,
        db: 1,
        s: 1,
        g: 1,
        ..Default::default()
    }
}

/// The registers that `SYSCALL` and `SYSRET` load from.
pub(super) fn system_call_msrs() -> [(u32, u64); 3] {
    // SYSRET takes SS 8 above the upper selector, and a 64-bit CS 16 above it.
    let star = u64::from(selector::USER_32) << 48 | u64::from(selector::SYSTEM_CODE) << 32;
    [
        (MSR_STAR, star),
        (MSR_LSTAR, SYSTEM_BASE + entry::CALL),
        (MSR_SYSCALL_MASK, SYSCALL_MASK),
    ]
}
