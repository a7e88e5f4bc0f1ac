//! [`Vmcs`]: the control structure of a virtual processor, and the shadow of it that a guest may
//! use.
//!
//! With VMCS shadowing, `vmread` and `vmwrite` in the guest reach the shadow structure without an
//! exit for the fields that the hypervisor allows. EPML adds two fields to it: the address and the
//! index of the guest-level log. A guest writes the address as guest-physical; the processor
//! translates it on the way.

use super::address::Hpa;
use super::ept::Ept;
use super::pml::Pml;

/// How addresses are translated below the guest's own page tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Translation {
    /// Not at all: no hypervisor, guest-physical is host-physical.
    Native,
    /// By extended page tables.
    Nested(Ept),
    /// The processor walks shadow page tables instead of the guest's; `root` replaces CR3.
    Shadow { root: Hpa },
}

/// The control structure, which only the hypervisor touches.
#[derive(Clone, Debug)]
pub(crate) struct Vmcs {
    pub(crate) translation: Translation,
    pub(crate) vpid: u16,
    /// The page-modification log, while "enable PML" is set.
    pub(crate) pml: Option<Pml>,
    /// The shadow VMCS, while "VMCS shadowing" is set.
    pub(crate) shadow: Option<ShadowVmcs>,
}

/// The fields of a shadow VMCS that EPML adds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ShadowVmcs {
    /// Guest PML Address, as translated. [`Hpa`] 0 means that the guest-level log is off.
    pub(crate) guest_pml: Pml,
}

impl ShadowVmcs {
    pub(crate) const fn new() -> Self {
        Self {
            guest_pml: Pml::empty(Hpa::new(0)),
        }
    }

    pub(crate) const fn is_logging(&self) -> bool {
        self.guest_pml.address.get() != 0
    }
}

/// The fields that EPML lets a guest name. All others stay with the hypervisor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Field {
    /// EPML: guest-physical address of the guest-level log; 0 turns logging off. Write only,
    /// because what is stored is a host-physical address.
    GuestPmlAddress,
    /// EPML: index of the next entry of the guest-level log.
    GuestPmlIndex,
}
