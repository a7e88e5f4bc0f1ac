//! Whether a thread's seccomp mode lets it run system calls that are not its own: `seccomp(2)`.
//!
//! A call that a filter does not plainly allow would kill the thread, or be seen by its supervisor.
//! `ptrace(2)` can suspend filters, but only as long as the tracer lives: a tracer that is killed
//! would have the thread killed as well. So filters are read and run here, on the calls to come,
//! and a thread whose filters cannot be read is left alone.

use crate::proc::status::Status;
use crate::sys::own_vec::OwnVec;
use crate::sys::ptrace::{self, FilterInstruction, Tracee};
use rustix::io::Errno;

/// `AUDIT_ARCH_X86_64` in `include/uapi/linux/audit.h`.
const ARCHITECTURE: u32 = 0xc000_003e;
/// Results of a filter (`include/uapi/linux/seccomp.h`), of which the lowest two bytes are data.
const RESULT_MASK: u32 = 0xffff_0000;
const ALLOW: u32 = 0x7fff_0000;
const LOG: u32 = 0x7ffc_0000;
/// `sizeof(struct seccomp_data)`.
const DATA_BYTES: u32 = 64;
/// How many instructions are looked at before a filter counts as one that forbids.
const STEPS_MAX: u32 = 1 << 18;

/// Whether all filters of a stopped thread allow all of these system calls, whatever their
/// arguments. Allocates nothing.
///
/// `inherited`: the program was started by this process and may have no filters but those of its
/// own.
pub(super) fn allow(tracee: &Tracee, pid: u32, calls: &[i64], inherited: bool) -> bool {
    let Ok(status) = Status::of_thread(pid, tracee.tid()) else {
        return false;
    };
    match status.seccomp {
        0 => return true,
        // SECCOMP_MODE_STRICT: read, write, exit and sigreturn only.
        1 => return false,
        _ => {}
    }
    let mut room = ptrace::filter_room();
    for index in 0.. {
        match tracee.filter(index, &mut room) {
            Ok(filter) if calls.iter().all(|&call| allows(filter, call as u32)) => {}
            Ok(_) => return false,
            // Behind the last one.
            Err(Errno::NOENT) if index > 0 => return true,
            // Without CAP_SYS_ADMIN, under a filter ourselves, or without
            // CONFIG_CHECKPOINT_RESTORE.
            Err(_) => break,
        }
    }
    inherited && are_ours(&status)
}

/// Whether filters of a program that was started by this process are those that it inherited. This
/// process has made the same calls under them when it looked for what works here.
fn are_ours(theirs: &Status) -> bool {
    let tid = rustix::thread::gettid().as_raw_pid() as u32;
    let own = Status::of_thread(std::process::id(), tid);
    theirs.filters > 0 && own.is_ok_and(|own| own.filters == theirs.filters)
}

/// A way through a filter: where it is, and what is known of its registers and memory.
#[derive(Clone)]
struct Way {
    at: usize,
    a: Option<u32>,
    x: Option<u32>,
    memory: [Option<u32>; 16],
}

/// Runs a filter on a call with any arguments: where it looks at these, both ways are followed.
fn allows(filter: &[FilterInstruction], call: u32) -> bool {
    let mut ways = OwnVec::new();
    let mut next = Some(Way {
        at: 0,
        a: Some(0),
        x: Some(0),
        memory: [Some(0); 16],
    });
    let mut steps = 0;
    while let Some(mut way) = next {
        loop {
            steps += 1;
            let Some(instruction) = filter.get(way.at).filter(|_| steps < STEPS_MAX) else {
                return false;
            };
            way.at += 1;
            match step(&mut way, instruction, call) {
                Step::Next => {}
                Step::Either(other) => {
                    if ways.push(other).is_err() {
                        return false;
                    }
                }
                Step::End(Some(result)) if matches!(result & RESULT_MASK, ALLOW | LOG) => break,
                Step::End(_) => return false,
            }
        }
        next = ways.pop();
    }
    true
}

enum Step {
    Next,
    /// The other branch of a condition that depends on an argument.
    Either(Way),
    /// With this result, if it is known.
    End(Option<u32>),
}

/// One instruction of classic BPF (`include/uapi/linux/bpf_common.h`), of those that
/// `seccomp_check_filter` lets pass.
fn step(way: &mut Way, instruction: &FilterInstruction, call: u32) -> Step {
    let k = instruction.k;
    let slot = k as usize % 16;
    // BPF_X or BPF_K.
    let operand = match instruction.code & 0x08 {
        0 => Some(k),
        _ => way.x,
    };
    match instruction.code {
        // BPF_LD | BPF_W | BPF_ABS: a field of `struct seccomp_data`.
        0x20 => {
            way.a = match k {
                0 => Some(call),
                4 => Some(ARCHITECTURE),
                _ => None,
            }
        }
        0x80 => way.a = Some(DATA_BYTES),
        0x81 => way.x = Some(DATA_BYTES),
        0x00 => way.a = Some(k),
        0x01 => way.x = Some(k),
        0x60 => way.a = way.memory[slot],
        0x61 => way.x = way.memory[slot],
        0x02 => way.memory[slot] = way.a,
        0x03 => way.memory[slot] = way.x,
        0x07 => way.x = way.a,
        0x87 => way.a = way.x,
        0x06 => return Step::End(Some(k)),
        0x16 => return Step::End(way.a),
        // BPF_JMP | BPF_JA.
        0x05 => way.at = way.at.saturating_add(k as usize),
        code if code & 0x07 == 0x05 => {
            let holds = way
                .a
                .zip(operand)
                .and_then(|(a, operand)| match code & 0xf0 {
                    0x10 => Some(a == operand),
                    0x20 => Some(a > operand),
                    0x30 => Some(a >= operand),
                    0x40 => Some(a & operand != 0),
                    _ => None,
                });
            let (yes, no) = (
                way.at + usize::from(instruction.jt),
                way.at + usize::from(instruction.jf),
            );
            way.at = if holds.unwrap_or(true) { yes } else { no };
            if holds.is_none() {
                let mut other = way.clone();
                other.at = no;
                return Step::Either(other);
            }
        }
        code if code & 0x07 == 0x04 => {
            way.a = way
                .a
                .zip(operand)
                .and_then(|(a, operand)| match code & 0xf0 {
                    0x00 => Some(a.wrapping_add(operand)),
                    0x10 => Some(a.wrapping_sub(operand)),
                    0x20 => Some(a.wrapping_mul(operand)),
                    0x30 => a.checked_div(operand),
                    0x40 => Some(a | operand),
                    0x50 => Some(a & operand),
                    0x60 => a.checked_shl(operand),
                    0x70 => a.checked_shr(operand),
                    0x80 => Some(a.wrapping_neg()),
                    0xa0 => Some(a ^ operand),
                    _ => None,
                })
        }
        // Unknown here, so nothing can be said.
        _ => return Step::End(None),
    }
    Step::Next
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn op(code: u16, jt: u8, jf: u8, k: u32) -> FilterInstruction {
        FilterInstruction { code, jt, jf, k }
    }
    const NUMBER: FilterInstruction = op(0x20, 0, 0, 0);
    const FIRST_ARGUMENT: FilterInstruction = op(0x20, 0, 0, 16);
    const KILL: FilterInstruction = op(0x06, 0, 0, 0);
    const PASS: FilterInstruction = op(0x06, 0, 0, ALLOW);

    #[test]
    fn a_list_of_forbidden_calls_forbids_these() {
        let filter = [NUMBER, op(0x15, 0, 1, 323), KILL, PASS];
        assert!(!allows(&filter, 323));
        assert!(allows(&filter, 3));
        let errno = [
            NUMBER,
            op(0x15, 0, 1, 323),
            op(0x06, 0, 0, 0x0005_0001),
            PASS,
        ];
        assert!(!allows(&errno, 323), "an error is no permission");
    }

    #[test]
    fn another_architecture_is_not_ours() {
        let wrong = [op(0x20, 0, 0, 4), op(0x15, 1, 0, ARCHITECTURE), KILL, PASS];
        assert!(allows(&wrong, 3));
        let wrong = [op(0x20, 0, 0, 4), op(0x15, 0, 1, ARCHITECTURE), KILL, PASS];
        assert!(!allows(&wrong, 3));
    }

    #[test]
    fn a_call_allowed_for_some_arguments_only_is_not_allowed() {
        let filter = [FIRST_ARGUMENT, op(0x15, 0, 1, 7), PASS, KILL];
        assert!(!allows(&filter, 3));
        let either = [FIRST_ARGUMENT, op(0x15, 0, 1, 7), PASS, PASS];
        assert!(allows(&either, 3));
    }

    #[test]
    fn arithmetic_and_memory_are_followed() {
        let filter = [
            NUMBER,
            op(0x02, 0, 0, 3),
            op(0x00, 0, 0, 1),
            op(0x61, 0, 0, 3),
            op(0x0c, 0, 0, 0),
            op(0x54, 0, 0, 0xff),
            op(0x15, 0, 1, 4),
            PASS,
            KILL,
        ];
        assert!(allows(&filter, 3));
        assert!(!allows(&filter, 4));
    }

    #[test]
    fn a_filter_that_explodes_or_runs_off_is_none_that_allows() {
        let mut filter: Vec<_> = (0..60)
            .flat_map(|_| [FIRST_ARGUMENT, op(0x15, 0, 0, 7)])
            .collect();
        filter.push(PASS);
        assert!(!allows(&filter, 3));
        assert!(!allows(&[NUMBER], 3));
        assert!(!allows(&[op(0x05, 0, 0, u32::MAX), PASS], 3));
    }
}
