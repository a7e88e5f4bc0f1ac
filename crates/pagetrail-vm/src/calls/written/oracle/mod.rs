//! Compares the table of writes with what calls do: each call is made on this process with random
//! arguments, and every byte that it changes in the memory around them must be among those that the
//! table yields.
//!
//! `PAGETRAIL_ORACLE_ROUNDS` is how many times all calls are made (30), `PAGETRAIL_ORACLE_SEED` the
//! first seed (1).

mod table;

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use super::*;
use crate::memory::PAGE;
use crate::memory::mapping::PRIVATE;
use crate::sys::program_memory::{read, write};
use table::Argument::*;
use table::Kind::*;
use table::{CALLS, Kind, Row};

/// The pages that calls write to, some of which are unmapped or read-only.
const PAGES: u64 = 24;
/// The longest buffer: buffers may reach beyond the end of the arena.
const LONGEST: u64 = 3 * PAGE;

/// An address where nothing else is mapped.
const ARENA: u64 = 0x3000_0000_0000;

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }

    /// A random address in the arena, often just before the end of a page.
    fn place(&mut self) -> u64 {
        let page = ARENA + self.below(PAGES) * PAGE;
        page + match self.below(3) {
            0 => PAGE - 1 - self.below(64),
            1 => self.below(8) * 8,
            _ => self.below(PAGE),
        }
    }
}

/// Files to read from, created for each call.
struct Files(BTreeMap<Kind, Vec<OwnedFd>>);

impl Files {
    fn new() -> std::io::Result<Self> {
        use rustix::net::{AddressFamily, SocketType, socketpair};
        let text = vec![b'q'; 20_000];
        let file = rustix::fs::memfd_create("oracle", rustix::fs::MemfdFlags::CLOEXEC)?;
        rustix::io::pwrite(&file, &text, 0)?;
        let (pipe, pipe_end) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::NONBLOCK)?;
        // In two pieces, of which a reader may get only the first one.
        rustix::io::write(&pipe_end, &text[..5000])?;
        rustix::io::write(&pipe_end, &text[..3000])?;
        let flags = rustix::net::SocketFlags::NONBLOCK;
        let (socket, other) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        rustix::io::write(&other, &text[..6000])?;
        rustix::io::write(&other, &text[..3000])?;
        let queue = rustix::event::epoll::create(rustix::event::epoll::CreateFlags::CLOEXEC)?;
        rustix::event::epoll::add(
            &queue,
            &socket,
            rustix::event::epoll::EventData::new_u64(u64::MAX / 3),
            rustix::event::epoll::EventFlags::IN,
        )?;
        let open = |path: &str| File::options().read(true).write(true).open(path);
        let memory = open("/proc/self/mem")?;
        let mut files = BTreeMap::from([
            (Zero, vec![open("/dev/zero")?.into()]),
            (Plain, vec![file]),
            (Directory, vec![File::open("/dev")?.into()]),
            (Pipe, vec![pipe, pipe_end]),
            (Socket, vec![socket, other]),
            (OwnMemory, vec![memory.into()]),
            (Queue, vec![queue]),
        ]);
        if let Ok(terminal) = open("/dev/ptmx") {
            files.insert(Terminal, vec![terminal.into()]);
        }
        Ok(Self(files))
    }

    fn descriptor(&self, kind: Kind) -> Option<RawFd> {
        Some(self.0.get(&kind)?.first()?.as_raw_fd())
    }
}

/// The pages of the arena: whether each is mapped, and writable.
struct Arena {
    writable: Vec<Option<bool>>,
}

impl Arena {
    /// Maps an arena filled with a byte, with some pages missing and some read-only.
    fn new(random: &mut Random) -> Self {
        let bytes = PAGES * PAGE;
        let flags = PRIVATE | libc::MAP_FIXED as u64;
        let mapped = call(libc::SYS_mmap, &[ARENA, bytes, 3, flags, u64::MAX, 0]);
        assert_eq!(mapped, ARENA as i64);
        let byte = 1 + random.below(250) as u8;
        write(ARENA, &vec![byte; bytes as usize]).expect("the arena is there");
        let mut writable = vec![Some(true); PAGES as usize];
        for _ in 0..random.below(5) {
            let page = random.below(PAGES);
            let at = ARENA + page * PAGE;
            let is_there = random.below(2) == 0 && writable[page as usize].is_some();
            let changed = match is_there {
                true => call(libc::SYS_mprotect, &[at, PAGE, 1]),
                false => call(libc::SYS_munmap, &[at, PAGE]),
            };
            assert_eq!(changed, 0);
            writable[page as usize] = is_there.then_some(false);
        }
        Self { writable }
    }

    /// Whether the kernel can write to all of a buffer.
    fn takes(&self, address: u64, bytes: u64) -> bool {
        let Some(first) = address.checked_sub(ARENA) else {
            return false;
        };
        let last = first.saturating_add(bytes.max(1) - 1) / PAGE;
        let mut pages = first / PAGE..=last.min(PAGES);
        bytes == 0 || pages.all(|page| self.writable.get(page as usize) == Some(&Some(true)))
    }

    fn contents(&self) -> Vec<Option<[u8; PAGE as usize]>> {
        let page = |page: u64| {
            let mut bytes = [0; PAGE as usize];
            read(ARENA + page * PAGE, &mut bytes).ok().map(|()| bytes)
        };
        (0..PAGES).map(page).collect()
    }
}

/// A call with random arguments, and the memory outside the arena that they point to. Returns
/// `None` where the arena has no room for them.
fn random_call(
    (number, arguments): &Row,
    random: &mut Random,
    files: &Files,
) -> Option<(Call, Vec<Vec<u64>>)> {
    let mut made = Call {
        number: *number as u64,
        arguments: [0; 6],
    };
    let mut inputs = Vec::new();
    for (place, argument) in made.arguments.iter_mut().zip(*arguments) {
        *place = match *argument {
            Is(value) => value,
            Of(values) => values[random.below(values.len() as u64) as usize],
            Out | OffsetAt => random.place(),
            Maybe if random.below(4) == 0 => 0,
            Maybe => random.place(),
            Length if random.below(2) == 0 => random.below(300),
            Length => random.below(LONGEST),
            On(kind) => {
                let descriptor = files.descriptor(kind)? as u64;
                if kind == OwnMemory {
                    call(libc::SYS_lseek, &[descriptor, random.place(), 0]);
                }
                descriptor
            }
            In(words) => {
                inputs.push(words.to_vec());
                inputs.last()?.as_ptr() as u64
            }
            LengthAt => {
                let lengths = [0, 1, 2, 4, 12, 16, 110, 5000u32];
                let length = lengths[random.below(lengths.len() as u64) as usize];
                let at = random.place();
                write(at, &length.to_le_bytes()).ok()?;
                at
            }
            Briefly => {
                let at = random.place();
                words(at, &[0, 100])?;
                at
            }
            ListAt => list(random)?,
            MessageAt => {
                let (at, list) = (random.place(), list(random)?);
                let (name, control) = (random.place(), random.place());
                words(at, &[name, 16, list, 2, control, 64, 0])?;
                at
            }
        };
    }
    Some((made, inputs))
}

/// A list of two buffers, of which one may overlap the list.
fn list(random: &mut Random) -> Option<u64> {
    let at = random.place();
    let first = match random.below(4) {
        0 => at.saturating_sub(random.below(100)),
        _ => random.place(),
    };
    let (one, two) = (random.below(LONGEST), random.below(LONGEST));
    words(at, &[first, one, random.place(), two])?;
    Some(at)
}

fn words(at: u64, words: &[u64]) -> Option<()> {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    write(at, &bytes).ok()
}

/// Closes what a call has created.
fn undo(made: &Call, result: i64) {
    let number = |address: u64| read_word_32(address);
    match made.number as i64 {
        libc::SYS_pipe2 | libc::SYS_socketpair if result == 0 => {
            let at = made.arguments[if made.number as i64 == libc::SYS_pipe2 {
                0
            } else {
                3
            }];
            for at in [at, at + 4] {
                call(libc::SYS_close, &[number(at)]);
            }
        }
        libc::SYS_timer_create if result == 0 => {
            call(libc::SYS_timer_delete, &[number(made.arguments[2])]);
        }
        _ => {}
    }
}

fn setting(name: &str, default: u64) -> u64 {
    let text = std::env::var(name).ok();
    text.and_then(|text| text.parse().ok()).unwrap_or(default)
}

#[test]
fn calls_write_where_they_are_said_to_write() {
    let (first, rounds) = (
        setting("PAGETRAIL_ORACLE_SEED", 1),
        setting("PAGETRAIL_ORACLE_ROUNDS", 30),
    );
    let mut changing = vec![false; CALLS.len()];
    for seed in first..first + rounds {
        for (n, row) in CALLS.iter().enumerate() {
            let mut random = Random(seed.wrapping_mul(1 << 20).wrapping_add(n as u64));
            random.below(1);
            let files = Files::new().expect("files to read from");
            let arena = Arena::new(&mut random);
            let Some((made, _inputs)) = random_call(row, &mut random, &files) else {
                continue;
            };
            let before = arena.contents();
            let expected = Expected::of(&made);
            let result = made.forward();
            let mut spans = Vec::new();
            let takes = |address, bytes| arena.takes(address, bytes);
            let is_known =
                expected.written(result, takes, |address, bytes| spans.push((address, bytes)));
            let after = arena.contents();
            undo(&made, result);
            for (page, (before, after)) in before.iter().zip(&after).enumerate() {
                let (Some(before), Some(after)) = (before, after) else {
                    continue;
                };
                changing[n] |= before != after;
                let changed = (0..PAGE).filter(|at| before[*at as usize] != after[*at as usize]);
                for at in changed.map(|at| ARENA + page as u64 * PAGE + at) {
                    let mut named = spans.iter();
                    assert!(
                        !is_known || named.any(|(from, bytes)| at.wrapping_sub(*from) < *bytes),
                        "seed {seed}: {made:x?} = {result} changed {at:#x}, and {spans:x?} are named"
                    );
                }
            }
        }
    }
    call(libc::SYS_munmap, &[ARENA, PAGES * PAGE]);
    let idle = CALLS
        .iter()
        .zip(&changing)
        .filter(|(_, changing)| !**changing);
    let idle: Vec<i64> = idle.map(|((number, _), _)| *number).collect();
    assert!(
        idle.len() < CALLS.len() / 3 || rounds < 10,
        "too many calls change nothing, so that nothing was tried: {idle:?}"
    );
}
