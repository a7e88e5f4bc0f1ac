//! `mprotect`: the oldest way, for given ranges of the own process. Memory is made read-only; the
//! first write to each page raises `SIGSEGV`, whose handler records the page and makes it writable.
//! To track accesses, memory is made inaccessible instead, so that the first read raises the
//! signal, too.
//!
//! It works on every kernel and without privilege, at some five times the cost of `pagemap-scan`
//! per first write, and with two limits: a system call that writes to a protected page (or reads
//! from an inaccessible one) fails with `EFAULT` instead of faulting (see
//! [`prepare_for_kernel_write`](crate::Watch::prepare_for_kernel_write)), and the ranges must keep
//! their mapping and their access rights while they are tracked.
//!
//! Pages with different protection than their neighbours split the mapping, and a process may have
//! `vm.max_map_count` (65,530) mappings. When that limit is reached, the handler releases the whole
//! range, and all of it counts as written; until then the program's own mappings compete for the
//! same number. Keep ranges small, or collect often.

use super::{ArmError, Armed, Collected, Tracker};
use crate::error::{Error, Result};
use crate::page_set::{PageRange, PageSet};
use crate::region::Region;
use crate::sys::segv::Guard;
use crate::types::AccessKind;

/// The technique's state.
pub(crate) struct Mprotect {
    guards: Vec<Guard>,
    access_kind: AccessKind,
}

impl Mprotect {
    /// Tracks writes, or all accesses.
    pub(crate) fn new(access_kind: AccessKind) -> Self {
        Self {
            guards: Vec::new(),
            access_kind,
        }
    }
}

impl Tracker for Mprotect {
    fn access_kind(&self) -> AccessKind {
        self.access_kind
    }

    fn arm(&mut self, region: &Region) -> Result<(), ArmError> {
        let permissions = region.permissions;
        if permissions.execute || !permissions.read || !permissions.write {
            return Err(ArmError::Untrackable(
                "mprotect tracks plain readable and writable memory only".into(),
            ));
        }
        let guard = Guard::new(region.range, self.access_kind);
        self.guards
            .push(guard.map_err(Error::io("protecting memory"))?);
        Ok(())
    }

    fn add_populated(&mut self, region: &Region, out: &mut PageSet) -> Result<()> {
        out.insert(region.range);
        Ok(())
    }

    fn forget(&mut self, range: PageRange) {
        self.guards
            .retain(|guard| guard.range().intersection(&range).is_none());
    }

    fn prepare_for_kernel_write(&mut self, range: PageRange) {
        self.guards.iter().for_each(|guard| guard.touch(range));
    }

    fn collect(&mut self, _: &[Armed], out: &mut PageSet) -> Result<Collected> {
        let mut faults = 0;
        for guard in &self.guards {
            faults += guard
                .collect(out)
                .map_err(Error::io("protecting memory again"))?;
        }
        Ok(Collected {
            faults: Some(faults),
            ..Collected::default()
        })
    }
}
