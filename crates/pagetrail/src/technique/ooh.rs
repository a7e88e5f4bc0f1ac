//! `epml`, `spml` and `spml-search`: a log of dirty pages that hardware keeps, shared with this
//! system by `/dev/ooh`.
//!
//! The designs are those of *Out of Hypervisor*: an extended processor logs a process's writes by
//! virtual address (EPML), or the hypervisor shares its page-modification log, which has physical
//! addresses (SPML). Nothing is protected and no fault is taken: a round costs what it holds. Where
//! the driver is, and what it drives, is in `research/ooh`. The traps:
//!
//! * A log that was full has lost pages: then all that exists counts as written.
//! * What the kernel writes to the process's pages through its own mapping of all memory, as for
//!   `process_vm_writev(2)` of another process, has no address of the process. With `epml`, the
//!   driver reads such stores from a log of page frames.
//! * Physical addresses are translated when the round ends, and not before: a page frame is filled
//!   before it gets an owner. `spml` lets the driver ask the frames whose they are; `spml-search`
//!   searches the page table for them, as in the paper.
//! * Pages that were discarded or unmapped are in the log. Shared files that change by a system
//!   call are not.

use super::{ArmError, Armed, Collected, Missed, Tracker};
use crate::error::{Error, Result};
use crate::page_set::{PageRange, PageSet, page_size};
use crate::proc::status::memory_id;
use crate::region::Region;
use crate::sys::ooh::{Device, Entry, Info, Log, Session, VERSION};
use crate::sys::pagemap::{Pagemap, Vector};
use crate::types::Technique;
use rustix::io::Errno;
use std::time::Duration;

/// The technique's state for one address space.
pub(crate) struct Ooh {
    pid: u32,
    session: Session,
    pagemap: Pagemap,
    vector: Vector,
    private: PageSet,
    shared: PageSet,
}

/// The log that a technique reads.
fn log(technique: Technique) -> Log {
    match technique {
        Technique::Spml => Log::Owned,
        Technique::SpmlSearch => Log::Frames,
        _ => Log::Virtual,
    }
}

/// The device, if it has what the technique needs; else why not.
pub(crate) fn device(technique: Technique) -> Result<Device, String> {
    let device = Device::open().map_err(|errno| match errno {
        Errno::NOENT => {
            "there is no /dev/ooh: its kernel module (research/ooh) is not loaded".into()
        }
        Errno::ACCESS | Errno::PERM => "/dev/ooh may not be opened: needs root".into(),
        errno => format!("/dev/ooh cannot be opened: {errno}"),
    })?;
    let info = device
        .info()
        .map_err(|errno| format!("/dev/ooh does not answer as its module does: {errno}"))?;
    match refusal(&info, technique) {
        None => Ok(device),
        Some(reason) => Err(reason),
    }
}

/// Why the module's log is none for the technique.
fn refusal(info: &Info, technique: Technique) -> Option<String> {
    let found = info.version;
    let any = [Log::Virtual, Log::Frames, Log::Owned];
    if found != VERSION {
        Some(format!(
            "the module of /dev/ooh has version {found}, and version {VERSION} is needed: build both from one release"
        ))
    } else if info.has(log(technique)) {
        None
    } else if any.into_iter().any(|log| info.has(log)) {
        Some("the log of /dev/ooh is of the other kind: a hypervisor's, for spml, or a processor's, for epml".into())
    } else {
        Some("the module of /dev/ooh has found no log: neither the processor nor the hypervisor has one".into())
    }
}

impl Ooh {
    /// Starts without armed memory; `pid` is `None` for the own address space.
    pub(crate) fn new(technique: Technique, pid: Option<u32>) -> Result<Self> {
        let device =
            device(technique).map_err(|reason| Error::Unavailable { technique, reason })?;
        let pagemap = Pagemap::open(pid).map_err(Error::io("opening pagemap"))?;
        let pid = pid.unwrap_or_else(std::process::id);
        let session = device.track(memory_id(pid), log(technique));
        Ok(Self {
            pid,
            session: session.map_err(|errno| match errno {
                Errno::SRCH => Error::Gone { pid },
                Errno::BUSY => Error::Unavailable {
                    technique,
                    reason: "/dev/ooh tracks as many processes as it can: end another tracker"
                        .into(),
                },
                errno => Error::os("tracking a process by /dev/ooh")(errno),
            })?,
            pagemap,
            vector: Vector::new(),
            private: PageSet::new(),
            shared: PageSet::new(),
        })
    }

    fn populated(&mut self) -> Result<PageSet> {
        let mut populated = PageSet::new();
        for range in self.private.union(&self.shared).ranges() {
            self.pagemap
                .populated(*range, &mut self.vector, &mut populated)
                .map_err(Error::io("reading pagemap"))?;
        }
        Ok(populated)
    }

    /// Adds the armed pages whose frames are among `frames`.
    fn search(&mut self, frames: &PageSet, out: &mut PageSet) -> Result<()> {
        if frames.is_empty() {
            return Ok(());
        }
        for range in self.populated()?.ranges() {
            self.pagemap
                .matching_entries(
                    *range,
                    |entry| frame(entry.bits()).is_some_and(|at| frames.contains(at)),
                    out,
                )
                .map_err(Error::io("reading pagemap"))?;
        }
        Ok(())
    }
}

/// The physical address of a page in memory (bits 0 to 54 of its entry are the frame's number).
fn frame(entry: u64) -> Option<u64> {
    let present = entry >> 63 != 0;
    present.then_some((entry & ((1 << 55) - 1)) * page_size())
}

impl Tracker for Ooh {
    /// The log is of the whole address space, armed or not.
    fn arm(&mut self, region: &Region) -> Result<(), ArmError> {
        match region.permissions.shared {
            true => self.shared.insert(region.range),
            false => self.private.insert(region.range),
        }
        Ok(())
    }

    fn begin(&mut self) -> Result<Duration> {
        self.session
            .collect(drop)
            .map_err(Error::os("reading the log of /dev/ooh"))?;
        Ok(Duration::ZERO)
    }

    /// Adds the populated pages: what was written to them before is in the log of a round that has
    /// gone by.
    fn add_populated(&mut self, region: &Region, out: &mut PageSet) -> Result<()> {
        if region.permissions.shared {
            out.insert(region.range);
            return Ok(());
        }
        self.pagemap
            .populated(region.range, &mut self.vector, out)
            .map_err(Error::io("reading pagemap"))
    }

    fn misses(&self) -> Missed {
        Missed::OfFiles
    }

    fn splits_mappings(&self) -> bool {
        false
    }

    fn refuses_read_only(&self) -> bool {
        false
    }

    fn forget(&mut self, range: PageRange) {
        self.private.remove(range);
        self.shared.remove(range);
    }

    fn collect(&mut self, _: &[Armed], out: &mut PageSet) -> Result<Collected> {
        let (mut pages, mut frames) = (Vec::new(), Vec::new());
        let round = self
            .session
            .collect(|entry| match entry {
                Entry::Pages(range) => pages.push(range),
                Entry::Frames(range) => frames.push(range),
            })
            .map_err(Error::os("reading the log of /dev/ooh"))?;
        let logged: PageSet = pages.into_iter().collect();
        out.union_with(&logged.intersection(&self.private));
        out.union_with(&logged.intersection(&self.shared));
        if round.ended {
            return Err(Error::Gone { pid: self.pid });
        }
        let searched = self.search(&frames.into_iter().collect(), out);
        if round.lost || searched.is_err() {
            // All of it, as a page may have been written or discarded and have left the page table
            // since.
            out.union_with(&self.shared);
            out.union_with(&self.private);
        }
        searched?;
        Ok(Collected::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_that_of_a_page_in_memory() {
        let entry = 1 << 63 | 1 << 61 | 1 << 55 | 0x1234;
        assert_eq!(frame(entry), Some(0x1234 * page_size()));
        assert_eq!(frame(1 << 62 | 0x1234), None);
    }

    const ALL: [Technique; 3] = [Technique::Epml, Technique::Spml, Technique::SpmlSearch];

    #[test]
    fn a_module_that_does_not_fit_is_refused_with_the_reason() {
        let none = Info::of(VERSION, 0);
        let (hypervisor, both) = (Info::of(VERSION, 2 | 4), Info::of(VERSION, 1 | 2 | 4));
        for technique in ALL {
            let other = refusal(&Info::of(VERSION + 1, 7), technique).unwrap();
            assert!(other.contains("has version 2, and version 1 is needed"));
            assert!(refusal(&none, technique).unwrap().contains("no log"));
            assert_eq!(refusal(&both, technique), None);
        }
        let epml = refusal(&hypervisor, Technique::Epml).unwrap();
        assert!(epml.contains("of the other kind"), "{epml}");
        assert_eq!(refusal(&hypervisor, Technique::Spml), None);
        assert_eq!(refusal(&hypervisor, Technique::SpmlSearch), None);
    }

    /// Where the module is not, a log that is asked for by name is refused, and `auto` tracks.
    #[test]
    fn without_the_module_auto_goes_on() {
        if std::path::Path::new("/dev/ooh").exists() {
            return;
        }
        let buffer = vec![1u8; 1 << 16];
        let target = || crate::Target::ranges(crate::pages_of(&buffer));
        for technique in ALL {
            let builder = crate::Watch::builder().target(target());
            let error = builder.technique(technique).start().unwrap_err();
            assert!(error.to_string().contains("no /dev/ooh"), "{error}");
        }
        let auto = crate::Watch::builder().target(target()).start().unwrap();
        assert!(!ALL.contains(&auto.technique()));
    }
}
