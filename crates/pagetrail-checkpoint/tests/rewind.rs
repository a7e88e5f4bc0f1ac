//! Rewinding: a process put back to an earlier instant goes on from there as if nothing had
//! happened since; what cannot be rewound is refused before it is touched.

#![allow(clippy::print_stdout, reason = "tests print what they did")]

mod common;
#[path = "common/stamps.rs"]
mod stamps;
#[path = "../../pagetrail/tests/support/mod.rs"]
mod support;

use pagetrail::{Held, HeldThread, Hold, IfAbandoned, Memory, PageRange};
use pagetrail_checkpoint::storage::InMemory;
use pagetrail_checkpoint::{
    Image, Manifest, ProcessCheckpointer, ProcessOptions, Store, Writer, WriterOptions,
};
use std::sync::Arc;
use std::time::Duration;
use support::{Victim, random, times};

fn in_memory() -> (Store, Writer) {
    let store = Store::create_on(Arc::new(InMemory::new())).unwrap();
    let writer = store.writer(WriterOptions::default()).unwrap();
    (store, writer)
}

/// Compares an image with the memory of a process that stands still.
fn assert_is(image: &mut Image, memory: &Memory) {
    for mapping in image.manifest().mappings.clone() {
        if !mapping.saved || mapping.range.bytes() > 1 << 26 {
            continue;
        }
        let mut now = vec![0; mapping.range.bytes() as usize];
        memory.read(&[mapping.range], &mut now).unwrap();
        let mut then = vec![0; now.len()];
        image.read(mapping.range, &mut then).unwrap();
        assert!(now == then, "{mapping:?}");
    }
}

/// Takes a checkpoint of a process that stands still by a signal, and an oracle copy of its memory
/// with it.
fn at_rest(victim: &Victim, process: &mut ProcessCheckpointer, writer: &mut Writer) -> Manifest {
    victim.signal(rustix::process::Signal::STOP);
    while support::state(victim.pid()) != 'T' {
        std::thread::yield_now();
    }
    let manifest = process.checkpoint(writer).unwrap();
    let mut image = writer.store().image(manifest.number).unwrap();
    assert_is(&mut image, &Memory::of(victim.pid()).unwrap());
    manifest
}

#[test]
fn a_chain_goes_on_after_a_rewind() {
    let Some(victim) = stamps::start(3, 256, 300) else {
        return;
    };
    let (store, mut writer) = in_memory();
    let options = ProcessOptions::default();
    let mut process = ProcessCheckpointer::attach(victim.pid(), options).unwrap();
    let memory = Memory::of(victim.pid()).unwrap();
    let mut pages = 0;
    for _ in 0..times(10, 200) {
        // A -> B -> rewind to A -> writes -> C, each compared with the memory of the process.
        let a = at_rest(&victim, &mut process, &mut writer);
        victim.signal(rustix::process::Signal::CONT);
        std::thread::sleep(Duration::from_millis(40));
        let b = at_rest(&victim, &mut process, &mut writer);
        let mut image = store.image(a.number).unwrap();
        let rewound = image.rewind(victim.pid()).unwrap();
        pages += rewound.pages;
        // Stopped by the signal still: memory is what it was.
        assert_is(&mut image, &memory);
        victim.signal(rustix::process::Signal::CONT);
        std::thread::sleep(Duration::from_millis(40));
        let c = at_rest(&victim, &mut process, &mut writer);
        victim.signal(rustix::process::Signal::CONT);
        assert!(a.number < b.number && b.number < c.number);
        stamps::check(&mut store.image(b.number).unwrap());
    }
    // On a busy machine it may not run at all between two checkpoints, but not so each time.
    assert!(pages > 0, "no rewind had anything to do");
    assert!(store.verify().unwrap().is_sound());
    drop(process);
    victim.is_clean(true);
    victim.finish();
}

#[test]
fn a_process_goes_on_from_any_instant() {
    let Some(mut victim) = stamps::start(4, 256, 100) else {
        return;
    };
    let mut random = random("rewind");
    let (store, mut writer) = in_memory();
    let options = ProcessOptions::default();
    let mut process = ProcessCheckpointer::attach(victim.pid(), options).unwrap();
    for _ in 0..times(100, 1000) {
        let manifest = process.checkpoint(&mut writer).unwrap();
        let numbers = store.numbers().unwrap();
        let number = numbers[random.usize(0..numbers.len())];
        let mut image = store.image(number).unwrap();
        let progress = stamps::check(&mut image);
        image.rewind(victim.pid()).unwrap();
        let now = process.checkpoint(&mut writer).unwrap();
        let after = stamps::check(&mut store.image(now.number).unwrap());
        assert!(progress.iter().zip(&after).all(|(then, now)| then <= now));
        assert!(victim.is_running(), "after {} to {number}", manifest.number);
        std::thread::sleep(Duration::from_micros(random.u64(0..5000)));
        writer.prune(5).unwrap();
    }
    drop(process);
    victim.is_clean(true);
    victim.finish();
}

#[test]
fn what_cannot_be_rewound_is_refused_and_untouched() {
    let Some(victim) = Victim::start("threads", &[]) else {
        return;
    };
    let (store, mut writer) = in_memory();
    let options = ProcessOptions::default();
    let mut process = ProcessCheckpointer::attach(victim.pid(), options).unwrap();
    let manifest = process.checkpoint(&mut writer).unwrap();
    drop(process);
    let mut image = store.image(manifest.number).unwrap();
    // Its threads come and go.
    let mut refusals = 0;
    for _ in 0..20 {
        std::thread::sleep(Duration::from_millis(5));
        match image.rewind(victim.pid()) {
            Err(error) => {
                let text = error.to_string();
                assert!(
                    text.contains("threads") || text.contains("mapping"),
                    "{text}"
                );
                refusals += 1;
            }
            Ok(rewound) => println!("{rewound:?}"),
        }
    }
    assert!(refusals > 3, "{refusals}");
    let error = image.rewind(std::process::id()).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("not the process of this checkpoint")
    );
    Hold::process(victim.pid()).unwrap();
    victim.is_clean(true);
    victim.finish();
}

/// A hold whose target starts a thread when its system calls end.
#[derive(Debug)]
struct Starting {
    hold: Box<dyn Held>,
    threads: Vec<HeldThread>,
}

impl Held for Starting {
    fn pid(&self) -> u32 {
        self.hold.pid()
    }

    fn threads(&self) -> &[HeldThread] {
        &self.threads
    }

    fn check(&self) -> pagetrail::Result<()> {
        self.hold.check()
    }

    fn if_abandoned(&mut self, what: IfAbandoned) -> pagetrail::Result<()> {
        if matches!(what, IfAbandoned::Kill) {
            let mut new = self.threads[0].clone();
            new.tid = u32::MAX;
            self.threads.push(new);
        }
        self.hold.if_abandoned(what)
    }

    fn set_registers(&mut self, threads: &[HeldThread]) -> pagetrail::Result<()> {
        self.hold.set_registers(threads)
    }

    fn release(self: Box<Self>) -> Duration {
        self.hold.release()
    }
}

#[test]
fn a_thread_that_starts_as_calls_end_is_noticed() {
    let Some(victim) = stamps::start(1, 64, 100) else {
        return;
    };
    let (store, mut writer) = in_memory();
    let options = ProcessOptions::default();
    let mut process = ProcessCheckpointer::attach(victim.pid(), options).unwrap();
    let manifest = process.checkpoint(&mut writer).unwrap();
    drop(process);
    let mut image = store.image(manifest.number).unwrap();
    let rewound = image.rewind_held(victim.pid(), false, || {
        let hold: Box<dyn Held> = Box::new(Hold::process(victim.pid())?);
        let threads = hold.threads().to_vec();
        Ok(Box::new(Starting { hold, threads }))
    });
    let error = rewound.unwrap_err().to_string();
    assert!(error.contains("and 1 are new"), "{error}");
    victim.is_clean(true);
    victim.finish();
}

/// What the pages of `tests/victims/shrouded.c` say, and those that cannot be read.
fn said(memory: &Memory, at: u64) -> (Vec<u8>, Vec<u64>) {
    let page = pagetrail::page_size();
    let range = PageRange::new(at, at + 4 * page).unwrap();
    let mut bytes = vec![0; range.bytes() as usize];
    let missing = memory.read(&[range], &mut bytes).unwrap();
    let firsts = bytes.chunks_exact(page as usize).map(|page| page[0]);
    let missing = (0..4).filter(|n| missing.contains(at + n * page));
    (firsts.collect(), missing.collect())
}

/// Waits until the pages say something, and some cannot be read.
fn wait_for(memory: &Memory, at: u64, expected: (&[u8], &[u64])) {
    let deadline = std::time::Instant::now() + Duration::from_secs(60);
    loop {
        let (said, missing) = said(memory, at);
        if (&said[..], &missing[..]) == expected {
            return;
        }
        assert!(std::time::Instant::now() < deadline, "{said:?} {missing:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Starts it; gives where its pages are.
fn shrouded(arguments: &[&str]) -> Option<(Victim, u64)> {
    let victim = Victim::start("shrouded", arguments)?;
    let at = u64::from_str_radix(&victim.said[0], 16).unwrap();
    Some((victim, at))
}

#[test]
fn a_page_that_has_become_a_guard_page_is_refused() {
    let Some((victim, at)) = shrouded(&["600"]) else {
        return;
    };
    let (store, mut writer) = in_memory();
    let options = ProcessOptions::default();
    let mut process = ProcessCheckpointer::attach(victim.pid(), options).unwrap();
    let before = process.checkpoint(&mut writer).unwrap();
    let memory = Memory::of(victim.pid()).unwrap();
    victim.signal(rustix::process::Signal::USR1);
    wait_for(&memory, at, (&[9, 2, 0, 4], &[2]));
    let after = process.checkpoint(&mut writer).unwrap();
    drop(process);
    let error = store.image(before.number).unwrap().rewind(victim.pid());
    let error = error.unwrap_err().to_string();
    let page = format!(
        "page at {:#x} cannot be read",
        at + 2 * pagetrail::page_size()
    );
    assert!(error.contains(&page), "{error}");
    assert_eq!(said(&memory, at), (vec![9, 2, 0, 4], vec![2]));
    // It could not be read at that instant either.
    store
        .image(after.number)
        .unwrap()
        .rewind(victim.pid())
        .unwrap();
    assert_eq!(said(&memory, at), (vec![9, 2, 0, 4], vec![2]));
    victim.is_clean(true);
    victim.finish();
}

#[test]
fn a_file_that_has_become_shorter_is_refused() {
    let page = pagetrail::page_size();
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(4 * page).unwrap();
    let path = file.path().to_str().unwrap();
    let Some((victim, at)) = shrouded(&["600", path]) else {
        return;
    };
    let (store, mut writer) = in_memory();
    let options = ProcessOptions::default();
    let mut process = ProcessCheckpointer::attach(victim.pid(), options).unwrap();
    let manifest = process.checkpoint(&mut writer).unwrap();
    drop(process);
    let memory = Memory::of(victim.pid()).unwrap();
    victim.signal(rustix::process::Signal::USR1);
    wait_for(&memory, at, (&[9, 2, 3, 4], &[]));
    file.as_file().set_len(2 * page).unwrap();
    let mut image = store.image(manifest.number).unwrap();
    let error = image.rewind(victim.pid()).unwrap_err().to_string();
    let lost = format!("page at {:#x} cannot be read", at + 2 * page);
    assert!(error.contains(&lost), "{error}");
    assert_eq!(said(&memory, at), (vec![9, 2, 0, 0], vec![2, 3]));
    // Once it is as long again, it can be.
    file.as_file().set_len(4 * page).unwrap();
    image.rewind(victim.pid()).unwrap();
    assert_eq!(said(&memory, at), (vec![1, 2, 3, 4], vec![]));
    victim.is_clean(true);
    victim.finish();
}
