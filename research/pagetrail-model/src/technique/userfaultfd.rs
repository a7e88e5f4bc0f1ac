//! userfaultfd in the modes missing and write-protect. Areas mapped during a round are reported
//! whole, and registered for the next.

use super::{Target, Technique, TechniqueKind};
use crate::Error;
use crate::guest::Area;
use crate::host::Host;
use crate::machine::{Gva, PAGE_BYTES};
use crate::write_set::WriteSet;

#[derive(Debug)]
pub(super) struct Userfaultfd {
    target: Target,
}

impl Userfaultfd {
    pub(super) fn start(host: &mut Host, target: Target) -> Result<Self, Error> {
        let this = Self { target };
        this.register(host)?;
        Ok(this)
    }

    /// Registers and protects the areas that are not registered yet.
    fn register(&self, host: &mut Host) -> Result<Vec<Area>, Error> {
        let pid = self.target.tracked.pid();
        host.kernel(self.target.tracker_vcpu, |kernel, platform| {
            let areas = kernel.userfault_register(platform, pid)?;
            for area in &areas {
                kernel.userfault_protect(platform, pid, area.start, area.pages)?;
            }
            Ok(areas)
        })
    }
}

impl Technique for Userfaultfd {
    fn kind(&self) -> TechniqueKind {
        TechniqueKind::Userfaultfd
    }

    fn collect(&mut self, host: &mut Host) -> Result<WriteSet, Error> {
        let pid = self.target.tracked.pid();
        let written = host.kernel(self.target.tracker_vcpu, |kernel, platform| {
            let written = kernel.userfault_take(pid)?;
            for (start, pages) in runs(written.iter().copied()) {
                kernel.userfault_protect(platform, pid, start, pages)?;
            }
            Ok(written)
        })?;
        let new = self.register(host)?;
        let new = new.iter().flat_map(Area::page_addresses);
        Ok(WriteSet::new(PAGE_BYTES, written.into_iter().chain(new)))
    }

    fn disarm(&mut self, host: &mut Host) -> Result<(), Error> {
        let pid = self.target.tracked.pid();
        host.kernel(self.target.tracker_vcpu, |kernel, platform| {
            kernel.userfault_close(platform, pid)
        })
    }
}

/// Adjacent pages as one range: one ioctl protects it.
fn runs(pages: impl Iterator<Item = Gva>) -> Vec<(Gva, u64)> {
    let mut runs: Vec<(Gva, u64)> = Vec::new();
    for page in pages {
        match runs.last_mut() {
            Some((start, pages)) if start.add_pages(*pages) == page => *pages += 1,
            _ => runs.push((page, 1)),
        }
    }
    runs
}
