//! [`Watched`]: a [`Watch`] on a process as a source: `access-scan` or `pagemap-scan`.

use pagetrail::{
    AccessKind, HugePages, Mapped, PageSet, Region, Target, Technique, TrackMode, UntrackedPolicy,
    Watch, mapped_pages,
};

use super::{Source, SourceInfo};
use crate::error::Result;
use crate::policy::{Sample, SourceCaps};

/// How a process is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WatchedKind {
    /// Every access, without saying which were writes (Linux 7.3).
    Accesses,
    /// Writes only (Linux 6.7).
    Writes,
    /// A window of writes, a window of accesses, and so on. Changing arms everything, so that no
    /// page is left alone.
    Turns,
}

/// The pages of a process that were touched, as the kernel's page tables tell.
pub struct Watched {
    watch: Watch,
    kind: WatchedKind,
    regions: Vec<Region>,
}

impl Watched {
    /// Begins to watch a process.
    ///
    /// # Errors
    ///
    /// The technique does not work here, or not for this target.
    pub fn start(target: Target, kind: WatchedKind) -> Result<Self> {
        let (technique, track) = match kind {
            WatchedKind::Accesses => (Technique::AccessScan, TrackMode::Accesses),
            WatchedKind::Writes => (Technique::PagemapScan, TrackMode::Writes),
            WatchedKind::Turns => (Technique::AccessScan, TrackMode::Alternate),
        };
        let watch = Watch::builder()
            .target(target)
            .technique(technique)
            .track(track)
            .huge_pages(HugePages::Keep)
            // A copy of what cannot be watched would cost more than it could gain.
            .untracked(UntrackedPolicy::Report)
            .start()?;
        let regions = watch.regions().to_vec();
        Ok(Self {
            watch,
            kind,
            regions,
        })
    }

    /// The process.
    pub fn pid(&self) -> u32 {
        self.watch.pid()
    }

    /// The watch itself, to wait for its target.
    pub fn watch(&mut self) -> &mut Watch {
        &mut self.watch
    }

    /// The addresses that are watched: of others nothing is known, and nothing is moved.
    fn addresses(&self) -> PageSet {
        let untracked: PageSet = self
            .watch
            .untracked()
            .iter()
            .map(|untracked| untracked.region.range)
            .collect();
        let reads = self.kind != WatchedKind::Writes;
        let watched = self.regions.iter().filter(|region| {
            let read = reads && region.permissions.read && region.inode == 0;
            region.is_trackable() && (region.permissions.write || read)
        });
        let all: PageSet = watched.map(|region| region.range).collect();
        all.difference(&untracked)
    }
}

impl Source for Watched {
    fn info(&self) -> SourceInfo {
        let (name, accesses, writes) = match self.kind {
            WatchedKind::Accesses => ("access-scan", true, false),
            WatchedKind::Writes => ("pagemap-scan", false, true),
            WatchedKind::Turns => ("access-scan and pagemap-scan in turns", true, true),
        };
        let in_turns = self.kind == WatchedKind::Turns;
        SourceInfo {
            name,
            caps: SourceCaps {
                accesses,
                writes,
                in_turns,
            },
            pages: true,
            saves_faults: !in_turns,
        }
    }

    fn window(&mut self) -> Result<Sample> {
        let round = match self.kind {
            WatchedKind::Turns => self.watch.collect()?,
            _ => self.watch.collect_unarmed()?,
        };
        if self.regions != round.regions() {
            self.regions = round.regions().to_vec();
        }
        let touched = round.dirty().clone();
        let sample = match round.access_kind() {
            AccessKind::Accesses => Sample {
                accessed: Some(touched),
                written: None,
            },
            AccessKind::Writes => Sample {
                accessed: None,
                written: Some(touched),
            },
        };
        round.commit();
        Ok(sample)
    }

    fn rearm(&mut self, pages: &PageSet) -> Result<()> {
        match self.kind {
            // Armed anew with each turn.
            WatchedKind::Turns => Ok(()),
            _ => Ok(self.watch.rearm(pages)?),
        }
    }

    fn suspend(&mut self) -> Result<()> {
        Ok(self.watch.suspend()?)
    }

    fn mapped(&mut self) -> Result<Mapped> {
        let addresses = self.addresses();
        self.mapped_within(&addresses)
    }

    fn mapped_within(&mut self, addresses: &PageSet) -> Result<Mapped> {
        let within = addresses.intersection(&self.addresses());
        Ok(mapped_pages(self.pid(), &within)?)
    }
}
