//! Mappings that change while they are tracked.

use super::{Outcome, Stop, Trial, broken, not_applicable, pages};
use pagetrail::{Technique, page_size};

pub(super) fn protected(t: &mut Trial<'_>) -> Outcome {
    t.needs_free_mappings()?;
    let p = page_size();
    let start = t.map("anon", 16)?;
    let memory = pages(start, 16);
    t.actor.act(&format!("fill {start} 16 1"));
    t.begin(&[memory])?;
    t.write(start + p);
    t.actor.act(&format!("protect {start} 8 r"));
    t.expect(&[start + p], memory)?;
    t.actor.act(&format!("protect {start} 8 rw"));
    t.write(start + 2 * p);
    t.expect(&[start + 2 * p], memory)
}

pub(super) fn replaced(t: &mut Trial<'_>) -> Outcome {
    t.needs_free_mappings()?;
    let p = page_size();
    for new in ["anon", "memfd"] {
        let start = t.map("anon", 16)?;
        let memory = pages(start, 16);
        t.actor.act(&format!("fill {start} 16 1"));
        if t.watch.is_some() && !t.subject.whole {
            t.watch = None;
        }
        t.begin(&[memory])?;
        t.actor.act(&format!("map-at {new} 16 {start}"));
        t.write(start + 2 * p);
        t.expect(&[start + 2 * p], memory)?;
        t.write(start + 3 * p);
        t.expect(&[start + 3 * p], memory)?;
        t.actor.act(&format!("unmap {start} 16"));
        t.collect()?;
    }
    Ok(())
}

pub(super) fn replaced_beside(t: &mut Trial<'_>) -> Outcome {
    t.needs_free_mappings()?;
    let p = page_size();
    let start = t.map("anon", 3000)?;
    let memory = pages(start, 3000);
    t.actor.act(&format!("fill {start} 3000 1"));
    t.begin(&[memory])?;
    for round in 0..3 {
        let mut written: Vec<u64> = (0..1400).map(|i| start + 2 * i * p).collect();
        written.retain(|address| !(1000..1016).contains(&((address - start) / p)));
        t.write_all(&written);
        let at = start + 1000 * p;
        t.actor.act(&format!("map-at anon 16 {at}"));
        t.write(at + round * p);
        written.push(at + round * p);
        t.expect(&written, memory)?;
    }
    Ok(())
}

/// The new mapping has no page that would reveal that the old one is gone.
pub(super) fn untouched_replaced(t: &mut Trial<'_>) -> Outcome {
    t.needs_free_mappings()?;
    for new in ["memfd", "anon", "file-shared"] {
        // They have page tables of their own, so that no page of the table exists before.
        let start = t.map("anon", 2048)?;
        if !t.subject.whole {
            t.watch = None;
        }
        t.begin(&[pages(start, 2048)])?;
        let there = start + 1000 * page_size();
        if t.actor
            .try_act(&format!("map-at {new} 16 {there}"))
            .is_err()
        {
            continue; // A file system that cannot create such files.
        }
        for page in [3, 3, 7] {
            t.write(there + page * page_size());
            t.expect(&[there + page * page_size()], pages(there, 16))?;
        }
    }
    Ok(())
}

/// A file mapped at another offset is another mapping, of which nothing is known. A file that gets
/// the inode number of a deleted one looks the same.
pub(super) fn another_part(t: &mut Trial<'_>) -> Outcome {
    t.needs_free_mappings()?;
    let p = page_size();
    for (kind, sharing) in [
        ("memfd-kept", "private"),
        ("memfd-kept", "shared"),
        ("file-kept", "private"),
        ("file-kept", "shared"),
    ] {
        if !t.subject.whole {
            t.watch = None;
        }
        let Ok(start) = t.actor.try_act(&format!("map {kind} 48")) else {
            continue; // A file system that cannot create such files.
        };
        t.actor.act(&format!("unmap {} 32", start + 16 * p));
        t.actor.act(&format!("map-kept {sharing} 16 {start} 0"));
        t.begin(&[pages(start, 16)])?;
        t.write(start + p);
        t.expect(&[start + p], pages(start, 16))?;
        // All of it, then the end of it and more.
        for (first, part) in [(0, 20), (4, 8)] {
            let at = start + first * p;
            t.actor.act(&format!("map-kept {sharing} 12 {at} {part}"));
            for page in [2, 2, 7, 11] {
                t.write(at + page * p);
                t.expect(&[at + page * p], pages(at, 12))?;
            }
        }
    }
    Ok(())
}

/// A page that was written shows again what the file holds once its mapping has come anew. The new
/// one may be of program text, which is not tracked before the process owns a page in it.
pub(super) fn back_to_file(t: &mut Trial<'_>) -> Outcome {
    t.needs_unwritable()?;
    let p = page_size();
    for (is_seen_gone, rights) in [(false, "rw"), (false, "r"), (true, "rw"), (true, "r")] {
        let Ok(start) = t.actor.try_act("map file-kept 16") else {
            return not_applicable("no such file can be created");
        };
        t.actor.act(&format!("map-kept private 16 {start} 0"));
        t.actor.act(&format!("protect {start} 16 {rights}"));
        t.begin(&[pages(start, 16)])?;
        t.actor.act(&format!("protect {start} 16 rw"));
        t.write(start + 3 * p);
        t.actor.act(&format!("protect {start} 16 {rights}"));
        t.expect(&[start + 3 * p], pages(start, 16))?;
        if is_seen_gone {
            t.actor.act(&format!("unmap {start} 16"));
            t.collect()?;
        }
        t.actor.act(&format!("map-kept private 16 {start} 0"));
        t.actor.act(&format!("protect {start} 16 {rights}"));
        t.expect_changed(&[start + 3 * p])?;
    }
    Ok(())
}

/// What is known of a mapping stays known when another takes the place of a part of it.
pub(super) fn discarded_beside(t: &mut Trial<'_>) -> Outcome {
    t.needs_free_mappings()?;
    t.needs_whole()?;
    let p = page_size();
    for kind in ["anon", "file-private", "memfd-private"] {
        let start = t.map(kind, 32)?;
        t.actor.act(&format!("fill {start} 32 1"));
        t.begin(&[pages(start, 32)])?;
        t.actor.act(&format!("protect {} 16 r", start + 16 * p));
        t.actor
            .act(&format!("advise {} 16 dontneed", start + 16 * p));
        t.actor.act(&format!("map-at anon 8 {start}"));
        let discarded: Vec<u64> = (16..32).map(|page| start + page * p).collect();
        t.expect_changed(&discarded)?;
    }
    Ok(())
}

/// Nothing can be written through a shared mapping of a file that was opened for reading, until
/// another one takes its place.
pub(super) fn again_for_writing(t: &mut Trial<'_>) -> Outcome {
    t.needs_free_mappings()?;
    let p = page_size();
    let other = pages(t.map("anon", 1)?, 1);
    for kind in ["memfd-kept", "file-kept"] {
        for is_new in [false, true] {
            t.watch = None;
            let Ok(start) = t.actor.try_act(&format!("map {kind} 16")) else {
                continue; // A file system that cannot create such files.
            };
            // Given ranges have to be writable when tracking begins.
            let (tracked, is_new) = match t.subject.whole {
                true => (other, is_new),
                false => (pages(start, 16), true),
            };
            if is_new {
                t.begin(&[tracked])?;
            }
            t.actor.act(&format!("map-kept read-only 16 {start} 0"));
            t.actor.act(&format!("look {start} 8"));
            if is_new {
                t.collect()?;
            } else {
                t.begin(&[tracked])?;
            }
            t.actor.act(&format!("map-kept shared 16 {start} 0"));
            for page in [2, 2, 9] {
                t.write(start + page * p);
                t.expect(&[start + page * p], pages(start, 16))?;
            }
        }
    }
    Ok(())
}

/// Private mappings that touch are armed by one call for all of them: those that are there at the
/// start, and those that come later.
pub(super) fn side_by_side(t: &mut Trial<'_>) -> Outcome {
    t.needs_free_mappings()?;
    t.needs_whole()?;
    let p = page_size();
    let parts = |t: &mut Trial<'_>| -> Result<u64, Stop> {
        let start = t.map("anon", 12)?;
        t.actor.act(&format!("fill {start} 12 1"));
        t.actor.act(&format!("protect {} 4 r", start + 4 * p));
        Ok(start)
    };
    let first = parts(t)?;
    t.begin(&[pages(first, 12)])?;
    for _ in 0..2 {
        let later = parts(t)?;
        let written = [first, first + 11 * p, later + 3 * p, later + 8 * p];
        written.iter().for_each(|address| t.write(*address));
        t.expect(&written, pages(first, 12))?;
        written.iter().for_each(|address| t.write(*address));
        t.expect(&written, pages(later, 12))?;
    }
    Ok(())
}

/// What takes its place was writable, and nobody may use it when the round is collected.
pub(super) fn again_and_hidden(t: &mut Trial<'_>) -> Outcome {
    t.needs_unwritable()?;
    let p = page_size();
    let other = pages(t.map("anon", 1)?, 1);
    for kind in ["memfd-kept", "file-kept"] {
        t.watch = None;
        let Ok(start) = t.actor.try_act(&format!("map {kind} 16")) else {
            continue; // A file system that cannot create such files.
        };
        t.actor.act(&format!("map-kept read-only 16 {start} 0"));
        t.actor.act(&format!("look {start} 8"));
        t.begin(&[other])?;
        t.actor.act(&format!("map-kept shared 16 {start} 0"));
        t.write(start + 2 * p);
        t.actor.act(&format!("protect {start} 16 none"));
        t.expect(&[start + 2 * p], pages(start, 16))?;
    }
    Ok(())
}

/// The mapping that takes its place looks the same whenever a round is collected.
pub(super) fn again_between_rounds(t: &mut Trial<'_>) -> Outcome {
    t.needs_free_mappings()?;
    t.needs_whole()?;
    match t.technique {
        Technique::PagemapScan | Technique::Adaptive | Technique::Userfaultfd => {}
        _ => return not_applicable("only the kernel's refusal shows that nothing can be written"),
    }
    let p = page_size();
    let other = pages(t.map("anon", 1)?, 1);
    t.begin(&[other])?;
    let start = t.map("memfd-kept", 16)?;
    t.actor.act(&format!("map-kept read-only 16 {start} 0"));
    t.actor.act(&format!("look {start} 8"));
    t.expect(&[], pages(start, 16))?;
    t.actor.act(&format!("map-kept shared 16 {start} 0"));
    for page in [2, 2, 9] {
        t.write(start + page * p);
        t.actor.act(&format!("protect {start} 16 r"));
        t.expect(&[start + page * p], pages(start, 16))?;
        t.actor.act(&format!("protect {start} 16 rw"));
    }
    Ok(())
}

/// Discards memory as allocators do that return it to the system and keep the addresses.
pub(super) fn given_back(t: &mut Trial<'_>) -> Outcome {
    t.needs_free_mappings()?;
    let p = page_size();
    let start = t.map("anon", 16)?;
    let memory = pages(start, 16);
    t.actor.act(&format!("fill {start} 16 1"));
    t.begin(&[memory])?;
    t.actor.act(&format!("map-at reserved 16 {start}"));
    t.collect()?;
    t.actor.act(&format!("protect {start} 16 rw"));
    t.write(start + 2 * p);
    t.expect(&[start + 2 * p], memory)?;
    t.write(start + 3 * p);
    t.expect(&[start + 3 * p], memory)
}

pub(super) fn inaccessible(t: &mut Trial<'_>) -> Outcome {
    t.needs_free_mappings()?;
    let p = page_size();
    let start = t.map("anon", 16)?;
    let memory = pages(start, 16);
    t.actor.act(&format!("fill {start} 16 1"));
    t.begin(&[memory])?;
    t.actor.act(&format!("protect {start} 8 none"));
    t.collect()?;
    t.actor.act(&format!("protect {start} 8 rw"));
    t.actor.act(&format!("write {} 0", start + 2 * p));
    t.expect(&[start + 2 * p], memory)
}

pub(super) fn made(t: &mut Trial<'_>) -> Outcome {
    t.needs_whole()?;
    let first = t.map("anon", 4)?;
    t.begin(&[pages(first, 4)])?;
    for kind in ["anon", "memfd", "file-private", "file-shared"] {
        let start = t.map(kind, 16)?;
        t.write(start + 3 * page_size());
        t.expect(&[start + 3 * page_size()], pages(start, 16))?;
        t.write(start + 4 * page_size());
        t.expect(&[start + 4 * page_size()], pages(start, 16))?;
        t.expect(&[], pages(start, 16))?;
    }
    Ok(())
}

pub(super) fn unmapped(t: &mut Trial<'_>) -> Outcome {
    t.needs_whole()?;
    let start = t.map("anon", 16)?;
    let memory = pages(start, 16);
    t.actor.act(&format!("fill {start} 16 1"));
    t.begin(&[memory])?;
    t.write(start);
    t.actor.act(&format!("unmap {start} 16"));
    t.collect()?;
    let still = t
        .watch()
        .regions()
        .iter()
        .any(|region| region.range.intersection(&memory).is_some());
    if still {
        broken("an unmapped region is still listed")
    } else {
        Ok(())
    }
}

pub(super) fn moved(t: &mut Trial<'_>) -> Outcome {
    t.needs_whole()?;
    let start = t.map("anon", 16)?;
    t.actor.act(&format!("fill {start} 16 1"));
    t.begin(&[pages(start, 16)])?;
    t.write(start + page_size());
    let there = t.actor.act(&format!("move {start} 16"));
    t.expect(&[there + page_size()], pages(there, 16))?;
    t.write(there + 5 * page_size());
    t.expect(&[there + 5 * page_size()], pages(there, 16))
}

pub(super) fn heap(t: &mut Trial<'_>) -> Outcome {
    t.needs_whole()?;
    if t.subject.own {
        return not_applicable("the heap is the allocator's here");
    }
    let first = t.map("anon", 4)?;
    t.begin(&[pages(first, 4)])?;
    for _ in 0..3 {
        let start = t.actor.act("brk 8").next_multiple_of(page_size());
        t.write(start);
        t.write(start + 3 * page_size());
        t.expect(&[start, start + 3 * page_size()], pages(start, 7))?;
    }
    Ok(())
}

pub(super) fn stack(t: &mut Trial<'_>) -> Outcome {
    t.needs_whole()?;
    if t.subject.own {
        return not_applicable("a thread's stack does not grow");
    }
    let first = t.map("anon", 4)?;
    t.begin(&[pages(first, 4)])?;
    for depth in [10, 100, 400] {
        let lowest = t.actor.act(&format!("deep {depth}"));
        let written: Vec<u64> = (1..depth).map(|i| lowest + i * 4096).collect();
        t.expect(&written, pages(lowest & !(page_size() - 1), depth))?;
    }
    Ok(())
}
