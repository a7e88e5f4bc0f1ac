//! Accesses: reads as well as writes, and alternating rounds of both.

use super::{Outcome, Trial, broken, not_applicable, pages};
use pagetrail::{AccessKind, PageRange, PageSet, TrackMode, page_size};

impl Trial<'_> {
    fn read(&self, address: u64) {
        self.actor.act(&format!("read {address}"));
    }

    /// Ends the round, which must be of this kind, and returns which pages of `memory` are in it.
    fn collect_kind(
        &mut self,
        kind: AccessKind,
        memory: PageRange,
    ) -> Result<PageSet, super::Stop> {
        let round = self.watch().collect()?;
        let access_kind = round.access_kind();
        let pages = round.dirty().intersection(&PageSet::from_iter([memory]));
        round.commit();
        if access_kind == kind {
            Ok(pages)
        } else {
            broken(format!("a round of {access_kind:?} where {kind:?} are due"))
        }
    }
}

fn expect_only(pages: &PageSet, touched: &[u64], what: &str) -> Outcome {
    let expected: PageSet = touched
        .iter()
        .filter_map(|address| PageRange::new(*address, address + page_size()))
        .collect();
    if *pages == expected {
        Ok(())
    } else {
        broken(format!("{what}: {pages:?} instead of {expected:?}"))
    }
}

pub(super) fn read(t: &mut Trial<'_>, kind: &str) -> Outcome {
    t.needs_accesses()?;
    let p = page_size();
    let start = t.map(kind, 64)?;
    let memory = pages(start, 64);
    t.actor.act(&format!("fill {start} 32 1"));
    t.begin(&[memory])?;
    t.expect(&[], memory)?;
    for _ in 0..3 {
        // One page is read, one written, one read that did not exist before, and one written that
        // did not.
        for page in [0, 5, 6, 50] {
            t.read(start + page * p);
        }
        t.write(start + 31 * p);
        t.write(start + 60 * p);
        let touched = [0, 5, 6, 31, 50, 60].map(|page| start + page * p);
        t.expect(&touched, memory)?;
        // These pages were not touched since.
        let quiet = t.collect_kind(AccessKind::Accesses, memory)?;
        expect_only(&quiet, &[], "a quiet round")?;
        t.read(start + 7 * p);
        let one = t.collect_kind(AccessKind::Accesses, memory)?;
        expect_only(&one, &[start + 7 * p], "one read")?;
    }
    Ok(())
}

pub(super) fn huge(t: &mut Trial<'_>) -> Outcome {
    t.needs_accesses()?;
    let count = 2048;
    let start = t.map("huge", count)?;
    t.actor.act(&format!("fill {start} {count} 1"));
    let memory = pages(start, count);
    t.begin(&[memory])?;
    t.collect()?;
    for _ in 0..2 {
        let touched = [600, 1300].map(|i| start + i * page_size());
        for address in touched {
            t.read(address);
        }
        t.expect(&touched, memory)?;
    }
    Ok(())
}

pub(super) fn hugetlb(t: &mut Trial<'_>) -> Outcome {
    t.needs_accesses()?;
    let count = 1024;
    let start = t.map("hugetlb", count)?;
    t.actor.act(&format!("fill {start} {count} 1"));
    let memory = pages(start, count);
    t.begin(&[memory])?;
    for page in [7, 700] {
        t.read(start + page * page_size());
        t.expect(&[start + page * page_size()], memory)?;
    }
    Ok(())
}

pub(super) fn kernel_read(t: &mut Trial<'_>) -> Outcome {
    t.needs_accesses()?;
    let p = page_size();
    let start = t.map("anon", 8)?;
    let memory = pages(start, 8);
    t.actor.act(&format!("fill {start} 8 1"));
    t.begin(&[memory])?;
    t.collect()?;
    for _ in 0..2 {
        t.actor
            .act(&format!("kernel-read {} {}", start + 2 * p, 2 * p));
        t.expect(&[start + 2 * p, start + 3 * p], memory)?;
    }
    Ok(())
}

pub(super) fn read_only(t: &mut Trial<'_>) -> Outcome {
    t.needs_accesses()?;
    let p = page_size();
    let start = t.map("anon", 16)?;
    let memory = pages(start, 16);
    t.actor.act(&format!("fill {start} 16 1"));
    t.actor.act(&format!("protect {start} 16 r"));
    t.begin(&[memory])?;
    t.collect()?;
    t.read(start + 3 * p);
    t.expect(&[start + 3 * p], memory)?;
    t.actor.act(&format!("protect {start} 16 none"));
    t.collect()?;
    t.actor.act(&format!("protect {start} 16 rw"));
    t.read(start + 4 * p);
    t.write(start + 5 * p);
    t.expect(&[start + 4 * p, start + 5 * p], memory)
}

/// Tracks alternating rounds from here on; a round of writes comes first.
fn begin_in_turns(t: &mut Trial<'_>, memory: PageRange) -> Outcome {
    if t.subject.launched {
        return not_applicable("the same as another process");
    }
    t.track = Some(TrackMode::Alternate);
    t.begin(&[memory])?;
    t.collect_kind(AccessKind::Accesses, memory).map(drop)
}

pub(super) fn in_turns(t: &mut Trial<'_>) -> Outcome {
    t.needs_accesses()?;
    let p = page_size();
    let start = t.map("anon", 64)?;
    let memory = pages(start, 64);
    t.actor.act(&format!("fill {start} 32 1"));
    begin_in_turns(t, memory)?;
    for _ in 0..3 {
        for kind in [AccessKind::Writes, AccessKind::Accesses] {
            t.read(start + p);
            t.write(start + 2 * p);
            let touched = [start + p, start + 2 * p];
            let expected = match kind {
                AccessKind::Writes => &touched[1..],
                AccessKind::Accesses => &touched,
            };
            let pages = t.collect_kind(kind, memory)?;
            expect_only(&pages, expected, "a round in turns")?;
        }
    }
    Ok(())
}

pub(super) fn in_turns_transaction(t: &mut Trial<'_>) -> Outcome {
    t.needs_accesses()?;
    let p = page_size();
    let start = t.map("anon", 16)?;
    let memory = pages(start, 16);
    t.actor.act(&format!("fill {start} 16 1"));
    begin_in_turns(t, memory)?;
    t.write(start);
    drop(t.watch().collect()?);
    t.read(start + p);
    drop(t.watch().collect()?);
    t.write(start + 2 * p);
    let writes = t.collect_kind(AccessKind::Writes, memory)?;
    expect_only(&writes, &[start, start + 2 * p], "writes come back as such")?;
    t.read(start + 3 * p);
    let accesses = t.collect_kind(AccessKind::Accesses, memory)?;
    expect_only(
        &accesses,
        &[start + p, start + 3 * p],
        "accesses come back as such",
    )
}

pub(super) fn in_turns_mappings(t: &mut Trial<'_>) -> Outcome {
    t.needs_accesses()?;
    t.needs_whole()?;
    let p = page_size();
    let first = t.map("anon", 4)?;
    begin_in_turns(t, pages(first, 4))?;
    for kind in ["anon", "memfd", "file-private", "file-shared"] {
        let start = t.map(kind, 16)?;
        let memory = pages(start, 16);
        for _ in 0..2 {
            // Pages of files appear in rounds of writes only.
            t.write(start + 3 * p);
            if !t
                .collect_kind(AccessKind::Writes, memory)?
                .contains(start + 3 * p)
            {
                return broken(format!("a write to a new mapping of kind {kind} is missed"));
            }
            t.read(start + 4 * p);
            let read = t.collect_kind(AccessKind::Accesses, memory)?;
            if !kind.starts_with("file") && !read.contains(start + 4 * p) {
                return broken(format!("a read of a new mapping of kind {kind} is missed"));
            }
        }
        t.actor.act(&format!("unmap {start} 16"));
        t.collect_kind(AccessKind::Writes, memory)?;
        t.collect_kind(AccessKind::Accesses, memory)?;
    }
    Ok(())
}
