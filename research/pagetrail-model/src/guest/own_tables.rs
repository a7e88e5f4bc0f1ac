//! A process that edits its own page tables, as under Dune (Lu et al., section 4.2).

use super::{AddressSpace, Kernel, Pid};
use crate::Error;
use crate::machine::{Gpa, Gva, Pte};
use crate::platform::Platform;

impl Kernel {
    /// Adjacent guest-physical pages that belong to `pid` alone.
    pub(crate) fn own_memory(&mut self, pages: u64) -> Result<Gpa, Error> {
        self.frames.allocate_run(pages, 1)
    }

    /// Gives them back.
    pub(crate) fn release_own_memory(&mut self, start: Gpa, pages: u64) {
        (0..pages).for_each(|page| self.frames.release(start.add_pages(page)));
    }

    /// Lets `gva` point to `gpa`, in place of whatever it pointed to.
    pub(crate) fn own_map(
        &mut self,
        platform: &mut Platform<'_>,
        pid: Pid,
        gva: Gva,
        gpa: Gpa,
    ) -> Result<(), Error> {
        let space: AddressSpace = self.process(pid)?.space;
        let slot = space.slot(platform, &mut self.frames, gva, false)?;
        platform.write_entry(slot, Pte::to(gpa).with_writable(true).0)?;
        platform.flush_page(space.pcid, gva);
        Ok(())
    }
}
