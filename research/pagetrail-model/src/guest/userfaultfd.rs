//! userfaultfd: faults that a tracker resolves, in the modes missing and write-protect.
//!
//! The tracked process stands still from the fault to the tracker's answer. The tracker answers at
//! once and notes which pages were written: a missing page on a write, a protected page when the
//! protection goes.

use std::collections::BTreeSet;

use super::{Area, Kernel, Pid, Tracking};
use crate::Error;
use crate::machine::{Gpa, Gva, PageFault, Pte};
use crate::platform::Platform;

/// What the tracker noted.
#[derive(Debug, Default)]
pub(crate) struct Userfault {
    written: BTreeSet<Gva>,
}

impl Kernel {
    /// Registers each area that is not registered yet; returns those. Their pages are not protected
    /// yet.
    pub(crate) fn userfault_register(
        &mut self,
        platform: &mut Platform<'_>,
        pid: Pid,
    ) -> Result<Vec<Area>, Error> {
        let process = self.process_mut(pid)?;
        match process.tracking {
            Tracking::Userfault(_) => {}
            Tracking::None => process.tracking = Tracking::Userfault(Userfault::default()),
            Tracking::Ooh(_) => return Err(Error::Tracking("the process is tracked already")),
        }
        let mut registered = Vec::new();
        for area in process.areas.iter_mut().filter(|area| !area.userfault) {
            if area.backing != super::Backing::Pages {
                return Err(Error::Unsupported(
                    "userfaultfd on anything but 4 KiB pages",
                ));
            }
            area.userfault = true;
            platform.events.tracker_calls += 1;
            platform.events.ufd_registers += 1;
            registered.push(area.clone());
        }
        Ok(registered)
    }

    /// Write-protects the present pages of a range (`UFFDIO_WRITEPROTECT`).
    pub(crate) fn userfault_protect(
        &mut self,
        platform: &mut Platform<'_>,
        pid: Pid,
        start: Gva,
        pages: u64,
    ) -> Result<(), Error> {
        let space = self.process(pid)?.space;
        let mut protected = 0;
        space.visit(platform, start, pages, &mut |_, entry| {
            protected += 1;
            entry.with_uffd_wp(true).with_writable(false)
        })?;
        platform.events.tracker_calls += 1;
        platform.events.ufd_protects += protected;
        platform.flush_space(space.pcid);
        Ok(())
    }

    /// Takes the pages that the tracker noted.
    pub(crate) fn userfault_take(&mut self, pid: Pid) -> Result<BTreeSet<Gva>, Error> {
        match &mut self.process_mut(pid)?.tracking {
            Tracking::Userfault(userfault) => Ok(std::mem::take(&mut userfault.written)),
            _ => Err(Error::Tracking("the process is not tracked by userfaultfd")),
        }
    }

    /// Closes the descriptor: nothing is registered or protected any more.
    pub(crate) fn userfault_close(
        &mut self,
        platform: &mut Platform<'_>,
        pid: Pid,
    ) -> Result<(), Error> {
        let process = self.process_mut(pid)?;
        process.tracking = Tracking::None;
        let space = process.space;
        for area in &mut process.areas {
            area.userfault = false;
            space.visit(platform, area.start, area.pages, &mut |_, entry| {
                let writable = entry.writable() || entry.uffd_wp() && !entry.zero_page();
                entry.with_uffd_wp(false).with_writable(writable)
            })?;
        }
        platform.flush_space(space.pcid);
        Ok(())
    }

    fn userfault_note(
        &mut self,
        platform: &mut Platform<'_>,
        pid: Pid,
        written: Option<Gva>,
    ) -> Result<(), Error> {
        platform.events.faults_userfaultfd += 1;
        // The tracker reads the message and answers with an ioctl.
        platform.events.tracker_calls += 2;
        platform.events.ufd_resolves += 1;
        if let Tracking::Userfault(userfault) = &mut self.process_mut(pid)?.tracking {
            userfault.written.extend(written);
        }
        Ok(())
    }

    /// First touch of a registered page. A page that was only read is protected at once.
    pub(super) fn userfault_missing(
        &mut self,
        platform: &mut Platform<'_>,
        pid: Pid,
        fault: PageFault,
    ) -> Result<(), Error> {
        self.userfault_note(platform, pid, fault.write.then_some(fault.gva.page()))?;
        self.populate(platform, pid, fault.gva, fault.write, false)?;
        if fault.write {
            return Ok(());
        }
        self.userfault_protect(platform, pid, fault.gva.page(), 1)
    }

    /// Write to a protected page.
    pub(super) fn userfault_protected(
        &mut self,
        platform: &mut Platform<'_>,
        pid: Pid,
        gva: Gva,
        slot: Gpa,
        entry: Pte,
    ) -> Result<(), Error> {
        self.userfault_note(platform, pid, Some(gva.page()))?;
        // The shared zero page stays read-only: the write faults once more and gets a page of its
        // own.
        let open = entry.with_uffd_wp(false).with_writable(!entry.zero_page());
        platform.write_entry(slot, open.0)?;
        let pcid = self.process(pid)?.space.pcid;
        platform.flush_page(pcid, gva);
        Ok(())
    }
}
