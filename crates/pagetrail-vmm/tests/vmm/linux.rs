//! A Linux kernel boots as the guest of the example's monitor, works, is saved in increments, and
//! goes on from the store in another virtual machine: all bytes are compared, and the guest checks
//! its own memory.
//!
//! It needs a KVM that runs an operating system's kernel, the kernel (`PAGETRAIL_GUEST_KERNEL`) and
//! the guest's program (in `PAGETRAIL_GUEST_PROGRAMS`), which `cargo xtask test` has for the guests
//! that have guests.

use crate::small_vmm::{Console, Memory, Monitor, Outcome, Software, State, Turn};
use pagemap_scan::{Faults, Features, Mode, Userfaultfd};
use pagetrail::PageRange;
use pagetrail_checkpoint::{Store, WorldWritable, WriterOptions};
use pagetrail_vmm::store::{LazyRestore, Snapshots};
use pagetrail_vmm::{Consumer, Regions, Start, Tracker};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// Little more than the kernel needs to unpack itself.
const MEMORY_BYTES: u64 = 96 << 20;
const BETWEEN_ROUNDS: Duration = Duration::from_millis(100);
/// In emulation, and on a busy machine.
const TIME_MAX: Duration = Duration::from_secs(600);

/// A copy of the guest's memory that is kept by rounds alone.
pub(crate) struct Replica {
    consumer: Consumer,
    pub(crate) contents: Vec<u8>,
    pages: u64,
}

impl Replica {
    pub(crate) fn new(tracker: &Tracker) -> Self {
        Self {
            contents: vec![0; tracker.regions().bytes() as usize],
            consumer: tracker.consumer(Start::Everything).unwrap(),
            pages: 0,
        }
    }

    pub(crate) fn follow(&mut self, memory: &Memory) {
        let round = self.consumer.collect().unwrap();
        for range in round.ranges() {
            let start = range.region_offset as usize;
            let bytes = &mut self.contents[start..start + range.bytes as usize];
            memory.region().copy(range.region_offset, bytes);
        }
        self.pages += round.dirty().count();
        round.commit();
    }
}

fn inputs() -> Option<(PathBuf, PathBuf)> {
    let kernel = std::env::var_os("PAGETRAIL_GUEST_KERNEL").map(PathBuf::from)?;
    let programs = std::env::var_os("PAGETRAIL_GUEST_PROGRAMS").map(PathBuf::from)?;
    let init = programs.join("small_vmm_init");
    init.exists().then_some((kernel, init))
}

/// A guest that runs, unless it has stopped by itself.
pub(crate) struct Guest<'a> {
    turn: &'a Turn,
    pub(crate) console: Console,
}

/// Has the guest run in a thread while `work` is done.
pub(crate) fn while_it_runs(
    monitor: &mut Monitor,
    tracker: Option<&Tracker>,
    work: impl FnOnce(&Guest<'_>),
) {
    struct EndOnDrop<'a>(&'a Turn);
    impl Drop for EndOnDrop<'_> {
        fn drop(&mut self) {
            self.0.end();
        }
    }
    let (turn, console) = (Turn::default(), monitor.console.clone());
    thread::scope(|scope| {
        let running =
            scope.spawn(|| monitor.run(&turn, || Ok(tracker.map_or(Ok(()), Tracker::drain)?)));
        let ends = EndOnDrop(&turn);
        work(&Guest {
            turn: &turn,
            console,
        });
        drop(ends);
        running.join().unwrap().unwrap();
    });
}

/// The last step that the guest has done.
pub(crate) fn steps(console: &Console) -> u64 {
    let text = console.text();
    assert!(!text.contains("WRONG"), "{text}");
    let last = text
        .lines()
        .rev()
        .find_map(|line| line.strip_prefix("step "));
    last.and_then(|step| step.trim().parse().ok()).unwrap_or(0)
}

/// Calls `meanwhile` until the guest has done more steps than `after`.
pub(crate) fn until_it_goes_on(guest: &Guest<'_>, after: u64, mut meanwhile: impl FnMut()) {
    let began = Instant::now();
    while steps(&guest.console) <= after && !guest.turn.is_over() {
        let text = || guest.console.text();
        assert!(
            began.elapsed() < TIME_MAX,
            "no step after {after}: {}",
            text()
        );
        thread::sleep(BETWEEN_ROUNDS);
        meanwhile();
    }
}

/// All bytes of a guest that stands still.
pub(crate) fn contents(memory: &Memory) -> Vec<u8> {
    let mut contents = vec![0; memory.bytes() as usize];
    memory.region().copy(0, &mut contents);
    contents
}

/// What the newest checkpoint has.
fn stored(store: &Path) -> Vec<u8> {
    let mut contents = vec![0; MEMORY_BYTES as usize];
    let mut image = Store::open(store).unwrap().newest_image().unwrap();
    let range = PageRange::new(0, MEMORY_BYTES).unwrap();
    image.read(range, &mut contents).unwrap();
    contents
}

/// Boots, and saves twice: the base, and what is written while the guest works.
fn saved(monitor: &mut Monitor, store: &Path) -> (State, u64) {
    // Without a log, a kernel boots in half the time.
    while_it_runs(monitor, None, |guest| until_it_goes_on(guest, 0, || {}));
    let tracker = monitor.track().unwrap();
    let memory = monitor.memory.clone();
    let mut replica = Replica::new(&tracker);
    let writer = Store::create(store, WorldWritable::Refuse).unwrap();
    let writer = writer.writer(WriterOptions::default()).unwrap();
    let consumer = tracker.consumer(Start::Everything).unwrap();
    let mut snapshots = Snapshots::new(writer, consumer);
    for number in 1..=2 {
        let mut snapshot = snapshots.begin().unwrap();
        while_it_runs(monitor, Some(&tracker), |guest| {
            snapshot.copy().unwrap();
            until_it_goes_on(guest, steps(&guest.console), || replica.follow(&memory));
            snapshot.copy().unwrap();
        });
        replica.follow(&memory);
        snapshot.copy().unwrap();
        let copied = snapshot.publish().unwrap().cost.copied_pages;
        let contents = contents(&memory);
        assert!(
            replica.contents == contents,
            "rounds up to snapshot {number}"
        );
        assert!(stored(store) == contents, "snapshot {number}");
        // Two rounds of an increment have what the guest wrote, not its memory.
        let most = MEMORY_BYTES / pagetrail::page_size() / 2;
        assert!(
            number == 1 || monitor.ring_was_overrun() || copied < most,
            "{copied}"
        );
    }
    assert!(replica.pages > 0);
    (monitor.state().unwrap(), steps(&monitor.console))
}

fn goes_on(memory: Arc<Memory>, state: &State, steps_before: u64) -> Outcome<()> {
    let mut monitor = Monitor::restored(memory, state)?;
    let tracker = monitor.track()?;
    while_it_runs(&mut monitor, Some(&tracker), |guest| {
        until_it_goes_on(guest, steps_before, || {});
        until_it_goes_on(guest, steps(&guest.console), || {});
    });
    Ok(())
}

#[test]
fn a_linux_guest_goes_on_from_its_snapshots() {
    let Some((kernel, init)) = inputs() else {
        return pagetrail_skips::not_here("no kernel and program for a guest of Linux");
    };
    let directory = tempfile::tempdir().unwrap();
    let store = directory.path().join("store");
    let memory = Arc::new(Memory::new(MEMORY_BYTES).unwrap());
    let software = Software {
        kernel: &kernel,
        init: &init,
        word: "",
        module: None,
    };
    let mut monitor = match Monitor::new(memory, &software) {
        Ok(monitor) => monitor,
        Err(error) => return pagetrail_skips::not_here(format!("no KVM: {error}")),
    };
    let (state, steps_before) = saved(&mut monitor, &store);
    drop(monitor);

    // As if this process had ended: nothing but store and state is left.
    let state = State::from_bytes(&state.to_bytes()).unwrap();
    let missing = on_demand(&store, MEMORY_BYTES, |memory| {
        goes_on(memory, &state, steps_before).unwrap();
    });
    // What the guest has not touched is not there.
    assert!(missing > 0);
}

/// Calls `run` with memory that comes from the newest snapshot as it is touched; how many pages
/// were not.
pub(crate) fn on_demand(store: &Path, bytes: u64, run: impl FnOnce(Arc<Memory>)) -> u64 {
    let memory = Arc::new(Memory::new(bytes).unwrap());
    let region = memory.region();
    let start = region.host_address();
    let uffd = Userfaultfd::create(Faults::UserAndKernel).unwrap();
    let uffd = Userfaultfd::handshake(uffd, Features::WP_HUGETLBFS_SHMEM).unwrap();
    let mode = Mode::WriteProtectAndMissing;
    uffd.register(start..start + region.bytes(), mode).unwrap();
    let image = Store::open(store).unwrap().newest_image().unwrap();
    let regions = Regions::new([region]).unwrap();
    let restore = LazyRestore::new(image, regions, uffd.as_fd()).unwrap();
    let mut restore = restore.without_prefetch();
    let stopper = restore.stopper();
    thread::scope(|scope| {
        let ends = crate::store::StopOnDrop(stopper);
        let serving = scope.spawn(|| restore.serve().unwrap());
        run(memory);
        drop(ends);
        serving.join().unwrap();
    });
    assert!(!restore.first_touches().is_empty());
    restore.missing_pages()
}
