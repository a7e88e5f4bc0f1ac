//! A [`Watch`] as a [`DirtySource`].

use super::Watch;
use crate::attach::hold::Hold;
use crate::error::Result;
use crate::page_set::PageSet;
use crate::region::Region;
use crate::round::Round;
#[cfg(all(feature = "attach", target_arch = "x86_64"))]
use crate::source::Frozen;
use crate::source::{DirtySource, Held, State};
use crate::types::UntrackedRegion;
use std::time::{Duration, Instant};

impl DirtySource for Watch {
    fn pid(&self) -> u32 {
        Self::pid(self)
    }

    fn technique_name(&self) -> &str {
        self.technique().name()
    }

    fn reason(&self) -> &str {
        Self::reason(self)
    }

    fn attach_stopped(&self) -> Duration {
        Self::attach_stopped(self)
    }

    fn regions(&self) -> &[Region] {
        Self::regions(self)
    }

    fn untracked(&self) -> &[UntrackedRegion] {
        Self::untracked(self)
    }

    fn wait(&mut self, timeout: Duration) -> State {
        Self::wait(self, timeout)
    }

    fn collect(&mut self) -> Result<Round<'_>> {
        Self::collect(self)
    }

    fn next_collect(&self) -> Option<Instant> {
        Self::next_collect(self)
    }

    fn reports_discards_in(&self) -> PageSet {
        self.space.reports_discards_in()
    }

    fn release_exit(&mut self) {
        Self::release_exit(self);
    }

    fn hold(&mut self) -> Result<Box<dyn Held>> {
        Ok(Box::new(Hold::process(self.pid())?))
    }

    fn collect_held(&mut self, held: &dyn Held) -> Result<Round<'_>> {
        self.collect_held_by(held)
    }

    #[cfg(all(feature = "attach", target_arch = "x86_64"))]
    fn prepare_freeze(&mut self) -> Result<()> {
        self.space.prepare_freeze()
    }

    #[cfg(all(feature = "attach", target_arch = "x86_64"))]
    fn freeze(&mut self, held: &dyn Held, pages: &PageSet) -> Result<Box<dyn Frozen>> {
        self.check_held(held)?;
        self.space.freeze(held, pages)
    }
}
