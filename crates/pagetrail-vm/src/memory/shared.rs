//! System V shared memory: `shmat(2)` and `shmdt(2)`. The kernel attaches a segment, and knows its
//! length.

use pagetrail::{PageRange, Region};

use super::areas::Allowed;
use super::mapping::{has, pages, release};
use super::{Memory, PAGE};
use crate::error::{Error, Result};
use crate::sys::call::call;

const EINVAL: i64 = -(libc::EINVAL as i64);
const ENOMEM: i64 = -(libc::ENOMEM as i64);
/// The word of a `struct shmid64_ds` (112 bytes) with the segment's length, after its permissions.
const BYTES_WORD: usize = 6;
const STATUS_WORDS: usize = 14;
/// Attaches the segment as executable. The crate `libc` does not have it for every target.
const SHM_EXEC: libc::c_int = 0o100_000;

impl Memory {
    /// `shmat(2)`.
    pub(crate) fn attach(&mut self, segment: u64, address: u64, flags: u64) -> Result<i64> {
        let mut status = [0u64; STATUS_WORDS];
        let arguments = [segment, libc::IPC_STAT as u64, status.as_mut_ptr() as u64];
        let known = call(libc::SYS_shmctl, &arguments);
        if known < 0 {
            return Ok(known);
        }
        let bytes = status[BYTES_WORD];
        let writable = !has(flags, libc::SHM_RDONLY);
        if writable && self.exceeds_limit(bytes) {
            return Ok(ENOMEM);
        }
        let mut reserved = Vec::new();
        if has(flags, libc::SHM_REMAP) && address != 0 {
            let start = match has(flags, libc::SHM_RND) {
                true => address & !(PAGE - 1),
                false => address,
            };
            let Some(range) = pages(start, bytes) else {
                return Ok(EINVAL);
            };
            reserved = self.reserve_gaps(range)?;
            self.clear_entries(range)?;
        }
        let result = call(libc::SYS_shmat, &[segment, address, flags]);
        let attached = u64::try_from(result).ok();
        match attached.and_then(|start| pages(start, bytes)) {
            Some(range) => {
                let mut protection = libc::PROT_READ;
                for (has_it, right) in [
                    (writable, libc::PROT_WRITE),
                    (has(flags, SHM_EXEC), libc::PROT_EXEC),
                ] {
                    protection |= if has_it { right } else { 0 };
                }
                self.note_replaced(range)?;
                let allowed = Allowed::from_protection(protection as u64);
                self.areas.insert(range, allowed);
            }
            None => reserved.iter().for_each(release),
        }
        Ok(result)
    }

    /// `shmdt(2)`, which unmaps what is left of a segment, in however many pieces.
    pub(crate) fn detach(&mut self, address: u64) -> Result<i64> {
        let regions = Region::of_process(std::process::id());
        let regions = regions.map_err(|error| Error::Stopped(error.to_string()))?;
        let pieces = attached_at(&regions, address);
        pieces
            .iter()
            .try_for_each(|piece| self.clear_entries(*piece))?;
        let result = call(libc::SYS_shmdt, &[address]);
        if result == 0 {
            for piece in pieces {
                self.note_replaced(piece)?;
                self.areas.remove(piece);
            }
        }
        Ok(result)
    }
}

/// The mappings of a segment attached at an address (ipc/shm.c): those that are still where they
/// were attached.
fn attached_at(regions: &[Region], address: u64) -> Vec<PageRange> {
    let is_of_segment = |region: &&Region| {
        let start = region.range.start();
        start.checked_sub(address) == Some(region.offset) && region.name.starts_with("/SYSV")
    };
    let mut found = regions.iter().filter(is_of_segment);
    let Some(first) = found.next() else {
        return Vec::new();
    };
    let same = |region: &&Region| (region.device, region.inode) == (first.device, first.inode);
    let rest = found.filter(same);
    std::iter::once(first)
        .chain(rest)
        .map(|region| region.range)
        .collect()
}
