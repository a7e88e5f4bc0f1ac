//! [`GuestMemory`]: a source of accesses narrowed to the memory of a monitor's guest, so that the
//! monitor's own memory is neither counted nor moved.

use std::fs;

use pagetrail::{Mapped, PageSet};
use pagetrail_tier::source::{Source, SourceInfo};
use pagetrail_tier::{Error, Result, Sample};

use crate::monitor;

/// The accesses of a process within guest memory.
pub(crate) struct GuestMemory {
    source: Box<dyn Source>,
    pid: u32,
    /// `maps` as it was when guest memory was looked for.
    maps: Vec<u8>,
    memory: PageSet,
}

impl GuestMemory {
    /// Starts a source for a monitor, and narrows it.
    pub(crate) fn of(pid: u32, start: impl FnOnce() -> Result<Box<dyn Source>>) -> Result<Self> {
        if !monitor::is_monitor(pid) {
            return Err(Error::Target(format!(
                "process {pid} has no virtual machine of KVM: name its monitor"
            )));
        }
        let mut narrowed = Self {
            // After the check: what is no monitor is not even watched.
            source: start()?,
            pid,
            maps: Vec::new(),
            memory: PageSet::new(),
        };
        narrowed.look()?;
        match narrowed.memory.is_empty() {
            true => Err(Error::Target(format!(
                "process {pid} has a virtual machine, and no mapping that is a guest's memory"
            ))),
            false => Ok(narrowed),
        }
    }

    /// Finds guest memory anew, where mappings have changed: a guest is given more, or reboots.
    fn look(&mut self) -> Result<()> {
        let path = format!("/proc/{}/maps", self.pid);
        let maps = fs::read(&path).map_err(|source| Error::Io { what: path, source })?;
        if maps != self.maps {
            // This one walks page tables.
            let smaps = monitor::smaps(self.pid).map_err(|source| Error::Io {
                what: format!("reading the mappings of process {}", self.pid),
                source,
            })?;
            self.memory = monitor::guest_memory(&smaps);
            self.maps = maps;
        }
        Ok(())
    }
}

impl Source for GuestMemory {
    fn info(&self) -> SourceInfo {
        self.source.info()
    }

    fn window(&mut self) -> Result<Sample> {
        let mut sample = self.source.window()?;
        let sets = [&mut sample.accessed, &mut sample.written];
        for set in sets.into_iter().flatten() {
            *set = set.intersection(&self.memory);
        }
        Ok(sample)
    }

    fn rearm(&mut self, pages: &PageSet) -> Result<()> {
        self.source.rearm(pages)
    }

    fn suspend(&mut self) -> Result<()> {
        self.source.suspend()
    }

    fn mapped(&mut self) -> Result<Mapped> {
        self.look()?;
        let mut mapped = self.source.mapped()?;
        mapped.present = mapped.present.intersection(&self.memory);
        mapped.huge = mapped.huge.intersection(&self.memory);
        mapped.swapped = mapped.swapped.intersection(&self.memory);
        Ok(mapped)
    }

    fn mapped_within(&mut self, addresses: &PageSet) -> Result<Mapped> {
        self.source
            .mapped_within(&addresses.intersection(&self.memory))
    }
}
