//! Kinds of memory, and pages that are created and discarded.

use super::{Outcome, Trial, broken, not_applicable, pages};
use pagetrail::{HugePages, Technique, page_size};

pub(super) fn kind(t: &mut Trial<'_>, kind: &str) -> Outcome {
    let p = page_size();
    let start = t.map(kind, 64)?;
    let memory = pages(start, 64);
    t.actor.act(&format!("fill {start} 32 1"));
    t.begin(&[memory])?;
    t.expect(&[], memory)?;
    // Pages of the populated half, and of the untouched half.
    let written = [0, 1, 2, 17, 31, 32, 40, 63].map(|i| start + i * p);
    t.write_all(&written);
    t.expect(&written, memory)?;
    t.expect(&[], memory)?;
    t.write(start + 5 * p);
    t.expect(&[start + 5 * p], memory)
}

pub(super) fn huge(t: &mut Trial<'_>) -> Outcome {
    let count = 2048; // 8 MiB contain at least three aligned huge pages.
    let start = t.map("huge", count)?;
    t.actor.act(&format!("fill {start} {count} 1"));
    let memory = pages(start, count);
    t.begin(&[memory])?;
    let written = [600, 601, 1300].map(|i| start + i * page_size());
    for _ in 0..3 {
        t.write_all(&written);
        t.expect(&written, memory)?;
    }
    Ok(())
}

pub(super) fn huge_kept(t: &mut Trial<'_>) -> Outcome {
    t.huge_pages = HugePages::Keep;
    let count = 2048;
    let start = t.map("huge", count)?;
    t.actor.act(&format!("fill {start} {count} 1"));
    let beside = t.map("anon", 16)?;
    t.begin(&[pages(start, count), pages(beside, 16)])?;
    for _ in 0..3 {
        let written = [
            start + 600 * page_size(),
            start + 1300 * page_size(),
            beside + 3 * page_size(),
        ];
        t.write_all(&written);
        t.expect(&written, pages(beside, 16))?;
    }
    Ok(())
}

pub(super) fn hugetlb(t: &mut Trial<'_>) -> Outcome {
    if t.technique == Technique::Mprotect {
        return not_applicable("mprotect protects whole huge pages only");
    }
    let count = 1024;
    let start = t.map("hugetlb", count)?;
    t.actor.act(&format!("write {start} 1"));
    let memory = pages(start, count);
    t.begin(&[memory])?;
    for _ in 0..2 {
        let written = [start + 7 * page_size(), start + 700 * page_size()];
        t.write_all(&written);
        t.expect(&written, memory)?;
    }
    Ok(())
}

pub(super) fn sparse(t: &mut Trial<'_>) -> Outcome {
    let count = (16 << 30) / page_size();
    if t.technique == Technique::Mprotect || t.technique == Technique::Userfaultfd {
        return not_applicable("it keeps a record of every page, populated or not");
    }
    let start = t.map("sparse", count)?;
    let memory = pages(start, count);
    t.begin(&[memory])?;
    for round in 0..2 {
        let written: Vec<u64> = (0..100)
            .map(|i| start + (i * 41_000 + round) * page_size())
            .collect();
        t.write_all(&written);
        t.expect(&written, memory)?;
    }
    // Page tables for all of it would take 32 MiB of the target's memory.
    let tables_kib = t.page_tables_kib();
    let sparing = [Technique::PagemapScan, Technique::Adaptive];
    if sparing.contains(&t.technique) && tables_kib > 16 << 10 {
        return broken(format!(
            "watching 100 pages took {tables_kib} KiB of page tables"
        ));
    }
    Ok(())
}

pub(super) fn sparse_shared(t: &mut Trial<'_>) -> Outcome {
    let p = page_size();
    let sparing = [Technique::PagemapScan, Technique::Adaptive].contains(&t.technique);
    let count = if sparing { 16 << 30 } else { 128 << 20 } / p;
    if t.technique == Technique::Mprotect || t.technique == Technique::Userfaultfd {
        return not_applicable("it keeps a record of every page, populated or not");
    }
    let start = t.map("memfd-kept", count)?;
    let memory = pages(start, count);
    let step = count / 32;
    let far = |i: u64, page: u64| start + (i * step + page) * p;
    t.write(far(3, 0));
    t.begin(&[memory])?;
    for round in 0..3 {
        let written: Vec<u64> = (0..20).map(|i| far(i + round, 7 * round)).collect();
        t.write_all(&written);
        t.expect(&written, memory)?;
    }
    if t.technique == Technique::AccessScan {
        // It reports what is touched; what follows changes the file, too.
        return Ok(());
    }
    // In a hole, and out of the page table again, with the table, before the round is collected;
    // among stores to other pages, so that the file alone says nothing. (The mark of soft-dirty is
    // lost with the page, and compare does not watch what is not in the page table.)
    if sparing {
        let table = far(26, 0).next_multiple_of(p * (p / 8));
        t.write(table + 5 * p);
        t.actor.act(&format!("advise {table} {} dontneed", p / 8));
        t.write(far(3, 0));
        t.expect(&[table + 5 * p, far(3, 0)], memory)?;
    }
    // In a hole, by the file.
    t.actor.act(&format!("write-file {} 77", 28 * step));
    if t.technique == Technique::Compare {
        t.actor.act(&format!("look {} 1", far(28, 0)));
    }
    t.expect(&[far(28, 0)], memory)?;
    // What was full becomes a hole, and is written again.
    t.actor.act(&format!("punch 0 {}", 2 * step));
    t.expect(&[far(0, 0), far(1, 0), far(1, 7)], memory)?;
    t.write(far(0, 9));
    t.write(far(1, 0));
    t.expect(&[far(0, 9), far(1, 0)], memory)?;
    t.actor.act(&format!("cut {} {count}", 20 * step));
    t.collect()?;
    t.write(far(25, 3));
    t.write(far(31, 3));
    t.expect(&[far(25, 3), far(31, 3)], memory)?;
    // Page tables for all of it would take 32 MiB of the target's memory.
    let tables_kib = t.page_tables_kib();
    if sparing && tables_kib > 16 << 10 {
        return broken(format!(
            "watching 100 pages took {tables_kib} KiB of page tables"
        ));
    }
    Ok(())
}

pub(super) fn discarded(t: &mut Trial<'_>) -> Outcome {
    let p = page_size();
    let start = t.map("anon", 32)?;
    t.actor.act(&format!("fill {start} 32 1"));
    let memory = pages(start, 32);
    t.begin(&[memory])?;
    t.actor.act(&format!("advise {start} 16 dontneed"));
    t.collect()?;
    let written = [start + p, start + 20 * p];
    t.write_all(&written);
    t.expect(&written, memory)?;
    t.actor.act(&format!("advise {start} 32 dontneed"));
    t.write(start + 9 * p);
    t.expect(&[start + 9 * p], memory)?;
    if t.technique == Technique::Userfaultfd {
        // It detects zeros that replaced contents when they are read.
        let read = start + 9 * p;
        t.actor.act(&format!("advise {read} 1 dontneed"));
        t.actor.act(&format!("read {read}"));
        t.expect(&[read], memory)?;
    }
    Ok(())
}

pub(super) fn shared_discarded(t: &mut Trial<'_>) -> Outcome {
    if t.technique == Technique::Compare || t.technique == Technique::Userfaultfd {
        return not_applicable("it does not watch what is not in the page table");
    }
    let count = 2048;
    let start = t.map("memfd", count)?;
    let memory = pages(start, count);
    t.actor.act(&format!("fill {start} {count} 1"));
    t.begin(&[memory])?;
    t.collect()?;
    let mut written = Vec::new();
    for i in 0..count {
        written.push(start + i * page_size());
    }
    t.value += 1;
    t.actor.act(&format!("fill {start} {count} {}", t.value));
    t.actor.act(&format!("advise {start} {count} dontneed"));
    t.expect(&written, memory)?;
    t.write(start);
    t.expect(&[start], memory)
}

pub(super) fn paged_out(t: &mut Trial<'_>) -> Outcome {
    let swap = std::fs::read_to_string("/proc/swaps").unwrap_or_default();
    if swap.lines().count() < 2 {
        return not_applicable("no swap is on");
    }
    let p = page_size();
    let start = t.map("anon", 64)?;
    t.actor.act(&format!("fill {start} 64 1"));
    let memory = pages(start, 64);
    t.begin(&[memory])?;
    let written = [3, 4, 40].map(|i| start + i * p);
    t.write_all(&written);
    t.actor.act(&format!("advise {start} 64 pageout"));
    t.expect(&written, memory)?;
    t.actor.act(&format!("advise {start} 64 pageout"));
    t.expect(&[], memory)?;
    t.write(start + 5 * p);
    t.expect(&[start + 5 * p], memory)
}
