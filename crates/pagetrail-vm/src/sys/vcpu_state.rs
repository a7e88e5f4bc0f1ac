//! The registers of a vCPU, read by another thread than its own.
//!
//! KVM reads a vCPU for any thread of its process, unless it runs.
#![allow(unsafe_code, reason = "ioctl(2) on a vCPU by its number")]

use std::io;
use std::os::fd::RawFd;

use kvm_bindings::{kvm_regs, kvm_sregs, kvm_xsave};

/// `_IOR(KVMIO, 0x81, struct kvm_regs)`.
const KVM_GET_REGS: libc::Ioctl = ior(0x81, size_of::<kvm_regs>());
/// `_IOR(KVMIO, 0x83, struct kvm_sregs)`.
const KVM_GET_SREGS: libc::Ioctl = ior(0x83, size_of::<kvm_sregs>());
/// `_IOR(KVMIO, 0xa4, struct kvm_xsave)`, whose first 4 KiB are the structure in the kernel's
/// header.
const KVM_GET_XSAVE: libc::Ioctl = ior(0xa4, 4096);

const fn ior(number: usize, bytes: usize) -> libc::Ioctl {
    (2 << 30 | bytes << 16 | 0xae << 8 | number) as libc::Ioctl
}

/// The state of a vCPU.
#[derive(Debug)]
pub(crate) struct VcpuState {
    pub(crate) regs: kvm_regs,
    pub(crate) fs_base: u64,
    pub(crate) gs_base: u64,
    pub(crate) xsave: Box<kvm_xsave>,
}

/// Reads a vCPU that does not run; waits for one that does.
pub(crate) fn read(vcpu: RawFd) -> io::Result<VcpuState> {
    let (mut regs, mut sregs) = (kvm_regs::default(), kvm_sregs::default());
    let mut xsave = Box::<kvm_xsave>::default();
    for (request, into) in [
        (KVM_GET_REGS, (&raw mut regs).cast::<libc::c_void>()),
        (KVM_GET_SREGS, (&raw mut sregs).cast()),
        (KVM_GET_XSAVE, (&raw mut *xsave).cast()),
    ] {
        // SAFETY: each request writes the structure at `into`, whose length is in its number, and
        // nothing else. A number that is no vCPU's (any more) makes the call fail.
        if unsafe { libc::ioctl(vcpu, request, into) } == -1 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(VcpuState {
        regs,
        fs_base: sregs.fs.base,
        gs_base: sregs.gs.base,
        xsave,
    })
}
