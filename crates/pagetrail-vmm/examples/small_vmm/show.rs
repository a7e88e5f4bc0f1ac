//! What the example shows: rounds of a guest that boots and works, snapshots of it, and the guest
//! that goes on from the last one.

use crate::machine::{Console, Memory, Monitor, Outcome, Software, State, Turn};
use pagemap_scan::{Faults, Features, Mode, Userfaultfd};
use pagetrail_checkpoint::{Store, WorldWritable, WriterOptions};
use pagetrail_vmm::store::{LazyRestore, Snapshots};
use pagetrail_vmm::tables::TableScan;
use pagetrail_vmm::{Regions, Start, Tracker};
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::Write;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// Memory of the guest.
const MEBIBYTES: u64 = 128;
const SNAPSHOTS: u32 = 3;
const WINDOWS: u32 = 3;
const ROUNDS: u32 = 4;
const BETWEEN_ROUNDS: Duration = Duration::from_millis(250);
/// A kernel boots in some seconds, and in emulation in minutes.
const BOOT_TIME_MAX: Duration = Duration::from_secs(600);
/// Rounds of a snapshot while the guest runs.
const COPIES_AHEAD: u32 = 3;
/// The file beside the store's own that has a guest's state; in it, first, the number of the
/// snapshot to which it belongs.
const STATE_FILE: &str = "small_vmm.state";

/// What the command line asks for.
pub(crate) enum Wish {
    Boot {
        kernel: PathBuf,
        init: PathBuf,
        mebibytes: u64,
        module: Option<PathBuf>,
        store: Option<PathBuf>,
    },
    GoOn(PathBuf),
}

impl Wish {
    pub(crate) fn parse(arguments: &[OsString]) -> Option<Self> {
        let (mut module, mut store, mut go_on) = (None, None, None);
        let mut others = Vec::new();
        let mut words = arguments.iter();
        while let Some(word) = words.next() {
            match word.to_str() {
                Some("--module") => module = Some(PathBuf::from(words.next()?)),
                Some("--store") => store = Some(PathBuf::from(words.next()?)),
                Some("--go-on") => go_on = Some(PathBuf::from(words.next()?)),
                _ => others.push(word),
            }
        }
        let (kernel, init, mebibytes) = match (&others[..], go_on) {
            ([], Some(store)) if arguments.len() == 2 => return Some(Self::GoOn(store)),
            ([kernel, init], None) => (kernel, init, MEBIBYTES),
            ([kernel, init, size], None) => (kernel, init, size.to_str()?.parse().ok()?),
            _ => return None,
        };
        (96..=3072).contains(&mebibytes).then(|| Self::Boot {
            kernel: kernel.into(),
            init: init.into(),
            mebibytes,
            module,
            store,
        })
    }
}

pub(crate) fn run(wish: &Wish) -> Outcome<()> {
    let (kernel, init, mebibytes, module, store) = match wish {
        Wish::Boot {
            kernel,
            init,
            mebibytes,
            module,
            store,
        } => (kernel, init, *mebibytes, module, store),
        Wish::GoOn(store) => return go_on_from(store),
    };
    let directory = tempfile::tempdir()?;
    let store = match store {
        Some(store) => store.clone(),
        None => directory.path().join("store"),
    };
    let memory = Arc::new(Memory::new(mebibytes << 20)?);
    let software = Software {
        kernel,
        init,
        word: "",
        module: module.as_deref(),
    };
    let mut monitor = Monitor::new(memory, &software)?;
    let tracker = monitor.track()?;
    monitor.share(&tracker);
    while_it_runs(&mut monitor, &tracker, |turn, console| {
        rounds(&tracker, turn, console)
    })?;
    accesses(&mut monitor, &tracker)?;
    snapshots(&mut monitor, &tracker, &store)?;
    if monitor.ring_was_overrun() {
        println!("KVM overran its ring: rounds have all pages since");
    }
    let printed = monitor.console.text();
    print!("{printed}");
    drop(monitor);
    go_on_from(&store)
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

/// Prints what the guest's processes access in windows, by the guest's page tables.
fn accesses(monitor: &mut Monitor, tracker: &Tracker) -> Outcome<()> {
    let mut scan = TableScan::new(tracker, monitor.memory.tables()?)?;
    for window in 0..=WINDOWS {
        let spaces = monitor.spaces()?;
        let seen = scan.accesses(&spaces)?;
        let (_, of_all) = scan.read_everything();
        // Before the first window, what was ever accessed.
        if window > 0 {
            println!(
                "window {window}: {} pages accessed; page tables read: {} of {of_all}",
                seen.accessed.count(),
                seen.cost.tables_read,
            );
        }
        scan.clear(&spaces, &seen.accessed)?;
        while_it_runs(monitor, tracker, |_, _| {
            thread::sleep(BETWEEN_ROUNDS);
            Ok(())
        })?;
    }
    Ok(())
}

/// Takes snapshots, each with the state that belongs to it.
fn snapshots(monitor: &mut Monitor, tracker: &Tracker, store: &Path) -> Outcome<()> {
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
        keep_state(store, number, &monitor.state()?)?;
        println!("snapshot {number}: {copies:?} pages while it ran, {last} while it stood still");
    }
    Ok(())
}

/// Keeps the state of a guest that belongs to a snapshot, in the place of the one before: all of
/// it, or, if the machine stops meanwhile, none.
fn keep_state(store: &Path, snapshot: u64, state: &State) -> Outcome<()> {
    let new = store.join(format!("{STATE_FILE}.new"));
    let mut file = File::create(&new)?;
    file.write_all(&snapshot.to_le_bytes())?;
    file.write_all(&state.to_bytes())?;
    file.sync_all()?;
    fs::rename(&new, store.join(STATE_FILE))?;
    Ok(File::open(store)?.sync_all()?)
}

/// The state that was kept, and the number of its snapshot.
fn kept_state(store: &Path) -> Outcome<(u64, State)> {
    let path = store.join(STATE_FILE);
    let bytes = fs::read(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    let (number, state) = bytes
        .split_first_chunk()
        .ok_or_else(|| format!("{} was cut off", path.display()))?;
    Ok((u64::from_le_bytes(*number), State::from_bytes(state)?))
}

/// Has a new guest go on from the newest snapshot that has a state; its memory comes as it is
/// touched.
fn go_on_from(store: &Path) -> Outcome<()> {
    let (number, state) = kept_state(store)?;
    let image = Store::open(store)?.image(number)?;
    // It is of all the memory, which begins at 0.
    let bytes = image.pages().ranges().last().map_or(0, |range| range.end());
    let memory = Arc::new(Memory::new(bytes)?);
    let uffd = Userfaultfd::create(Faults::UserAndKernel)?;
    let uffd = Userfaultfd::handshake(uffd, Features::WP_HUGETLBFS_SHMEM)?;
    let region = memory.region();
    let start = region.host_address();
    uffd.register(start..start + region.bytes(), Mode::WriteProtectAndMissing)?;
    let regions = Regions::new([region])?;
    let mut restore = LazyRestore::new(image, regions, uffd.as_fd())?.without_prefetch();
    let stopper = restore.stopper();
    thread::scope(|scope| {
        let serving = scope.spawn(|| restore.serve());
        let done = go_on(memory, &state);
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
    monitor.share(&tracker);
    while_it_runs(&mut monitor, &tracker, |turn, console| {
        rounds(&tracker, turn, console)
    })?;
    print!("{}", monitor.console.text());
    println!("logs that the guest has on: {}", monitor.logs_of_guest());
    Ok(())
}
