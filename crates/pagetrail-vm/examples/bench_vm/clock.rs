//! The time stamp counter, which counts instructions where `cargo xtask vm --counted` runs us, and KVM's own counters.
#![allow(unsafe_code, reason = "reads the time, as it is")]

use std::arch::asm;
use std::arch::x86_64::{_mm_lfence, _rdtsc};
use std::fs;

use serde_json::{Value, json};

/// Where KVM's counters of all machines are, if debugfs is mounted.
const COUNTERS: &str = "/sys/kernel/debug/kvm";
/// All exits; those by ports, which are the program's system calls and exceptions; those for the host's interrupts; pages
/// that KVM has mapped.
const NAMES: [&str; 4] = ["exits", "io_exits", "irq_exits", "pf_fixed"];

/// What the time stamp counter says.
pub(crate) fn ticks() -> u64 {
    // SAFETY: every processor for 64 bits has both.
    unsafe {
        _mm_lfence();
        _rdtsc()
    }
}

/// Ticks per instruction: 1 where time passes by instructions.
pub(crate) fn ticks_per_instruction() -> f64 {
    const TURNS: u64 = 10_000_000;
    let before = ticks();
    // SAFETY: counts a register of its own down.
    unsafe {
        asm!("2:", "dec {turns}", "jnz 2b", turns = inout(reg) TURNS => _, options(nomem, nostack));
    }
    (ticks() - before) as f64 / (2 * TURNS) as f64
}

/// KVM's counters, as far as they are there.
fn counters() -> [Option<u64>; NAMES.len()] {
    NAMES.map(|name| {
        let text = fs::read_to_string(format!("{COUNTERS}/{name}")).ok()?;
        text.trim().parse().ok()
    })
}

/// Does something; what it took, by name. Looking at the counters takes some exits itself.
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
