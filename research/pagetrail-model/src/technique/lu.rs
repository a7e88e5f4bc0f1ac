//! Units smaller than a page by two-level translation (Lu et al., VEE'17).
//!
//! Each page is divided into parts, and each part has a window: an address range of its own whose
//! pages share the memory of the others through the extended page tables (`ept_map_to`). An
//! allocator places an object in the window of its part, so that a write-protected guest-physical
//! page tells which part was written (`ept_mprotect`). Windows are merged by pointing the guest's
//! page table entry of one at the guest-physical page of the other, without an exit and without
//! moving data, and split by pointing it back.
//!
//! The strategy is the one of the paper's section 6.2: after each round, neighbours that were both
//! written are merged, and after as many rounds as there are parts, everything is split again. An
//! address goes to the window of the part that holds it; objects across a boundary, which the
//! paper's allocator leaves in the first window, are not modelled.

use super::{Target, Technique, TechniqueKind};
use crate::Error;
use crate::guest::Backing;
use crate::host::Host;
use crate::hypervisor::{Hypercall, Reply};
use crate::machine::{Gpa, Gva, PAGE_BYTES};
use crate::write_set::WriteSet;

/// Guest-physical addresses of windows begin here, above all memory.
const ALIASES: Gpa = Gpa::new(1 << 45);

/// A part is at least a cache line.
pub(super) fn is_valid_parts(parts: u32) -> bool {
    parts.is_power_of_two() && parts <= 64
}

/// An area of the program and its windows.
#[derive(Debug)]
struct Windows {
    /// The area as the program knows it.
    area: Gva,
    pages: u64,
    /// The first window; the others follow, each of `pages` pages.
    first: Gva,
    memory: Gpa,
    aliases: Gpa,
    /// For each page and part, the part whose guest-physical page its window points to.
    points_to: Vec<u8>,
}

impl Windows {
    /// The guest-physical page of a part when nothing is merged.
    fn own_page(&self, page: u64, part: u64) -> Gpa {
        match part {
            0 => self.memory.add_pages(page),
            _ => self.aliases.add_pages((part - 1) * self.pages + page),
        }
    }

    /// The page and part that own `gpa`.
    fn owner(&self, gpa: Gpa, parts: u64) -> Option<(u64, u64)> {
        let within = |start: Gpa, pages: u64| {
            gpa.page_number()
                .checked_sub(start.page_number())
                .filter(|&page| page < pages)
        };
        let alias = || within(self.aliases, (parts - 1) * self.pages);
        within(self.memory, self.pages)
            .map(|page| (page, 0))
            .or_else(|| alias().map(|n| (n % self.pages, n / self.pages + 1)))
    }

    fn contains(&self, gva: Gva) -> bool {
        self.area <= gva && gva < self.area.add_pages(self.pages)
    }
}

#[derive(Debug)]
pub(super) struct Lu {
    target: Target,
    parts: u64,
    dynamic: bool,
    windows: Vec<Windows>,
    next_alias: Gpa,
    rounds: u64,
}

impl Lu {
    pub(super) fn start(
        host: &mut Host,
        target: Target,
        parts: u32,
        dynamic: bool,
    ) -> Result<Self, Error> {
        if !is_valid_parts(parts) {
            return Err(Error::Unsupported("a page in that number of parts"));
        }
        let (windows, next_alias) = (Vec::new(), ALIASES);
        let mut lu = Self {
            target,
            parts: parts.into(),
            dynamic,
            windows,
            next_alias,
            rounds: 0,
        };
        lu.adopt_new_areas(host)?;
        Ok(lu)
    }

    /// Gives windows to the areas that have none; returns those areas, by start and pages.
    fn adopt_new_areas(&mut self, host: &mut Host) -> Result<Vec<(Gva, u64)>, Error> {
        let pid = self.target.tracked.pid();
        let areas = host.kernel(self.target.tracker_vcpu, |kernel, platform| {
            if !platform.is_nested() {
                return Err(Error::Unsupported("extended page tables"));
            }
            Ok(kernel.process(pid)?.areas.clone())
        })?;
        let is_gone = |windows: &mut Windows| !areas.iter().any(|area| area.start == windows.area);
        for windows in self.windows.extract_if(.., is_gone).collect::<Vec<_>>() {
            self.retire(host, &windows)?;
        }
        let mut adopted = Vec::new();
        for area in areas {
            let known = self
                .windows
                .iter()
                .any(|windows| windows.area == area.start);
            if area.backing == Backing::Pages && !known {
                self.adopt(host, area.start, area.pages)?;
                adopted.push((area.start, area.pages));
            }
        }
        Ok(adopted)
    }

    fn adopt(&mut self, host: &mut Host, area: Gva, pages: u64) -> Result<(), Error> {
        let (parts, pid, aliases) = (self.parts, self.target.tracked.pid(), self.next_alias);
        self.next_alias = aliases.add_pages((parts - 1) * pages);
        let first = host.map_backed(
            self.target.tracked,
            parts * pages * PAGE_BYTES,
            Backing::OwnTables,
        )?;
        let windows = host.kernel(self.target.tracker_vcpu, |kernel, platform| {
            let memory = kernel.own_memory(pages)?;
            let points_to = (0..pages).flat_map(|_| 0..parts as u8).collect();
            let windows = Windows {
                area,
                pages,
                first,
                memory,
                aliases,
                points_to,
            };
            for part in 1..parts {
                let from = windows.own_page(0, part);
                platform.hypercall(Hypercall::MapTo {
                    from,
                    to: memory,
                    pages,
                })?;
            }
            let mut all = Vec::new();
            for part in 0..parts {
                for page in 0..pages {
                    let gpa = windows.own_page(page, part);
                    kernel.own_map(platform, pid, first.add_pages(part * pages + page), gpa)?;
                    all.push(gpa);
                }
            }
            platform.hypercall(Hypercall::Protect { pages: &all })?;
            Ok(windows)
        })?;
        self.windows.push(windows);
        Ok(())
    }

    /// Takes windows and the memory behind them back.
    fn retire(&self, host: &mut Host, windows: &Windows) -> Result<(), Error> {
        let pid = self.target.tracked.pid();
        host.kernel(self.target.tracker_vcpu, |kernel, platform| {
            kernel.unmap(platform, pid, windows.first)?;
            kernel.release_own_memory(windows.memory, windows.pages);
            Ok(())
        })
    }

    /// Points the window of `part` at the page of `to`.
    fn remap(
        &mut self,
        host: &mut Host,
        area: usize,
        page: u64,
        part: u64,
        to: u64,
    ) -> Result<(), Error> {
        let windows = &mut self.windows[area];
        windows.points_to[(page * self.parts + part) as usize] = to as u8;
        let gva = windows.first.add_pages(part * windows.pages + page);
        let gpa = windows.own_page(page, to);
        let pid = self.target.tracked.pid();
        host.kernel(self.target.tracker_vcpu, |kernel, platform| {
            platform.events.remaps += 1;
            kernel.own_map(platform, pid, gva, gpa)
        })
    }

    /// Merges each written unit of a page with its neighbour, if that was written too.
    fn merge(
        &mut self,
        host: &mut Host,
        area: usize,
        page: u64,
        written: &[u64],
    ) -> Result<(), Error> {
        let base = (page * self.parts) as usize;
        let mut units: Vec<u64> = Vec::new();
        for part in 0..self.parts {
            let unit = u64::from(self.windows[area].points_to[base + part as usize]);
            if units.last() != Some(&unit) {
                units.push(unit);
            }
        }
        for pair in units.chunks_exact(2) {
            if !pair.iter().all(|unit| written.contains(unit)) {
                continue;
            }
            for part in 0..self.parts {
                if u64::from(self.windows[area].points_to[base + part as usize]) == pair[1] {
                    self.remap(host, area, page, part, pair[0])?;
                }
            }
        }
        Ok(())
    }

    fn split_all(&mut self, host: &mut Host) -> Result<(), Error> {
        for area in 0..self.windows.len() {
            for page in 0..self.windows[area].pages {
                for part in 0..self.parts {
                    let at = (page * self.parts + part) as usize;
                    if u64::from(self.windows[area].points_to[at]) != part {
                        self.remap(host, area, page, part, part)?;
                    }
                }
            }
        }
        Ok(())
    }
}

impl Technique for Lu {
    fn kind(&self) -> TechniqueKind {
        TechniqueKind::Lu {
            parts: self.parts as u32,
            dynamic: self.dynamic,
        }
    }

    fn place(&self, gva: Gva) -> Gva {
        let Some(windows) = self.windows.iter().find(|windows| windows.contains(gva)) else {
            return gva;
        };
        let offset = gva.get() - windows.area.get();
        let part = offset % PAGE_BYTES / (PAGE_BYTES / self.parts);
        windows.first.add_pages(part * windows.pages).add(offset)
    }

    fn collect(&mut self, host: &mut Host) -> Result<WriteSet, Error> {
        let unit_bytes = PAGE_BYTES / self.parts;
        host.inject_timer_to(self.target.tracked)?;
        let violations = host.kernel(self.target.tracker_vcpu, |_, platform| {
            let Reply::Pages(pages) = platform.hypercall(Hypercall::TakeViolations)? else {
                return Err(Error::Unsupported("ept_mprotect"));
            };
            Ok(pages)
        })?;
        // Written units by area and page: (area, page, the part whose guest-physical page it is).
        let mut units: Vec<(usize, u64, u64)> = Vec::new();
        for &gpa in &violations {
            let owners = self.windows.iter().enumerate();
            units.extend(owners.filter_map(|(area, windows)| {
                windows
                    .owner(gpa, self.parts)
                    .map(|(page, part)| (area, page, part))
            }));
        }
        units.sort_unstable();
        units.dedup();
        let mut written = Vec::new();
        for &(area, page, unit) in &units {
            let windows = &self.windows[area];
            let base = (page * self.parts) as usize;
            for part in 0..self.parts {
                if u64::from(windows.points_to[base + part as usize]) == unit {
                    written.push(windows.area.add_pages(page).add(part * unit_bytes));
                }
            }
        }
        self.rounds += 1;
        if self.dynamic {
            if self.rounds.is_multiple_of(self.parts) {
                self.split_all(host)?;
            } else {
                for page_units in units.chunk_by(|a, b| (a.0, a.1) == (b.0, b.1)) {
                    let (area, page, _) = page_units[0];
                    let parts: Vec<u64> = page_units.iter().map(|&(_, _, part)| part).collect();
                    self.merge(host, area, page, &parts)?;
                }
            }
        }
        host.kernel(self.target.tracker_vcpu, |_, platform| {
            platform.hypercall(Hypercall::Protect { pages: &violations })
        })?;
        for (start, pages) in self.adopt_new_areas(host)? {
            written.extend((0..pages * self.parts).map(|unit| start.add(unit * unit_bytes)));
        }
        Ok(WriteSet::new(unit_bytes, written))
    }

    fn disarm(&mut self, host: &mut Host) -> Result<(), Error> {
        let windows = std::mem::take(&mut self.windows);
        windows
            .iter()
            .try_for_each(|windows| self.retire(host, windows))
    }
}
