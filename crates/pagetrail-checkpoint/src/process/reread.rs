//! Memory of a process that is read again for each checkpoint, because others may have changed it
//! without a trace: where it is, and who reads it.

use super::common::{self, Common};
use super::state::memory::{Apart, Motion};
use super::transfer::Transfer;
use super::{ProcessCheckpointer, state};
use crate::error::Result;
use pagetrail::PageSet;

impl ProcessCheckpointer {
    /// Reads memory that others may write to; `common` has what other processes have read of it.
    pub(super) fn look_at_shared(
        &self,
        transfer: &mut Transfer<'_>,
        common: Option<&Common>,
    ) -> Result<()> {
        let contents = self.shared_contents()?;
        let common = common.map(|common| {
            let devices = common.devices(self.pid());
            let (pieces, rest) = common::pieces(self.layout.regions(), &contents, &devices);
            (common, pieces, rest)
        });
        let Some((common, pieces, rest)) = common else {
            return transfer.look_at_shared(&self.memory, &contents, &contents);
        };
        transfer.look_at_shared(&self.memory, &contents, &rest)?;
        transfer.look_at_common(&self.memory, &pieces, common)
    }

    /// Reads shared memory that no mapping shows, if the process is to be started anew.
    pub(super) fn look_at_apart(
        &mut self,
        transfer: &mut Transfer<'_>,
        motion: Motion,
    ) -> Result<()> {
        if !self.options.restartable {
            return Ok(());
        }
        let regions = self.layout.regions();
        let all = state::memory::of(self.pid(), regions, motion);
        let all = all.map_err(|reason| state::refusal(self.pid(), &reason))?;
        let apart = Apart::new(all);
        if let Some(name) = apart.name().filter(|_| self.options.trust_shared) {
            let reason = format!(
                "its shared memory {name} may be written in several ways, so that it has to be read \
                 again for each checkpoint"
            );
            return Err(state::refusal(self.pid(), &reason));
        }
        let contents = apart.pages(regions, self.layout.addresses())?;
        transfer.look_at_apart(&apart, &contents)?;
        self.apart = apart;
        Ok(())
    }

    /// Where memory is read again at each instant.
    pub(super) fn shared(&self) -> PageSet {
        match self.options.trust_shared {
            true => PageSet::new(),
            false => self.layout.shared(),
        }
    }

    /// The pages there that hold something.
    fn shared_contents(&self) -> Result<PageSet> {
        match self.options.trust_shared {
            true => Ok(PageSet::new()),
            false => self.layout.shared_contents(),
        }
    }
}
