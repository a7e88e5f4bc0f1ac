//! The guest's processor is of arm64: at EL1, without paging. Its stores are uncached then, so that
//! this is for machines without caches, as emulated ones are, or with `FEAT_S2FWB`.

use super::Work;
use kvm_bindings::{
    KVM_REG_ARM_CORE, KVM_REG_ARM64, KVM_REG_SIZE_U64, kvm_vcpu_init, user_pt_regs,
};
use kvm_ioctls::{VcpuExit, VcpuFd, VmFd};
use std::mem::offset_of;

/// Where no memory is: a store there leaves the guest.
const DONE: u64 = 0x4000_0000;

/// `str w1, [x0]; add x0, x0, x3; subs x2, x2, #1; b.ne; str w1, [x4]; b`.
pub(super) const CODE: [u8; 24] = [
    0x01, 0x00, 0x00, 0xb9, 0x00, 0x00, 0x03, 0x8b, 0x42, 0x04, 0x00, 0xf1, 0xa1, 0xff, 0xff, 0x54,
    0x81, 0x00, 0x00, 0xb9, 0xfb, 0xff, 0xff, 0x17,
];

fn set_register(vcpu: &VcpuFd, offset: usize, value: u64) {
    let register =
        KVM_REG_ARM64 | KVM_REG_SIZE_U64 | u64::from(KVM_REG_ARM_CORE) | (offset as u64 / 4);
    vcpu.set_one_reg(register, &value.to_le_bytes()).unwrap();
}

/// Prepares a vCPU that has never run, and whose code is at this address.
pub(super) fn reset(vm: &VmFd, vcpu: &VcpuFd, code: u64) {
    let mut target = kvm_vcpu_init::default();
    vm.get_preferred_target(&mut target).unwrap();
    vcpu.vcpu_init(&target).unwrap();
    set_register(vcpu, offset_of!(user_pt_regs, pc), code);
    set_register(vcpu, offset_of!(user_pt_regs, regs) + 4 * 8, DONE);
}

/// Has the vCPU, which is at the code's beginning or end, do work when it runs next.
pub(super) fn set(vcpu: &VcpuFd, work: &Work) {
    let values = [
        work.address,
        work.value.into(),
        work.count.into(),
        work.stride.into(),
    ];
    for (number, value) in values.into_iter().enumerate() {
        let offset = offset_of!(user_pt_regs, regs) + number * 8;
        set_register(vcpu, offset, value);
    }
}

/// Whether the vCPU has left the guest because its work is done.
pub(super) fn is_done(exit: &VcpuExit<'_>) -> bool {
    matches!(exit, VcpuExit::MmioWrite(DONE, _))
}
