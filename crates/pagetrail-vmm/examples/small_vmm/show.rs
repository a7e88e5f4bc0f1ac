//! What the example shows: rounds of a guest that boots and works, snapshots of it, and the guest
//! that goes on from the last one.

use crate::machine::{Console, Memory, Monitor, Outcome, State, Turn};
use pagemap_scan::{Faults, Features, Mode, Userfaultfd};
use pagetrail_checkpoint::{Store, WorldWritable, WriterOptions};
use pagetrail_vmm::store::{LazyRestore, Snapshots};
use pagetrail_vmm::{Regions, Start, Tracker};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// Memory of the guest.
pub(crate) const MEBIBYTES: u64 = 128;
const SNAPSHOTS: u32 = 3;
const ROUNDS: u32 = 4;
const BETWEEN_ROUNDS: Duration = Duration::from_millis(250);
/// A kernel boots in some seconds, and in emulation in a minute.
const BOOT_TIME_MAX: Duration = Duration::from_secs(180);
/// Rounds of a snapshot while the guest runs.
const COPIES_AHEAD: u32 = 3;

pub(crate) fn run(kernel: &Path, init: &Path, mebibytes: u64) -> Outcome<()> {
    let directory = tempfile::tempdir()?;
    let store = directory.path().join("store");
    let memory = Arc::new(Memory::new(mebibytes << 20)?);
    let mut monitor = Monitor::new(memory, kernel, init)?;
    let tracker = monitor.track()?;
    while_it_runs(&mut monitor, &tracker, |turn, console| {
        rounds(&tracker, turn, console)
    })?;
    let state = snapshots(&mut monitor, &tracker, &store)?;
    if monitor.ring_was_overrun() {
        println!("KVM overran its ring: rounds have all pages since");
    }
    let printed = monitor.console.text();
    print!("{printed}");
    drop(monitor);
    restore(&store, mebibytes, &state)
}

/// Has the guest run in a thread while `work` is done, which can see its console, and whether it
/// stops by itself.
fn while_it_runs<T>(
    monitor: &mut Monitor,
    tracker: &Tracker,
    work: impl FnOnce(&Turn, &Console) -> Outcome<T>,
) -> Outcome<T> {
    let (turn, console) = (Turn::default(), monitor.console.clone());
    thread::scope(|scope| {
        let running = scope.spawn(|| monitor.run(&turn, || Ok(tracker.drain()?)));
        let done = work(&turn, &console);
        turn.end();
        running.join().map_err(|_| "the vCPU's thread panicked")??;
        done
    })
}

/// Prints rounds until the guest works, and some more.
fn rounds(tracker: &Tracker, turn: &Turn, console: &Console) -> Outcome<()> {
    let consumer = tracker.consumer(Start::Now)?;
    let (began, mut left) = (Instant::now(), ROUNDS);
    while left > 0 && !turn.is_over() {
        thread::sleep(BETWEEN_ROUNDS);
        let round = consumer.collect()?;
        println!(
            "round {}: {} dirty pages",
            round.index(),
            round.dirty().count()
        );
        round.commit();
        left -= u32::from(console.text().contains("step "));
        if began.elapsed() > BOOT_TIME_MAX {
            let printed = console.text();
            return Err(format!("the guest's program does not work: {printed}").into());
        }
    }
    Ok(())
}

/// Takes snapshots, and the state that belongs to the last one.
fn snapshots(monitor: &mut Monitor, tracker: &Tracker, store: &Path) -> Outcome<State> {
    let writer = Store::create(store, WorldWritable::Refuse)?.writer(WriterOptions::default())?;
    let mut snapshots = Snapshots::new(writer, tracker.consumer(Start::Everything)?);
    for _ in 0..SNAPSHOTS {
        let mut snapshot = snapshots.begin()?;
        let mut copies = Vec::new();
        while_it_runs(monitor, tracker, |_, _| {
            for _ in 0..COPIES_AHEAD {
                thread::sleep(BETWEEN_ROUNDS);
                copies.push(snapshot.copy()?);
            }
            Ok(())
        })?;
        let last = snapshot.copy()?;
        let number = snapshot.publish()?.number;
        println!("snapshot {number}: {copies:?} pages while it ran, {last} while it stood still");
    }
    monitor.state()
}

/// Has a new guest go on from the newest snapshot; its memory comes as it is touched.
fn restore(store: &Path, mebibytes: u64, state: &State) -> Outcome<()> {
    let memory = Arc::new(Memory::new(mebibytes << 20)?);
    let uffd = Userfaultfd::create(Faults::UserAndKernel)?;
    let uffd = Userfaultfd::handshake(uffd, Features::WP_HUGETLBFS_SHMEM)?;
    let region = memory.region();
    let start = region.host_address();
    uffd.register(start..start + region.bytes(), Mode::WriteProtectAndMissing)?;
    let image = Store::open(store)?.newest_image()?;
    let regions = Regions::new([region])?;
    let mut restore = LazyRestore::new(image, regions, uffd.as_fd())?.without_prefetch();
    let stopper = restore.stopper();
    thread::scope(|scope| {
        let serving = scope.spawn(|| restore.serve());
        let done = go_on(memory, state);
        stopper.stop();
        serving.join().map_err(|_| "the restore panicked")??;
        done
    })?;
    let touched = restore.first_touches().len();
    println!(
        "it went on: {touched} pages were touched, {} are missing yet",
        restore.missing_pages()
    );
    Ok(())
}

fn go_on(memory: Arc<Memory>, state: &State) -> Outcome<()> {
    let mut monitor = Monitor::restored(memory, state)?;
    let tracker = monitor.track()?;
    while_it_runs(&mut monitor, &tracker, |turn, console| {
        rounds(&tracker, turn, console)
    })?;
    print!("{}", monitor.console.text());
    Ok(())
}
