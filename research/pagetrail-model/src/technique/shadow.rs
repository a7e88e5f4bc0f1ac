//! Logging by shadow page tables: what a hypervisor did before there was PML. The write fault names
//! the address space and the virtual address, so nothing has to be mapped back.

use super::{Target, Technique, TechniqueKind};
use crate::Error;
use crate::host::Host;
use crate::machine::{Gpa, PAGE_BYTES};
use crate::write_set::WriteSet;

#[derive(Debug)]
pub(super) struct ShadowTracker {
    target: Target,
    root: Gpa,
}

impl ShadowTracker {
    pub(super) fn start(host: &mut Host, target: Target) -> Result<Self, Error> {
        let root = host.kernel(target.tracker_vcpu, |kernel, platform| {
            if !platform.is_shadowed() {
                return Err(Error::Unsupported("shadow paging"));
            }
            platform.shadow_round();
            Ok(kernel.process(target.tracked.pid())?.space.root)
        })?;
        Ok(Self { target, root })
    }
}

impl Technique for ShadowTracker {
    fn kind(&self) -> TechniqueKind {
        TechniqueKind::Shadow
    }

    fn collect(&mut self, host: &mut Host) -> Result<WriteSet, Error> {
        let dirty = host.kernel(self.target.tracker_vcpu, |_, platform| {
            Ok(platform.shadow_round())
        })?;
        let own = dirty
            .into_iter()
            .filter(|&(root, _)| root == self.root)
            .map(|(_, gva)| gva);
        Ok(WriteSet::new(PAGE_BYTES, own))
    }

    fn disarm(&mut self, host: &mut Host) -> Result<(), Error> {
        host.kernel(self.target.tracker_vcpu, |_, platform| {
            platform.hypervisor.shadow_stop();
            Ok(())
        })
    }
}
