//! Pages whose contents change without a write: discarded, or removed from their file.

use super::{Outcome, Trial, not_applicable, pages};
use pagetrail::{Technique, page_size};

impl Trial<'_> {
    fn needs_discards(&self) -> Outcome {
        self.needs_free_mappings()?;
        match self.technique {
            Technique::AccessScan => not_applicable("it reports what is touched"),
            _ => Ok(()),
        }
    }
}

pub(super) fn private(t: &mut Trial<'_>, kind: &str) -> Outcome {
    t.needs_discards()?;
    let p = page_size();
    let start = t.map(kind, 32)?;
    let memory = pages(start, 32);
    t.actor.act(&format!("fill {start} 20 1"));
    t.begin(&[memory])?;
    t.expect(&[], memory)?;
    let gone: Vec<u64> = (0..8).map(|page| start + page * p).collect();
    t.actor.act(&format!("advise {start} 8 dontneed"));
    t.expect(&gone, memory)?;
    t.expect(&[], memory)?;
    // Read before the round is collected: the file's pages exist again.
    let gone: Vec<u64> = (8..16).map(|page| start + page * p).collect();
    t.actor.act(&format!("advise {} 8 dontneed", gone[0]));
    t.actor.act(&format!("look {start} 32"));
    t.write(start + 17 * p);
    t.expect(&[&gone[..], &[start + 17 * p]].concat(), memory)?;
    t.write(start);
    t.expect(&[start], memory)
}

pub(super) fn removed(t: &mut Trial<'_>, kind: &str) -> Outcome {
    t.needs_discards()?;
    let p = page_size();
    let start = t.map(kind, 32)?;
    let memory = pages(start, 32);
    t.actor.act(&format!("fill {start} 32 1"));
    t.begin(&[memory])?;
    t.expect(&[], memory)?;
    let gone = |from: u64| -> Vec<u64> { (from..from + 8).map(|page| start + page * p).collect() };
    t.actor.act(&format!("advise {start} 8 remove"));
    t.expect(&gone(0), memory)?;
    t.expect(&[], memory)?;
    // Read before the round is collected: the pages exist again, as zeros.
    t.actor.act(&format!("advise {} 8 remove", gone(8)[0]));
    t.actor.act(&format!("look {start} 32"));
    t.expect(&gone(8), memory)?;
    // Among stores to other pages of the file.
    t.actor.act(&format!("advise {} 8 remove", gone(16)[0]));
    t.write(start + 30 * p);
    t.expect(&[&gone(16)[..], &[start + 30 * p]].concat(), memory)
}

pub(super) fn by_descriptor(t: &mut Trial<'_>) -> Outcome {
    t.needs_discards()?;
    let p = page_size();
    let start = t.map("memfd-kept", 32)?;
    let memory = pages(start, 32);
    t.actor.act(&format!("fill {start} 32 1"));
    t.begin(&[memory])?;
    t.expect(&[], memory)?;
    for how in ["punch 2 4", "cut 24 32", "write-file 3 77"] {
        let gone: Vec<u64> = match how {
            "punch 2 4" => (2..6).map(|page| start + page * p).collect(),
            "cut 24 32" => (24..32).map(|page| start + page * p).collect(),
            _ => vec![start + 3 * p],
        };
        t.actor.act(how);
        t.actor.act(&format!("look {start} 32"));
        t.expect(&gone, memory)?;
    }
    Ok(())
}

/// What was in the page table of a mapping says nothing of another part of its file.
pub(super) fn of_another_part(t: &mut Trial<'_>) -> Outcome {
    t.needs_discards()?;
    let p = page_size();
    let start = t.map("memfd-kept", 48)?;
    let memory = pages(start, 16);
    t.actor.act(&format!("fill {start} 40 1"));
    t.actor.act(&format!("unmap {} 32", start + 16 * p));
    t.actor.act(&format!("map-kept shared 16 {start} 0"));
    t.begin(&[memory])?;
    t.actor.act(&format!("map-kept shared 16 {start} 32"));
    t.actor.act(&format!("look {start} 8"));
    t.collect()?;
    t.collect()?;
    // The file takes as much memory as before.
    t.actor.act("punch 34 1");
    t.write(start + 9 * p);
    t.expect(&[start + 2 * p, start + 9 * p], memory)
}
