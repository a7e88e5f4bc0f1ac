//! Pages that are kept while the target writes to them are those of the instant, byte by byte, and
//! what was written meanwhile is in the next round.

#![cfg(target_arch = "x86_64")]
#![allow(clippy::print_stdout, reason = "tests print what they did")]

mod support;

use pagetrail::Technique::PagemapScan;
use pagetrail::{
    Choice, DirtySource, Held, Memory, PageRange, PageSet, Region, Target, Watch, page_size,
};
use rustix::fd::OwnedFd;
use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};
use std::sync::{PoisonError, RwLock, RwLockReadGuard};
use std::time::{Duration, Instant};
use support::{Victim, random, row, times, working};

/// Where `stamps` has its pages, and how many there are at least.
const BASE: u64 = 0x1000_0000_0000;
const THREADS: u64 = 4;
const PAGES: u64 = 1024;

fn watch(pid: u32) -> Watch {
    let target = Target::process(pid).unwrap();
    let builder = Watch::builder().target(target);
    let builder = builder.technique(Choice::Technique(PagemapScan));
    builder.start().unwrap()
}

fn collect_held(watch: &mut Watch, held: &dyn Held) -> PageSet {
    let round = DirtySource::collect_held(watch, held).unwrap();
    let dirty = round.dirty().clone();
    round.commit();
    dirty
}

#[test]
fn pages_are_those_of_the_instant() {
    let _beside = beside_others();
    let subject = "freeze";
    if working(subject, &[PagemapScan]).is_empty() {
        return;
    }
    let arguments = [600, THREADS, PAGES, 50].map(|n| n.to_string());
    let Some(victim) = Victim::start("stamps", &arguments.each_ref().map(String::as_str)) else {
        return;
    };
    let mut random = random(subject);
    let memory = Memory::of(victim.pid()).unwrap();
    let mut watch = watch(victim.pid());
    let all = PageRange::new(BASE, BASE + (1 + THREADS * (PAGES + 2)) * page_size()).unwrap();
    let (mut differed, mut count) = (0, 0);
    for _ in 0..times(25, 1000) {
        std::thread::sleep(Duration::from_micros(random.u64(0..5000)));
        watch.prepare_freeze().unwrap();
        let held = watch.hold().unwrap();
        collect_held(&mut watch, &*held);
        let mut frozen = watch.freeze(&*held, &PageSet::from(all)).unwrap();
        // Some threads have their control block in the same mapping, and its pages are not kept.
        assert!(frozen.pages().page_count() + 2 * THREADS + 64 > all.page_count());
        let mut expected = vec![0; frozen.pages().bytes() as usize];
        let missing = memory.read(frozen.pages().ranges(), &mut expected).unwrap();
        assert!(missing.is_empty());
        held.release();
        let mut read = vec![0; expected.len()];
        let mut rest = &mut read[..];
        for range in frozen.pages().ranges() {
            for start in (range.start()..range.end()).step_by(64 * page_size() as usize) {
                let end = range.end().min(start + 64 * page_size());
                let part = PageRange::new(start, end).unwrap();
                let (buffer, after) = rest.split_at_mut(part.bytes() as usize);
                rest = after;
                std::thread::sleep(Duration::from_micros(random.u64(0..200)));
                assert!(frozen.read(&[part], buffer).unwrap());
            }
        }
        assert!(read == expected, "a page is not as it was");
        // What has been written since is in the next round.
        let kept = frozen.pages().clone();
        let held = watch.hold().unwrap();
        frozen.thaw(&*held).unwrap();
        let dirty = collect_held(&mut watch, &*held);
        let mut now = vec![0; expected.len()];
        memory.read(kept.ranges(), &mut now).unwrap();
        held.release();
        let pages = kept.iter_units(page_size());
        let size = page_size() as usize;
        for ((page, now), before) in pages.zip(now.chunks(size)).zip(expected.chunks(size)) {
            if now != before {
                assert!(
                    dirty.contains(page),
                    "{page:#x} was written, and is in no round"
                );
                differed += 1;
            }
        }
        count += kept.page_count();
    }
    println!("{count} pages kept, {differed} of them written meanwhile");
    assert!(differed > 40, "{differed}");
    drop(watch);
    victim.is_clean(true);
    victim.finish();
    row(subject, PagemapScan.name(), "works", "");
}

#[test]
fn a_freeze_that_is_dropped_lets_the_target_write() {
    let _beside = beside_others();
    if working("freeze", &[PagemapScan]).is_empty() {
        return;
    }
    let Some(victim) = Victim::start("stamps", &["600", "4", "1024", "50"]) else {
        return;
    };
    let mut watch = watch(victim.pid());
    let all = PageRange::new(BASE, BASE + PAGES * page_size()).unwrap();
    for _ in 0..times(10, 200) {
        watch.prepare_freeze().unwrap();
        let held = watch.hold().unwrap();
        collect_held(&mut watch, &*held);
        let frozen = watch.freeze(&*held, &PageSet::from(all)).unwrap();
        held.release();
        std::thread::sleep(Duration::from_millis(1));
        drop(frozen);
        let round = watch.collect().unwrap();
        assert!(round.remapped().covers(all), "it is reported as replaced");
        round.commit();
    }
    drop(watch);
    victim.is_clean(true);
    victim.finish();
}

/// Waits until each thread of a victim `holes` has made a step.
fn all_go_on(victim: &Victim, threads: u64) {
    let memory = Memory::of(victim.pid()).unwrap();
    let firsts = (0..threads).map(|thread| {
        let page = thread * PAGES + 16 * u64::from(thread > 0);
        PageRange::new(BASE + page * page_size(), BASE + (page + 1) * page_size()).unwrap()
    });
    let firsts: Vec<_> = firsts.collect();
    let steps = || {
        let mut bytes = vec![0; firsts.len() * page_size() as usize];
        memory.read(&firsts, &mut bytes).unwrap();
        let pages = bytes.chunks(page_size() as usize);
        let word = |page: &[u8]| u64::from_le_bytes(page[..8].try_into().unwrap());
        pages.map(word).collect::<Vec<_>>()
    };
    let (before, deadline) = (steps(), Instant::now() + Duration::from_secs(60));
    while steps()
        .iter()
        .zip(&before)
        .any(|(now, before)| now < &(before + 2))
    {
        assert!(Instant::now() < deadline, "a thread waits for good");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The mappings of a victim `holes` at its addresses.
fn mappings(victim: &Victim) -> Vec<Region> {
    let mut regions = Region::of_process(victim.pid()).unwrap();
    regions.retain(|region| region.range.start() >> 40 == BASE >> 40);
    regions
}

/// Has the victim change its mapping, and waits until all of the change is done.
fn change(victim: &Victim, is_done: impl Fn(&[Region]) -> bool) {
    victim.signal(rustix::process::Signal::USR1);
    let deadline = Instant::now() + Duration::from_secs(60);
    while !is_done(&mappings(victim)) {
        let now = mappings(victim);
        assert!(Instant::now() < deadline, "it changes nothing: {now:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Copies of all userfaultfds of this process, as a child has them that it is just starting, from
/// `fork(2)` to `execve(2)`: however late that comes on a busy machine.
fn copies_of_userfaultfds() -> Vec<OwnedFd> {
    let own = pidfd_open(getpid(), PidfdFlags::empty()).unwrap();
    let numbers = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let of_memory = numbers.filter(|entry| {
        std::fs::read_link(entry.path())
            .is_ok_and(|to| to.as_os_str() == "anon_inode:[userfaultfd]")
    });
    let numbers = of_memory.map(|entry| entry.file_name().to_string_lossy().parse().unwrap());
    let copies = numbers.map(|number| pidfd_getfd(&own, number, PidfdGetfdFlags::empty()));
    copies.map(Result::unwrap).collect()
}

/// Other tests may not begin before their userfaultfds can be distinguished from those of this one.
static ALONE: RwLock<()> = RwLock::new(());

fn beside_others() -> RwLockReadGuard<'static, ()> {
    ALONE.read().unwrap_or_else(PoisonError::into_inner)
}

/// A mapping that is changed while its pages are kept is given back all the same: nobody waits for
/// good, all stays tracked, and what was kept is not reported as replaced. None of that waits for
/// the last copy of a descriptor to be closed.
#[test]
fn mappings_may_change_while_their_pages_are_kept() {
    const THREADS: u64 = 4;
    let _alone = ALONE.write().unwrap_or_else(PoisonError::into_inner);
    if working("freeze", &[PagemapScan]).is_empty() {
        return;
    }
    let bytes = (THREADS * PAGES + 16) * page_size();
    let all = PageRange::new(BASE, BASE + bytes).unwrap();
    let size = |now: &[Region]| -> u64 {
        let writable = now.iter().filter(|region| region.permissions.write);
        writable.map(|region| region.range.bytes()).sum()
    };
    let whole = |now: &[Region]| size(now) == bytes && now.iter().all(|now| now.permissions.write);
    let holes = |now: &[Region]| now.iter().any(|region| region.inode != 0);
    let grown = |now: &[Region]| size(now) == bytes + 32 * page_size();
    let split = |now: &[Region]| now.last().is_some_and(|last| !last.permissions.write);
    // What it does meanwhile; and whether its mappings are given back, or the freeze is dropped.
    type IsDone<'a> = &'a dyn Fn(&[Region]) -> bool;
    let changes: [(&str, IsDone<'_>, bool); 4] = [
        ("holes", &holes, true),
        ("grows", &grown, true),
        ("grows", &grown, false),
        ("splits", &split, true),
    ];
    for (what, is_done, thaws) in changes {
        let arguments = [600, THREADS, PAGES].map(|n| n.to_string());
        let [seconds, threads, pages] = arguments.each_ref().map(String::as_str);
        let arguments = [seconds, threads, pages, what, "asked"];
        let Some(victim) = Victim::start("holes", &arguments) else {
            return;
        };
        let mut watch = watch(victim.pid());
        for _ in 0..times(3, 100) {
            // Until it is one mapping, all of it armed, of which the watch knows.
            for _ in 0..2 {
                watch.collect().unwrap().commit();
            }
            assert_eq!(mappings(&victim).len(), 1);
            watch.prepare_freeze().unwrap();
            let held = watch.hold().unwrap();
            collect_held(&mut watch, &*held);
            let mut frozen = watch.freeze(&*held, &PageSet::from(all)).unwrap();
            assert!(frozen.pages().page_count() > PAGES);
            let copies = copies_of_userfaultfds();
            assert!(copies.len() >= 2);
            held.release();
            change(&victim, is_done);
            if thaws {
                let held = watch.hold().unwrap();
                frozen.thaw(&*held).unwrap();
                held.release();
            }
            drop(frozen);
            all_go_on(&victim, THREADS);
            let round = watch.collect().unwrap();
            let first = PageRange::new(BASE, BASE + PAGES * page_size()).unwrap();
            assert_eq!(
                round.remapped().intersects(first),
                !thaws,
                "{what}: given back: {thaws}"
            );
            let untracked = round.untracked().iter();
            let mut here = untracked.filter(|untracked| {
                untracked.region.inode == 0 && untracked.region.range.start() >> 40 == BASE >> 40
            });
            let lost = here.next();
            assert!(lost.is_none(), "{what}: not tracked any more: {lost:?}");
            round.commit();
            drop(copies);
            change(&victim, whole);
        }
        drop(watch);
        victim.is_clean(true);
        victim.finish();
    }
}

/// Faults may wait to be answered at any instant of a drop. Nothing comes after it that would wake
/// those who wait: the watch stays, and is not asked.
#[test]
fn a_drop_leaves_no_thread_waiting() {
    let _beside = beside_others();
    const THREADS: u64 = 8;
    if working("freeze", &[PagemapScan]).is_empty() {
        return;
    }
    let arguments = [600, THREADS, PAGES].map(|n| n.to_string());
    let [seconds, threads, pages] = arguments.each_ref().map(String::as_str);
    let Some(victim) = Victim::start("holes", &[seconds, threads, pages, "none"]) else {
        return;
    };
    let mut watch = watch(victim.pid());
    let all = PageRange::new(BASE, BASE + (THREADS * PAGES + 16) * page_size()).unwrap();
    for _ in 0..times(60, 1000) {
        watch.prepare_freeze().unwrap();
        let held = watch.hold().unwrap();
        collect_held(&mut watch, &*held);
        let frozen = watch.freeze(&*held, &PageSet::from(all)).unwrap();
        assert!(frozen.pages().page_count() > 64);
        held.release();
        drop(frozen);
        all_go_on(&victim, THREADS);
    }
    drop(watch);
    victim.is_clean(true);
    victim.finish();
}

#[test]
fn a_process_with_pinned_pages_is_refused() {
    let _beside = beside_others();
    if working("freeze", &[PagemapScan]).is_empty() {
        return;
    }
    let Some(victim) = Victim::start("pinner", &["600"]) else {
        return;
    };
    let mut watch = watch(victim.pid());
    watch.prepare_freeze().unwrap();
    let held = watch.hold().unwrap();
    collect_held(&mut watch, &*held);
    let all = PageRange::new(page_size(), 1 << 46).unwrap();
    let error = watch.freeze(&*held, &PageSet::from(all)).err().unwrap();
    assert!(error.to_string().contains("pinned"), "{error}");
    held.release();
    drop(watch);
    victim.is_clean(true);
    victim.finish();
}
