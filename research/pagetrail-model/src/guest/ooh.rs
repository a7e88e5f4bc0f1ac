//! The OoH module of the guest kernel: SPML and EPML for processes (OoH paper, sections IV-C and
//! IV-D).
//!
//! Each tracked process has its own ring buffer, which only its tracker may read, and logging
//! follows the process: on at schedule-in, off at schedule-out. SPML does that by hypercalls, EPML
//! by `vmwrite`.
//!
//! The paper leaves two things open that a correct tracker needs, and the module adds them:
//! * *Starting a round.* A page is logged when its EPT dirty flag goes from 0 to 1, so someone must
//!   clear the flags of the pages just reported. Only the hypervisor can: one hypercall per fetch.
//! * *Fresh pages.* A page that the kernel has just zeroed, or that another process dirtied before
//!   it was given away, has its flag set already and the program's first write is not logged. The
//!   module reports the pages that the fault handler maps.

use super::{Kernel, Pid, Tracking};
use crate::Error;
use crate::hypervisor::{Hypercall, Reply, RingId};
use crate::machine::{Field, Gpa, Gva, PML_ENTRIES, Pml};
use crate::platform::Platform;
use crate::ring::{Drained, Ring, Words};

/// Addresses from here on belong to the kernel.
const USER_END: u64 = 1 << 47;

/// Which of the two designs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Design {
    Spml,
    Epml,
}

#[derive(Debug)]
enum Log {
    /// The hypervisor's log; it fills the ring buffer.
    Spml { ring: RingId },
    /// A log of the guest's own. `index` is its index while the process does not run.
    Epml { page: Gpa, index: u16 },
}

/// What the module keeps about a tracked process.
#[derive(Debug)]
pub(crate) struct Ooh {
    tracker: Pid,
    ring: Ring,
    log: Log,
    fresh: Vec<Gva>,
}

impl Ooh {
    pub(super) fn tracker(&self) -> Pid {
        self.tracker
    }
}

/// What a tracker fetched.
#[derive(Debug)]
pub(crate) struct Fetched {
    /// SPML: guest-physical addresses. EPML: guest-virtual ones.
    pub(crate) logged: Vec<u64>,
    /// Pages mapped since the last fetch.
    pub(crate) fresh: Vec<Gva>,
    /// Addresses were lost: any page of the process may have been written.
    pub(crate) lost: bool,
}

impl Kernel {
    fn ooh(&mut self, pid: Pid) -> Result<Option<&mut Ooh>, Error> {
        match &mut self.process_mut(pid)?.tracking {
            Tracking::Ooh(ooh) => Ok(Some(ooh)),
            _ => Ok(None),
        }
    }

    /// Starts to track `tracked` for `tracker`, with a ring buffer of `ring_pages` pages and a
    /// header.
    pub(crate) fn ooh_start(
        &mut self,
        platform: &mut Platform<'_>,
        tracker: Pid,
        tracked: Pid,
        design: Design,
        ring_pages: u64,
    ) -> Result<(), Error> {
        self.process(tracker)?;
        if !matches!(self.process(tracked)?.tracking, Tracking::None) {
            return Err(Error::Tracking("the process is tracked already"));
        }
        platform.events.tracker_calls += 1;
        let mut pages = Vec::new();
        for _ in 0..=ring_pages {
            let page = self.frames.allocate()?;
            platform.zero(page)?;
            pages.push(page);
        }
        let ring = Ring::new(&pages).ok_or(Error::RingTooSmall)?;
        let log = match design {
            Design::Spml => match platform.hypercall(Hypercall::InitPml { ring_pages: &pages })? {
                Reply::Ring(ring) => Log::Spml { ring },
                Reply::Done | Reply::Pages(_) => return Err(Error::Unsupported("SPML")),
            },
            Design::Epml => {
                if self.epml_users == 0 {
                    platform.hypercall(Hypercall::InitShadowing)?;
                }
                self.epml_users += 1;
                let page = self.frames.allocate()?;
                platform.zero(page)?;
                Log::Epml {
                    page,
                    index: PML_ENTRIES - 1,
                }
            }
        };
        let ooh = Ooh {
            tracker,
            ring,
            log,
            fresh: Vec::new(),
        };
        self.process_mut(tracked)?.tracking = Tracking::Ooh(ooh);
        let mapped = self.mapped_pages(platform, tracked)?;
        platform.hypercall(Hypercall::ClearDirty { pages: &mapped })?;
        self.on_its_vcpu(platform, tracked, Self::ooh_schedule_in)
    }

    /// Ends it.
    pub(crate) fn ooh_stop(
        &mut self,
        platform: &mut Platform<'_>,
        tracked: Pid,
    ) -> Result<(), Error> {
        platform.events.tracker_calls += 1;
        self.on_its_vcpu(platform, tracked, Self::ooh_schedule_out)?;
        let Tracking::Ooh(ooh) = std::mem::take(&mut self.process_mut(tracked)?.tracking) else {
            return Err(Error::Tracking("the process is not tracked by OoH"));
        };
        match ooh.log {
            Log::Spml { ring } => {
                platform.hypercall(Hypercall::DeactivatePml { ring })?;
            }
            Log::Epml { page, .. } => {
                self.frames.release(page);
                self.epml_users -= 1;
                if self.epml_users == 0 {
                    platform.hypercall(Hypercall::DeactivateShadowing)?;
                }
            }
        }
        ooh.ring.pages().for_each(|page| self.frames.release(page));
        Ok(())
    }

    /// Hands `tracker` what was logged about `tracked`, and starts the next round.
    pub(crate) fn ooh_fetch(
        &mut self,
        platform: &mut Platform<'_>,
        tracker: Pid,
        tracked: Pid,
    ) -> Result<Fetched, Error> {
        platform.events.tracker_calls += 1;
        let ooh = self
            .ooh(tracked)?
            .ok_or(Error::Tracking("the process is not tracked by OoH"))?;
        if ooh.tracker != tracker {
            return Err(Error::NotTheTracker);
        }
        // Off and on again: what the log holds moves to the ring buffer.
        self.on_its_vcpu(platform, tracked, Self::ooh_schedule_out)?;
        self.ooh_empty_own_log(platform, tracked)?;
        let ooh = self.ooh(tracked)?.ok_or(Error::NotTheTracker)?;
        let fresh = std::mem::take(&mut ooh.fresh);
        let is_spml = matches!(ooh.log, Log::Spml { .. });
        let ring = ooh.ring.clone();
        let Drained { addresses, lost } = ring.drain(platform)?;
        platform.events.ring_reads += addresses.len() as u64;

        let space = self.process(tracked)?.space;
        let mut written = Vec::new();
        if lost {
            written = self.mapped_pages(platform, tracked)?;
        } else {
            let virtual_pages = if is_spml { &[] } else { addresses.as_slice() };
            for gva in virtual_pages
                .iter()
                .map(|&address| Gva::new(address))
                .chain(fresh.iter().copied())
            {
                written.extend(space.translate(platform, gva)?);
            }
            if is_spml {
                written.extend(addresses.iter().map(|&address| Gpa::new(address)));
            }
        }
        platform.hypercall(Hypercall::ClearDirty { pages: &written })?;
        self.on_its_vcpu(platform, tracked, Self::ooh_schedule_in)?;
        Ok(Fetched {
            logged: addresses,
            fresh,
            lost,
        })
    }

    /// Runs `hook` on the vCPU that runs `pid`, if one does.
    fn on_its_vcpu(
        &mut self,
        platform: &mut Platform<'_>,
        pid: Pid,
        hook: fn(&mut Self, &mut Platform<'_>, Pid) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let Some(vcpu) = self.process(pid)?.on else {
            return Ok(());
        };
        let here = std::mem::replace(&mut platform.current, vcpu);
        hook(self, platform, pid)?;
        platform.current = here;
        Ok(())
    }

    fn mapped_pages(&self, platform: &mut Platform<'_>, pid: Pid) -> Result<Vec<Gpa>, Error> {
        let process = self.process(pid)?;
        let mut pages = Vec::new();
        for area in &process.areas {
            process
                .space
                .visit(platform, area.start, area.pages, &mut |_, entry| {
                    let count = if entry.large() {
                        crate::machine::HUGE_PAGES
                    } else {
                        1
                    };
                    pages.extend((0..count).map(|page| entry.address().add_pages(page)));
                    entry
                })?;
        }
        Ok(pages)
    }

    /// `pid` starts to run on the current vCPU.
    pub(super) fn ooh_schedule_in(
        &mut self,
        platform: &mut Platform<'_>,
        pid: Pid,
    ) -> Result<(), Error> {
        let Some(ooh) = self.ooh(pid)? else {
            return Ok(());
        };
        match ooh.log {
            Log::Spml { ring } => {
                platform.hypercall(Hypercall::EnableLogging { ring })?;
            }
            Log::Epml { page, .. } => {
                self.ooh_empty_full_log(platform, pid)?;
                if let Some(Ooh {
                    log: Log::Epml { index, .. },
                    ..
                }) = self.ooh(pid)?
                {
                    let index = u64::from(*index);
                    platform.vmwrite(Field::GuestPmlIndex, index)?;
                    platform.vmwrite(Field::GuestPmlAddress, page.get())?;
                }
            }
        }
        Ok(())
    }

    /// `pid` stops to run on the current vCPU.
    pub(super) fn ooh_schedule_out(
        &mut self,
        platform: &mut Platform<'_>,
        pid: Pid,
    ) -> Result<(), Error> {
        let Some(ooh) = self.ooh(pid)? else {
            return Ok(());
        };
        match &mut ooh.log {
            Log::Spml { .. } => {
                platform.hypercall(Hypercall::DisableLogging)?;
            }
            Log::Epml { index, .. } => {
                if let Some(current) = platform.vmread(Field::GuestPmlIndex) {
                    *index = current as u16;
                }
                platform.vmwrite(Field::GuestPmlAddress, 0)?;
            }
        }
        Ok(())
    }

    /// The processor says that the log of the process on this vCPU is full.
    pub(super) fn ooh_log_full(
        &mut self,
        platform: &mut Platform<'_>,
        pid: Pid,
    ) -> Result<(), Error> {
        let Some(Ooh {
            log: Log::Epml { index, .. },
            ..
        }) = self.ooh(pid)?
        else {
            return Ok(());
        };
        if let Some(current) = platform.vmread(Field::GuestPmlIndex) {
            *index = current as u16;
        }
        self.ooh_empty_own_log(platform, pid)?;
        platform.vmwrite(Field::GuestPmlIndex, u64::from(PML_ENTRIES - 1))?;
        Ok(())
    }

    /// A process can be scheduled out between the last free slot of its log and the interrupt for
    /// it.
    fn ooh_empty_full_log(&mut self, platform: &mut Platform<'_>, pid: Pid) -> Result<(), Error> {
        match self.ooh(pid)? {
            Some(Ooh {
                log: Log::Epml { index, .. },
                ..
            }) if *index >= PML_ENTRIES => self.ooh_empty_own_log(platform, pid),
            _ => Ok(()),
        }
    }

    /// EPML: moves the log of a process, up to its saved index, to its ring buffer. Addresses of
    /// the kernel, which it writes on the way, are none of the tracker's business.
    fn ooh_empty_own_log(&mut self, platform: &mut Platform<'_>, pid: Pid) -> Result<(), Error> {
        let Some(Ooh {
            log: Log::Epml { page, index },
            ring,
            ..
        }) = self.ooh(pid)?
        else {
            return Ok(());
        };
        let mut addresses = Vec::new();
        for slot in Pml::used_slots(*index) {
            let address = platform.read(page.add(slot * 8))?;
            if address < USER_END {
                addresses.push(address);
            }
        }
        *index = PML_ENTRIES - 1;
        let lost = ring.push(platform, &addresses)?;
        platform.events.ring_copies += 1;
        platform.events.ring_entries += addresses.len() as u64 - lost;
        platform.events.ring_lost += lost;
        Ok(())
    }

    /// The fault handler mapped pages of its own into `pid`.
    pub(super) fn ooh_fresh(
        &mut self,
        platform: &mut Platform<'_>,
        pid: Pid,
        start: Gva,
        pages: u64,
    ) -> Result<(), Error> {
        if let Some(ooh) = self.ooh(pid)? {
            ooh.fresh
                .extend((0..pages).map(|page| start.add_pages(page)));
            platform.events.fresh_pages += pages;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
