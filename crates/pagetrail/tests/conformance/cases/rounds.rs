//! Rounds, and different writers.

use super::{Outcome, Stop, Trial, broken, not_applicable, pages};
use pagetrail::{Event, PageRange, PageSet, Precision, ReportPages, Technique, page_size};

pub(super) fn again(t: &mut Trial<'_>) -> Outcome {
    let start = t.map("anon", 8)?;
    let memory = pages(start, 8);
    t.begin(&[memory])?;
    for _ in 0..10 {
        let written = [start, start + 4 * page_size()];
        t.write_all(&written);
        t.expect(&written, memory)?;
    }
    Ok(())
}

/// Some pages are written in every round, among others; then nothing is written, and soon nothing
/// is reported.
pub(super) fn hot_then_cold(t: &mut Trial<'_>) -> Outcome {
    if t.technique == Technique::None {
        return not_applicable("it reports everything");
    }
    let p = page_size();
    let count = 1536;
    let start = t.map("anon", count)?;
    let memory = pages(start, count);
    t.actor.act(&format!("fill {start} {count} 1"));
    t.begin(&[memory])?;
    let mut random = fastrand::Rng::with_seed(11);
    for _ in 0..2 {
        let before = t.predicted;
        for _ in 0..28 {
            let mut written: Vec<u64> = (0..12).map(|i| start + i * 17 * p).collect();
            written.push(start + random.u64(..count) * p);
            t.write_all(&written);
            written.sort_unstable();
            written.dedup();
            t.expect(&written, memory)?;
        }
        if t.technique == Technique::Adaptive && t.predicted == before {
            return broken("nothing was predicted of what is written in every round");
        }
        // `soft-dirty` writes to a few pages itself, and reports them.
        let sentinels = match t.technique {
            Technique::SoftDirty => 4,
            _ => 0,
        };
        let of_memory = PageSet::from_iter([memory]);
        let mut quiet = 0;
        while t.collect()?.intersection(&of_memory).page_count() > sentinels {
            quiet += 1;
            if quiet > 90 {
                return broken("nothing is written any more, but pages are still reported");
            }
        }
    }
    Ok(())
}

/// A sequential writer that continues from round to round, and stops.
pub(super) fn swept(t: &mut Trial<'_>) -> Outcome {
    const STEP: u64 = 150;
    let p = page_size();
    let count = 2048;
    let start = t.map("anon", count)?;
    let memory = pages(start, count);
    t.actor.act(&format!("fill {start} {count} 1"));
    t.begin(&[memory])?;
    for round in 0..10 {
        let written: Vec<u64> = (round * STEP..(round + 1) * STEP)
            .map(|page| start + page * p)
            .collect();
        t.write_all(&written);
        t.expect(&written, memory)?;
    }
    for elsewhere in [[3, 4], [1990, 1700]] {
        let written = elsewhere.map(|page| start + page * p);
        t.write_all(&written);
        t.expect(&written, memory)?;
    }
    Ok(())
}

/// With exact precision, a predicted page that was not written is not reported; a later write to it
/// is.
pub(super) fn exact(t: &mut Trial<'_>) -> Outcome {
    if t.technique != Technique::Adaptive {
        return not_applicable("it predicts nothing");
    }
    if t.subject.launched {
        return not_applicable("the same as another process");
    }
    let p = page_size();
    let start = t.map("anon", 512)?;
    let memory = pages(start, 512);
    t.actor.act(&format!("fill {start} 512 1"));
    t.precision = Precision::Exact;
    t.begin(&[memory])?;
    let hot: Vec<u64> = (0..24).map(|i| start + i * 8 * p).collect();
    let before = t.predicted;
    for round in 0..40 {
        // In the last rounds each page is left out now and then.
        let written = hot.iter().enumerate();
        let written: Vec<u64> = written
            .filter(|(i, _)| round < 25 || (i + round) % 3 != 0)
            .map(|(_, address)| *address)
            .collect();
        t.write_all(&written);
        let reported = t.reported;
        t.expect(&written, memory)?;
        if t.reported - reported != written.len() as u64 {
            return broken(format!(
                "{} pages reported, {} written",
                t.reported - reported,
                written.len()
            ));
        }
    }
    if t.predicted == before {
        return broken("nothing was predicted");
    }
    Ok(())
}

pub(super) fn transaction(t: &mut Trial<'_>) -> Outcome {
    let p = page_size();
    let start = t.map("anon", 8)?;
    let memory = pages(start, 8);
    t.begin(&[memory])?;
    t.write(start);
    drop(t.watch().collect()?);
    t.write(start + 3 * p);
    drop(t.watch().collect()?);
    t.write(start + 5 * p);
    t.expect(&[start, start + 3 * p, start + 5 * p], memory)?;
    t.write(start + 6 * p);
    t.expect(&[start + 6 * p], memory)
}

pub(super) fn scattered(t: &mut Trial<'_>) -> Outcome {
    let count = 16_384;
    let start = t.map("anon", count)?;
    t.actor.act(&format!("fill {start} {count} 1"));
    let memory = pages(start, count);
    t.begin(&[memory])?;
    let mut random = fastrand::Rng::with_seed(7);
    let mut written: Vec<u64> = (0..1000)
        .map(|_| start + random.u64(..count) * page_size())
        .collect();
    t.write_all(&written);
    written.sort_unstable();
    written.dedup();
    t.expect(&written, memory)
}

pub(super) fn kernel_write(t: &mut Trial<'_>) -> Outcome {
    let p = page_size();
    let start = t.map("anon", 8)?;
    let memory = pages(start, 8);
    t.actor.act(&format!("fill {start} 8 1"));
    t.begin(&[memory])?;
    for _ in 0..2 {
        t.actor.act(&format!("fill {start} 8 {}", t.value + 1));
        t.value += 1;
        t.collect()?;
        if let Some(range) = PageRange::new(start + 2 * p, start + 4 * p) {
            t.watch().prepare_for_kernel_write(range);
        }
        t.actor
            .act(&format!("kernel-write {} {}", start + 2 * p, 2 * p));
        t.expect(&[start + 2 * p, start + 3 * p], memory)?;
    }
    Ok(())
}

pub(super) fn threads(t: &mut Trial<'_>) -> Outcome {
    if t.technique == Technique::SoftDirty && t.subject.own {
        return not_applicable("the caller stops the world");
    }
    let start = t.map("anon", 64)?;
    let memory = pages(start, 64);
    t.begin(&[memory])?;
    t.actor.act(&format!("threads {start} 16"));
    let written: Vec<u64> = (0..16).map(|i| start + i * page_size()).collect();
    t.expect(&written, memory)
}

/// Soft-dirty bits are consumed by whichever process clears them first.
pub(super) fn marks_cleared(t: &mut Trial<'_>) -> Outcome {
    if t.technique != Technique::SoftDirty {
        return not_applicable("its marks are its own");
    }
    let start = t.map("anon", 16)?;
    let memory = pages(start, 16);
    t.actor.act(&format!("fill {start} 16 1"));
    t.begin(&[memory])?;
    for cleared in [true, false, true] {
        t.write(start + page_size());
        if cleared {
            let file = format!("/proc/{}/clear_refs", t.watch().pid());
            std::fs::write(file, "4").map_err(|error| Stop::Broken(error.to_string()))?;
        }
        let round = t.watch().collect()?;
        let written = round.dirty().contains(start + page_size());
        let noted = round
            .events()
            .iter()
            .any(|event| matches!(event, Event::Note(note) if note.contains("clear_refs")));
        round.commit();
        if !written || noted != cleared {
            return broken(format!(
                "bits cleared: {cleared}, noted: {noted}, write reported: {written}"
            ));
        }
    }
    Ok(())
}

/// A page that was pinned when its round was collected receives its data afterwards.
pub(super) fn report_again(t: &mut Trial<'_>) -> Outcome {
    t.report_pages = ReportPages::Twice;
    let p = page_size();
    let start = t.map("anon", 16)?;
    let memory = pages(start, 16);
    t.actor.act(&format!("fill {start} 16 1"));
    t.begin(&[memory])?;
    t.expect(&[], memory)?;
    t.write(start + 3 * p);
    t.expect(&[start + 3 * p], memory)?;
    t.write(start + 5 * p);
    // A round that is not committed keeps both rounds' pages.
    drop(t.watch().collect()?);
    t.expect(&[start + 3 * p, start + 5 * p], memory)?;
    t.write(start + 7 * p);
    t.expect(&[start + 7 * p], memory)?;
    t.expect(&[start + 7 * p], memory)?;
    let quiet = t.collect()?;
    match t.technique {
        Technique::PagemapScan if quiet.contains(start + 7 * p) => {
            broken("a page was reported a third time")
        }
        _ => Ok(()),
    }
}
