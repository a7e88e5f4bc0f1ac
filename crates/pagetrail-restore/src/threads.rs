//! The threads: their IDs, what the kernel keeps for each, and their registers.

use crate::error::{Error, Result};
use crate::holes;
use crate::options::PidChoice;
use crate::remote::Remote;
use crate::sys::memory;
use crate::sys::ptrace::{self, Registers, Tracee};
use crate::sys::spawn::CloneArguments;
use pagetrail::{PageRange, PageSet, PendingSignal, RegisterSet, ThreadState};
use pagetrail_checkpoint::Thread;

/// `NT_PRSTATUS`, here the general registers alone.
const GENERAL: u32 = 1;
/// `SS_DISABLE` and `SS_ONSTACK` of `sigaltstack(2)`.
const DISABLED: u64 = 2;
const ON_STACK: u64 = 1;
/// Internal results of a system call that was interrupted, after which it begins anew:
/// `ERESTARTSYS`, `ERESTARTNOINTR`, `ERESTARTNOHAND`, `ERESTART_RESTARTBLOCK`
/// (include/linux/errno.h).
const RESTARTS: [i64; 4] = [-512, -513, -514, -516];
/// Length of the `syscall` instruction, in bytes.
const SYSCALL_LEN: u64 = 2;

/// What all threads of a process have in common.
const SHARED: i32 = libc::CLONE_VM
    | libc::CLONE_FS
    | libc::CLONE_FILES
    | libc::CLONE_SIGHAND
    | libc::CLONE_THREAD
    | libc::CLONE_SYSVSEM;

/// Creates the threads besides the main one; gives all of them, in the order of the image.
pub(crate) fn create(remote: &Remote, threads: &[Thread], pid: PidChoice) -> Result<Vec<Tracee>> {
    let mut created = vec![remote.main];
    remote
        .main
        .block_signals(u64::MAX)
        .map_err(Error::step("block signals"))?;
    for thread in threads.iter().skip(1) {
        let tid = thread.held.tid;
        let same = pid == PidChoice::Same;
        // The wanted ID lies right after the arguments.
        let arguments = CloneArguments {
            flags: SHARED as u64,
            set_tid: match same {
                true => remote.data_address() + size_of::<CloneArguments>() as u64,
                false => 0,
            },
            set_tid_size: same.into(),
            ..CloneArguments::default()
        };
        let new = remote.create_thread(&arguments.to_bytes(), &tid.to_ne_bytes())?;
        new.block_signals(u64::MAX)
            .map_err(Error::step("block signals"))?;
        created.push(new);
    }
    Ok(created)
}

/// Tells the kernel what it has to keep for a thread.
pub(crate) fn tell(
    remote: &Remote,
    tracee: Tracee,
    thread: &Thread,
    state: &ThreadState,
) -> Result<()> {
    let mut list = remote.list(tracee);
    list.call(
        "set where a thread's end is shown",
        libc::SYS_set_tid_address,
        &[state.clear_tid.into()],
    )?;
    let [head, length] = state.robust_list;
    if head != 0 {
        list.call(
            "set the list of robust futexes",
            libc::SYS_set_robust_list,
            &[head.into(), length.into()],
        )?;
    }
    let [start, flags, bytes] = state.alternate_stack;
    if flags & DISABLED == 0 {
        let words = [start, flags & !ON_STACK, bytes];
        let stack: Vec<u8> = words.into_iter().flat_map(u64::to_ne_bytes).collect();
        list.call(
            "set the alternate stack",
            libc::SYS_sigaltstack,
            &[stack.as_slice().into(), 0u64.into()],
        )?;
    }
    if let Some(rseq) = state.rseq {
        list.call(
            "register restartable sequences",
            libc::SYS_rseq,
            &[
                rseq.address.into(),
                rseq.bytes.into(),
                0u64.into(),
                rseq.signature.into(),
            ],
        )?;
    }
    let mut name = thread.name.as_bytes().to_vec();
    name.push(0);
    list.call(
        "name a thread",
        libc::SYS_prctl,
        &[libc::PR_SET_NAME.into(), name.as_slice().into()],
    )?;
    for signal in &state.pending {
        list.call(
            "send a signal that waited",
            libc::SYS_rt_tgsigqueueinfo,
            &[
                remote.pid.into(),
                tracee.0.into(),
                number(signal).into(),
                signal.as_slice().into(),
            ],
        )?;
    }
    list.run()
}

/// Pages that threads need at once, and those that the kernel may write to before they run, or when
/// they end: then it waits for none (`handle_userfault` in `fs/userfaultfd.c`). `word` reads eight
/// bytes of the image.
pub(crate) fn first_pages(
    threads: &[Thread],
    states: &[ThreadState],
    mut word: impl FnMut(u64) -> Result<u64>,
) -> Result<PageSet> {
    let mut first = PageSet::new();
    let mut add = |start: u64, bytes: u64| {
        let page = pagetrail::page_size();
        // An image may name an address that is none.
        let end = start.saturating_add(bytes).checked_next_multiple_of(page);
        first.extend(end.and_then(|end| PageRange::new(start & !(page - 1), end)));
    };
    for state in states {
        if let Some(rseq) = state.rseq {
            add(rseq.address, rseq.bytes.into());
        }
        add(state.clear_tid, 4);
        for (address, bytes) in robust(state.robust_list[0], &mut word)? {
            add(address, bytes);
        }
    }
    for (index, thread) in threads.iter().enumerate() {
        let sets = &thread.held.registers;
        let general = sets.iter().find(|set| set.note == GENERAL);
        let bytes = general.and_then(|set| set.bytes.as_slice().try_into().ok());
        let Some(registers) = bytes.map(ptrace::from_bytes) else {
            continue;
        };
        if index < THREADS_AT_ONCE {
            add(registers.rsp, 1);
            add(registers.rip, 1);
        }
        if registers.orig_rax as i64 == libc::SYS_restart_syscall
            && let Some(code) = registers.rip.checked_sub(CALL_BYTES as u64)
        {
            // Which call that is is read from its code ([`set_registers`]).
            add(code, CALL_BYTES as u64);
        }
    }
    Ok(first)
}

/// What the kernel looks at when a thread ends that holds robust mutexes: the list's head, and
/// entries and futexes of those that are held (`exit_robust_list` in `kernel/futex/core.c`).
fn robust(head: u64, word: &mut impl FnMut(u64) -> Result<u64>) -> Result<Vec<(u64, u64)>> {
    if head == 0 {
        return Ok(Vec::new());
    }
    let mut looked_at = vec![(head, ROBUST_HEAD_BYTES)];
    let offset = word(head.wrapping_add(8))?;
    let pending = word(head.wrapping_add(16))?;
    let mut entry = word(head)?;
    for _ in 0..ROBUST_MAX {
        // The lowest bit says that a mutex is one with priority inheritance.
        let at = entry & !1;
        if at == 0 || at == head {
            break;
        }
        looked_at.push((at, 8));
        looked_at.push((at.wrapping_add(offset), 4));
        entry = word(at)?;
    }
    if pending & !1 != 0 {
        looked_at.push(((pending & !1).wrapping_add(offset), 4));
    }
    // Where they are no addresses, the kernel gives up at this place.
    looked_at.retain(|(address, bytes)| *address < holes::END - bytes);
    Ok(looked_at)
}

/// How long a head is (`struct robust_list_head`), in bytes, and how many entries the kernel looks
/// at (`ROBUST_LIST_LIMIT`).
const ROBUST_HEAD_BYTES: u64 = 24;
const ROBUST_MAX: usize = 2048;
/// Of so many threads the stacks are there when they begin to run; others wait for theirs.
const THREADS_AT_ONCE: usize = 32;

/// The number in a `siginfo_t`.
pub(crate) fn number(signal: &PendingSignal) -> i32 {
    i32::from_ne_bytes([signal[0], signal[1], signal[2], signal[3]])
}

/// The general registers of a thread, with which it goes on: a system call that was interrupted
/// begins anew.
fn general(pid: u32, sets: &[RegisterSet]) -> Option<Registers> {
    let set = sets.iter().find(|set| set.note == GENERAL)?;
    let mut registers = ptrace::from_bytes(set.bytes.as_slice().try_into().ok()?);
    let mut call = registers.orig_rax as i64;
    if call == libc::SYS_restart_syscall {
        // The kernel has forgotten what it was to restart; made anew, it ends with `EINTR`.
        let mut code = [0; CALL_BYTES];
        let read = registers
            .rip
            .checked_sub(CALL_BYTES as u64)
            .map(|at| memory::read(pid, at, &mut code));
        if let (Some(Ok(())), Some(restarted)) = (read, restarted_call(code)) {
            call = restarted;
        }
    }
    if call >= 0 && RESTARTS.contains(&(registers.rax as i64)) {
        registers.rax = call as u64;
        registers.rip -= SYSCALL_LEN;
    }
    registers.orig_rax = u64::MAX;
    Some(registers)
}

/// How long `mov eax, imm32` and `syscall` are, in bytes.
const CALL_BYTES: usize = 7;

/// The call that the code before a restart made, where it is one that is restarted so.
fn restarted_call(code: [u8; CALL_BYTES]) -> Option<i64> {
    let [0xb8, number @ .., 0x0f, 0x05] = code else {
        return None;
    };
    let call = i64::from(i32::from_le_bytes(number));
    let restarts = [
        libc::SYS_nanosleep,
        libc::SYS_clock_nanosleep,
        libc::SYS_poll,
        libc::SYS_futex,
    ];
    restarts.contains(&call).then_some(call)
}

/// Gives a thread its registers and the signals that it blocks. It must not execute the stub any
/// more.
pub(crate) fn set_registers(pid: u32, tracee: Tracee, thread: &Thread) -> Result<()> {
    let tid = thread.held.tid;
    let sets = &thread.held.registers;
    let general = general(pid, sets)
        .ok_or_else(|| Error::refused(format!("the checkpoint lacks registers of thread {tid}")))?;
    for set in sets.iter().filter(|set| set.note != GENERAL) {
        tracee.set_register_set(set.note, &set.bytes).map_err(|_| {
            Error::refused(format!(
                "the checkpoint was taken on another processor: this one does not take the \
                 registers of thread {tid}"
            ))
        })?;
    }
    tracee
        .set_registers(&general)
        .and_then(|()| tracee.block_signals(thread.held.blocked_signals))
        .map_err(Error::step(format!("set the registers of thread {tid}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mutexes_that_a_thread_holds_are_found() {
        // A head at 0x1000 and mutexes whose futexes lie 16 bytes before their entries.
        let words = [
            (0x1000, 0x2010),
            (0x1008, 16u64.wrapping_neg()),
            (0x1010, 0x4011),
            (0x2010, 0x3011),
            (0x3010, 0x1000),
        ];
        let mut word = |address: u64| {
            let found = words.iter().find(|(at, _)| *at == address);
            Ok(found.map_or(0, |(_, word)| *word))
        };
        let found = robust(0x1000, &mut word).unwrap();
        let expected = [
            (0x1000, 24),
            (0x2010, 8),
            (0x2000, 4),
            (0x3010, 8),
            (0x3000, 4),
            (0x4000, 4),
        ];
        assert_eq!(found, expected);
        assert_eq!(robust(0, &mut word).unwrap(), []);
        // A list that never ends.
        assert!(robust(0x1000, &mut |_| Ok(0x2010)).unwrap().len() <= 2 * ROBUST_MAX + 2);
    }

    #[test]
    fn what_is_restarted_is_read_from_the_code() {
        let code = |number: i64| {
            let number = (number as i32).to_le_bytes();
            [0xb8, number[0], number[1], number[2], number[3], 0x0f, 0x05]
        };
        let sleep = libc::SYS_clock_nanosleep;
        assert_eq!(restarted_call(code(sleep)), Some(sleep));
        assert_eq!(restarted_call(code(libc::SYS_write)), None);
        let mut other = code(sleep);
        other[0] = 0xb9;
        assert_eq!(restarted_call(other), None);
    }
}
