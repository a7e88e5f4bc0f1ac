//! Soft-dirty: read the whole pagemap, then clear all bits.

use super::{Target, Technique, TechniqueKind};
use crate::Error;
use crate::host::Host;
use crate::machine::PAGE_BYTES;
use crate::write_set::WriteSet;

#[derive(Debug)]
pub(super) struct SoftDirty {
    target: Target,
}

impl SoftDirty {
    pub(super) fn start(host: &mut Host, target: Target) -> Result<Self, Error> {
        host.kernel(target.tracker_vcpu, |kernel, platform| {
            kernel.clear_refs(platform, target.tracked.pid())
        })?;
        Ok(Self { target })
    }
}

impl Technique for SoftDirty {
    fn kind(&self) -> TechniqueKind {
        TechniqueKind::SoftDirty
    }

    fn collect(&mut self, host: &mut Host) -> Result<WriteSet, Error> {
        let pid = self.target.tracked.pid();
        let (present, new_areas) = host.kernel(self.target.tracker_vcpu, |kernel, platform| {
            let pagemap = kernel.pagemap(platform, pid)?;
            kernel.clear_refs(platform, pid)?;
            Ok(pagemap)
        })?;
        let written = present
            .into_iter()
            .filter(|entry| entry.soft_dirty)
            .map(|entry| entry.gva);
        let new = new_areas.iter().flat_map(|area| area.page_addresses());
        Ok(WriteSet::new(PAGE_BYTES, written.chain(new)))
    }

    fn disarm(&mut self, _: &mut Host) -> Result<(), Error> {
        // There is nothing to undo: each page that is still protected costs one more fault.
        Ok(())
    }
}
