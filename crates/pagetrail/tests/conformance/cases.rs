//! The cases: each arranges memory, has it written, and says which pages must be in the round.

use crate::actor::{Actor, puppet_command};
use crate::subject::Subject;
use pagetrail::{
    Error, Event, HugePages, PageRange, PageSet, State, Target, Technique, Watch, page_size,
};
use std::cell::RefCell;
use std::fmt;
use std::time::Duration;

/// A case by name.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) run: fn(&mut Trial<'_>) -> Outcome,
}

pub(crate) type Outcome = Result<(), Stop>;

/// Why a case ended early.
pub(crate) enum Stop {
    /// It makes no sense for this technique or subject, or the machine lacks what it needs.
    NotApplicable(String),
    /// A promise was broken.
    Broken(String),
    /// The library gave an error.
    Watch(Error),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Watch(error)
    }
}

impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotApplicable(why) => write!(f, "not applicable: {why}"),
            Self::Broken(what) => write!(f, "broken: {what}"),
            Self::Watch(error) => write!(f, "error: {error}"),
        }
    }
}

fn not_applicable<T>(why: impl Into<String>) -> Result<T, Stop> {
    Err(Stop::NotApplicable(why.into()))
}

fn broken<T>(what: impl Into<String>) -> Result<T, Stop> {
    Err(Stop::Broken(what.into()))
}

/// Every case.
pub(crate) const CASES: &[Case] = &[
    Case {
        name: "anonymous memory",
        run: |t| kind(t, "anon"),
    },
    Case {
        name: "shared anonymous memory",
        run: |t| kind(t, "shared-anon"),
    },
    Case {
        name: "memfd, shared",
        run: |t| kind(t, "memfd"),
    },
    Case {
        name: "memfd, private",
        run: |t| kind(t, "memfd-private"),
    },
    Case {
        name: "file, private",
        run: |t| kind(t, "file-private"),
    },
    Case {
        name: "file, shared",
        run: |t| kind(t, "file-shared"),
    },
    Case {
        name: "transparent huge pages",
        run: huge,
    },
    Case {
        name: "huge pages kept whole",
        run: huge_kept,
    },
    Case {
        name: "hugetlb",
        run: hugetlb,
    },
    Case {
        name: "first touch of sparse memory",
        run: sparse,
    },
    Case {
        name: "again in every round",
        run: again,
    },
    Case {
        name: "a round not committed",
        run: transaction,
    },
    Case {
        name: "a thousand scattered pages",
        run: scattered,
    },
    Case {
        name: "written by the kernel",
        run: kernel_write,
    },
    Case {
        name: "written by many threads",
        run: threads,
    },
    Case {
        name: "discarded, then written",
        run: discarded,
    },
    Case {
        name: "shared, written, then discarded",
        run: shared_discarded,
    },
    Case {
        name: "paged out",
        run: paged_out,
    },
    Case {
        name: "protected, then written",
        run: protected,
    },
    Case {
        name: "fork",
        run: fork,
    },
    Case {
        name: "a mapping replaced",
        run: replaced,
    },
    Case {
        name: "a mapping replaced beside others",
        run: replaced_beside,
    },
    Case {
        name: "untouched memory replaced",
        run: untouched_replaced,
    },
    Case {
        name: "taken away, then given back",
        run: given_back,
    },
    Case {
        name: "made inaccessible, then zeroed",
        run: inaccessible,
    },
    Case {
        name: "a mapping made",
        run: made,
    },
    Case {
        name: "a mapping unmapped",
        run: unmapped,
    },
    Case {
        name: "a mapping moved",
        run: moved,
    },
    Case {
        name: "the heap grown",
        run: heap,
    },
    Case {
        name: "the stack grown",
        run: stack,
    },
    Case {
        name: "exec",
        run: exec,
    },
    Case {
        name: "exit",
        run: exit,
    },
];

/// One run of one case.
pub(crate) struct Trial<'a> {
    technique: Technique,
    subject: &'a Subject,
    actor: Actor,
    watch: Option<Watch>,
    huge_pages: HugePages,
    value: u64,
    /// Pages of the memory under test that rounds reported, and that were written: over-reporting.
    pub(crate) reported: u64,
    pub(crate) written: u64,
}

impl<'a> Trial<'a> {
    pub(crate) fn new(technique: Technique, subject: &'a Subject) -> Self {
        let actor = subject.actor();
        Self {
            technique,
            subject,
            actor,
            watch: None,
            huge_pages: HugePages::Split,
            value: 1,
            reported: 0,
            written: 0,
        }
    }

    /// Makes memory; a program that the watch starts is started now.
    fn map(&mut self, kind: &str, pages: u64) -> Result<u64, Stop> {
        if matches!(self.actor, Actor::Later) {
            let (command, pipes) = puppet_command();
            self.watch = Some(self.builder().target(Target::command(command)).start()?);
            self.actor = Actor::Puppet(RefCell::new(pipes));
        }
        match self.actor.try_act(&format!("map {kind} {pages}")) {
            Ok(address) => Ok(address),
            Err(why) => {
                not_applicable(format!("this machine refuses memory of kind {kind}: {why}"))
            }
        }
    }

    fn builder(&self) -> pagetrail::WatchBuilder {
        Watch::builder()
            .technique(self.technique)
            .huge_pages(self.huge_pages)
            .stopped_world(true)
    }

    /// Starts watching, unless it was started with the program, and ends the round of the preparations.
    fn begin(&mut self, memory: &[PageRange]) -> Outcome {
        if self.watch.is_none() {
            let target = self.subject.target(&self.actor, memory)?;
            self.watch = Some(self.builder().target(target).start()?);
        }
        self.collect().map(drop)
    }

    fn watch(&mut self) -> &mut Watch {
        self.watch.as_mut().expect("begun")
    }

    /// A fresh value, so that no write leaves a page as it was.
    fn write(&mut self, address: u64) {
        self.value += 1;
        self.actor.act(&format!("write {address} {}", self.value));
    }

    /// Ends the round and returns its pages.
    fn collect(&mut self) -> Result<PageSet, Stop> {
        let round = self.watch().collect()?;
        let pages = round.pages().clone();
        round.commit();
        Ok(pages)
    }

    /// Ends the round, in which exactly the pages at `written` were written, out of `memory`.
    fn expect(&mut self, written: &[u64], memory: PageRange) -> Outcome {
        let pages = self.collect()?;
        if let Some(missed) = written.iter().find(|address| !pages.contains(**address)) {
            return broken(format!(
                "the write to {missed:#x} in {memory} is not in its round"
            ));
        }
        self.reported += pages.intersection(&PageSet::from_iter([memory])).pages();
        self.written += written.len() as u64;
        Ok(())
    }

    /// What the technique cannot do by its documentation.
    fn needs_free_mappings(&self) -> Outcome {
        match self.technique {
            Technique::Mprotect => {
                not_applicable("mprotect wants mappings and access rights left alone")
            }
            _ => Ok(()),
        }
    }

    fn needs_whole(&self) -> Outcome {
        if self.subject.whole {
            Ok(())
        } else {
            not_applicable("given ranges only")
        }
    }
}

fn pages(start: u64, count: u64) -> PageRange {
    PageRange::new(start, start + count * page_size()).expect("not empty")
}

fn kind(t: &mut Trial<'_>, kind: &str) -> Outcome {
    let p = page_size();
    let start = t.map(kind, 64)?;
    let memory = pages(start, 64);
    t.actor.act(&format!("fill {start} 32 1"));
    t.begin(&[memory])?;
    t.expect(&[], memory)?;
    // Populated, and the untouched half.
    let written = [0, 1, 2, 17, 31, 32, 40, 63].map(|i| start + i * p);
    for address in written {
        t.write(address);
    }
    t.expect(&written, memory)?;
    t.expect(&[], memory)?;
    t.write(start + 5 * p);
    t.expect(&[start + 5 * p], memory)
}

fn huge(t: &mut Trial<'_>) -> Outcome {
    let count = 2048; // 8 MiB hold three aligned huge pages at least.
    let start = t.map("huge", count)?;
    t.actor.act(&format!("fill {start} {count} 1"));
    let memory = pages(start, count);
    t.begin(&[memory])?;
    let written = [600, 601, 1300].map(|i| start + i * page_size());
    for _ in 0..3 {
        for address in written {
            t.write(address);
        }
        t.expect(&written, memory)?;
    }
    Ok(())
}

fn huge_kept(t: &mut Trial<'_>) -> Outcome {
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
        for address in written {
            t.write(address);
        }
        t.expect(&written, pages(beside, 16))?;
    }
    Ok(())
}

fn hugetlb(t: &mut Trial<'_>) -> Outcome {
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
        for address in written {
            t.write(address);
        }
        t.expect(&written, memory)?;
    }
    Ok(())
}

fn sparse(t: &mut Trial<'_>) -> Outcome {
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
        for address in &written {
            t.write(*address);
        }
        t.expect(&written, memory)?;
    }
    Ok(())
}

fn again(t: &mut Trial<'_>) -> Outcome {
    let start = t.map("anon", 8)?;
    let memory = pages(start, 8);
    t.begin(&[memory])?;
    for _ in 0..10 {
        let written = [start, start + 4 * page_size()];
        for address in written {
            t.write(address);
        }
        t.expect(&written, memory)?;
    }
    Ok(())
}

fn transaction(t: &mut Trial<'_>) -> Outcome {
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

fn scattered(t: &mut Trial<'_>) -> Outcome {
    let count = 16_384;
    let start = t.map("anon", count)?;
    t.actor.act(&format!("fill {start} {count} 1"));
    let memory = pages(start, count);
    t.begin(&[memory])?;
    let mut random = fastrand::Rng::with_seed(7);
    let mut written: Vec<u64> = (0..1000)
        .map(|_| start + random.u64(..count) * page_size())
        .collect();
    for address in &written {
        t.write(*address);
    }
    written.sort_unstable();
    written.dedup();
    t.expect(&written, memory)
}

fn kernel_write(t: &mut Trial<'_>) -> Outcome {
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

fn threads(t: &mut Trial<'_>) -> Outcome {
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

fn discarded(t: &mut Trial<'_>) -> Outcome {
    let p = page_size();
    let start = t.map("anon", 32)?;
    t.actor.act(&format!("fill {start} 32 1"));
    let memory = pages(start, 32);
    t.begin(&[memory])?;
    t.actor.act(&format!("advise {start} 16 dontneed"));
    t.collect()?;
    let written = [start + p, start + 20 * p];
    for address in written {
        t.write(address);
    }
    t.expect(&written, memory)?;
    t.actor.act(&format!("advise {start} 32 dontneed"));
    t.write(start + 9 * p);
    t.expect(&[start + 9 * p], memory)
}

/// What is written to shared memory stays written when the page leaves the page table, whole tables included.
fn shared_discarded(t: &mut Trial<'_>) -> Outcome {
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

fn paged_out(t: &mut Trial<'_>) -> Outcome {
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
    for address in written {
        t.write(address);
    }
    t.actor.act(&format!("advise {start} 64 pageout"));
    t.expect(&written, memory)?;
    t.actor.act(&format!("advise {start} 64 pageout"));
    t.expect(&[], memory)?;
    t.write(start + 5 * p);
    t.expect(&[start + 5 * p], memory)
}

fn protected(t: &mut Trial<'_>) -> Outcome {
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

fn fork(t: &mut Trial<'_>) -> Outcome {
    if t.subject.own {
        return not_applicable("a test process with threads does not fork itself");
    }
    let p = page_size();
    let start = t.map("anon", 16)?;
    let memory = pages(start, 16);
    t.actor.act(&format!("fill {start} 16 1"));
    t.begin(&[memory])?;
    t.value += 1;
    t.actor
        .act(&format!("fork-write {} {}", start + p, t.value));
    t.write(start + 3 * p);
    t.expect(&[start + 3 * p], memory)?;
    if t.actor.act(&format!("read {}", start + p)) != 1 {
        return broken("the child wrote to our memory");
    }
    t.write(start + p);
    t.expect(&[start + p], memory)
}

fn replaced(t: &mut Trial<'_>) -> Outcome {
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

/// A harvest that stumbles over the replaced mapping must not lose what it had before.
fn replaced_beside(t: &mut Trial<'_>) -> Outcome {
    t.needs_free_mappings()?;
    let p = page_size();
    let start = t.map("anon", 3000)?;
    let memory = pages(start, 3000);
    t.actor.act(&format!("fill {start} 3000 1"));
    t.begin(&[memory])?;
    for round in 0..3 {
        let mut written: Vec<u64> = (0..1400).map(|i| start + 2 * i * p).collect();
        written.retain(|address| !(1000..1016).contains(&((address - start) / p)));
        for address in &written {
            t.write(*address);
        }
        let at = start + 1000 * p;
        t.actor.act(&format!("map-at anon 16 {at}"));
        t.write(at + round * p);
        written.push(at + round * p);
        t.expect(&written, memory)?;
    }
    Ok(())
}

/// No page of the old mapping tells that it is gone.
fn untouched_replaced(t: &mut Trial<'_>) -> Outcome {
    t.needs_free_mappings()?;
    for new in ["memfd", "anon", "file-shared"] {
        // Page tables of their own, so that none of them is there before.
        let start = t.map("anon", 2048)?;
        if !t.subject.whole {
            t.watch = None;
        }
        t.begin(&[pages(start, 2048)])?;
        let there = start + 1000 * page_size();
        t.actor.act(&format!("map-at {new} 16 {there}"));
        for page in [3, 3, 7] {
            t.write(there + page * page_size());
            t.expect(&[there + page * page_size()], pages(there, 16))?;
        }
    }
    Ok(())
}

/// As allocators do that return memory to the system and keep the addresses.
fn given_back(t: &mut Trial<'_>) -> Outcome {
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

fn inaccessible(t: &mut Trial<'_>) -> Outcome {
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

fn made(t: &mut Trial<'_>) -> Outcome {
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

fn unmapped(t: &mut Trial<'_>) -> Outcome {
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

fn moved(t: &mut Trial<'_>) -> Outcome {
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

fn heap(t: &mut Trial<'_>) -> Outcome {
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

fn stack(t: &mut Trial<'_>) -> Outcome {
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

fn exec(t: &mut Trial<'_>) -> Outcome {
    if t.subject.own {
        return not_applicable("this process stays what it is");
    }
    let first = t.map("anon", 4)?;
    t.begin(&[pages(first, 4)])?;
    t.actor.act("exec");
    // The new image answers when it is there.
    t.actor.act("pid");
    let stack = t.actor.act("deep 10") + page_size();
    let round = t.watch().collect()?;
    let told = round
        .events()
        .iter()
        .any(|event| matches!(event, Event::Exec { .. }));
    let written = round.pages().contains(stack);
    round.commit();
    if !told || !written {
        return broken(format!(
            "exec told: {told}, stack of the new image written: {written}"
        ));
    }
    let start = t.map("anon", 16)?;
    t.collect()?;
    t.write(start + page_size());
    t.expect(&[start + page_size()], pages(start, 16))
}

fn exit(t: &mut Trial<'_>) -> Outcome {
    if t.subject.own {
        return not_applicable("this process goes on");
    }
    let start = t.map("anon", 16)?;
    t.begin(&[pages(start, 16)])?;
    t.write(start + page_size());
    t.actor.tell("exit 7");
    let launched = t.subject.launched && t.technique != Technique::SoftDirty;
    if launched {
        if t.watch().wait(Duration::from_secs(10)) != State::Exiting {
            return broken("the end was not announced");
        }
        t.expect(&[start + page_size()], pages(start, 16))?;
        t.watch().let_go();
    }
    match t.watch().wait(Duration::from_secs(10)) {
        State::Ended(how) if !t.subject.launched || how == Some(pagetrail::Ended::Exited(7)) => {}
        other => return broken(format!("after its end the target is {other:?}")),
    }
    match t.watch().collect() {
        Err(Error::Gone { .. }) => Ok(()),
        other => broken(format!(
            "collect after the end gives {:?}",
            other.map(|round| round.index())
        )),
    }
}
