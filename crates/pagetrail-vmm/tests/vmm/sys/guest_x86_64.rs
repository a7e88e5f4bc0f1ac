//! The guest's processor is of x86-64: in protected mode, without paging.

use super::Work;
use kvm_bindings::kvm_segment;
use kvm_ioctls::{VcpuExit, VcpuFd, VmFd};

/// `mov [edi], eax; add edi, edx; dec ecx; jnz; out 0x10, al; jmp`.
pub(super) const CODE: [u8; 11] = [
    0x89, 0x07, 0x01, 0xd7, 0x49, 0x75, 0xf9, 0xe6, 0x10, 0xeb, 0xf5,
];

/// Prepares a vCPU that has never run, and whose code is at this address.
pub(super) fn reset(_vm: &VmFd, vcpu: &VcpuFd, code: u64) {
    let mut sregs = vcpu.get_sregs().unwrap();
    let segment = |type_: u8, selector: u16| kvm_segment {
        base: 0,
        limit: 0xffff_ffff,
        selector,
        type_,
        present: 1,
        db: 1,
        s: 1,
        g: 1,
        ..Default::default()
    };
    sregs.cs = segment(11, 8);
    for data in [
        &mut sregs.ds,
        &mut sregs.es,
        &mut sregs.ss,
        &mut sregs.fs,
        &mut sregs.gs,
    ] {
        *data = segment(3, 16);
    }
    sregs.cr0 |= 1;
    vcpu.set_sregs(&sregs).unwrap();
    let mut regs = vcpu.get_regs().unwrap();
    regs.rip = code;
    regs.rflags = 2;
    vcpu.set_regs(&regs).unwrap();
}

/// Has the vCPU, which is at the code's beginning or end, do work when it runs next.
pub(super) fn set(vcpu: &VcpuFd, work: &Work) {
    let mut regs = vcpu.get_regs().unwrap();
    regs.rdi = work.address;
    regs.rcx = work.count.into();
    regs.rdx = work.stride.into();
    regs.rax = work.value.into();
    vcpu.set_regs(&regs).unwrap();
}

/// Whether the vCPU has left the guest because its work is done.
pub(super) fn is_done(exit: &VcpuExit<'_>) -> bool {
    matches!(exit, VcpuExit::IoOut(0x10, _))
}
