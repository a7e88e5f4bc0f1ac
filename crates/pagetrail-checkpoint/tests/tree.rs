//! Checkpoints of trees: those of all processes are of one instant, also while processes come and
//! end; one that fails harms nobody.

#![cfg(target_arch = "x86_64")]
#![allow(clippy::print_stdout, reason = "tests print what they did")]

mod common;
#[path = "../../pagetrail/tests/support/mod.rs"]
mod support;

use pagetrail::{PageRange, Target};
use pagetrail_checkpoint::{
    Error, Image, Mode, ProcessCheckpointer, ProcessOptions, Store, TreeCheckpointer, TreeInstant,
    TreeStore, WorldWritable, WriterOptions,
};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use support::{Victim, random, row, times};

/// The memory of `tests/victims/relay.c`.
const SHARED: u64 = 0x100_0000_0000;
const OWN: u64 = 0x110_0000_0000;
const HANDED: u64 = 0x120_0000_0000;
const PAGES: u64 = 64;
const PAGE: u64 = 4096;

/// A tree of processes that take turns.
struct Relay {
    victim: Victim,
    pids: Vec<u32>,
}

impl Relay {
    fn start(count: u32) -> Option<Self> {
        let victim = Victim::start("relay", &["600", &count.to_string()])?;
        let said = victim.said.join(" ");
        let children = said.split_whitespace().map(|pid| pid.parse().unwrap());
        let pids = std::iter::once(victim.pid()).chain(children).collect();
        Some(Self { victim, pids })
    }

    /// What is wrong with images of its processes, in their order, as images of one instant; else
    /// whose turn it was.
    fn turn(&self, images: &mut [Image]) -> Result<u64, String> {
        let count = self.pids.len() as u64;
        let turns: Vec<u64> = images.iter_mut().map(|image| word(image, SHARED)).collect();
        let turn = turns[0];
        if turns.iter().any(|other| *other != turn) {
            return Err(format!("the shared number is {turns:?}"));
        }
        for (number, image) in (0..).zip(images) {
            let stamps: Vec<u64> = (0..PAGES)
                .map(|page| word(image, OWN + page * PAGE))
                .collect();
            let turns_ago = (turn + count - number) % count;
            let is_right = match turns_ago {
                // It is at work.
                0 => {
                    let done = stamps.iter().take_while(|stamp| **stamp == turn).count();
                    stamps[done..].iter().all(|stamp| *stamp == turn - count)
                }
                _ => stamps.iter().all(|stamp| *stamp == turn - turns_ago),
            };
            // The process before it writes there, just before it raises the shared number.
            let handed = word(image, HANDED);
            let is_next = turns_ago == count - 1 && handed == turn + 1;
            if handed != turn - turns_ago && !is_next {
                return Err(format!(
                    "turn {turn} of {count}: process {number} was handed {handed}"
                ));
            }
            if !is_right {
                return Err(format!(
                    "turn {turn} of {count}: process {number} has {stamps:?}"
                ));
            }
        }
        Ok(turn)
    }

    /// The images of an instant, in the order of the processes.
    fn images(&self, store: &TreeStore, instant: &TreeInstant) -> Vec<Image> {
        let images = self.pids.iter().map(|pid| {
            let mut parts = instant.processes.iter();
            let part = parts
                .find(|part| part.pid == *pid)
                .expect("it is in the instant");
            let image = store.process(part.process).unwrap().image(part.checkpoint);
            image.unwrap()
        });
        images.collect()
    }

    fn is_clean(&self) {
        for pid in &self.pids {
            assert_eq!(support::tracer(*pid), 0);
        }
    }
}

fn word(image: &mut Image, address: u64) -> u64 {
    let mut page = [0; PAGE as usize];
    let range = PageRange::new(address, address + PAGE).unwrap();
    image.read(range, &mut page).unwrap();
    u64::from_ne_bytes(page[..8].try_into().unwrap())
}

fn attach(target: Target, store: &TreeStore, mode: Mode) -> TreeCheckpointer {
    let options = ProcessOptions {
        mode,
        ..ProcessOptions::default()
    };
    TreeCheckpointer::attach(target, store.clone(), options, WriterOptions::default()).unwrap()
}

fn tree(pid: u32) -> Target {
    Target::tree([pid]).unwrap()
}

fn all_of_one_instant(count: u32, mode: Mode) {
    let Some(relay) = Relay::start(count) else {
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let store = TreeStore::create(&directory.path().join("store"), WorldWritable::Allow).unwrap();
    let mut checkpointer = attach(tree(relay.pids[0]), &store, mode);
    let mut random = random("trees at one instant");
    let (mut pauses, mut turns) = (Vec::new(), Vec::new());
    let taken = times(12, 200);
    for _ in 0..taken {
        std::thread::sleep(Duration::from_micros(random.u64(0..20_000)));
        let (instant, manifests) = checkpointer.checkpoint().unwrap();
        assert_eq!(instant.processes.len() as u32, count);
        pauses.extend(manifests.iter().map(|manifest| manifest.cost.pause_ns));
        let mut images = relay.images(&store, &instant);
        turns.push(relay.turn(&mut images).unwrap());
    }
    pauses.sort_unstable();
    println!(
        "{count} processes, {mode:?}: pause median {} us, at most {} us",
        pauses[pauses.len() / 2] / 1000,
        pauses[pauses.len() - 1] / 1000
    );
    assert!(turns.windows(2).all(|pair| pair[0] <= pair[1]), "{turns:?}");
    assert!(
        turns.first() < turns.last(),
        "it has stood still: {turns:?}"
    );
    // Increments: what all have in common is read from the first.
    assert_eq!(store.verify().unwrap(), Vec::<String>::new());
    checkpointer.prune(2).unwrap();
    assert_eq!(store.numbers().unwrap().len(), 2);
    assert_eq!(store.verify().unwrap(), Vec::<String>::new());
    for number in store.numbers().unwrap() {
        let instant = store.instant(number).unwrap();
        relay.turn(&mut relay.images(&store, &instant)).unwrap();
    }
    drop(checkpointer);
    relay.is_clean();
    relay.victim.finish();
    row("checkpoints of trees", "any", "works", "");
}

#[test]
fn images_of_a_tree_are_of_one_instant() {
    all_of_one_instant(3, Mode::Precopy);
}

#[test]
fn images_of_a_tree_that_is_stopped_for_all_are_of_one_instant() {
    all_of_one_instant(3, Mode::Stop);
}

#[test]
fn images_of_many_processes_are_of_one_instant() {
    all_of_one_instant(24, Mode::Precopy);
}

/// The check can fail: checkpoints of the same processes one after the other are a mixture.
#[test]
fn a_mixture_of_instants_shows() {
    let Some(relay) = Relay::start(3) else {
        return;
    };
    let mixtures = (0..10).filter(|_| {
        let images = relay.pids.iter().map(|pid| {
            let (_, store, mut writer) = common::store(WriterOptions::default());
            let process = ProcessCheckpointer::attach(*pid, ProcessOptions::default());
            let manifest = process.unwrap().checkpoint(&mut writer).unwrap();
            // Others have their turns, however busy this machine is.
            let turn = word(&mut store.image(manifest.number).unwrap(), SHARED);
            let memory = std::fs::File::open(format!("/proc/{pid}/mem")).unwrap();
            let deadline = Instant::now() + Duration::from_secs(60);
            let mut now = [0; 8];
            while u64::from_ne_bytes(now) < turn + 10 && Instant::now() < deadline {
                std::os::unix::fs::FileExt::read_exact_at(&memory, &mut now, SHARED).unwrap();
            }
            store.image(manifest.number).unwrap()
        });
        relay.turn(&mut images.collect::<Vec<_>>()).is_err()
    });
    assert_eq!(mixtures.count(), 10);
    relay.victim.finish();
}

/// A program of this machine that ends with the test.
struct Shell(Child);

impl Shell {
    fn start(script: &str) -> Self {
        let mut command = Command::new("setsid");
        let command = command.args(["sh", "-c", script]).stdin(Stdio::piped());
        Self(command.stdout(Stdio::null()).spawn().expect("a shell"))
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        let group = rustix::process::Pid::from_raw(self.0.id() as i32).unwrap();
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Processes that come and end all the time are in an instant, or have ended before it; and what
/// ended leaves nothing once it is pruned.
#[test]
fn a_tree_that_forks_meanwhile_is_saved_and_goes_on() {
    let directory = tempfile::tempdir().unwrap();
    let counter = directory.path().join("counter");
    let script = format!(
        "(while :; do /bin/true; echo >> {0}; done) & (while :; do /bin/true; done) & wait",
        counter.display()
    );
    let shell = Shell::start(&script);
    let counted = || std::fs::metadata(&counter).map_or(0, |file| file.len());
    let goes_on = |before: u64| {
        let deadline = Instant::now() + Duration::from_secs(60);
        while counted() <= before + 3 {
            assert!(Instant::now() < deadline, "it does not go on");
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    goes_on(0);
    let store = TreeStore::create(&directory.path().join("store"), WorldWritable::Allow).unwrap();
    let mut checkpointer = attach(tree(shell.0.id()), &store, Mode::Precopy);
    let mut taken = 0;
    for _ in 0..10 {
        match checkpointer.checkpoint() {
            Ok((instant, _)) => {
                // The shell and its two loops at least.
                assert!(instant.processes.len() >= 3, "{instant:?}");
                taken += 1;
            }
            Err(Error::NotNow(reason)) => println!("not now: {reason}"),
            Err(Error::Process(pagetrail::Error::NotStopping { .. })) => println!("not stopping"),
            Err(error) => panic!("{error}"),
        }
        goes_on(counted());
    }
    assert!(taken > 0);
    checkpointer.prune(1).unwrap();
    assert_eq!(store.verify().unwrap(), Vec::<String>::new());
    let newest = store.instant(store.newest().unwrap()).unwrap();
    let left = std::fs::read_dir(directory.path().join("store/processes")).unwrap();
    assert!(left.count() <= newest.processes.len() + 3);
}

/// A process that executes a program seems to have ended for a moment: it is begun with anew, once.
#[test]
fn a_tree_that_executes_programs_meanwhile_is_saved() {
    let directory = tempfile::tempdir().unwrap();
    let script = directory.path().join("again");
    std::fs::write(&script, "/bin/true\nexec sh $0\n").unwrap();
    let again = format!("sh {} &", script.display());
    let shell = Shell::start(&format!("{again} {again} {again} wait"));
    let store = TreeStore::create(&directory.path().join("store"), WorldWritable::Allow).unwrap();
    let mut checkpointer = attach(tree(shell.0.id()), &store, Mode::Stop);
    let mut taken = 0;
    for _ in 0..times(40, 400) {
        match checkpointer.checkpoint() {
            Ok(_) => taken += 1,
            Err(Error::NotNow(reason) | Error::Refused(reason)) => println!("not now: {reason}"),
            Err(Error::Process(pagetrail::Error::NotStopping { .. })) => println!("not stopping"),
            Err(error) => panic!("{error}"),
        }
    }
    assert!(taken > 0);
    checkpointer.prune(1).unwrap();
    assert_eq!(store.verify().unwrap(), Vec::<String>::new());
}

#[test]
fn processes_of_one_address_space_are_refused_in_one_line() {
    let Some(program) = support::victim_program("family") else {
        return;
    };
    let mut family = Command::new(program)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut answers = std::io::BufReader::new(family.stdout.take().unwrap());
    let mut line = || {
        let mut line = String::new();
        std::io::BufRead::read_line(&mut answers, &mut line).unwrap();
        line.trim_end().to_owned()
    };
    assert_eq!(line(), "ready");
    let stdin = family.stdin.as_mut().unwrap();
    std::io::Write::write_all(stdin, b"fork\nkin 0\n").unwrap();
    let (child, sharer) = (line(), line());
    let directory = tempfile::tempdir().unwrap();
    let store = TreeStore::create(&directory.path().join("store"), WorldWritable::Allow).unwrap();
    let mut checkpointer = attach(tree(family.id()), &store, Mode::Precopy);
    let error = checkpointer.checkpoint().unwrap_err().to_string();
    assert!(error.contains("shares the memory"), "{error}");
    assert!(error.contains(&child) || error.contains(&sharer), "{error}");
    assert!(store.numbers().unwrap().is_empty());
    family.kill().unwrap();
    family.wait().unwrap();
}

/// A store of one process is none of trees, and the other way round; damage is found.
#[test]
fn stores_are_not_mixed_up_and_damage_is_found() {
    let directory = tempfile::tempdir().unwrap();
    let (single, trees) = (
        directory.path().join("single"),
        directory.path().join("trees"),
    );
    Store::create(&single, WorldWritable::Allow).unwrap();
    let store = TreeStore::create(&trees, WorldWritable::Allow).unwrap();
    assert!(TreeStore::open(&single).is_err());
    assert!(TreeStore::create(&single, WorldWritable::Allow).is_err());
    assert!(Store::open(&trees).is_err());
    assert!(Store::create(&trees, WorldWritable::Allow).is_err());
    assert!(TreeStore::is_at(&trees) && !TreeStore::is_at(&single));
    let shell = Shell::start("read line");
    let mut checkpointer = attach(tree(shell.0.id()), &store, Mode::Precopy);
    let (first, _) = checkpointer.checkpoint().unwrap();
    checkpointer.checkpoint().unwrap();
    let second = TreeCheckpointer::attach(
        tree(shell.0.id()),
        store.clone(),
        ProcessOptions::default(),
        WriterOptions::default(),
    );
    assert!(matches!(second, Err(Error::Busy { .. })));
    drop(checkpointer);
    let manifest = store.process_path(first.processes[0].process);
    let manifest = manifest.join("00000000000000000001.manifest");
    let mut bytes = std::fs::read(&manifest).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&manifest, bytes).unwrap();
    let problems = store.verify().unwrap();
    assert!(
        problems.iter().any(|line| line.contains("instant 1 lacks")),
        "{problems:?}"
    );
    std::fs::write(trees.join("00000000000000000002.manifest"), "nonsense").unwrap();
    assert!(matches!(store.instant(2), Err(Error::Damaged { .. })));
}

/// What a symbolic link in a store leads to, or is no store of a process, is neither read nor
/// removed.
#[test]
fn pruning_removes_nothing_but_stores_of_processes() {
    let directory = tempfile::tempdir().unwrap();
    let (trees, others) = (
        directory.path().join("trees"),
        directory.path().join("others"),
    );
    let keep = others.join("7/keepme");
    std::fs::create_dir_all(others.join("7")).unwrap();
    std::fs::write(&keep, "mine").unwrap();
    // One that is a store, too.
    Store::create(&others.join("8"), WorldWritable::Allow).unwrap();
    let store = TreeStore::create(&trees, WorldWritable::Allow).unwrap();
    let shell = Shell::start("read line");
    let mut checkpointer = attach(tree(shell.0.id()), &store, Mode::Precopy);
    let (instant, _) = checkpointer.checkpoint().unwrap();
    let process = instant.processes[0].process;
    let (processes, aside) = (trees.join("processes"), trees.join("aside"));

    // All of it is a link.
    std::fs::rename(&processes, &aside).unwrap();
    std::os::unix::fs::symlink(&others, &processes).unwrap();
    let error = checkpointer.prune(1).unwrap_err().to_string();
    assert!(
        error.contains("processes") && !error.contains('\n'),
        "{error}"
    );
    assert!(store.process(8).is_err() && store.verify().is_err());
    assert!(keep.exists() && others.join("8/pagetrail.store").exists());
    std::fs::remove_file(&processes).unwrap();
    std::fs::rename(&aside, &processes).unwrap();

    // A process is a link.
    std::os::unix::fs::symlink(others.join("8"), processes.join("8")).unwrap();
    checkpointer.prune(1).unwrap();
    assert!(store.process(8).is_err());
    assert!(others.join("8/pagetrail.store").exists());
    std::fs::remove_file(processes.join("8")).unwrap();

    // A directory that is no store, and a store with a file of somebody else.
    std::fs::create_dir(processes.join("7")).unwrap();
    std::fs::copy(&keep, processes.join("7/keepme")).unwrap();
    let error = checkpointer.prune(1).unwrap_err().to_string();
    assert!(error.contains("processes/7"), "{error}");
    Store::create(&processes.join("9"), WorldWritable::Allow).unwrap();
    std::fs::rename(processes.join("7/keepme"), processes.join("9/keepme")).unwrap();
    std::fs::remove_dir(processes.join("7")).unwrap();
    let error = checkpointer.prune(1).unwrap_err().to_string();
    assert!(error.contains("processes/9"), "{error}");
    assert!(processes.join("9/keepme").exists());
    std::fs::remove_file(processes.join("9/keepme")).unwrap();

    // What no instant names goes.
    checkpointer.prune(1).unwrap();
    assert!(!processes.join("9").exists());
    assert!(processes.join(process.to_string()).exists());
    assert_eq!(store.verify().unwrap(), Vec::<String>::new());
}
