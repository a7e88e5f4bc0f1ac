//! [`Cpu`] is a processor, [`Vcpu`] what a hypervisor runs on one.

use super::address::Gpa;
use super::tlb::{Tag, Tlb};
use super::vmcs::Vmcs;

/// A processor: all that stays when its vCPU moves away is the TLB.
#[derive(Debug)]
pub(crate) struct Cpu {
    pub(crate) tlb: Tlb,
}

/// A virtual processor.
#[derive(Debug)]
pub(crate) struct Vcpu {
    pub(crate) vmcs: Vmcs,
    /// Root of the guest's page tables.
    pub(crate) cr3: Gpa,
    pub(crate) pcid: u16,
    /// The processor that this vCPU is loaded on.
    pub(crate) cpu: usize,
    pub(crate) posted: PostedInterrupts,
}

impl Vcpu {
    pub(crate) fn tag(&self) -> Tag {
        Tag {
            vpid: self.vmcs.vpid,
            pcid: self.pcid,
        }
    }
}

/// An interrupt that the machine knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Vector {
    /// EPML: the guest-level log is full.
    GuestPmlFull,
    /// A timer, injected by the hypervisor.
    Timer,
}

/// The posted-interrupt descriptor: what is pending reaches the guest without an exit.
#[derive(Debug, Default)]
pub(crate) struct PostedInterrupts {
    pending: u8,
}

impl PostedInterrupts {
    pub(crate) fn post(&mut self, vector: Vector) {
        self.pending |= 1 << vector as u8;
    }

    #[inline]
    pub(crate) fn take(&mut self) -> Option<Vector> {
        if self.pending == 0 {
            return None;
        }
        let vector = if self.pending & 1 << Vector::GuestPmlFull as u8 != 0 {
            Vector::GuestPmlFull
        } else {
            Vector::Timer
        };
        self.pending &= !(1 << vector as u8);
        Some(vector)
    }
}
