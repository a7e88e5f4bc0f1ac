//! Guests of a few instructions, on this machine's KVM, whose aliases are merged and separated
//! while two vCPUs write through them. A copy that is made of what rounds report equals the memory,
//! byte for byte.

#![allow(clippy::print_stdout, reason = "a random test says its seed")]

use std::collections::HashSet;
use std::os::fd::{IntoRawFd, RawFd};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Barrier, Mutex};
use std::thread;

use fastrand::Rng;

use super::*;
use crate::guest::Guest;
use crate::memory::mapping::Mmap;
use crate::rounds::link::{GuestEnd, GuestRound, Request, Rounds, pair};
use crate::rounds::unit_change::Aliased;
use crate::sys::kvm::Log;
use crate::sys::program_memory;
use crate::trial::{DoneBy, begin, mapped, put};
use crate::vcpu_threads::{RunState, VcpuThread};
use crate::{Collected, RING_BYTES, check};

const ALIASES: u32 = 8;
const PAGES: u64 = 12;
const SUBPAGE: u64 = PAGE / ALIASES as u64;

/// Guests whose vCPUs write to what their lists say, pass by pass.
struct Played {
    of: Aliased,
    memory: Arc<Mutex<Memory>>,
    rounds: Rounds,
    /// Ends the threads, and with the last one the guest, when it is dropped.
    _end: Sender<()>,
}

/// The addresses to which a vCPU writes in a pass.
type List = Vec<u64>;

/// What a vCPU does: for each of some passes, writes to the addresses of a list. Says when it is
/// done, and waits for the end of all.
struct Work {
    lists: Vec<List>,
    before_pass: Arc<Barrier>,
    done: Sender<()>,
}

fn protection() -> libc::c_int {
    libc::PROT_READ | libc::PROT_WRITE
}

/// Maps memory with aliases, as `pagetrail-alloc` does.
fn aliased(memory: &mut Memory) -> Aliased {
    let alias_bytes = PAGES * PAGE;
    let reserved = Mmap::anonymous(alias_bytes * u64::from(ALIASES), 0);
    let base = memory.mmap(reserved).unwrap() as u64;
    let first = Mmap {
        address: base,
        flags: (libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_FIXED) as u64,
        ..Mmap::anonymous(alias_bytes, protection())
    };
    assert_eq!(memory.mmap(first).unwrap(), base as i64);
    let of = Aliased {
        base,
        alias_bytes,
        aliases: ALIASES,
    };
    let flags = (libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED) as u64;
    for alias in 1..ALIASES {
        let to = of.page(alias, 0);
        let made = memory.mremap([base, 0, alias_bytes, flags, to, 0]).unwrap();
        assert_eq!(made, to as i64);
    }
    of
}

/// `mov rsi, LIST; mov rcx, COUNT; loop: mov rax, [rsi]; inc byte [rax]; add rsi, 8; dec rcx; jnz
/// loop; int3`, and again from the start.
fn text(list: u64, count: u64) -> Vec<u8> {
    let mut text = vec![0x48, 0xbe];
    text.extend(list.to_le_bytes());
    text.extend([0x48, 0xb9]);
    text.extend(count.to_le_bytes());
    text.extend([0x48, 0x8b, 0x06, 0xfe, 0x00]);
    text.extend([0x48, 0x83, 0xc6, 0x08, 0x48, 0xff, 0xc9, 0x75, 0xf2]);
    DoneBy::Exception.emit(&mut text);
    let back = -(text.len() as i32 + 5);
    text.push(0xe9);
    text.extend(back.to_le_bytes());
    text
}

impl Work {
    /// Runs all passes on a vCPU. All lists have the same length.
    fn run(&self, guest: &mut Guest, of: Aliased) {
        let count = self.lists[0].len() as u64;
        let at = mapped(guest, count * 8, protection()).unwrap();
        begin(guest, &text(at, count)).unwrap();
        for list in &self.lists {
            let addresses = list.iter().map(|offset| of.base + offset);
            let bytes: Vec<u8> = addresses.flat_map(u64::to_le_bytes).collect();
            put(at, &bytes).unwrap();
            self.before_pass.wait();
            DoneBy::Exception.wait_in(guest).unwrap();
            self.before_pass.wait();
        }
        let _ = self.done.send(());
    }
}

/// Starts a guest with a vCPU for each work.
fn start(log: Log, works: Vec<Work>) -> Played {
    let (rounds, link) = pair().unwrap();
    let link = link.into_raw_fd();
    let (end, ended) = channel();
    let (sender, started) = channel();
    thread::spawn(move || first_thread(log, works, link, &sender, ended));
    let (of, memory) = started.recv().expect("the guest has started");
    Played {
        of,
        memory,
        rounds,
        _end: end,
    }
}

fn first_thread(
    log: Log,
    works: Vec<Work>,
    link: RawFd,
    started: &Sender<(Aliased, Arc<Mutex<Memory>>)>,
    ended: Receiver<()>,
) {
    let mut guest = Guest::new(log).unwrap();
    let of = aliased(&mut guest.memory());
    guest.serve_rounds(GuestEnd::adopt(link).unwrap()).unwrap();
    thread::scope(|scope| {
        let mut works = works.into_iter();
        let first = works.next().unwrap();
        for (id, work) in works.enumerate() {
            let processor = guest.add_processor(id as u64 + 1).unwrap();
            guest.threads.table().count_processor();
            let run_state = Arc::new(RunState::of_this_thread());
            let mut guest = guest.for_new_thread(processor, run_state);
            scope.spawn(move || {
                guest.run_state.bind_to_this_thread();
                guest.processor.bind_to_this_thread();
                guest.threads.table().add(VcpuThread {
                    run_state: guest.run_state.clone(),
                    descriptor: guest.processor.descriptor(),
                });
                work.run(&mut guest, of);
                let _ = guest.threads.table().remove(&guest.run_state, 0);
                crate::sys::signal::unset_stop_byte();
            });
        }
        started.send((of, guest.memory.clone())).unwrap();
        first.run(&mut guest, of);
    });
    // All vCPUs stay until the collecting thread has seen enough.
    let _ = ended.recv();
    crate::sys::signal::unset_stop_byte();
}

impl Played {
    fn collect(&mut self) -> Collected {
        match self.rounds.collect().unwrap() {
            GuestRound::Round(collected) => collected,
            other => panic!("{other:?}"),
        }
    }

    /// Requests a change, which is done when a round is collected after that.
    fn change(&mut self, first: u64, pages: u64, merged: u64) {
        let change = UnitChange {
            of: self.of,
            first,
            pages,
            merged,
        };
        self.rounds.send(&Request::Units(vec![change]));
    }

    /// The aliases' pages in a set, as alias and number.
    fn pages(&self, set: &PageSet) -> HashSet<(u32, u64)> {
        let all = (0..ALIASES).flat_map(|alias| (0..PAGES).map(move |number| (alias, number)));
        all.filter(|(alias, number)| set.contains(self.of.page(*alias, *number)))
            .collect()
    }

    /// Copies sub-pages.
    fn copy(&self, pages: &HashSet<(u32, u64)>, into: &mut [u8]) {
        for (alias, number) in pages {
            let offset = number * PAGE + u64::from(*alias) * SUBPAGE;
            let bytes = &mut into[offset as usize..][..SUBPAGE as usize];
            program_memory::read(self.of.base + offset, bytes).unwrap();
        }
    }

    fn contents(&self) -> Vec<u8> {
        let mut all = vec![0; (PAGES * PAGE) as usize];
        program_memory::read(self.of.base, &mut all).unwrap();
        all
    }
}

/// The offset from the memory's first address of a byte, through the alias of its sub-page.
fn offset(alias: u32, number: u64, byte: u64) -> u64 {
    let alias = u64::from(alias);
    alias * PAGES * PAGE + number * PAGE + alias * SUBPAGE + byte
}

/// Whether there are no such guests here; says why.
fn no_guest(log: Log) -> bool {
    // Not by a trial merge: what is broken here must not count as missing.
    match check::try_guest_by(log == Log::Bitmap).and_then(|()| check::try_accesses()) {
        Ok(()) => false,
        Err(error) => {
            pagetrail_skips::not_here(error);
            true
        }
    }
}

/// Lets one vCPU write to each of these lists in its pass, with what `between` does before each.
fn passes(log: Log, lists: Vec<List>, mut before: impl FnMut(usize, &mut Played)) -> Played {
    let count = lists.len();
    let before_pass = Arc::new(Barrier::new(2));
    let (done, _is_done) = channel();
    let work = Work {
        lists,
        before_pass: before_pass.clone(),
        done,
    };
    let mut played = start(log, vec![work]);
    for pass in 0..count {
        before(pass, &mut played);
        before_pass.wait();
        before_pass.wait();
    }
    played
}

#[test]
fn merged_aliases_are_logged_once_and_separated_ones_apart() {
    for log in [Log::Ring(RING_BYTES), Log::Bitmap] {
        if no_guest(log) {
            return;
        }
        let everywhere = (0..PAGES).flat_map(|number| {
            let aliases = 0..ALIASES;
            aliases.map(move |alias| offset(alias, number, number))
        });
        let everywhere: List = everywhere.collect();
        let times = everywhere.len() / PAGES as usize;
        // The same length: each page several times through one alias.
        let third: List = (0..PAGES).map(|number| offset(3, number, 5)).collect();
        let third = third.repeat(times);
        let lists = vec![
            everywhere.clone(),
            everywhere.clone(),
            everywhere,
            third.clone(),
            third,
        ];
        let mut rounds: Vec<(usize, u64)> = Vec::new();
        let mut note = |played: &mut Played| {
            let collected = played.collect();
            let pages = played.pages(&collected.written);
            rounds.push((pages.len(), collected.ring_entries));
        };
        let mut played = passes(log, lists, |pass, played| {
            note(played);
            match pass {
                // Merged once its entries are there, and when there is a round without a change.
                2 => played.change(0, PAGES, 0xff),
                4 => played.change(0, PAGES, 0),
                _ => {}
            }
            let nothing = played.collect().written;
            assert!(played.pages(&nothing).is_empty(), "{nothing:?}");
        });
        note(&mut played);
        let (all, one) = ((PAGES * u64::from(ALIASES)), PAGES);
        // Written and logged: by each alias, then by all as one, then by one of them that is merged
        // still, then alone.
        assert_eq!(rounds[2].0 as u64, all);
        assert_eq!(rounds[3].0 as u64, all);
        assert_eq!(
            rounds[4].0 as u64, all,
            "its alias is merged with the others"
        );
        assert_eq!(rounds[5].0 as u64, one);
        if let Log::Ring(_) = log {
            let entries = [rounds[2].1, rounds[3].1, rounds[4].1, rounds[5].1];
            // The list of addresses and the machine's own exits are not logged.
            assert_eq!(entries, [all, one, one, one]);
        }
    }
}

#[test]
fn whatever_is_merged_meanwhile_no_write_is_lost() {
    const PASSES: usize = 100;
    const WRITES: usize = 150;
    let log = Log::Ring(RING_BYTES);
    if no_guest(log) {
        return;
    }
    let seed = std::env::var("PAGETRAIL_SEED").ok();
    let seed = seed.and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| fastrand::u64(..));
    println!("PAGETRAIL_SEED={seed}");
    let mut rng = Rng::with_seed(seed);
    let mut list = || -> List {
        let write = |_| offset(rng.u32(..ALIASES), rng.u64(..PAGES), rng.u64(..SUBPAGE));
        (0..WRITES).map(write).collect()
    };
    // No pass waits for the other vCPU, nor for rounds.
    let (done, is_done) = channel();
    let mut work = || Work {
        lists: (0..PASSES).map(|_| list()).collect(),
        before_pass: Arc::new(Barrier::new(1)),
        done: done.clone(),
    };
    let works = vec![work(), work()];
    let mut played = start(log, works);
    let mut copy = vec![0; (PAGES * PAGE) as usize];
    let (mut rounds, mut left) = (0, 2);
    while left > 0 {
        left -= is_done.try_iter().count();
        let collected = played.collect();
        let pages = played.pages(&collected.written);
        played.copy(&pages, &mut copy);
        rounds += 1;
        for _ in 0..rng.usize(..3) {
            let first = rng.u64(..PAGES);
            let merged = rng.u64(..1 << ALIASES);
            let merged = if merged.count_ones() == 1 { 0 } else { merged };
            played.change(first, rng.u64(1..=PAGES - first), merged);
        }
        if rng.u8(..4) == 0 {
            // A mapping that changes separates what is merged there.
            let page = played.of.page(rng.u32(..ALIASES), rng.u64(..PAGES));
            let mut memory = played.memory.lock().unwrap();
            let changed = memory.mprotect(page, PAGE, protection() as u64).unwrap();
            assert_eq!(changed, 0);
        }
    }
    let collected = played.collect();
    let pages = played.pages(&collected.written);
    played.copy(&pages, &mut copy);
    let contents = played.contents();
    let wrong = contents
        .iter()
        .zip(&copy)
        .position(|(one, other)| one != other);
    assert_eq!(wrong, None, "after {rounds} rounds, seed {seed}");
    assert!(
        contents.iter().any(|byte| *byte != 0),
        "nothing was written"
    );
}
