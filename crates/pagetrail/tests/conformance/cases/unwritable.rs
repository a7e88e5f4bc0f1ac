//! Memory that is not writable whenever a round is collected.

use super::{Outcome, Trial, broken, not_applicable, pages};
use crate::actor::poke;
use pagetrail::{Technique, page_size};

impl Trial<'_> {
    pub(super) fn needs_unwritable(&self) -> Outcome {
        self.needs_free_mappings()?;
        self.needs_whole()?;
        match self.technique {
            Technique::AccessScan => not_applicable("it leaves memory out that may not be written"),
            _ => Ok(()),
        }
    }
}

pub(super) fn written_between(t: &mut Trial<'_>, kind: &str) -> Outcome {
    t.needs_unwritable()?;
    let p = page_size();
    let start = t.map(kind, 16)?;
    let memory = pages(start, 16);
    t.actor.act(&format!("fill {start} 8 1"));
    t.actor.act(&format!("protect {start} 16 r"));
    t.begin(&[memory])?;
    t.expect(&[], memory)?;
    for round in 0..3 {
        // Pages that existed, and untouched ones.
        let written = [round, 7, 8 + round].map(|page| start + page * p);
        for address in written {
            t.value += 1;
            let value = t.value;
            t.actor.act(&format!("write-unprotected {address} {value}"));
        }
        t.expect(&written, memory)?;
    }
    Ok(())
}

pub(super) fn made_and_protected(t: &mut Trial<'_>) -> Outcome {
    t.needs_unwritable()?;
    let p = page_size();
    for kind in ["anon", "file-private", "memfd-private", "shared-anon"] {
        if t.watch.is_none() {
            let other = t.map("anon", 1)?;
            t.begin(&[pages(other, 1)])?;
        }
        let start = t.map(kind, 16)?;
        let memory = pages(start, 16);
        let written = [0, 3, 15].map(|page| start + page * p);
        t.write_all(&written);
        t.actor.act(&format!("protect {start} 16 r"));
        t.expect(&written, memory)?;
        t.actor.act(&format!("protect {start} 16 none"));
        t.collect()?;
        t.actor.act(&format!("protect {start} 16 rw"));
        t.write(start + 5 * p);
        t.actor.act(&format!("protect {start} 16 r"));
        t.expect(&[start + 5 * p], memory)?;
    }
    Ok(())
}

pub(super) fn patched(t: &mut Trial<'_>) -> Outcome {
    t.needs_unwritable()?;
    if t.technique == Technique::Userfaultfd {
        return not_applicable(
            "a debugger cannot wait for its handler: the kernel fails the access",
        );
    }
    if t.subject.own || t.subject.launched {
        return not_applicable("only another process that is not traced can be debugged");
    }
    let p = page_size();
    for kind in ["anon", "file-private"] {
        let start = t.map(kind, 16)?;
        let memory = pages(start, 16);
        t.actor.act(&format!("protect {start} 16 r"));
        t.watch = None;
        t.begin(&[memory])?;
        for page in [2, 2, 9] {
            let address = start + page * p;
            t.value += 1;
            let pid = t.watch().pid();
            if let Err(why) = poke(pid, address, t.value) {
                return broken(format!("no debugger's write: {why}"));
            }
            t.expect(&[address], memory)?;
        }
    }
    Ok(())
}
