//! The time stamp counter, which counts instructions under `cargo xtask vm --counted`, and KVM's
//! own counters.
#![allow(unsafe_code, reason = "reads the time, as it is")]

use std::arch::asm;
use std::arch::x86_64::{_mm_lfence, _rdtsc};
use std::fs;

use serde_json::{Value, json};

/// The directory of KVM's counters over all virtual machines, if debugfs is mounted.
const COUNTERS: &str = "/sys/kernel/debug/kvm";
/// The counters: all exits; exits by ports, which are the program's system calls and exceptions;
/// exits for the host's interrupts; pages that KVM has mapped.
const NAMES: [&str; 4] = ["exits", "io_exits", "irq_exits", "pf_fixed"];

/// Reads the time stamp counter.
pub(crate) fn ticks() -> u64 {
    // SAFETY: every x86-64 processor has both instructions, and they access no memory.
    unsafe {
        _mm_lfence();
        _rdtsc()
    }
}

/// Ticks per instruction: 1 where the clock advances by instructions.
pub(crate) fn ticks_per_instruction() -> f64 {
    const TURNS: u64 = 10_000_000;
    let before = ticks();
    // SAFETY: the loop changes only its own operand register and the flags, and accesses no memory.
    unsafe {
        asm!("2:", "dec {turns}", "jnz 2b", turns = inout(reg) TURNS => _, options(nomem, nostack));
    }
    (ticks() - before) as f64 / (2 * TURNS) as f64
}

/// Reads KVM's counters, as far as they exist.
fn counters() -> [Option<u64>; NAMES.len()] {
    NAMES.map(|name| {
        let text = fs::read_to_string(format!("{COUNTERS}/{name}")).ok()?;
        text.trim().parse().ok()
    })
}

/// Measures what `what` takes, by counter. Reading the counters causes some exits itself.
pub(crate) fn measured(what: impl FnOnce()) -> Value {
    let before = counters();
    let begun = ticks();
    what();
    let taken = ticks() - begun;
    let mut result = json!({ "ticks": taken });
    for ((name, before), after) in NAMES.iter().zip(before).zip(counters()) {
        if let (Some(before), Some(after)) = (before, after) {
            result[name] = after.saturating_sub(before).into();
        }
    }
    result
}
