//! [`Staging`]: copies of pages in memory, between a running process and the store.
//!
//! Copying to memory is fast, so few pages are written meanwhile, and one that is written again
//! replaces its older copy before the store ever sees it. What does not fit goes to the store at
//! once.

use crate::error::Result;
use crate::store::intake::chunks;
use crate::store::writer::Draft;
use pagetrail::{Frozen, Memory, PageRange, PageSet, page_size};

/// Pages of which it is known what may have changed since the last checkpoint (units of a sub-page
/// heap).
#[derive(Default)]
pub(crate) struct Parts {
    pub(crate) pages: PageSet,
    pub(crate) changed: PageSet,
}

/// Copies, in the order in which they were made.
pub(crate) struct Staging {
    bytes_max: u64,
    bytes: u64,
    batches: Vec<Batch>,
}

struct Batch {
    ranges: Vec<PageRange>,
    /// `None`: older copies of these pages are void.
    bytes: Option<Vec<u8>>,
}

impl Staging {
    pub(crate) fn new(bytes_max: u64) -> Self {
        Self {
            bytes_max,
            bytes: 0,
            batches: Vec::new(),
        }
    }

    /// Whether copies of pages may stay in memory.
    pub(crate) fn has_room(&self, pages: &PageSet) -> bool {
        self.bytes + pages.bytes() <= self.bytes_max
    }

    /// Copies pages of a process: to memory as far as it suffices, else to `overflow`; without one,
    /// to memory whatever their number.
    pub(crate) fn copy(
        &mut self,
        memory: &Memory,
        pages: &PageSet,
        overflow: Option<&mut Draft<'_>>,
    ) -> Result<()> {
        match overflow {
            Some(draft) if !self.has_room(pages) => {
                // What is staged is older, and must not come after.
                let staged = std::mem::replace(self, Self::new(self.bytes_max));
                staged.drain(draft, &Parts::default())?;
                let chunks = chunks(pages.ranges(), page_size());
                draft.put_each(&chunks, |at, buffer| {
                    let bytes = chunks[at].iter().map(PageRange::bytes).sum::<u64>();
                    buffer.resize(bytes as usize, 0);
                    memory.read(&chunks[at], buffer)?;
                    Ok(None)
                })?;
            }
            _ => {
                for ranges in chunks(pages.ranges(), page_size()) {
                    let bytes = ranges.iter().map(PageRange::bytes).sum::<u64>();
                    let mut buffer = vec![0; bytes as usize];
                    memory.read(&ranges, &mut buffer)?;
                    self.bytes += bytes;
                    self.batches.push(Batch {
                        ranges,
                        bytes: Some(buffer),
                    });
                }
            }
        }
        Ok(())
    }

    /// Copies pages that are kept as they were at an instant, to memory as far as it suffices, else
    /// to the store, which nobody waits for; false if one of them is not known any more.
    pub(crate) fn copy_frozen(
        &mut self,
        frozen: &dyn Frozen,
        draft: &mut Draft<'_>,
    ) -> Result<bool> {
        for ranges in chunks(frozen.pages().ranges(), page_size()) {
            let bytes = ranges.iter().map(PageRange::bytes).sum::<u64>();
            let mut buffer = vec![0; bytes as usize];
            if !frozen.read(&ranges, &mut buffer)? {
                return Ok(false);
            }
            self.bytes += bytes;
            self.batches.push(Batch {
                ranges,
                bytes: Some(buffer),
            });
            self.relieve(draft)?;
        }
        Ok(true)
    }

    /// Takes copies that were made elsewhere.
    pub(crate) fn add(&mut self, pages: PageSet, bytes: Vec<u8>) {
        self.bytes += bytes.len() as u64;
        self.batches.push(Batch {
            ranges: pages.ranges().to_vec(),
            bytes: Some(bytes),
        });
    }

    /// Hands everything to the store at once if it is more than is to be kept in memory.
    pub(crate) fn relieve(&mut self, draft: &mut Draft<'_>) -> Result<()> {
        if self.bytes <= self.bytes_max {
            return Ok(());
        }
        let staged = std::mem::replace(self, Self::new(self.bytes_max));
        staged.drain(draft, &Parts::default())
    }

    /// Drops the copies of pages: another mapping has come there.
    pub(crate) fn forget(&mut self, pages: &PageSet) {
        if !pages.is_empty() && !self.batches.is_empty() {
            self.batches.push(Batch {
                ranges: pages.ranges().to_vec(),
                bytes: None,
            });
        }
    }

    /// Hands everything to the store, the newest copy of each page: of those in `parts` what has
    /// changed, as far as the store has the rest.
    pub(crate) fn drain(self, draft: &mut Draft<'_>, parts: &Parts) -> Result<()> {
        let mut done = PageSet::new();
        let mut fresh = Vec::new();
        for Batch { ranges, bytes } in self.batches.into_iter().rev() {
            let whole: PageSet = ranges.iter().copied().collect();
            let mut kept = whole.difference(&done);
            done.union_with(&whole);
            if let Some(bytes) = &bytes {
                let pages = parts.pages.intersection(&kept);
                kept = kept.difference(&draft.put_changed(&ranges, bytes, &pages, &parts.changed));
            }
            match bytes {
                Some(bytes) if kept == whole => fresh.push((ranges, bytes)),
                Some(bytes) if !kept.is_empty() => {
                    let bytes = cut(&ranges, &bytes, &kept);
                    fresh.push((kept.ranges().to_vec(), bytes));
                }
                _ => {}
            }
        }
        // In the order of their addresses, where neighbours are likely to be alike.
        fresh.sort_by_key(|(ranges, _)| ranges[0]);
        let (chunks, copies): (Vec<_>, Vec<_>) = fresh.into_iter().unzip();
        draft.put_each(&chunks, |at, _| Ok(Some(&copies[at])))
    }
}

/// The bytes of those pages of `ranges` that are kept.
fn cut(ranges: &[PageRange], bytes: &[u8], kept: &PageSet) -> Vec<u8> {
    let mut out = Vec::with_capacity(kept.bytes() as usize);
    let mut at = 0;
    for range in ranges {
        let parts = PageSet::from_iter([*range]).intersection(kept);
        for part in parts.ranges() {
            let from = at + (part.start() - range.start()) as usize;
            out.extend_from_slice(&bytes[from..from + part.bytes() as usize]);
        }
        at += range.bytes() as usize;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_of_a_copy_is_cut_out() {
        let page = page_size();
        let range = |from: u64, to: u64| PageRange::new(from * page, to * page).unwrap();
        let ranges = [range(1, 4), range(10, 12)];
        let bytes: Vec<u8> = [1u8, 2, 3, 10, 11]
            .into_iter()
            .flat_map(|n| vec![n; page as usize])
            .collect();
        let kept = PageSet::from_iter([range(2, 3), range(11, 12)]);
        let cut = cut(&ranges, &bytes, &kept);
        assert_eq!(cut.len() as u64, 2 * page);
        assert_eq!((cut[0], cut[page as usize]), (2, 11));
    }
}
