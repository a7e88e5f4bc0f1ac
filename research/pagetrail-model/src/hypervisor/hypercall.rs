//! [`Hypercall`]: what a guest can ask of its hypervisor.
//!
//! Addresses in a hypercall are guest-physical and not trusted: what does not lie in the guest's
//! memory is refused or passed over, and ring numbers mean something only within the machine that
//! registered them.

use super::{Hypervisor, RingId, Stopped};
use crate::Error;
use crate::machine::{Gpa, ShadowVmcs};
use crate::ring::Ring;

/// A request.
#[derive(Clone, Debug)]
pub(crate) enum Hypercall<'a> {
    /// SPML: register the pages of a ring buffer and get ready to log (M9).
    InitPml { ring_pages: &'a [Gpa] },
    /// SPML: forget a ring buffer (M11).
    DeactivatePml { ring: RingId },
    /// SPML: the tracked process is scheduled in on this vCPU (M13).
    EnableLogging { ring: RingId },
    /// SPML: it is scheduled out: copy the log to the ring buffer and stop (M14).
    DisableLogging,
    /// EPML: turn VMCS shadowing on for all vCPUs (M10).
    InitShadowing,
    /// EPML: and off again (M12).
    DeactivateShadowing,
    /// Start a round: clear the dirty flags of these pages. Not in the paper, which is silent on
    /// how a page becomes loggable again; one call per collect.
    ClearDirty { pages: &'a [Gpa] },
    /// Lu et al., `ept_map_to`: let `pages` pages at `from` share the memory of those at `to`.
    MapTo { from: Gpa, to: Gpa, pages: u64 },
    /// Lu et al., `ept_mprotect`: write-protect pages.
    Protect { pages: &'a [Gpa] },
    /// Lu et al.: the pages whose protection stopped a write since the last call.
    TakeViolations,
}

/// The answer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    Done,
    Ring(RingId),
    Pages(Vec<Gpa>),
}

impl Hypervisor {
    pub(crate) fn hypercall(
        &mut self,
        stopped: &mut Stopped<'_>,
        call: Hypercall<'_>,
    ) -> Result<Reply, Error> {
        stopped.events.vm_exits += 1;
        stopped.events.hypercalls += 1;
        let vcpu = stopped.current;
        match call {
            Hypercall::InitPml { ring_pages } => {
                stopped.events.spml_inits += 1;
                for &page in ring_pages {
                    self.back(stopped.memory, page)?;
                }
                let ring = Ring::new(ring_pages).ok_or(Error::RingTooSmall)?;
                self.rings.push(Some(ring));
                self.split_large_pages(stopped)?;
                return Ok(Reply::Ring(RingId(self.rings.len() - 1)));
            }
            Hypercall::DeactivatePml { ring } => {
                stopped.events.spml_stops += 1;
                for vcpu in 0..self.logging.len() {
                    if self.logging[vcpu].by_guest == Some(ring) {
                        self.set_guest_logging(stopped, vcpu, None)?;
                    }
                }
                if let Some(ring) = self.rings.get_mut(ring.0) {
                    *ring = None;
                }
            }
            Hypercall::EnableLogging { ring } => {
                stopped.events.enable_logging += 1;
                let known = self.rings.get(ring.0).is_some_and(Option::is_some);
                self.set_guest_logging(stopped, vcpu, known.then_some(ring))?;
            }
            Hypercall::DisableLogging => {
                stopped.events.disable_logging += 1;
                self.set_guest_logging(stopped, vcpu, None)?;
            }
            Hypercall::InitShadowing => {
                stopped.events.shadowing_inits += 1;
                self.shadowing = true;
                self.split_large_pages(stopped)?;
                for vcpu in stopped.vcpus.iter_mut() {
                    vcpu.vmcs.shadow.get_or_insert(ShadowVmcs::new());
                }
            }
            Hypercall::DeactivateShadowing => {
                stopped.events.shadowing_stops += 1;
                self.shadowing = false;
                for vcpu in stopped.vcpus.iter_mut() {
                    vcpu.vmcs.shadow = None;
                }
            }
            Hypercall::ClearDirty { pages } => {
                stopped.events.clear_dirty_calls += 1;
                self.clear_dirty(stopped, pages.iter().copied());
            }
            Hypercall::MapTo { from, to, pages } => {
                for page in 0..pages {
                    let to_page = to.page_number() + page;
                    if to_page >= self.guest_pages {
                        return Err(Error::OutsideGuestMemory(to.add_pages(page)));
                    }
                    self.aliases.insert(from.page_number() + page, to_page);
                }
            }
            Hypercall::Protect { pages } => {
                for &gpa in pages {
                    self.back(stopped.memory, gpa)?;
                    self.ept.split(stopped.memory, gpa)?;
                    if let Some(leaf) = self.ept.leaf(stopped.memory, gpa) {
                        stopped
                            .memory
                            .write(leaf.slot, leaf.entry.with_writable(false).0);
                    }
                }
                stopped.invept();
            }
            Hypercall::TakeViolations => {
                return Ok(Reply::Pages(std::mem::take(&mut self.violations)));
            }
        }
        Ok(Reply::Done)
    }

    /// Changes who of the guest gets the log of `vcpu`. What is in the log belongs to the one
    /// before: a ring buffer must never receive what was logged while its process was not running.
    fn set_guest_logging(
        &mut self,
        stopped: &mut Stopped<'_>,
        vcpu: usize,
        ring: Option<RingId>,
    ) -> Result<(), Error> {
        self.empty_log(stopped, vcpu)?;
        self.logging[vcpu].by_guest = ring;
        self.update_logging(stopped, vcpu)
    }
}
