//! CRIU's page-server protocol, spoken by a client of our own against a memory that it knows:
//! chains of dumps, image files, pages on request; clients that lie; a server that is killed, or
//! whose disk fills.

#![allow(clippy::print_stdout, reason = "tests print what they did")]

#[path = "common/criu.rs"]
mod criu;
#[path = "common/damaged_files.rs"]
mod damaged_files;
#[path = "../../pagetrail/tests/support/mod.rs"]
mod support;

#[path = "common/faulty.rs"]
mod faulty;

use criu::{ADD, CLOSE, Client, GET, IN_PARENT, LAZY, Memory, OPEN, PAGE, PRESENT, process};
use faulty::{Fault, Faulty};
use pagetrail_checkpoint::criu::{Dump, Dumps, Handled, LazyPages, PageServer};
use pagetrail_checkpoint::storage::{Directory, InMemory};
use pagetrail_checkpoint::{Manifest, Result, Store, WorldWritable, WriterOptions};
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::Duration;
use support::{random, row, times};

fn store() -> Store {
    Store::create_on(Arc::new(InMemory::default())).unwrap()
}

fn server(store: &Store, at: Option<u64>) -> PageServer {
    let writable = store.clone();
    let open = move || writable.writer(WriterOptions::default());
    PageServer::new(store.clone(), at, open)
}

/// Lets a client talk to a server; gives what both say.
fn talk<T: Send>(
    server: &PageServer,
    long: bool,
    client: impl FnOnce(&mut Client<UnixStream>) -> T + Send,
) -> (T, Result<Handled>) {
    let (here, there) = UnixStream::pair().unwrap();
    thread::scope(|scope| {
        let said = scope.spawn(move || {
            let mut peer = Client { stream: here, long };
            client(&mut peer)
        });
        let handled = server.handle(there);
        (said.join().unwrap(), handled)
    })
}

fn taken(handled: Result<Handled>) -> Manifest {
    match handled.unwrap() {
        Handled::Taken(manifest) => *manifest,
        other => panic!("{other:?}"),
    }
}

fn check(store: &Store, number: u64, memory: &Memory) {
    for lazy in [false, true] {
        let directory = tempfile::tempdir().unwrap();
        let mut image = store.image(number).unwrap();
        let pages = match lazy {
            true => LazyPages::LeftToServer,
            false => LazyPages::Written,
        };
        image.export_criu(directory.path(), pages).unwrap();
        memory.check_files(directory.path(), lazy);
    }
}

#[test]
fn chains_of_dumps_are_the_memory_at_each() {
    let mut random = random("dumps");
    for long in [false, true] {
        for _ in 0..times(20, 300) {
            let store = store();
            let server = server(&store, None);
            let mut memory = Memory::default();
            let mut states = Vec::new();
            for number in 1..=random.u64(1..8) {
                memory.change(&mut random);
                let (said, handled) = talk(&server, long, |client| client.dump(&mut memory));
                let manifest = taken(handled);
                assert_eq!(said.unwrap(), 0);
                assert_eq!(manifest.number, number);
                assert_eq!(manifest.parent.is_some(), number > 1);
                assert!(manifest.is_by_criu());
                states.push(memory.clone());
            }
            for (state, number) in states.iter().zip(1..) {
                check(&store, number, state);
            }
            assert!(store.verify().unwrap().is_sound());
            // What is left when checkpoints go is what it was.
            drop(server);
            let mut writer = store.writer(WriterOptions::default()).unwrap();
            writer.prune(2).unwrap();
            let left = store.numbers().unwrap();
            for number in left {
                check(&store, number, &states[number as usize - 1]);
            }
        }
    }
}

#[test]
fn pages_are_given_as_they_were() {
    let mut random = random("pages");
    for long in [false, true] {
        let store = store();
        let mut memory = Memory::default();
        let mut states = Vec::new();
        let taking = server(&store, None);
        for _ in 0..4 {
            memory.change(&mut random);
            let pages = memory.spaces.entry(process(77)).or_default();
            pages.entry(5).or_insert(criu::Page {
                bytes: vec![7; PAGE as usize],
                lazy: true,
                dirty: true,
            });
            taken(talk(&taking, long, |client| client.dump(&mut memory)).1);
            states.push(memory.clone());
        }
        for (state, number) in states.iter().zip(1..) {
            let serving = server(&store, Some(number));
            let mut random = fastrand::Rng::with_seed(random.u64(..));
            let (asked, handled) = talk(&serving, long, |client| {
                let mut asked = 0;
                for _ in 0..200 {
                    let pid = [77, 4096][random.usize(0..2)];
                    let Some(space) = state.spaces.get(&process(pid)) else {
                        continue;
                    };
                    let numbers: Vec<u64> = space.keys().copied().collect();
                    let Some(first) = random.choice(numbers) else {
                        continue;
                    };
                    let wanted = random.u64(1..9);
                    let bytes = client.get(pid, first * PAGE, wanted).unwrap();
                    let there = (first..first + wanted).take_while(|n| space.contains_key(n));
                    let there: Vec<u8> = there.flat_map(|n| space[&n].bytes.clone()).collect();
                    assert!(bytes == there, "page {first:#x}, {wanted} of them");
                    asked += bytes.len() as u64 / PAGE;
                }
                assert_eq!(client.close().unwrap(), 0);
                asked
            });
            match handled.unwrap() {
                Handled::Served { number: of, pages } => assert_eq!((of, pages), (number, asked)),
                other => panic!("{other:?}"),
            }
            // What is not there is an error, and no other page.
            let (answer, handled) = talk(&serving, long, |client| {
                client.send(GET, 1, 0x7000_0000, 77).unwrap();
                client.stream.read(&mut [0]).unwrap_or(0)
            });
            assert_eq!(answer, 0);
            let reason = handled.unwrap_err().to_string();
            assert!(
                reason.contains("no page of process 77 at 0x70000000"),
                "{reason}"
            );
        }
    }
}

/// Takes each part of a dump, of a client or out of files: all but the last are pre-dumps, between
/// which the memory changes. `known` has the spaces of the part before.
fn take_parts(
    dumps: &mut Dumps,
    memory: &mut Memory,
    (parts, by_files): (u32, bool),
    known: &mut BTreeSet<u64>,
    seed: u64,
) -> Manifest {
    let mut random = fastrand::Rng::with_seed(seed);
    let taken = dumps.take_by(|dump| {
        for part in 1..=parts {
            let is_last = part == parts;
            if by_files {
                let directory = tempfile::tempdir().unwrap();
                memory.write_files(directory.path(), is_last, known, random.bool());
                match is_last {
                    true => dump.images(directory.path())?,
                    false => dump.pre_dump_images(directory.path())?,
                }
            } else {
                take_part(dump, memory, is_last)?;
                let whose = memory.spaces.keys().copied();
                *known = whose.filter(|whose| is_last || whose & 2 == 0).collect();
            }
            if !is_last {
                memory.change(&mut random);
            }
        }
        Ok(Duration::ZERO)
    });
    taken.unwrap()
}

/// Lets a client send a part of a dump.
fn take_part(dump: &mut Dump<'_>, memory: &mut Memory, is_last: bool) -> Result<()> {
    let (here, there) = UnixStream::pair().unwrap();
    thread::scope(|scope| {
        let dumping = scope.spawn(|| {
            let mut client = Client {
                stream: here,
                long: false,
            };
            client.dump_part(memory, is_last).unwrap()
        });
        let received = match is_last {
            true => dump.pages(there),
            false => dump.pre_dump(there),
        };
        assert_eq!(dumping.join().unwrap(), 0);
        received
    })
}

#[test]
fn pre_dumps_belong_to_the_dump_that_follows() {
    let mut random = random("pre-dumps");
    for _ in 0..times(20, 300) {
        let store = store();
        let mut dumps = Dumps::new(store.writer(WriterOptions::default()).unwrap());
        let mut memory = Memory::default();
        let mut states = Vec::new();
        let mut known = BTreeSet::new();
        for number in 1..=random.u64(1..6) {
            memory.change(&mut random);
            let parts = (random.u32(1..4), random.bool());
            let seed = random.u64(..);
            let manifest = take_parts(&mut dumps, &mut memory, parts, &mut known, seed);
            assert_eq!(manifest.number, number);
            assert_eq!(manifest.parent.is_some(), number > 1);
            let cost = manifest.cost;
            assert!(cost.stopped_pages <= cost.copied_pages);
            states.push(memory.clone());
        }
        for (state, number) in states.iter().zip(1..) {
            check(&store, number, state);
        }
        assert!(store.verify().unwrap().is_sound());
    }
}

#[test]
fn damaged_files_of_a_dump_are_named_and_leave_the_store_as_it_was() {
    for (reason, damage) in damaged_files::DAMAGES {
        let store = store();
        let mut dumps = Dumps::new(store.writer(WriterOptions::default()).unwrap());
        let page = criu::Page {
            bytes: vec![7; PAGE as usize],
            lazy: false,
            dirty: true,
        };
        let mut memory = Memory::default();
        memory.spaces.insert(process(77), [(5, page)].into());
        let directory = tempfile::tempdir().unwrap();
        let known = &mut BTreeSet::new();
        memory.write_files(directory.path(), true, known, false);
        damage(directory.path());
        let taken = dumps.take_by(|dump| {
            dump.images(directory.path())?;
            Ok(Duration::ZERO)
        });
        let said = taken.unwrap_err().to_string();
        assert!(said.contains(reason), "{said}");
        assert!(store.numbers().unwrap().is_empty());
    }
}

#[test]
fn a_dump_builds_on_any_checkpoint_that_is_named() {
    let mut random = random("branches");
    for _ in 0..times(20, 300) {
        let store = store();
        let mut memory = Memory::default();
        let mut states: Vec<Memory> = Vec::new();
        let mut dumps = Dumps::new(store.writer(WriterOptions::default()).unwrap());
        for number in 1..=8 {
            // It goes on from a state of before, as a restored process does.
            let from = random.u64(0..number);
            if from > 0 {
                memory = states[from as usize - 1].clone();
                let pages = memory
                    .spaces
                    .values_mut()
                    .flat_map(|pages| pages.values_mut());
                pages.for_each(|page| page.dirty = true);
                dumps.build_on(from).unwrap();
            }
            memory.change(&mut random);
            let (before, seed) = (memory.clone(), random.u64(..));
            let known = &mut BTreeSet::new();
            let manifest = take_parts(&mut dumps, &mut memory, (1, false), known, seed);
            assert!(memory == before.cleaned());
            let parent = manifest.parent.map(|parent| parent.number);
            let newest = (number > 1).then(|| number - 1);
            assert_eq!(parent, (from > 0).then_some(from).or(newest));
            states.push(memory.clone());
        }
        for (state, number) in states.iter().zip(1..) {
            check(&store, number, state);
        }
        let writer = dumps.writer();
        writer.squash(2, 4).unwrap();
        writer.prune(3).unwrap();
        for number in store.numbers().unwrap() {
            check(&store, number, &states[number as usize - 1]);
        }
        assert!(store.verify().unwrap().is_sound());
        assert!(dumps.build_on(99).is_err());
    }
}

#[test]
fn other_image_files_belong_to_the_checkpoint() {
    let store = store();
    let mut dumps = Dumps::new(store.writer(WriterOptions::default()).unwrap());
    let mut memory = Memory::default();
    memory.change(&mut fastrand::Rng::with_seed(3));
    let big = vec![5; (3 << 20) + 17];
    let files = [
        ("core-77.img", &b"abc"[..]),
        ("empty.img", b""),
        ("tmpfs.img", &big),
    ];
    for round in 0..3 {
        let (here, there) = UnixStream::pair().unwrap();
        let manifest = thread::scope(|scope| {
            let dumping = scope.spawn(|| {
                let mut client = Client {
                    stream: here,
                    long: false,
                };
                client.dump(&mut memory).unwrap()
            });
            let manifest = dumps.take_with(there, |dump| {
                for (name, mut bytes) in files {
                    dump.add_file(name, &mut bytes)?;
                }
                for wrong in ["../x", "", "core-77.img"] {
                    assert!(dump.add_file(wrong, &mut &b"x"[..]).is_err());
                }
                Ok(Duration::from_nanos(7))
            });
            assert_eq!(dumping.join().unwrap(), 0);
            manifest.unwrap()
        });
        assert_eq!(manifest.cost.pause_ns, 7);
        assert_eq!(manifest.cost.stored_pages > 0, round == 0);
        let mut image = store.image(manifest.number).unwrap();
        let names = image.criu_files().unwrap().unwrap();
        assert_eq!(names, files.map(|(name, _)| name));
        let directory = tempfile::tempdir().unwrap();
        image
            .export_criu(directory.path(), LazyPages::Written)
            .unwrap();
        memory.check_files(directory.path(), false);
        for (name, bytes) in files {
            assert!(
                std::fs::read(directory.path().join(name)).unwrap() == bytes,
                "{name}"
            );
        }
        // Nothing that is there is replaced.
        assert!(
            image
                .export_criu(directory.path(), LazyPages::Written)
                .is_err()
        );
    }
    // One that fails in the end leaves nothing, and the next is whole.
    for fails in [true, false] {
        let (here, there) = UnixStream::pair().unwrap();
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut client = Client {
                    stream: here,
                    long: false,
                };
                client.dump(&mut memory).unwrap()
            });
            let outcome = dumps.take_with(there, |_| match fails {
                true => Err(pagetrail_checkpoint::Error::Empty),
                false => Ok(Duration::ZERO),
            });
            match outcome {
                Ok(manifest) => assert_eq!((fails, manifest.parent), (false, None)),
                Err(_) => assert!(fails),
            }
        });
        assert_eq!(store.numbers().unwrap().len(), 3 + usize::from(!fails));
    }
    let newest = store.newest().unwrap();
    check(&store, newest, &memory);
}

/// What a client sends, and a word of the answer.
type Lie = (
    &'static str,
    fn(&mut Client<UnixStream>) -> std::io::Result<()>,
);

const LIES: &[Lie] = &[
    ("went away", |client| client.open(process(7)).map(drop)),
    ("connection", |client| {
        client.open(process(7))?;
        client.send(PRESENT << 16 | ADD, 1000, 0x1000, process(7))?;
        client.stream.write_all(&[1; 5000])
    }),
    ("twice", |client| {
        client.open(process(7))?;
        client.open(process(7)).map(drop)
    }),
    ("twice", |client| {
        client.open(process(7))?;
        for _ in 0..2 {
            client.send(PRESENT << 16 | ADD, 1, 0x1000, process(7))?;
            client.stream.write_all(&[1; PAGE as usize])?;
        }
        client.close().map(drop)
    }),
    ("parent", |client| {
        assert!(!client.open(process(7))?);
        client.send(IN_PARENT << 16 | ADD, 1, 0x1000, process(7))?;
        client.close().map(drop)
    }),
    ("beyond", |client| {
        client.send(PRESENT << 16 | ADD, 1, 1 << 60, process(7))
    }),
    ("within a page", |client| {
        client.open(process(7))?;
        client.send(PRESENT << 16 | ADD, 1, 0x1001, process(7))
    }),
    ("no pages", |client| {
        client.open(process(7))?;
        client.send(PRESENT << 16 | ADD, 0, 0x1000, process(7))
    }),
    ("stay where they are", |client| {
        client.open(process(7))?;
        client.send(LAZY << 16 | ADD, 1, 0x1000, process(7))
    }),
    ("asks for some", |client| {
        client.open(process(7))?;
        client.send(GET, 1, 0x1000, 7)
    }),
    ("without any pages", |client| {
        assert!(!client.has_parent(process(7))?);
        client.close().map(drop)
    }),
    ("command", |client| client.send(77, 0, 0, process(7))),
    ("memory to keep account of", |client| {
        client.open(process(7))?;
        client.send(PRESENT << 16 | ADD, u64::from(u32::MAX), 0x1000, process(7))
    }),
];

#[test]
fn clients_that_lie_leave_the_store_as_it_was() {
    let store = store();
    let server = server(&store, None);
    let mut memory = Memory::default();
    memory.change(&mut fastrand::Rng::with_seed(1));
    for long in [false, true] {
        taken(talk(&server, long, |client| client.dump(&mut memory)).1);
        let before = store.numbers().unwrap();
        for (word, lie) in LIES {
            let (_, handled) = talk(&server, long, |client| drop(lie(client)));
            let reason = handled.unwrap_err().to_string();
            assert!(reason.contains(word), "{word}: {reason}");
            assert_eq!(store.numbers().unwrap(), before);
        }
        // The next is taken, and is whole: what CRIU forgot with the failed one is in it.
        let (said, handled) = talk(&server, long, |client| client.dump(&mut memory));
        assert_eq!(said.unwrap(), 0);
        assert_eq!(taken(handled).parent, None);
        check(&store, store.newest().unwrap(), &memory);
    }
    assert!(store.verify().unwrap().is_sound());
}

#[test]
fn no_bytes_are_too_much_for_the_server() {
    let mut random = random("hostile client");
    let store = store();
    let server = server(&store, None);
    let mut memory = Memory::default();
    memory.change(&mut random);
    taken(talk(&server, false, |client| client.dump(&mut memory)).1);
    for _ in 0..times(1500, 50_000) {
        let mut bytes = Vec::new();
        let long = random.bool();
        for _ in 0..random.u32(1..12) {
            let commands = [1, 2, 3, OPEN, 5, ADD, GET, CLOSE, 0x1024, random.u32(..)];
            let flags = [
                0,
                PRESENT,
                IN_PARENT,
                LAZY,
                PRESENT | LAZY,
                random.u32(0..1 << 16),
            ];
            let command = commands[random.usize(0..commands.len())]
                | flags[random.usize(0..flags.len())] << 16;
            let counts = [0, 1, 2, random.u64(0..1 << 20), random.u64(..)];
            let whose = [process(77), 77, 1 << 8 | 2, random.u64(..)];
            let at = [0x1000 * random.u64(0..9), random.u64(..)][usize::from(random.u8(0..9) == 0)];
            let pages = counts[random.usize(0..counts.len())];
            let whose = whose[random.usize(0..whose.len())];
            bytes.extend(criu::request(long, command, pages, at, whose));
            if random.bool() {
                let data = pages.min(3) * PAGE;
                bytes.extend(std::iter::repeat_n(random.u8(..), data as usize));
            }
        }
        bytes.truncate(random.usize(0..=bytes.len()));
        let (_, _) = talk(&server, long, |client| {
            let mut reading = client.stream.try_clone().unwrap();
            thread::scope(|scope| {
                scope.spawn(move || std::io::copy(&mut reading, &mut std::io::sink()));
                let _ = client.stream.write_all(&bytes);
                let _ = client.stream.shutdown(std::net::Shutdown::Write);
            });
        });
    }
    // Whatever was published is whole, and the store goes on.
    let verified = store.verify().unwrap();
    assert!(verified.is_sound(), "{:?}", verified.damages);
    for number in store.numbers().unwrap() {
        let directory = tempfile::tempdir().unwrap();
        let mut image = store.image(number).unwrap();
        image
            .export_criu(directory.path(), LazyPages::Written)
            .unwrap();
    }
    let (said, _) = talk(&server, false, |client| client.dump(&mut memory));
    assert_eq!(said.unwrap(), 0);
    check(&store, store.newest().unwrap(), &memory);
}

#[test]
fn one_dump_is_taken_at_a_time() {
    let store = store();
    let server = server(&store, None);
    let (here, there) = UnixStream::pair().unwrap();
    let mut first = Client {
        stream: here,
        long: false,
    };
    thread::scope(|scope| {
        let server = &server;
        let taking = scope.spawn(move || server.handle(there));
        assert!(!first.open(process(1)).unwrap());
        let (_, second) = talk(server, true, |client| client.open(process(2)).is_err());
        let reason = second.unwrap_err().to_string();
        assert!(reason.contains("another dump"), "{reason}");
        first
            .send(PRESENT << 16 | ADD, 1, 0x1000, process(1))
            .unwrap();
        first.stream.write_all(&[9; PAGE as usize]).unwrap();
        assert_eq!(first.close().unwrap(), 0);
        drop(first);
        taken(taking.join().unwrap());
    });
}

const ROLE: &str = "PAGETRAIL_TEST_PAGE_SERVER";

/// Not a test of its own: the server that is killed.
#[test]
fn page_server() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    let (step, directory) = role.split_once(' ').unwrap();
    let directory = Path::new(directory);
    let listener = UnixListener::bind(directory.join("socket.new")).unwrap();
    std::fs::rename(directory.join("socket.new"), directory.join("socket")).unwrap();
    let place = Directory::create(&directory.join("store"), WorldWritable::Allow).unwrap();
    let storage = Faulty::new(place, step.parse().unwrap(), Fault::Kill);
    let store = Store::create_on(Arc::new(storage)).unwrap();
    let server = server(&store, None);
    for stream in listener.incoming() {
        let _ = server.handle(stream.unwrap());
    }
}

/// A server that ends with the test.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(step: u64, directory: &Path) -> Server {
    let _ = std::fs::remove_file(directory.join("socket"));
    let _ = std::fs::remove_file(directory.join("socket.new"));
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["page_server", "--exact", "--quiet"])
        .env(ROLE, format!("{step} {}", directory.display()))
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    Server(child)
}

fn connect(server: &mut Server, directory: &Path) -> Option<Client<UnixStream>> {
    loop {
        if let Ok(stream) = UnixStream::connect(directory.join("socket")) {
            return Some(Client {
                stream,
                long: false,
            });
        }
        if server.0.try_wait().unwrap().is_some() {
            return None;
        }
        thread::sleep(Duration::from_millis(1));
    }
}

/// The store is whole; a dump that was acknowledged is its newest, and one that was not is there
/// whole or not at all.
fn examine(directory: &Path, acknowledged: Option<&Memory>, tried: Option<&Memory>) {
    let Ok(store) = Store::open(&directory.join("store")) else {
        assert!(acknowledged.is_none());
        return;
    };
    let verified = store.verify().unwrap();
    assert!(verified.is_sound(), "{:?}", verified.damages);
    let Ok(newest) = store.newest() else {
        assert!(acknowledged.is_none());
        return;
    };
    let is = |memory: Option<&Memory>| {
        memory.is_some_and(|memory| {
            let check = std::panic::AssertUnwindSafe(|| check(&store, newest, memory));
            std::panic::catch_unwind(check).is_ok()
        })
    };
    assert!(
        is(acknowledged) || is(tried),
        "checkpoint {newest} is of no instant"
    );
}

/// Dumps over and over until the server has gone, or so often.
fn dump_until(
    server: &mut Server,
    directory: &Path,
    count: u32,
    memory: &mut Memory,
    random: &mut fastrand::Rng,
) -> (Option<Memory>, Option<Memory>) {
    let (mut acknowledged, mut tried) = (None, None);
    for _ in 0..count {
        let Some(mut client) = connect(server, directory) else {
            break;
        };
        memory.change(random);
        tried = Some(memory.clone());
        if client.dump(memory).ok() != Some(0) {
            break;
        }
        acknowledged = tried.take();
    }
    (acknowledged, tried)
}

#[test]
fn killed_at_every_step_to_the_store() {
    let mut random = random("killed page server: steps");
    let scratch = tempfile::tempdir().unwrap();
    let directory = scratch.path();
    let mut step = 0;
    let mut memory = Memory::default();
    loop {
        let _ = std::fs::remove_dir_all(directory.join("store"));
        let mut server = start(step, directory);
        let (done, tried) = dump_until(&mut server, directory, 3, &mut memory, &mut random);
        let is_over = server.0.try_wait().unwrap().is_none() && tried.is_none();
        drop(server);
        examine(directory, done.as_ref(), tried.as_ref());
        // One that starts over what is left takes all.
        let mut server = start(u64::MAX, directory);
        let (done, _) = dump_until(&mut server, directory, 1, &mut memory, &mut random);
        drop(server);
        assert!(done.is_some());
        examine(directory, done.as_ref(), None);
        step += 1;
        if is_over {
            break;
        }
    }
    println!("killed at {step} steps");
    assert!(step > 15);
    row("killed page server: every step", "any", "works", "");
}

#[test]
fn killed_at_random_moments() {
    let mut random = random("killed page server: moments");
    let scratch = tempfile::tempdir().unwrap();
    let directory = scratch.path();
    let mut memory = Memory::default();
    let mut last = None;
    for _ in 0..times(60, 1000) {
        let mut server = start(u64::MAX, directory);
        if connect(&mut server, directory).is_none() {
            panic!("it does not start");
        }
        let pid = rustix::process::Pid::from_child(&server.0);
        let after = Duration::from_micros(random.u64(0..20_000));
        let killing = thread::spawn(move || {
            thread::sleep(after);
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        });
        let (done, tried) = dump_until(&mut server, directory, u32::MAX, &mut memory, &mut random);
        killing.join().unwrap();
        drop(server);
        last = done.or(last);
        examine(directory, last.as_ref(), tried.as_ref());
        // What was not acknowledged may be there all the same.
        if let Ok(store) = Store::open(&directory.join("store"))
            && let (Ok(newest), Some(tried)) = (store.newest(), &tried)
        {
            let check = std::panic::AssertUnwindSafe(|| check(&store, newest, tried));
            if std::panic::catch_unwind(check).is_ok() {
                last = Some(tried.clone());
            }
        }
    }
    row("killed page server: random moments", "any", "works", "");
}
