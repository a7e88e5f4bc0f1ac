//! `mremap(2)`: the kernel's own call, with areas and page tables updated accordingly.
//!
//! What [`super::mapping`] says of the order of the kernel's call and the page tables applies here.

use pagetrail::PageRange;

use super::areas::Allowed;
use super::mapping::{has, pages, release};
use super::{Memory, PAGE};
use crate::error::{Error, Result};
use crate::sys::call::call;

const EINVAL: i64 = -(libc::EINVAL as i64);
const ENOMEM: i64 = -(libc::ENOMEM as i64);
const EFAULT: i64 = -(libc::EFAULT as i64);

impl Memory {
    /// `mremap(2)`. Since Linux 6.17 it can move several mappings, with gaps between them.
    pub(crate) fn mremap(&mut self, arguments: [u64; 6]) -> Result<i64> {
        let [address, old_bytes, new_bytes, flags, new_address, _] = arguments;
        if is_malformed(arguments) {
            return Ok(EINVAL);
        }
        if has(flags, libc::MREMAP_FIXED)
            && (!new_address.is_multiple_of(PAGE)
                || overlap(address, old_bytes, new_address, new_bytes))
        {
            // All kernels refuse this, but not all before they look for mappings.
            return Ok(call(libc::SYS_mremap, &arguments));
        }
        let Some((_, allowed)) = self.areas.at(address) else {
            return Ok(EFAULT);
        };
        let old = pages(address, old_bytes);
        if allowed.write && self.exceeds_limit(new_bytes.saturating_sub(old_bytes)) {
            return Ok(ENOMEM);
        }
        // A gap must also be one to the kernel, not the machine's own memory.
        let Ok(gaps) = old.map_or(Ok(Vec::new()), |old| self.reserve_gaps(old)) else {
            return Ok(EFAULT);
        };
        gaps.iter().for_each(release);
        let mut reserved = Vec::new();
        if has(flags, libc::MREMAP_FIXED) {
            let Some(new) = pages(new_address, new_bytes) else {
                return Ok(EINVAL);
            };
            self.shrink_stack(new);
            reserved = self.reserve_gaps(new)?;
            self.clear_entries(new)?;
        }
        old.into_iter().for_each(|old| self.shrink_stack(old));
        let before = old.map_or_else(Vec::new, |old| self.areas.pieces(old));
        old.map_or(Ok(()), |old| self.clear_entries(old))?;
        let result = call(
            libc::SYS_mremap,
            &[address, old_bytes, new_bytes, flags, new_address],
        );
        let moved = u64::try_from(result).ok();
        if let Some(new) = moved.and_then(|start| pages(start, new_bytes)) {
            self.note_moved(old, new, allowed, &before, flags)?;
        } else if before.first().is_some_and(|(first, _)| !is_mapped(*first)) {
            return Err(Error::Unsupported(
                "an mremap of several mappings that failed midway".into(),
            ));
        } else if has(flags, libc::MREMAP_FIXED) {
            // Before Linux 6.17 the kernel first unmaps the target, and cuts off what is too long,
            // and may then fail.
            let new = pages(new_address, new_bytes);
            for range in old.into_iter().chain(new) {
                self.drop_unmapped(range)?;
            }
        }
        // What did not become a mapping of the program is free again.
        for range in reserved {
            self.areas.gaps(range).iter().for_each(release);
        }
        Ok(result)
    }

    /// Updates areas and page tables after a move: of the pieces of `old`, or of an `allowed`
    /// mapping that has grown.
    fn note_moved(
        &mut self,
        old: Option<PageRange>,
        new: PageRange,
        allowed: Allowed,
        before: &[(PageRange, Allowed)],
        flags: u64,
    ) -> Result<()> {
        self.clear_entries(new)?;
        self.open_replaced(new);
        let offset = old.map_or(0, |old| new.start().wrapping_sub(old.start()));
        let stays = has(flags, libc::MREMAP_DONTUNMAP);
        // Note this also where nothing is left: something else may be mapped there before the round
        // ends.
        for (piece, _) in before {
            self.open_replaced(*piece);
            self.note_changed(*piece)?;
        }
        if !stays {
            before
                .iter()
                .for_each(|(piece, _)| self.areas.remove(*piece));
        }
        let shifted = |(piece, allowed): &(PageRange, Allowed)| {
            let start = piece.start().wrapping_add(offset);
            let target = PageRange::new(start, start.checked_add(piece.bytes())?)?;
            Some((target.intersection(&new)?, *allowed))
        };
        // A range that grows is one mapping.
        let targets = match old.is_some_and(|old| old.bytes() >= new.bytes()) {
            true => before.iter().filter_map(shifted).collect(),
            false => vec![(new, allowed)],
        };
        for (target, allowed) in targets {
            if offset != 0 || old.is_none() {
                self.note_changed(target)?;
            }
            self.areas.insert(target, allowed);
        }
        Ok(())
    }
}

/// The errors that the kernel reports before it looks for mappings (mm/mremap.c).
fn is_malformed([address, old_bytes, new_bytes, flags, new_address, _]: [u64; 6]) -> bool {
    let known = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP;
    let (fixed, stays) = (
        has(flags, libc::MREMAP_FIXED),
        has(flags, libc::MREMAP_DONTUNMAP),
    );
    let length = |bytes: u64| bytes.wrapping_add(PAGE - 1) & !(PAGE - 1);
    flags & !(known as u64) != 0
        || !address.is_multiple_of(PAGE)
        || length(new_bytes) == 0
        || (fixed || stays) && !has(flags, libc::MREMAP_MAYMOVE)
        || stays && length(old_bytes) != length(new_bytes)
        || fixed && new_address.is_multiple_of(PAGE) && pages(new_address, new_bytes).is_none()
}

fn overlap(one: u64, one_bytes: u64, other: u64, other_bytes: u64) -> bool {
    let ranges = pages(one, one_bytes).zip(pages(other, other_bytes));
    ranges.is_some_and(|(one, other)| one.intersection(&other).is_some())
}

/// Whether anything is mapped where a range starts.
fn is_mapped(range: PageRange) -> bool {
    let mut there = 0u8;
    let at = &raw mut there as u64;
    call(libc::SYS_mincore, &[range.start(), PAGE, at]) != ENOMEM
}
