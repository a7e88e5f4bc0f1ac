//! Checkpoints of living processes: each is of one instant, whatever the process does meanwhile; a
//! failing store changes nothing; and the process does not notice.

#![allow(clippy::print_stdout, reason = "tests print what they did")]

mod common;
#[path = "common/faulty.rs"]
mod faulty;
#[path = "common/stamps.rs"]
mod stamps;
#[path = "../../pagetrail/tests/support/mod.rs"]
mod support;

use faulty::{Fault, Faulty};
use pagetrail::Technique::{Compare, PagemapScan, SoftDirty, Userfaultfd};
use pagetrail::{Choice, Memory, PageRange, PageSet, Region, Technique};
use pagetrail_checkpoint::storage::InMemory;
use pagetrail_checkpoint::{
    Error, Image, Mode, ProcessCheckpointer, ProcessOptions, Store, Writer, WriterOptions,
};
use std::sync::Arc;
use std::time::{Duration, Instant};
use support::{Victim, random, row, times, working};

fn options(mode: Mode, technique: Technique) -> ProcessOptions {
    ProcessOptions {
        mode,
        technique: Choice::Technique(technique),
        ..ProcessOptions::default()
    }
}

fn in_memory() -> (Store, Writer) {
    let store = Store::create_on(Arc::new(InMemory::new())).unwrap();
    let writer = store.writer(WriterOptions::default()).unwrap();
    (store, writer)
}

#[test]
fn a_thread_that_has_not_begun_has_done_no_step() {
    const PAGES: u64 = 512;
    let (_, store, mut writer) = common::store(WriterOptions::default());
    let (first, header) = stamps::header(PAGES);
    let mut model = common::Model::default();
    model.map(first, first + 3 + PAGES);
    // Where the churning thread maps its memory.
    model.map(
        0x2000_0000_0000 / common::PAGE,
        0x2000_0000_0000 / common::PAGE + 64,
    );
    model.write(first, header);
    let number = model.checkpoint(&mut writer).unwrap().number;
    assert_eq!(stamps::check(&mut store.image(number).unwrap()), [0]);
    // One page is stamped, and no process knows.
    let mut stamped = vec![0; common::PAGE as usize];
    stamped[0] = 1;
    model.write(first + 3, stamped);
    let number = model.checkpoint(&mut writer).unwrap().number;
    let done = stamps::check(&mut store.image(number).unwrap());
    assert_eq!(done, [PAGES + 1]);
}

/// Registers of a thread take some KiB, most of them zeros, and the manifest is compressed.
#[test]
fn manifests_of_many_threads_are_small() {
    const THREADS: u32 = 64;
    let Some(victim) = stamps::start(THREADS, 256, 1000) else {
        return;
    };
    let (store, mut writer) = in_memory();
    let mut process = ProcessCheckpointer::attach(victim.pid(), ProcessOptions::default()).unwrap();
    let manifest = process.checkpoint(&mut writer).unwrap();
    let image = store.image(manifest.number).unwrap();
    let threads = &image.manifest().process.as_ref().unwrap().threads;
    assert!(threads.len() as u32 >= THREADS, "{} threads", threads.len());
    let registers = threads.iter().flat_map(|thread| &thread.held.registers);
    let bytes: usize = registers.map(|set| set.bytes.len()).sum();
    assert!(bytes > threads.len() * 512, "{bytes} bytes of registers");
    let limit = 512 * threads.len() as u64 + (16 << 10);
    assert!(
        manifest.manifest_bytes < limit,
        "{} bytes for {} threads",
        manifest.manifest_bytes,
        threads.len()
    );
    drop(process);
    victim.finish();
}

/// Checkpoints a victim at random moments and checks every image whole.
fn all_of_one_instant(threads: u32, pages: u32, pause_us: u32, count: u32) {
    let subject = format!("checkpoints of {threads} threads");
    for technique in working(&subject, &[PagemapScan, Userfaultfd, SoftDirty, Compare]) {
        for mode in [Mode::Precopy, Mode::Stop, Mode::Cow] {
            if mode == Mode::Cow && technique != PagemapScan {
                continue;
            }
            let Some(victim) = stamps::start(threads, pages, pause_us) else {
                return;
            };
            let count = match technique {
                PagemapScan => count,
                _ => count / 10,
            };
            let (store, mut writer) = in_memory();
            let mut random = random(&subject);
            let mut options = options(mode, technique);
            // Every other way through the copying as well.
            options.buffer_bytes = [1 << 28, 1 << 16][random.usize(0..2)];
            let mut process = ProcessCheckpointer::attach(victim.pid(), options).unwrap();
            let mut pauses = Vec::new();
            for _ in 0..count {
                std::thread::sleep(Duration::from_micros(random.u64(0..3000)));
                let manifest = match process.checkpoint(&mut writer) {
                    // A busy machine: what this one should have had is in the next.
                    Err(Error::Process(pagetrail::Error::NotStopping { .. })) => continue,
                    outcome => outcome.unwrap(),
                };
                pauses.push(manifest.cost.pause_ns);
                stamps::check(&mut store.image(manifest.number).unwrap());
                if random.u32(0..20) == 0 {
                    drop(writer);
                    writer = store.writer(WriterOptions::default()).unwrap();
                    writer.prune(3).unwrap();
                }
            }
            pauses.sort_unstable();
            println!(
                "{technique} {mode:?}: {count} checkpoints, pause median {} us, at most {} us",
                pauses[pauses.len() / 2] / 1000,
                pauses[pauses.len() - 1] / 1000
            );
            stamps::check_all(&store);
            assert!(store.verify().unwrap().is_sound());
            drop(process);
            victim.is_clean(true);
            victim.finish();
        }
        row(&subject, technique.name(), "works", "");
    }
}

#[test]
fn images_of_a_thread_are_of_one_instant() {
    all_of_one_instant(1, 1024, 300, times(100, 2000));
}

#[test]
fn images_of_many_threads_are_of_one_instant() {
    all_of_one_instant(8, 512, 500, times(50, 1000));
}

#[test]
fn an_image_is_all_that_the_process_has() {
    let seed = random("an image of turmoil").u32(..).to_string();
    for name in ["mapper", "sleeper", "forker", "turmoil"] {
        // A userfaultfd of the program's own would count as one that was left there.
        let Some(victim) = Victim::start(name, &["600", &seed, "plain"]) else {
            return;
        };
        let pid = victim.pid();
        let (store, mut writer) = in_memory();
        let options = ProcessOptions::default();
        let mut process = ProcessCheckpointer::attach(pid, options).unwrap();
        for _ in 0..times(10, 100) {
            // With nothing running in between, the memory itself is the oracle.
            victim.signal(rustix::process::Signal::STOP);
            while support::state(pid) != 'T' {
                std::thread::yield_now();
            }
            let manifest = process.checkpoint(&mut writer).unwrap();
            let mut image = store.image(manifest.number).unwrap();
            let memory = Memory::of(pid).unwrap();
            let mut compared = 0;
            for mapping in &manifest.mappings {
                // Releasing threads that were in a transfer may put code into the vDSO's padding
                // after the instant; the next image has it.
                let special = ["[vvar", "[vsyscall]", "[vdso]"]
                    .iter()
                    .any(|name| mapping.name.starts_with(name));
                if special || mapping.range.bytes() > 1 << 26 {
                    continue;
                }
                let mut is = vec![0; mapping.range.bytes() as usize];
                let missing = memory.read(&[mapping.range], &mut is).unwrap();
                let mut imaged = vec![0; is.len()];
                image.read(mapping.range, &mut imaged).unwrap();
                let known = match mapping.saved {
                    true => PageSet::from_iter([mapping.range]),
                    // The rest is as the file.
                    false => image.pages(),
                };
                for start in (mapping.range.start()..mapping.range.end()).step_by(4096) {
                    let at = (start - mapping.range.start()) as usize;
                    if known.contains(start) && !missing.contains(start) {
                        let same = is[at..at + 4096] == imaged[at..at + 4096];
                        assert!(same, "{name}: {start:#x} in {mapping:?}");
                        compared += 1;
                    }
                }
            }
            assert!(compared > 20, "{compared}");
            victim.signal(rustix::process::Signal::CONT);
            std::thread::sleep(Duration::from_millis(5));
        }
        drop(process);
        // Code that has finished a transfer, of which turmoil makes long ones, stays in padding.
        victim.is_clean(name != "turmoil");
        victim.finish();
    }
}

#[test]
fn an_image_has_shared_memory_that_may_not_be_written_and_nothing_in_a_files_place() {
    const BYTES: u64 = 16 * 4096;
    for mode in [Mode::Precopy, Mode::Stop] {
        let Some(victim) = Victim::start("sharer", &[]) else {
            return;
        };
        let pid = victim.pid();
        let starts = victim.said[0].split_whitespace();
        let pieces = starts.map(|start| {
            let start = u64::from_str_radix(start, 16).unwrap();
            PageRange::new(start, start + BYTES).unwrap()
        });
        let pieces: Vec<PageRange> = pieces.collect();
        let (own, replaced) = (pieces[0], pieces[1]);
        let (store, mut writer) = in_memory();
        let mut process = ProcessCheckpointer::attach(pid, options(mode, PagemapScan)).unwrap();
        let bytes_in = |image: &mut Image, range: PageRange| {
            let mut bytes = vec![0; BYTES as usize];
            image.read(range, &mut bytes).unwrap();
            bytes.dedup();
            bytes
        };
        let first = process.checkpoint(&mut writer).unwrap();
        let mut image = store.image(first.number).unwrap();
        assert_eq!(bytes_in(&mut image, own), [1]);
        assert_eq!(bytes_in(&mut image, replaced), [1]);
        victim.signal(rustix::process::Signal::USR1);
        let deadline = Instant::now() + Duration::from_secs(60);
        let is_turned = || {
            let regions = Region::of_process(pid).unwrap();
            let turned = regions.iter().filter(|region| {
                let ours = region.range.intersection(&replaced).is_some();
                ours && region.permissions.shared
            });
            turned.count() > 0
        };
        while !is_turned() {
            assert!(Instant::now() < deadline, "it does not turn");
            std::thread::sleep(Duration::from_millis(1));
        }
        // Now, and when nothing has changed since.
        for _ in 0..2 {
            let manifest = process.checkpoint(&mut writer).unwrap();
            let mut image = store.image(manifest.number).unwrap();
            assert_eq!(bytes_in(&mut image, own), [2], "{mode:?}");
            assert!(!image.pages().intersects(replaced), "{mode:?}");
            let saved = |range: PageRange| {
                let mapping = manifest
                    .mappings
                    .iter()
                    .find(|m| m.range.contains(range.start()));
                mapping.unwrap().saved
            };
            assert!(saved(own) && !saved(replaced), "{mode:?}");
        }
        drop(process);
        victim.is_clean(true);
        victim.finish();
    }
}

#[test]
fn what_a_failed_checkpoint_should_have_had_is_in_the_next() {
    let Some(victim) = stamps::start(2, 512, 200) else {
        return;
    };
    let mut random = random("failing store");
    for mode in [Mode::Precopy, Mode::Stop] {
        let memory = InMemory::new();
        let mut process =
            ProcessCheckpointer::attach(victim.pid(), options(mode, PagemapScan)).unwrap();
        let mut failed = 0;
        for _ in 0..times(40, 400) {
            let at = random.u64(0..30);
            let faulty = Faulty::new(memory.clone(), at, Fault::Once);
            let Ok(store) = Store::create_on(Arc::new(faulty)) else {
                continue;
            };
            let Ok(mut writer) = store.writer(WriterOptions::default()) else {
                continue;
            };
            for _ in 0..4 {
                match process.checkpoint(&mut writer) {
                    Ok(manifest) => {
                        stamps::check(&mut store.image(manifest.number).unwrap());
                    }
                    Err(_) => failed += 1,
                }
                assert!(store.verify().unwrap().is_sound());
                std::thread::sleep(Duration::from_micros(random.u64(0..2000)));
            }
            writer.prune(4).unwrap_or_default();
        }
        assert!(failed > 5, "{failed}");
        stamps::check_all(&Store::on(Arc::new(memory)).unwrap());
    }
    victim.finish();
}

#[test]
fn a_process_that_replaces_its_program_goes_on_as_a_new_base() {
    let Some(program) = support::victim_program("execer") else {
        return;
    };
    // Each of its programs lives for some milliseconds; on a busy machine few checkpoints fit into
    // one.
    let mut bases = 0;
    for _ in 0..20 {
        bases = bases_of_replaced_programs(&program);
        println!("{bases} programs");
        if bases > 1 {
            break;
        }
    }
    assert!(bases > 1);
}

/// Takes checkpoints of a process that replaces its program a hundred times, and says how many were
/// bases.
fn bases_of_replaced_programs(program: &std::path::Path) -> u32 {
    // It exits with the number of its programs.
    let mut child = std::process::Command::new(program)
        .args(["60", "main", "100"])
        .spawn()
        .unwrap();
    let (store, mut writer) = in_memory();
    std::thread::sleep(Duration::from_millis(20));
    let mut process = match ProcessCheckpointer::attach(child.id(), ProcessOptions::default()) {
        Ok(process) => process,
        Err(error) => {
            // We have slept for longer than all of them.
            std::thread::sleep(Duration::from_millis(500));
            assert!(child.try_wait().unwrap().is_some(), "{error}");
            return 0;
        }
    };
    let mut bases = 0;
    let deadline = Instant::now() + Duration::from_secs(180);
    while child.try_wait().unwrap().is_none() {
        assert!(Instant::now() < deadline, "it hangs");
        match process.checkpoint(&mut writer) {
            Ok(manifest) => bases += u32::from(manifest.parent.is_none()),
            // In the middle of one, or at its end.
            Err(pagetrail_checkpoint::Error::Process(_)) => {}
            // Each attempt met another program, as a busy machine makes likely.
            Err(error) if error.to_string().contains("again and again") => {}
            Err(error) => panic!("{error}"),
        }
    }
    assert!(store.verify().unwrap().is_sound());
    assert_eq!(child.wait().unwrap().code(), Some(100));
    bases
}

#[test]
fn registers_mappings_and_names_are_recorded() {
    let Some(victim) = stamps::start(3, 64, 1000) else {
        return;
    };
    let (_, mut writer) = in_memory();
    let mut process = ProcessCheckpointer::attach(victim.pid(), ProcessOptions::default()).unwrap();
    let manifest = process.checkpoint(&mut writer).unwrap();
    let described = manifest.process.unwrap();
    assert_eq!(described.pid, victim.pid());
    assert!(described.executable.ends_with("/stamps") && described.command.len() == 5);
    assert_eq!(described.threads.len(), 4);
    assert_eq!(described.threads[0].name, "stamps");
    assert!(described.auxv.len() > 100 && described.descriptors.len() >= 3);
    for thread in &described.threads {
        let registers = &thread.held.registers[0].bytes;
        let register =
            |at: usize| u64::from_le_bytes(registers[8 * at..8 * at + 8].try_into().unwrap());
        // `struct user_regs_struct`: rip is the 17th, rsp the 20th.
        let mapped = |at: u64| manifest.mappings.iter().find(|m| m.range.contains(at));
        assert!(mapped(register(16)).is_some_and(|m| m.permissions.execute));
        assert!(mapped(register(19)).is_some_and(|m| m.saved));
    }
    let libc = manifest
        .mappings
        .iter()
        .find(|m| m.name.contains("libc.so"));
    assert!(libc.is_some_and(|mapping| mapping.build_id.len() >= 16 && !mapping.saved));
    let second = process.checkpoint(&mut writer).unwrap();
    assert!(second.parent.is_some_and(|parent| parent.id == manifest.id));
    assert!(second.cost.stored_pages < manifest.cost.stored_pages);
    victim.finish();
}
