//! Rewinding: a process put back to an earlier instant goes on from there as if nothing had
//! happened since; what cannot be rewound is refused before it is touched.

#![allow(clippy::print_stdout, reason = "tests print what they did")]

mod common;
#[path = "common/stamps.rs"]
mod stamps;
#[path = "../../pagetrail/tests/support/mod.rs"]
mod support;

use pagetrail::{Held, HeldThread, Hold, IfAbandoned, Memory};
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
