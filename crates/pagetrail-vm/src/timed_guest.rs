//! A guest of a few instructions whose exits and rounds can be timed, on any KVM; for
//! `examples/bench_vm`.

use std::time::{Duration, Instant};

use crate::RING_BYTES;
use crate::error::{Error, Result};
use crate::guest::Guest;
use crate::memory::PAGE;
use crate::sys::kvm::Log;
pub use crate::trial::DoneBy;
use crate::trial::{begin, mapped, put};

/// A guest that writes to each page of a list, exits, and starts again.
#[derive(Debug)]
pub struct TimedGuest(Guest, DoneBy);

/// How long the steps of a collect took.
#[derive(Clone, Copy, Debug)]
pub struct CollectTimes {
    /// The number of entries in the dirty ring.
    pub entries: u64,
    /// The time to read them.
    pub take: Duration,
    /// The time in which KVM re-protects their pages.
    pub reset: Duration,
    /// The time to build a set of pages from them.
    pub merge: Duration,
}

impl TimedGuest {
    /// Makes a guest that writes to these pages of an array, in this order. With `accesses`, rounds
    /// also contain accessed pages.
    pub fn new(order: &[u64], sign: DoneBy, accesses: bool) -> Result<Self> {
        let mut guest = Guest::new(Log::Ring(RING_BYTES))?;
        if let Some(log) = guest.log().filter(|_| accesses) {
            log.track_accesses(&mut guest.memory());
        }
        let writable = libc::PROT_READ | libc::PROT_WRITE;
        let pages = order.iter().max().map_or(1, |last| last + 1);
        let array = mapped(&guest, pages * PAGE, writable)?;
        let list: Vec<u8> = order
            .iter()
            .flat_map(|page| (array + page * PAGE).to_le_bytes())
            .collect();
        let list_at = mapped(&guest, (list.len() as u64).max(1), writable)?;
        put(list_at, &list)?;
        begin(&mut guest, &text(list_at, order.len() as u64, sign))?;
        Ok(Self(guest, sign))
    }

    /// Lets the guest write to its pages once.
    pub fn pass(&mut self) -> Result<()> {
        self.1.wait_in(&mut self.0)
    }

    /// Collects a round, as for a recorder.
    pub fn collect(&mut self) -> Result<crate::Collected> {
        self.0.collect()
    }

    /// Collects a round, step by step.
    pub fn collect_in_steps(&mut self) -> Result<CollectTimes> {
        let Some(log) = self.0.log() else {
            return Err(Error::Lacks("log"));
        };
        let began = Instant::now();
        let entries = log.take_entries();
        let taken = Instant::now();
        self.0.vm().reset_rings()?;
        let reset = Instant::now();
        self.0.collect()?;
        Ok(CollectTimes {
            entries,
            take: taken - began,
            reset: reset - taken,
            merge: reset.elapsed(),
        })
    }
}

fn text(list: u64, count: u64, sign: DoneBy) -> Vec<u8> {
    let mut text = vec![0x48, 0xbe]; // mov rsi, list
    text.extend(list.to_le_bytes());
    text.extend([0x48, 0xb9]); // mov rcx, count
    text.extend(count.to_le_bytes());
    text.extend([0x48, 0x85, 0xc9, 0x74, 0x0f]); // test rcx, rcx; jz past the loop
    text.extend([0x48, 0x8b, 0x06, 0xc6, 0x00, 0x01]); // mov rax, [rsi]; mov byte [rax], 1
    text.extend([0x48, 0x83, 0xc6, 0x08]); // add rsi, 8
    text.extend([0x48, 0xff, 0xc9, 0x75, 0xf1]); // dec rcx; jnz to the loop's beginning
    sign.emit(&mut text);
    let back = -(text.len() as i32 + 5);
    text.push(0xe9); // jmp to the beginning
    text.extend(back.to_le_bytes());
    text
}
