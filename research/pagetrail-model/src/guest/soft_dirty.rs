//! Soft-dirty: `/proc/PID/clear_refs` and `/proc/PID/pagemap`.
//!
//! `clear_refs` clears the soft-dirty bit and the right to write of every page; the next write to
//! each faults, and the fault handler sets both again. An area that was just mapped counts as
//! written, whole, until the next `clear_refs`.

use super::{Area, Kernel, Pid};
use crate::Error;
use crate::machine::{Gpa, Gva};
use crate::platform::Platform;

/// One line of a pagemap, present pages only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PagemapEntry {
    pub(crate) gva: Gva,
    pub(crate) gpa: Gpa,
    pub(crate) soft_dirty: bool,
}

impl Kernel {
    /// `echo 4 > /proc/PID/clear_refs`.
    pub(crate) fn clear_refs(
        &mut self,
        platform: &mut Platform<'_>,
        pid: Pid,
    ) -> Result<(), Error> {
        platform.events.tracker_calls += 1;
        platform.events.clear_refs += 1;
        let process = self.process_mut(pid)?;
        let space = process.space;
        let mut seen = 0;
        for area in &mut process.areas {
            area.is_new = false;
            space.visit(platform, area.start, area.pages, &mut |_, entry| {
                seen += 1;
                entry.with_soft_dirty(false).with_writable(false)
            })?;
        }
        platform.events.clear_refs_entries += seen;
        platform.flush_space(space.pcid);
        Ok(())
    }

    /// All of `/proc/PID/pagemap` that the areas of a process cover: its present pages, and the
    /// areas that count as written whole.
    pub(crate) fn pagemap(
        &self,
        platform: &mut Platform<'_>,
        pid: Pid,
    ) -> Result<(Vec<PagemapEntry>, Vec<Area>), Error> {
        platform.events.tracker_calls += 1;
        let process = self.process(pid)?;
        let mut present = Vec::new();
        for area in &process.areas {
            platform.events.pagemap_entries += area.pages;
            process
                .space
                .visit(platform, area.start, area.pages, &mut |gva, entry| {
                    let pages = if entry.large() {
                        crate::machine::HUGE_PAGES
                    } else {
                        1
                    };
                    present.extend((0..pages).map(|page| PagemapEntry {
                        gva: gva.add_pages(page),
                        gpa: entry.address().add_pages(page),
                        soft_dirty: entry.soft_dirty(),
                    }));
                    entry
                })?;
        }
        let new_areas = process
            .areas
            .iter()
            .filter(|area| area.is_new)
            .cloned()
            .collect();
        Ok((present, new_areas))
    }
}
