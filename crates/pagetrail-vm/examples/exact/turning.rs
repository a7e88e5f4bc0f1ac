//! A program that makes no system call, and accesses the same pages again and again until another
//! set is requested. Rounds are collected while it runs.
//!
//! All TLBs must be flushed at the end of each round: otherwise the next round lacks accesses by
//! cached translations.
#![allow(unsafe_code, reason = "words that two programs share")]

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use pagetrail_vm::Rounds;

use super::{PAGE, Result, Step, hold_against};

/// Far more than it takes on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(240);
/// The requested phase: which pages are accessed. 0 is before the first phase, and the last one
/// ends the program.
const PHASES: u64 = 2;
const END: u64 = PHASES + 1;
const ROUNDS: u64 = 2;

/// Words that both processes share: the requested phase, and how many sweeps have been made.
pub(crate) struct Shared(*mut AtomicU64);

impl Shared {
    /// A descriptor that programs started from now on inherit.
    pub(crate) fn create() -> Result<OwnedFd> {
        let fd = rustix::fs::memfd_create("turning", rustix::fs::MemfdFlags::empty())?;
        rustix::fs::ftruncate(&fd, PAGE)?;
        Ok(fd)
    }

    pub(crate) fn map(descriptor: i32) -> Result<Self> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: without MAP_FIXED the kernel places the mapping where nothing else is.
        let at = unsafe {
            libc::mmap(
                ptr::null_mut(),
                PAGE as usize,
                protection,
                libc::MAP_SHARED,
                descriptor,
                0,
            )
        };
        match at {
            libc::MAP_FAILED => Err(io::Error::last_os_error().into()),
            at => Ok(Self(at.cast())),
        }
    }

    fn words(&self) -> &[AtomicU64; 2] {
        // SAFETY: the mapping is never unmapped, is aligned for a word, and any bits are a valid
        // `AtomicU64`.
        unsafe { &*self.0.cast() }
    }
}

/// The accesses of a phase.
fn steps(phase: u64) -> Vec<Step> {
    // The pages, and which of them are written, differ by phase. They include the last ones of a
    // page table and the first ones of the next.
    (0..64)
        .map(|n| (480 + n * 5 + phase, n % 3 == phase % 3))
        .collect()
}

/// The program: makes the accesses of the requested phase, by `touch`, until the end.
pub(crate) fn run_state(shared: &Shared, touch: impl Fn(Step)) {
    let [phase, sweeps] = shared.words();
    let phases: Vec<Vec<Step>> = (0..END).map(steps).collect();
    loop {
        let now = phase.load(Ordering::SeqCst);
        let Some(steps) = phases.get(now as usize) else {
            return;
        };
        steps.iter().for_each(|step| touch(*step));
        sweeps.fetch_add(1, Ordering::SeqCst);
    }
}

/// The checker: collects while the program runs, and compares each round with the accesses of its
/// phase.
pub(crate) fn judge(descriptor: &OwnedFd, rounds: &mut Rounds) -> Result<bool> {
    let shared = Shared::map(descriptor.as_raw_fd())?;
    let [phase, _] = shared.words();
    let mut fine = true;
    for now in 1..=PHASES {
        phase.store(now, Ordering::SeqCst);
        // The program continues with the previous phase for a moment, and a round contains both.
        await_sweep(&shared)?;
        rounds.collect()?;
        for round in 0..ROUNDS {
            await_sweep(&shared)?;
            let name = format!("turning, phase {now}, round {round}");
            fine &= hold_against(&name, &steps(now), rounds, None)?;
        }
    }
    phase.store(END, Ordering::SeqCst);
    Ok(fine)
}

/// Waits until a whole sweep has been made from now on.
fn await_sweep(shared: &Shared) -> Result<()> {
    let [_, sweeps] = shared.words();
    let before = sweeps.load(Ordering::SeqCst);
    let began = Instant::now();
    while sweeps.load(Ordering::SeqCst) < before + 2 {
        if began.elapsed() > TIMEOUT {
            return Err("the program does not run_state".into());
        }
        thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}
