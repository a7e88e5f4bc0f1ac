//! [`Discards`]: pages whose contents changed without a write: discarded by `madvise(2)`, punched
//! out of a file, or truncated.
//!
//! In file mappings, private or shared, a protected page that leaves the page table leaves a marker
//! there, which reads as still protected (`zap_install_uffd_wp_if_needed` in `mm/memory.c`), and
//! soft-dirty bits are lost. So the techniques that rest on page tables miss the change. It is
//! found by other evidence:
//!
//! * Private memory: a page that the process owned, and owns no longer, holds the file's contents
//!   again, or zeros.
//! * Shared memory: whatever removes a page from a file, or writes to the file by a system call,
//!   changes the file's times (`shmem_truncate_range` in `mm/shmem.c`, `file_update_time`). So does
//!   the first store to a page that is write-protected (`fault_dirty_shared_page` in
//!   `mm/memory.c`), which the technique reports. If a file has changed and no page of it was
//!   reported, or if it has become smaller, all of it counts as written. If pages of it were
//!   reported, those that have left the page table since the last check count as well. Shared
//!   anonymous memory has no descriptor, so that no system call writes to it: there, other
//!   processes store to it all the time (PostgreSQL), and one that took no page fault meanwhile has
//!   none of a removed page's successor in its page table, and is not concerned.
//!
//! Limits: a page of shared anonymous memory is missed if it is removed, and read again by nobody
//! but another process that reads this one's memory. A page of shared memory is missed if it is
//! removed and *read* again (so that it exists, and holds zeros) between two rounds in which the
//! target also stores to other pages of the same file. Without permission to look at the target's
//! files (`/proc/PID/map_files` needs CAP_CHECKPOINT_RESTORE) only pages that have left the page
//! table are found.

mod times;

use crate::error::{Error, Result};
use crate::page_set::{PageRange, PageSet};
use crate::proc::map_files;
use crate::proc::status::{may_be_swapped, stat_fields};
use crate::region::Region;
use crate::sys::pagemap::{Categories, Entry, OWNED_IN_MEMORY, Pagemap, Query, Vector, is_owned};
use crate::technique::Missed;
use rustix::fs::{StatxFlags, statx};
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};

const PRESENT: Query = Query {
    inverted: Categories::NONE,
    all_of: Categories::PRESENT,
    ..OWNED_IN_MEMORY
};

/// File times that are not exact are the same for two changes within a tick of the clock; a tick is
/// 10 ms at most. On a machine that hosts too much it comes late, but then the coarse clock stands
/// still as well: file times are taken from it (`inode_set_ctime_current` in `fs/inode.c`).
const TICKS_NS: i64 = 20_000_000;
/// Some file systems know seconds only (ext4 with small inodes), or even ones (FAT).
const SECONDS_NS: i64 = 2_000_000_000;

/// Which fields of `proc_pid_stat(5)`, counted from the state, have the page faults.
const MINOR_FAULTS: usize = 7;
const MAJOR_FAULTS: usize = 9;

/// The attributes of a file that change with it (`statx(2)`).
#[derive(Clone, Copy, PartialEq, Eq)]
struct Stamp {
    changed_ns: i64,
    modified_ns: i64,
    bytes: u64,
    blocks: u64,
}

/// A file that is mapped shared (shared anonymous memory has one, too), and where it is mapped.
struct Shared {
    file: ((u32, u32), u64),
    /// One mapping of it, with the boundaries that `maps` has.
    mapping: PageRange,
    ranges: PageSet,
    /// Whether it is anonymous: it has no descriptor.
    anonymous: bool,
    /// Pages that were in the page table at the last check.
    present: PageSet,
    /// `None` without permission to look at the file.
    stamp: Option<Stamp>,
    /// Whether each change after a check gets a time of its own.
    exact: bool,
    /// Whether the file changed so shortly before the last check that another change may have the
    /// same time.
    unsettled: bool,
}

/// The pages of one address space whose contents may change without a write.
pub(super) struct Discards {
    pid: Option<u32>,
    missed: Missed,
    /// Opened by the first check.
    pagemap: Option<Pagemap>,
    vector: Vector,
    private: PageSet,
    /// The pages of `private` that the process owned at the last check.
    owned: PageSet,
    /// Pages that the process owned and that are not in memory: swapped out or discarded.
    swapped: PageSet,
    /// Pages that the process owned before the last check, but not at it. They are reported once
    /// more: one that was only being migrated then may have been discarded since.
    gone: PageSet,
    shared: Vec<Shared>,
    /// The page faults of the process before the last check, where they matter and are known.
    faults: Option<u64>,
    /// Whether the note about the missing permission was given.
    has_noted: bool,
}

/// The result of a check, apart from the pages.
#[derive(Default)]
pub(super) struct Checked {
    /// Whether the mappings have changed since they were read.
    pub(super) outdated: bool,
    pub(super) note: Option<String>,
}

impl Discards {
    pub(super) fn new(pid: Option<u32>, missed: Missed) -> Self {
        Self {
            pid,
            missed,
            pagemap: None,
            vector: Vector::new(),
            private: PageSet::new(),
            owned: PageSet::new(),
            swapped: PageSet::new(),
            gone: PageSet::new(),
            shared: Vec::new(),
            faults: None,
            has_noted: false,
        }
    }

    /// Follows these mappings from now on, as far as they are `armed`. New ones among them are
    /// already reported.
    pub(super) fn follow(&mut self, regions: &[Region], armed: &PageSet) -> Result<()> {
        if self.missed == Missed::Nothing {
            return Ok(());
        }
        let private = regions.iter().filter(|region| {
            !region.permissions.shared && (region.inode != 0 || self.missed == Missed::All)
        });
        let private: PageSet = private.map(|region| region.range).collect();
        let private = private.intersection(armed);
        let new = private.difference(&self.private);
        self.owned = self.owned.intersection(&private);
        self.swapped = self.swapped.intersection(&private);
        self.gone = self.gone.intersection(&private);
        self.private = private;
        let owned = self.scan(&new, OWNED_IN_MEMORY, owned_now)?;
        self.owned.union_with(&owned);
        if self.swaps() {
            let swapped = self.scan(&new, SWAPPED, owned_elsewhere)?;
            self.swapped.union_with(&swapped);
        }
        self.follow_shared(regions, armed)
    }

    /// Forgets memory that is gone, or of which another part of the same file has taken the place.
    pub(super) fn forget(&mut self, gone: &PageSet) {
        if gone.is_empty() {
            return;
        }
        let private = [&mut self.private, &mut self.owned];
        let private = private
            .into_iter()
            .chain([&mut self.swapped, &mut self.gone]);
        let shared = self.shared.iter_mut();
        let shared = shared.flat_map(|shared| [&mut shared.ranges, &mut shared.present]);
        for set in private.chain(shared) {
            *set = set.difference(gone);
        }
    }

    fn follow_shared(&mut self, regions: &[Region], armed: &PageSet) -> Result<()> {
        let mut known = std::mem::take(&mut self.shared);
        let mut now: Vec<Shared> = Vec::new();
        for region in regions.iter().filter(|region| region.permissions.shared) {
            let part = armed.within(region.range);
            if part.is_empty() {
                continue;
            }
            let file = (region.device, region.inode);
            match now.iter_mut().find(|shared| shared.file == file) {
                Some(shared) => shared.ranges.union_with(&part),
                None => now.push(Shared {
                    file,
                    mapping: region.range,
                    ranges: part,
                    anonymous: is_anonymous(region),
                    present: PageSet::new(),
                    stamp: None,
                    exact: false,
                    unsettled: false,
                }),
            }
        }
        for shared in &mut now {
            let mut new = shared.ranges.clone();
            if let Some(at) = known.iter().position(|known| known.file == shared.file) {
                let known = known.swap_remove(at);
                new = new.difference(&known.ranges);
                shared.present = known.present.intersection(&shared.ranges);
                shared.stamp = known.stamp;
                shared.exact = known.exact;
                shared.unsettled = known.unsettled;
            } else {
                shared.stamp = self.stamp(shared.mapping).unwrap_or(None);
                shared.exact = times::are_exact(&map_files::link(self.pid, shared.mapping));
                shared.unsettled = !shared.exact && shared.stamp.is_some_and(is_recent);
            }
            let present = self.scan(&new, PRESENT, Entry::is_present)?;
            shared.present.union_with(&present);
        }
        self.shared = now;
        Ok(())
    }

    /// Adds to `out` what was discarded since the last check. `written`: the pages that the
    /// technique has found meanwhile.
    pub(super) fn check(&mut self, written: &PageSet, out: &mut PageSet) -> Result<Checked> {
        self.check_private(out)?;
        let mut checked = Checked::default();
        let mut shared = std::mem::take(&mut self.shared);
        let faults = match shared.iter().any(|shared| shared.anonymous) {
            true => self.count_faults(),
            false => None,
        };
        let outcome = shared
            .iter_mut()
            .try_for_each(|shared| self.check_shared(shared, written, out, &mut checked));
        self.shared = shared;
        // Those before the stamps were taken: what comes between belongs to the next check, too.
        self.faults = faults;
        outcome.map(|()| checked)
    }

    fn check_private(&mut self, out: &mut PageSet) -> Result<()> {
        if self.private.is_empty() {
            return Ok(());
        }
        let now = self.scan(&self.private.clone(), OWNED_IN_MEMORY, owned_now)?;
        let gone = self.owned.difference(&now);
        self.owned = now;
        let before = std::mem::replace(&mut self.gone, gone.clone());
        out.union_with(&before.difference(&self.owned));
        if gone.is_empty() && self.swapped.is_empty() {
            return Ok(());
        }
        out.union_with(&gone);
        // A marker reads as a page that is swapped out, so such pages are reported until they are
        // back in memory.
        out.union_with(&self.swapped);
        self.swapped = match self.swaps() {
            true => self.swapped.union(&gone).difference(&self.owned),
            false => PageSet::new(),
        };
        Ok(())
    }

    fn check_shared(
        &mut self,
        shared: &mut Shared,
        written: &PageSet,
        out: &mut PageSet,
        checked: &mut Checked,
    ) -> Result<()> {
        let stamp = match self.stamp(shared.mapping) {
            Ok(stamp) => stamp,
            Err(_) => {
                checked.outdated = true;
                return Ok(());
            }
        };
        let before = std::mem::replace(&mut shared.stamp, stamp);
        let unsettled = !shared.exact && stamp.is_some_and(is_recent);
        let was_unsettled = std::mem::replace(&mut shared.unsettled, unsettled);
        match (before, stamp) {
            (Some(before), Some(now)) if before == now && !was_unsettled => return Ok(()),
            // With inexact times, the file may have changed although its stamp has not.
            (Some(before), Some(now)) => {
                let smaller = now.bytes < before.bytes || now.blocks < before.blocks;
                let reported = shared.ranges.ranges().iter();
                let reported = reported.copied().any(|range| written.intersects(range));
                let unconcerned = || {
                    shared.anonymous && self.faults.is_some() && self.faults == self.count_faults()
                };
                if smaller || !reported && !unconcerned() {
                    out.union_with(&shared.ranges);
                }
            }
            (None, _) | (_, None) if !self.has_noted => {
                self.has_noted = true;
                checked.note = Some(
                    "without CAP_CHECKPOINT_RESTORE the files of shared memory cannot be checked: \
                     pages that are removed from them and read again are missed"
                        .into(),
                );
            }
            _ => {}
        }
        let present = self.scan(&shared.ranges, PRESENT, Entry::is_present)?;
        out.union_with(&shared.present.difference(&present));
        shared.present = present;
        Ok(())
    }

    /// The stamp of a mapping's file; `None` without permission, an error if the mapping no longer
    /// exists.
    fn stamp(&self, mapping: PageRange) -> rustix::io::Result<Option<Stamp>> {
        let path = map_files::link(self.pid, mapping);
        let wanted = StatxFlags::CTIME | StatxFlags::MTIME | StatxFlags::SIZE | StatxFlags::BLOCKS;
        let flags = rustix::fs::AtFlags::empty();
        let stat = match statx(rustix::fs::CWD, path, flags, wanted) {
            Ok(stat) => stat,
            Err(Errno::PERM | Errno::ACCESS) => return Ok(None),
            Err(errno) => return Err(errno),
        };
        let ns = |time: rustix::fs::StatxTimestamp| {
            time.tv_sec
                .wrapping_mul(1_000_000_000)
                .wrapping_add(i64::from(time.tv_nsec))
        };
        Ok(Some(Stamp {
            changed_ns: ns(stat.stx_ctime),
            modified_ns: ns(stat.stx_mtime),
            bytes: stat.stx_size,
            blocks: stat.stx_blocks,
        }))
    }

    /// The page faults of the process so far, by all its threads (`proc_pid_stat(5)`).
    fn count_faults(&self) -> Option<u64> {
        let fields = stat_fields(self.pid.unwrap_or_else(std::process::id));
        let field = |at: usize| fields.get(at)?.parse::<u64>().ok();
        Some(field(MINOR_FAULTS)? + field(MAJOR_FAULTS)?)
    }

    /// Whether anything of the process is swapped out.
    fn swaps(&self) -> bool {
        may_be_swapped(self.pid.unwrap_or_else(std::process::id))
    }

    /// The pages that a query selects or, where the kernel has no queries, those with a `wanted`
    /// entry.
    fn scan(
        &mut self,
        ranges: &PageSet,
        query: Query,
        wanted: fn(Entry) -> bool,
    ) -> Result<PageSet> {
        let mut found = PageSet::new();
        if ranges.is_empty() {
            return Ok(found);
        }
        let pagemap = match &mut self.pagemap {
            Some(pagemap) => pagemap,
            none => none.insert(Pagemap::open(self.pid).map_err(Error::io("opening pagemap"))?),
        };
        for range in ranges.ranges() {
            match pagemap.scan(*range, query, &mut self.vector, |part| found.insert(part)) {
                // Linux before 6.7 has no PAGEMAP_SCAN.
                Err(Errno::NOTTY) => pagemap
                    .matching_entries(*range, wanted, &mut found)
                    .map_err(Error::io("reading pagemap"))?,
                Err(Errno::SRCH) => {
                    return Err(Error::Gone {
                        pid: self.pid.unwrap_or_else(std::process::id),
                    });
                }
                outcome => outcome.map_err(Error::os("PAGEMAP_SCAN without re-arming"))?,
            }
        }
        Ok(found)
    }
}

/// Selects pages that read as swapped out and are not the file's.
const SWAPPED: Query = Query {
    inverted: Categories::FILE,
    all_of: Categories::FILE.union(Categories::SWAPPED),
    ..Query::ALL
};

/// Whether shared memory is anonymous (`shmem_zero_setup` in `mm/shmem.c`), and so without a
/// descriptor.
fn is_anonymous(region: &Region) -> bool {
    region.permissions.shared && region.name == "/dev/zero (deleted)"
}

fn owned_now(entry: Entry) -> bool {
    entry.is_present() && !entry.is_file()
}

fn owned_elsewhere(entry: Entry) -> bool {
    is_owned(entry) && !entry.is_present()
}

/// Whether a change happened so recently that the next one may have the same time.
fn is_recent(stamp: Stamp) -> bool {
    let now = clock_gettime(ClockId::RealtimeCoarse);
    let now = now
        .tv_sec
        .wrapping_mul(1_000_000_000)
        .wrapping_add(now.tv_nsec);
    let margin = match stamp.changed_ns % 1_000_000_000 {
        0 => SECONDS_NS,
        _ => TICKS_NS,
    };
    // One in the future is recent, too.
    now.wrapping_sub(stamp.changed_ns) <= margin
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_recent_for_as_long_as_its_time_may_be_given_again() {
        let now = clock_gettime(ClockId::RealtimeCoarse);
        let stamp = |sec: i64, nsec: i64| Stamp {
            changed_ns: (now.tv_sec + sec) * 1_000_000_000 + nsec,
            modified_ns: 0,
            bytes: 0,
            blocks: 0,
        };
        assert!(is_recent(stamp(0, now.tv_nsec)) && is_recent(stamp(3, 1)));
        assert!(!is_recent(stamp(-1, now.tv_nsec.max(1))));
        // In whole seconds, unless it happened to fall on one.
        assert!(is_recent(stamp(0, 0)) && is_recent(stamp(-1, 0)));
        assert!(!is_recent(stamp(-4, 0)));
    }
}
