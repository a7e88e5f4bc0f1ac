//! Keeping pages of the address space as they are while the target writes to them
//! ([`crate::freeze`]).

use super::Space;
use crate::attach::inject;
use crate::error::{Error, Result};
use crate::freeze::{self, Freezer, FrozenProcess};
use crate::page_set::PageSet;
use crate::source::{Frozen, Held};
use crate::sys::uffd::{Faults, Uffd};
use std::sync::Arc;

impl Space {
    /// Fetches a second userfaultfd of the target, unless there is one.
    pub(crate) fn prepare_freeze(&mut self) -> Result<()> {
        let (pid, lender) = self.lender()?;
        if self
            .freezer
            .as_ref()
            .is_some_and(|freezer| !freezer.is_whole())
        {
            self.freezer = None;
        }
        let freezer = match &mut self.freezer {
            Some(freezer) => freezer,
            none => {
                let fetched =
                    inject::fetch(pid, Faults::UserAndKernel).map_err(|error| match error {
                        Error::Permission { .. } => Error::NoFreeze {
                            pid,
                            reason:
                                "its faults in the kernel may not wait (CAP_SYS_PTRACE in it, or \
                                 vm.unprivileged_userfaultfd=1)"
                                    .into(),
                        },
                        error => error,
                    });
                none.insert(Freezer::new(pid, fetched?.fd)?)
            }
        };
        freezer.prepare(&lender)
    }

    /// Keeps pages of a target that is held, and of which a round was just collected.
    pub(crate) fn freeze(&mut self, held: &dyn Held, pages: &PageSet) -> Result<Box<dyn Frozen>> {
        let (pid, lender) = self.lender()?;
        freeze::check(pid, held.threads())?;
        let Some(freezer) = &mut self.freezer else {
            let reason = "it was not prepared".into();
            return Err(Error::NoFreeze { pid, reason });
        };
        let tracker = &mut self.tracker;
        // To look once more takes as long as the round did. A page that is not protected all the
        // same is found out when it is copied, and the next freeze looks.
        let is_sure = tracker.protects_all() && !freezer.has_lost();
        let unprotected = |range, out: &mut PageSet| match is_sure {
            true => Ok(()),
            false => tracker.add_unprotected(range, out),
        };
        let (lent, kept) = freeze::choose(&self.regions, &self.armed, pages, unprotected)?;
        let frozen = FrozenProcess::start(held, freezer, lender, lent, &kept)?;
        Ok(Box::new(frozen))
    }

    fn lender(&self) -> Result<(u32, Arc<Uffd>)> {
        let pid = self.pid.unwrap_or_else(std::process::id);
        let refused = |reason: &str| Error::NoFreeze {
            pid,
            reason: reason.into(),
        };
        if self.pid.is_none() {
            return Err(refused("it is this process itself"));
        }
        let lender = self.tracker.lender();
        lender
            .map(|lender| (pid, lender))
            .ok_or_else(|| refused("only pagemap-scan can (Linux 6.7)"))
    }
}
