//! Threads that stand still with known registers: how a thread shows them while others hold the
//! program, and takes others in their place.
//!
//! A thread that is out of the guest shows its registers itself, at the gate of
//! [`crate::vcpu_threads`]. One that is in a system call cannot: the holder of the program reads
//! its vCPU, which has the registers of the call, and the call counts as one that has not begun.

use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use kvm_bindings::{kvm_regs, kvm_xsave};
use pagetrail::{HeldThread, RegisterSet};

use crate::processor::Processor;
use crate::processor::entry::selector;
use crate::sys::{signal, vcpu_state};

/// `NT_PRSTATUS`, here the general registers alone; `NT_PRFPREG`; `NT_X86_XSTATE`.
const GENERAL: u32 = 1;
const LEGACY: u32 = 2;
const EXTENDED: u32 = 0x202;
/// The length of `NT_PRFPREG`.
const LEGACY_BYTES: usize = 512;
/// The offset of the word that tells debuggers which components the extended state has
/// (`struct xstate_fx_sw_bytes`).
const PARTS_AT: usize = 464;
/// The general registers: `struct user_regs_struct`.
const GENERAL_WORDS: usize = 27;
/// The length of the instruction `syscall`.
pub(crate) const CALL_BYTES: u64 = 2;

/// The thread is not in a system call.
const NO_CALL: u8 = 0;
const IN_CALL: u8 = 1;
/// The thread is in a system call that is to end.
const ENDING: u8 = 2;

/// The extended state of a machine's vCPUs: its components, and its length in bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StateLayout {
    pub(crate) parts: u64,
    pub(crate) bytes: usize,
}

impl StateLayout {
    pub(crate) fn of(processor: &Processor) -> Self {
        Self {
            parts: processor.state_parts(),
            bytes: processor.state_bytes(),
        }
    }
}

/// What a thread and its holder tell each other.
#[derive(Debug, Default)]
pub(crate) struct Standing {
    call: AtomicU8,
    /// Held while a call is made to end.
    ending: Mutex<()>,
    /// The signal mask, which a thread in a call cannot be asked for.
    mask: AtomicU64,
    has_shown: AtomicBool,
    shown: Mutex<Option<HeldThread>>,
    is_set: AtomicBool,
    set: Mutex<Option<HeldThread>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing here panics while it holds a lock.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The thread's own side.
impl Standing {
    /// Notes that a system call begins, with this signal mask.
    pub(crate) fn begin_call(&self, mask: u64) {
        self.mask.store(mask, Ordering::Relaxed);
        self.call.store(IN_CALL, Ordering::SeqCst);
    }

    /// Notes that the call is over. Returns whether it was made to end.
    pub(crate) fn end_call(&self) -> bool {
        if self.call.swap(NO_CALL, Ordering::SeqCst) != ENDING {
            return false;
        }
        // The holder has sent the last kick when it has let go of this.
        drop(locked(&self.ending));
        signal::forget_kicks();
        true
    }

    /// Shows the registers, unless the holder has read them in the call that was under way.
    pub(crate) fn show(&self, thread: HeldThread) {
        locked(&self.shown).get_or_insert(thread);
        self.has_shown.store(true, Ordering::SeqCst);
    }

    pub(crate) fn has_shown(&self) -> bool {
        self.has_shown.load(Ordering::SeqCst)
    }

    pub(crate) fn has_new(&self) -> bool {
        self.is_set.load(Ordering::SeqCst)
    }

    /// Takes the registers with which the thread is to go on.
    pub(crate) fn take_new(&self) -> Option<HeldThread> {
        self.is_set.store(false, Ordering::SeqCst);
        locked(&self.set).take()
    }
}

/// The holder's side.
impl Standing {
    /// Forgets what was shown.
    pub(crate) fn clear(&self) {
        *locked(&self.shown) = None;
        self.has_shown.store(false, Ordering::SeqCst);
    }

    /// What the thread has shown.
    pub(crate) fn shown(&self) -> Option<HeldThread> {
        locked(&self.shown).clone()
    }

    pub(crate) fn is_in_call(&self) -> bool {
        self.call.load(Ordering::SeqCst) != NO_CALL
    }

    /// Reads the registers of a thread that is in a system call.
    pub(crate) fn read_in_call(
        &self,
        thread: u32,
        vcpu: RawFd,
        layout: StateLayout,
    ) -> io::Result<()> {
        let read = vcpu_state::read(vcpu)?;
        let mut shown = locked(&self.shown);
        // A thread whose call has ended meanwhile shows its registers itself.
        if self.is_in_call() && shown.is_none() {
            let regs = read.regs;
            let context = kvm_regs {
                rip: regs.rcx.wrapping_sub(CALL_BYTES),
                rflags: regs.r11,
                ..regs
            };
            let state = state_bytes(&read.xsave, layout.bytes);
            let bases = [read.fs_base, read.gs_base];
            let mask = self.mask.load(Ordering::Relaxed);
            *shown = Some(held_thread(
                thread,
                &context,
                bases,
                mask,
                state,
                layout.parts,
            ));
            self.has_shown.store(true, Ordering::SeqCst);
        }
        Ok(())
    }

    /// Makes a call of the thread end.
    pub(crate) fn end_call_of_thread(&self, pid: u32, thread: u32) {
        let _ending = locked(&self.ending);
        let exchanged =
            self.call
                .compare_exchange(IN_CALL, ENDING, Ordering::SeqCst, Ordering::SeqCst);
        if exchanged.is_ok() || exchanged == Err(ENDING) {
            signal::kick(pid, thread);
        }
    }

    /// Sets the registers with which the thread goes on.
    pub(crate) fn set_new(&self, thread: HeldThread) {
        *locked(&self.set) = Some(thread);
        self.is_set.store(true, Ordering::SeqCst);
    }
}

/// The first `bytes` of the extended state.
fn state_bytes(xsave: &kvm_xsave, bytes: usize) -> Vec<u8> {
    let words = xsave.region.iter().flat_map(|word| word.to_le_bytes());
    words.take(bytes).collect()
}

/// A thread of the program as debuggers and checkpoints know threads.
pub(crate) fn held_thread(
    tid: u32,
    context: &kvm_regs,
    [fs_base, gs_base]: [u64; 2],
    blocked_signals: u64,
    mut state: Vec<u8>,
    parts: u64,
) -> HeldThread {
    // In the order of `struct user_regs_struct`; -1 stands for "in no system call".
    let general: [u64; GENERAL_WORDS] = [
        context.r15,
        context.r14,
        context.r13,
        context.r12,
        context.rbp,
        context.rbx,
        context.r11,
        context.r10,
        context.r9,
        context.r8,
        context.rax,
        context.rcx,
        context.rdx,
        context.rsi,
        context.rdi,
        u64::MAX,
        context.rip,
        selector::USER_CODE.into(),
        context.rflags,
        context.rsp,
        selector::USER_DATA.into(),
        fs_base,
        gs_base,
        0,
        0,
        0,
        0,
    ];
    let mut registers = vec![RegisterSet {
        note: GENERAL,
        bytes: general.iter().flat_map(|word| word.to_le_bytes()).collect(),
    }];
    if let Some(legacy) = state.get(..LEGACY_BYTES) {
        registers.push(RegisterSet {
            note: LEGACY,
            bytes: legacy.to_vec(),
        });
    }
    if state.len() > LEGACY_BYTES {
        state[PARTS_AT..PARTS_AT + 8].copy_from_slice(&parts.to_le_bytes());
        registers.push(RegisterSet {
            note: EXTENDED,
            bytes: state,
        });
    }
    HeldThread {
        tid,
        registers,
        blocked_signals,
    }
}

/// The registers of a thread as a vCPU takes them: general ones, bases of FS and GS, extended
/// state. `None` where general registers are missing or have another length.
pub(crate) fn registers_of(thread: &HeldThread) -> Option<(kvm_regs, [u64; 2], Vec<u8>)> {
    let set = |note| thread.registers.iter().find(|set| set.note == note);
    let general = &set(GENERAL)?.bytes;
    if general.len() != GENERAL_WORDS * 8 {
        return None;
    }
    let words: Vec<u64> = general
        .chunks_exact(8)
        .map(|bytes| bytes.try_into().map_or(0, u64::from_le_bytes))
        .collect();
    let context = kvm_regs {
        r15: words[0],
        r14: words[1],
        r13: words[2],
        r12: words[3],
        rbp: words[4],
        rbx: words[5],
        r11: words[6],
        r10: words[7],
        r9: words[8],
        r8: words[9],
        rax: words[10],
        rcx: words[11],
        rdx: words[12],
        rsi: words[13],
        rdi: words[14],
        rip: words[16],
        rflags: words[18],
        rsp: words[19],
    };
    let mut state = set(EXTENDED)
        .or_else(|| set(LEGACY))
        .map_or_else(Vec::new, |set| set.bytes.clone());
    if let Some(parts) = state.get_mut(PARTS_AT..PARTS_AT + 8) {
        parts.fill(0);
    }
    Some((context, [words[21], words[22]], state))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_goes_on_with_what_it_has_shown() {
        let context = kvm_regs {
            rax: 1,
            rbx: 2,
            rcx: 3,
            rdx: 4,
            rsi: 5,
            rdi: 6,
            rsp: 0x7fff_1230,
            rbp: 8,
            r8: 9,
            r9: 10,
            r10: 11,
            r11: 12,
            r12: 13,
            r13: 14,
            r14: 15,
            r15: 16,
            rip: 0x40_1234,
            rflags: 0x45,
        };
        let mut state: Vec<u8> = (0..832u32).map(|n| n as u8).collect();
        state[PARTS_AT..PARTS_AT + 8].fill(0);
        let thread = held_thread(7, &context, [100, 200], 0x55, state.clone(), 7);
        assert_eq!((thread.tid, thread.blocked_signals), (7, 0x55));
        let notes: Vec<u32> = thread.registers.iter().map(|set| set.note).collect();
        assert_eq!(notes, [GENERAL, LEGACY, EXTENDED]);
        assert_eq!(registers_of(&thread), Some((context, [100, 200], state)));
        let mut short = thread;
        short.registers[0].bytes.pop();
        assert_eq!(registers_of(&short), None);
    }

    #[test]
    fn what_was_read_in_a_call_is_not_shown_again() {
        let standing = Standing::default();
        let thread = |tid| held_thread(tid, &kvm_regs::default(), [0; 2], 0, Vec::new(), 0);
        standing.show(thread(1));
        standing.show(thread(2));
        assert_eq!(standing.shown(), Some(thread(1)));
        standing.clear();
        assert!(!standing.has_shown() && standing.shown().is_none());
        standing.set_new(thread(3));
        assert!(standing.has_new());
        assert_eq!(standing.take_new(), Some(thread(3)));
        assert!(!standing.has_new());
    }
}
