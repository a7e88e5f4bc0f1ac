//! Going on with a wait for events that has a timeout (`epoll_wait(2)`, `epoll_pwait(2)`).
//!
//! A stop ends it with `EINTR`, and the call made again waits for the whole time again: stopped
//! more often than that, a thread would wait for ever. So a wait that is found a second time within
//! its timeout is given a deadline. The call is made by code in padding, each time with what is
//! left; the deadline and the timeout of the program are in the upper halves of `rdi` and `r10`,
//! of which the call looks at the lower ones. When a wait began cannot be found out, so it lasts
//! longer by what had passed of it when it was given its deadline; it is never shorter.

use super::Rest;
use crate::attach::code::{Assembler, SLOT_BYTES};
use crate::attach::restart;
use crate::sys::ptrace::Registers;
use rustix::time::{ClockId, clock_gettime};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// How long a stop may last for which a wait that began anew at its end is found again.
const STOP_MAX: Duration = Duration::from_secs(1);

/// A wait that was found: its thread, the place of the call, and the stack there.
type Wait = (u32, u64, u64);

/// How many waits are remembered. One takes the place of another whose hash is alike.
const WAITS_MAX: usize = 1 << 12;

/// When waits were found last: the upper half of a word is from the hash of the wait, the lower
/// half the time in milliseconds, never 0. No lock: who holds one may be killed.
static FOUND: [AtomicU64; WAITS_MAX] = [const { AtomicU64::new(0) }; WAITS_MAX];

/// Whether a thread was found in this wait less than `time` ago; remembers that it was found now.
fn was_found_within(wait: Wait, time: Duration) -> bool {
    let (tid, place, stack) = wait;
    // Multiplication as in Knuth, volume 3, 6.4, by the golden ratio.
    let hash = [tid.into(), place, stack]
        .into_iter()
        .fold(0u64, |hash, word| {
            (hash.rotate_left(23) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15)
        });
    let now = now() | 1;
    let word = hash & !u64::from(u32::MAX) | u64::from(now);
    let at = (hash as u32 >> 16) as usize % WAITS_MAX;
    let before = FOUND[at].swap(word, Ordering::Relaxed);
    let passed = Duration::from_millis(now.wrapping_sub(before as u32).into());
    before as u32 != 0 && before >> 32 == word >> 32 && passed < time
}

/// The timeout of an interrupted wait in milliseconds, if it has one.
fn timeout(found: &Registers) -> Option<u32> {
    let call = found.orig_rax as i64;
    let waits = matches!(call, libc::SYS_epoll_wait | libc::SYS_epoll_pwait)
        && found.rax as i64 == restart::ERESTARTNOHAND;
    waits
        .then_some(found.r10 as u32)
        .filter(|&timeout| (1..=i32::MAX as u32).contains(&timeout))
}

/// Whether a thread was stopped within the call of a slot.
fn is_within(slot: &[u8; SLOT_BYTES], found: &Registers) -> bool {
    matches!(
        found.orig_rax as i64,
        libc::SYS_epoll_wait | libc::SYS_epoll_pwait
    ) && found.rax as i64 == restart::ERESTARTNOHAND
        && slot == &code(place_in(slot))
}

/// The registers of a thread that was stopped within the call of a slot; `None` where it is in
/// none.
pub(super) fn go_on(tid: u32, slot: &[u8; SLOT_BYTES], found: &Registers) -> Option<Registers> {
    if !is_within(slot, found) {
        return None;
    }
    let timeout = (found.r10 >> 32) as u32;
    was_found_within((tid, place_in(slot), found.rsp), Duration::ZERO);
    let mut registers = *found;
    let deadline = (found.rdi >> 32) as u32;
    registers.r10 = u64::from(timeout) << 32 | u64::from(left(deadline, now(), timeout));
    Some(registers)
}

/// The registers of such a thread in the call that the program made.
pub(super) fn of_program(slot: &[u8; SLOT_BYTES], found: &Registers) -> Option<Registers> {
    is_within(slot, found).then(|| Registers {
        rip: place_in(slot),
        rdi: u64::from(found.rdi as u32),
        r10: found.r10 >> 32,
        ..*found
    })
}

/// How a wait goes on that was interrupted twice; `None` where it may begin anew, or has no end.
pub(super) fn rest(tid: u32, found: &Registers) -> Option<Rest> {
    let timeout = timeout(found)?;
    let time = Duration::from_millis(timeout.into());
    let again = was_found_within((tid, found.rip, found.rsp), STOP_MAX + time);
    if !again || found.rdi >> 32 != 0 || found.r10 >> 32 != 0 {
        return None;
    }
    let mut registers = *found;
    // Of the millisecond that has begun nothing counts: a wait may end late, never early.
    let deadline = now().wrapping_add(1).wrapping_add(timeout);
    registers.rdi |= u64::from(deadline) << 32;
    registers.r10 |= u64::from(timeout) << 32;
    Some(Rest {
        call: found.orig_rax as i64,
        slot: code(found.rip),
        registers,
    })
}

/// What is left of a wait, all in milliseconds. Times are known modulo 2^32, 49 days.
fn left(deadline: u32, now: u32, timeout: u32) -> u32 {
    match deadline.wrapping_sub(now) {
        // Over; or the thread was stopped for weeks.
        left if left > timeout.saturating_add(1) => 0,
        left => left.min(timeout),
    }
}

/// The time of the clock that the call waits by, in milliseconds.
fn now() -> u32 {
    let now = clock_gettime(ClockId::Monotonic);
    (now.tv_sec * 1000 + now.tv_nsec / 1_000_000) as u32
}

/// Where the code of a slot has the place to which it goes back.
const PLACE_AT: usize = 12;

fn place_in(slot: &[u8; SLOT_BYTES]) -> u64 {
    let mut place = [0; 8];
    place.copy_from_slice(&slot[PLACE_AT..PLACE_AT + 8]);
    u64::from_le_bytes(place)
}

/// The code that makes the call, and afterwards leaves the registers as that of the program would
/// have; no instruction changes the flags.
fn code(place: u64) -> [u8; SLOT_BYTES] {
    let mut code = Assembler::default();
    code.syscall();
    code.put(&[0x89, 0xff]); // mov edi, edi
    code.put(&[0x49, 0x0f, 0xca]); // bswap r10
    code.put(&[0x45, 0x89, 0xd2]); // mov r10d, r10d
    code.put(&[0x48, 0xb9]); // movabs rcx, imm64: as after the call itself
    code.put(&place.to_le_bytes());
    code.put(&[0x41, 0x0f, 0xca]); // bswap r10d
    code.put(&[0xff, 0xe1]); // jmp rcx
    code.slot()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_is_never_longer_than_it_was() {
        assert_eq!(left(1000, 990, 100), 10);
        assert_eq!(left(1000, 1000, 100), 0);
        assert_eq!(left(1000, 1700, 100), 0);
        assert_eq!(left(1101, 1000, 100), 100);
        assert_eq!(left(5, u32::MAX - 4, 100), 10, "the clock wraps");
        assert_eq!(left(i32::MAX as u32, 0, i32::MAX as u32), i32::MAX as u32);
    }

    #[test]
    fn code_says_where_it_goes_back() {
        let slot: [u8; SLOT_BYTES] = code(0x1234_5678_9abc);
        assert_eq!(place_in(&slot), 0x1234_5678_9abc);
    }

    #[test]
    fn only_what_was_found_lately_is_found_again() {
        let wait = (u32::MAX, 1, 2);
        assert!(!was_found_within(wait, Duration::from_secs(9)));
        assert!(was_found_within(wait, Duration::from_secs(9)));
        assert!(!was_found_within(wait, Duration::ZERO));
    }
}
