//! [`Kernel`]: a guest's kernel, as far as the events of page tracking reach into it.
//!
//! Processes with areas of anonymous memory, demand paging with the shared zero page, and a
//! scheduler that follows a given script. Three trackers hook into it, one file each: soft-dirty,
//! userfaultfd, and the OoH module. There is no swap, no fork, no sharing between processes, and
//! areas are never merged.

mod address_space;
mod frames;
pub(crate) mod ooh;
mod own_tables;
pub(crate) mod soft_dirty;
pub(crate) mod userfaultfd;

pub(crate) use address_space::AddressSpace;
use frames::GuestFrames;
use ooh::Ooh;
use userfaultfd::Userfault;

use crate::Error;
use crate::hypervisor::DEVICES;
use crate::machine::{Gpa, Gva, HUGE_PAGES, PageFault, Pte, Vector};
use crate::platform::Platform;

/// Names a process within its virtual machine.
pub(crate) type Pid = usize;

/// First address that a process gets when it maps memory.
const FIRST_AREA: Gva = Gva::new(0x10_0000_0000);

/// What lies behind an area.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Backing {
    /// Memory in pages of 4 KiB, found at the first touch.
    Pages,
    /// Memory in pages of 2 MiB.
    HugePages,
    /// A device: accesses go to the hypervisor.
    Device,
    /// Guest-physical memory that the process maps itself (Lu et al.).
    OwnTables,
}

/// A range of a process's address space (Linux: a VMA). All may be written.
#[derive(Clone, Debug)]
pub(crate) struct Area {
    pub(crate) start: Gva,
    pub(crate) pages: u64,
    pub(crate) backing: Backing,
    /// Mapped since the last `clear_refs`: all of it counts as soft-dirty (Linux: VM_SOFTDIRTY).
    pub(crate) is_new: bool,
    /// Registered with userfaultfd.
    pub(crate) userfault: bool,
}

impl Area {
    fn contains(&self, gva: Gva) -> bool {
        self.start <= gva && gva < self.start.add_pages(self.pages)
    }

    pub(crate) fn page_addresses(&self) -> impl Iterator<Item = Gva> + use<> {
        let start = self.start;
        (0..self.pages).map(move |page| start.add_pages(page))
    }
}

/// Who tracks a process, as far as its kernel has to know. (Soft-dirty is in the page tables.)
#[derive(Debug, Default)]
pub(crate) enum Tracking {
    #[default]
    None,
    Userfault(Userfault),
    Ooh(Ooh),
}

#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) space: AddressSpace,
    pub(crate) areas: Vec<Area>,
    next_area: Gva,
    pub(crate) tracking: Tracking,
    /// The vCPU that runs it.
    pub(crate) on: Option<usize>,
}

/// A guest's kernel.
#[derive(Debug)]
pub(crate) struct Kernel {
    /// By [`Pid`]; slots of processes that have exited are used again.
    processes: Vec<Option<Process>>,
    /// By vCPU.
    running: Vec<Option<Pid>>,
    pub(crate) frames: GuestFrames,
    zero_page: Option<Gpa>,
    /// Processes whose EPML needs VMCS shadowing.
    epml_users: usize,
}

impl Kernel {
    pub(crate) fn new(vcpus: usize, guest_pages: u64) -> Self {
        Self {
            processes: Vec::new(),
            running: vec![None; vcpus],
            frames: GuestFrames::new(guest_pages),
            zero_page: None,
            epml_users: 0,
        }
    }

    pub(crate) fn process(&self, pid: Pid) -> Result<&Process, Error> {
        self.processes
            .get(pid)
            .and_then(Option::as_ref)
            .ok_or(Error::NoSuch("process"))
    }

    pub(crate) fn process_mut(&mut self, pid: Pid) -> Result<&mut Process, Error> {
        self.processes
            .get_mut(pid)
            .and_then(Option::as_mut)
            .ok_or(Error::NoSuch("process"))
    }

    /// The process that a vCPU runs.
    pub(crate) fn running(&self, vcpu: usize) -> Option<Pid> {
        self.running.get(vcpu).copied().flatten()
    }

    pub(crate) fn spawn(&mut self, platform: &mut Platform<'_>) -> Result<Pid, Error> {
        let pid = self
            .processes
            .iter()
            .position(Option::is_none)
            .unwrap_or(self.processes.len());
        // PCID 0 stays with the kernel. Two live processes share a PCID only beyond 4095 of them.
        let pcid = u16::try_from(pid + 1).ok().filter(|&pcid| pcid < 4096);
        let pcid = pcid.ok_or(Error::Unsupported("more than 4095 processes at once"))?;
        let space = AddressSpace::new(platform, &mut self.frames, pcid)?;
        let process = Process {
            space,
            areas: Vec::new(),
            next_area: FIRST_AREA,
            tracking: Tracking::None,
            on: None,
        };
        if pid == self.processes.len() {
            self.processes.push(Some(process));
        } else {
            self.processes[pid] = Some(process);
        }
        Ok(pid)
    }

    /// Ends a process and all tracking by it or of it.
    pub(crate) fn exit(&mut self, platform: &mut Platform<'_>, pid: Pid) -> Result<(), Error> {
        self.process(pid)?;
        for tracked in 0..self.processes.len() {
            let by_pid = matches!(
                self.process(tracked).map(|process| &process.tracking),
                Ok(Tracking::Ooh(ooh)) if tracked == pid || ooh.tracker() == pid
            );
            if by_pid {
                self.ooh_stop(platform, tracked)?;
            }
        }
        if let Some(vcpu) = self.process(pid)?.on {
            self.switch(platform, vcpu, None)?;
        }
        for area in self.process(pid)?.areas.clone() {
            self.unmap(platform, pid, area.start)?;
        }
        if let Some(process) = self.processes[pid].take() {
            process.space.free(platform, &mut self.frames)?;
            platform.flush_space(process.space.pcid);
        }
        Ok(())
    }

    /// Adds an area of `pages` pages (of 4 KiB in any case) and returns where it starts.
    pub(crate) fn map(&mut self, pid: Pid, pages: u64, backing: Backing) -> Result<Gva, Error> {
        if pages == 0 || pages > 1 << 34 {
            return Err(Error::Unsupported("an area of that size"));
        }
        let process = self.process_mut(pid)?;
        let start = process.next_area;
        // A gap, and the start of a large page, for the next one.
        process.next_area = start.add_pages(pages + 2 * HUGE_PAGES).huge_page();
        process.areas.push(Area {
            start,
            pages,
            backing,
            is_new: true,
            userfault: false,
        });
        Ok(start)
    }

    /// Unmaps the area that starts at `start` and frees its memory.
    pub(crate) fn unmap(
        &mut self,
        platform: &mut Platform<'_>,
        pid: Pid,
        start: Gva,
    ) -> Result<(), Error> {
        let process = self.process_mut(pid)?;
        let index = process.areas.iter().position(|area| area.start == start);
        let area = process.areas.remove(index.ok_or(Error::BadAddress(start))?);
        let space = process.space;
        for entry in space.unmap(platform, area.start, area.pages)? {
            match area.backing {
                Backing::Pages if !entry.zero_page() => self.frames.release(entry.address()),
                Backing::HugePages => {
                    (0..HUGE_PAGES)
                        .for_each(|page| self.frames.release(entry.address().add_pages(page)));
                }
                Backing::Pages | Backing::Device | Backing::OwnTables => {}
            }
        }
        Ok(())
    }

    /// Runs `pid` on `vcpu`, taking it off the one that it was on.
    pub(crate) fn schedule(
        &mut self,
        platform: &mut Platform<'_>,
        vcpu: usize,
        pid: Pid,
    ) -> Result<(), Error> {
        match self.process(pid)?.on {
            Some(on) if on == vcpu => return Ok(()),
            Some(on) => self.switch(platform, on, None)?,
            None => {}
        }
        self.switch(platform, vcpu, Some(pid))
    }

    /// Takes the process on `vcpu` off it and puts `next` on; `None` leaves the vCPU idle.
    fn switch(
        &mut self,
        platform: &mut Platform<'_>,
        vcpu: usize,
        next: Option<Pid>,
    ) -> Result<(), Error> {
        let here = std::mem::replace(&mut platform.current, vcpu);
        platform.events.process_switches += 1;
        if let Some(previous) = self.running[vcpu].take() {
            self.ooh_schedule_out(platform, previous)?;
            self.process_mut(previous)?.on = None;
        }
        if let Some(pid) = next {
            let space = self.process(pid)?.space;
            platform.load_cr3(space.root, space.pcid)?;
            self.process_mut(pid)?.on = Some(vcpu);
            self.running[vcpu] = Some(pid);
            self.ooh_schedule_in(platform, pid)?;
        }
        platform.current = here;
        Ok(())
    }

    /// Handles an interrupt on the current vCPU.
    pub(crate) fn interrupt(
        &mut self,
        platform: &mut Platform<'_>,
        vector: Vector,
    ) -> Result<(), Error> {
        platform.events.kernel_entries += 1;
        match vector {
            // The program that set the timer handles it; all that counts here is that the program
            // was interrupted.
            Vector::Timer => {}
            // The process that filled its log may have been scheduled out since: its log was
            // emptied then.
            Vector::GuestPmlFull => {
                if let Some(pid) = self.running[platform.current] {
                    self.ooh_log_full(platform, pid)?;
                }
            }
        }
        Ok(())
    }

    /// Handles a page fault of the process on the current vCPU.
    pub(crate) fn page_fault(
        &mut self,
        platform: &mut Platform<'_>,
        fault: PageFault,
    ) -> Result<(), Error> {
        platform.events.kernel_entries += 1;
        let pid = self.running[platform.current].ok_or(Error::Idle)?;
        let process = self.process(pid)?;
        let area = process.areas.iter().find(|area| area.contains(fault.gva));
        let area = area.ok_or(Error::BadAddress(fault.gva))?.clone();
        let space = process.space;
        let Some(leaf) = space.leaf(platform, fault.gva)? else {
            return match area.backing {
                Backing::OwnTables => Err(Error::BadAddress(fault.gva)),
                Backing::Device => {
                    let page = (fault.gva.get() - area.start.get()) / crate::machine::PAGE_BYTES;
                    let entry = Pte::to(DEVICES.add_pages(page)).with_writable(true);
                    let slot = space.slot(platform, &mut self.frames, fault.gva, false)?;
                    platform.write_entry(slot, entry.with_dirty(true).0)
                }
                Backing::Pages if area.userfault => self.userfault_missing(platform, pid, fault),
                Backing::Pages | Backing::HugePages => {
                    platform.events.faults_demand += 1;
                    self.populate(
                        platform,
                        pid,
                        fault.gva,
                        fault.write,
                        area.backing == Backing::HugePages,
                    )
                }
            };
        };
        let entry = leaf.entry;
        if !fault.write || entry.writable() {
            // Someone else mended it in the meantime.
            return Ok(());
        }
        if entry.uffd_wp() {
            return self.userfault_protected(platform, pid, fault.gva, leaf.slot, entry);
        }
        if entry.zero_page() {
            platform.events.faults_zero_page += 1;
            return self.populate(platform, pid, fault.gva, true, false);
        }
        platform.events.faults_soft_dirty += 1;
        let written = entry
            .with_writable(true)
            .with_accessed(true)
            .with_dirty(true)
            .with_soft_dirty(true);
        platform.write_entry(leaf.slot, written.0)?;
        platform.flush_page(space.pcid, fault.gva);
        Ok(())
    }

    /// Maps memory at `gva`: zeroed and marked as written if `write`, else the shared zero page.
    fn populate(
        &mut self,
        platform: &mut Platform<'_>,
        pid: Pid,
        gva: Gva,
        write: bool,
        huge: bool,
    ) -> Result<(), Error> {
        let space = self.process(pid)?.space;
        let entry = if huge {
            let start = self.frames.allocate_huge()?;
            for page in 0..HUGE_PAGES {
                platform.zero(start.add_pages(page))?;
            }
            Pte::to(start).with_large(true)
        } else if write {
            let page = self.frames.allocate()?;
            platform.zero(page)?;
            Pte::to(page)
        } else {
            Pte::to(self.zero_page(platform)?).with_zero_page(true)
        };
        let own = write || huge;
        let entry = entry
            .with_accessed(true)
            .with_writable(own)
            .with_dirty(write)
            .with_soft_dirty(write);
        let slot = space.slot(platform, &mut self.frames, gva, huge)?;
        platform.write_entry(slot, entry.0)?;
        platform.flush_page(space.pcid, gva);
        if own {
            let (start, pages) = if huge {
                (gva.huge_page(), HUGE_PAGES)
            } else {
                (gva.page(), 1)
            };
            self.ooh_fresh(platform, pid, start, pages)?;
        }
        Ok(())
    }

    fn zero_page(&mut self, platform: &mut Platform<'_>) -> Result<Gpa, Error> {
        if let Some(page) = self.zero_page {
            return Ok(page);
        }
        let page = self.frames.allocate()?;
        platform.zero(page)?;
        self.zero_page = Some(page);
        Ok(page)
    }
}
