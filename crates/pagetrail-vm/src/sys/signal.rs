//! Signals of this process, kept until the program is at a point where it can take one.
//!
//! The one handler here stores a signal for its thread, and blocks all others when it returns, so that a thread never has more
//! than one. A processor that runs, or is about to, comes back; a system call that has not begun yet does not begin. The
//! latter is told by the instruction pointer: between the look at [`Waiting::arrived`] and the instruction `syscall` there
//! must be no gap.
//!
//! Threads kick each other's processors by a signal, too: [`KICK`], once there is more than one thread.
#![allow(
    unsafe_code,
    reason = "signal handlers, and system calls that must not begin once a signal is there"
)]

use std::arch::global_asm;
use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use super::call::{Call, call};

/// The result of a call that was not begun: an error number that the kernel never shows.
pub(crate) const NOT_STARTED: i64 = -512;
/// The length of a `siginfo_t`.
pub(crate) const INFO_BYTES: usize = 128;
/// The length of the kernel's signal sets.
const SET_BYTES: u64 = 8;
/// `SIGSTKFLT`, which Linux itself never sends.
pub(crate) const KICK: u32 = 16;
const KICK_BIT: u64 = 1 << (KICK - 1);
/// Tells a kick from such a signal that somebody else sends.
const KICK_VALUE: u64 = 0x7061_6765_6b69_636b;

/// What the handler leaves for the thread that it runs in.
struct Waiting {
    info: UnsafeCell<MaybeUninit<[u8; INFO_BYTES]>>,
    /// Whether a signal waits in `info`.
    arrived: AtomicBool,
    kicked: AtomicBool,
    /// The byte by which KVM is told not to run this thread's processor on.
    stop_byte: AtomicPtr<u8>,
}

thread_local! {
    // Constant, and nothing to drop: the handler may come at any time of a thread.
    static WAITING: Waiting = const {
        Waiting {
            info: UnsafeCell::new(MaybeUninit::uninit()),
            arrived: AtomicBool::new(false),
            kicked: AtomicBool::new(false),
            stop_byte: AtomicPtr::new(ptr::null_mut()),
        }
    };
}

impl Waiting {
    /// Makes the processor come back, or lets it run.
    fn set_stop_byte(&self, value: u8) {
        let byte = self.stop_byte.load(Ordering::Acquire);
        if !byte.is_null() {
            // SAFETY: the byte of a processor that lives as long as it is this thread's.
            unsafe { byte.write_volatile(value) };
        }
    }
}

/// Whether kicks are sent: [`KICK`] is not the program's then.
static KICKING: AtomicBool = AtomicBool::new(false);

// rdi: number and six arguments; rsi: `arrived`.
global_asm!(
    ".pushsection .text",
    ".globl pagetrail_vm_call, pagetrail_vm_call_begin, pagetrail_vm_call_end, pagetrail_vm_call_abort",
    ".hidden pagetrail_vm_call, pagetrail_vm_call_begin, pagetrail_vm_call_end, pagetrail_vm_call_abort",
    "pagetrail_vm_call:",
    "mov r8, rdi",
    "mov r9, rsi",
    "mov rax, [r8]",
    "mov rdi, [r8 + 8]",
    "mov rsi, [r8 + 16]",
    "mov rdx, [r8 + 24]",
    "mov r10, [r8 + 32]",
    "mov rcx, r9",
    "mov r9, [r8 + 48]",
    "mov r8, [r8 + 40]",
    "pagetrail_vm_call_begin:",
    "cmp byte ptr [rcx], 0",
    "jne pagetrail_vm_call_abort",
    "syscall",
    "pagetrail_vm_call_end:",
    "ret",
    "pagetrail_vm_call_abort:",
    "mov rax, -512",
    "ret",
    ".popsection",
);

unsafe extern "C" {
    fn pagetrail_vm_call(words: *const u64, arrived: *const AtomicBool) -> i64;
    fn pagetrail_vm_call_begin();
    fn pagetrail_vm_call_end();
    fn pagetrail_vm_call_abort();
}

/// Makes the program's call, unless a signal waits: [`NOT_STARTED`].
pub(crate) fn forward_unless_signalled(wanted: &Call) -> i64 {
    let [a, b, c, d, e, f] = wanted.arguments;
    let words = [wanted.number, a, b, c, d, e, f];
    let arrived = WAITING.with(|waiting| &raw const waiting.arrived);
    // SAFETY: a function of the above, by C's convention; for what the call does see `super::call`.
    unsafe { pagetrail_vm_call(words.as_ptr(), arrived) }
}

/// Which byte makes this thread's processor come back.
pub(crate) fn use_stop_byte(byte: *mut u8) {
    WAITING.with(|waiting| waiting.stop_byte.store(byte, Ordering::Release));
}

/// This thread has no processor any more.
pub(crate) fn unset_stop_byte() {
    request_run();
    use_stop_byte(ptr::null_mut());
}

/// Whether a signal waits for this thread.
pub(crate) fn is_pending() -> bool {
    WAITING.with(|waiting| waiting.arrived.load(Ordering::Acquire))
}

/// The signal that waits, as a `siginfo_t`.
fn pending_info() -> Option<[u8; INFO_BYTES]> {
    // SAFETY: the handler has written it in this thread, and does not again while all signals are blocked.
    is_pending().then(|| WAITING.with(|waiting| unsafe { (*waiting.info.get()).assume_init() }))
}

/// The number of the signal that waits.
pub(crate) fn pending_number() -> Option<u32> {
    let info = pending_info()?;
    Some(u32::from_le_bytes([info[0], info[1], info[2], info[3]]))
}

/// Makes the processor come back at once while a signal waits, also when it was let run.
pub(crate) fn clear_run_request() {
    WAITING.with(|waiting| {
        if waiting.arrived.load(Ordering::Acquire) {
            waiting.set_stop_byte(1);
        }
    });
}

/// Lets a processor run although a signal waits: it is where none can be taken.
pub(crate) fn request_run() {
    WAITING.with(|waiting| waiting.set_stop_byte(0));
}

/// The signal that waits, as a `siginfo_t`. All signals stay blocked until [`set_mask`].
pub(crate) fn take() -> Option<[u8; INFO_BYTES]> {
    let info = pending_info()?;
    request_run();
    WAITING.with(|waiting| waiting.arrived.store(false, Ordering::Release));
    Some(info)
}

/// Blocks all signals; false if one waits already, and what was to be done must wait for it.
pub(crate) fn block_all() -> bool {
    block(u64::MAX);
    !is_pending()
}

/// Forgets what has come for a child that shared this thread's memory.
pub(crate) fn discard_pending() {
    take();
    WAITING.with(|waiting| waiting.kicked.store(false, Ordering::Release));
}

/// Sends this thread a signal again, which must be blocked.
pub(crate) fn requeue(info: &[u8; INFO_BYTES]) {
    let number = u64::from(u32::from_le_bytes([info[0], info[1], info[2], info[3]]));
    let (pid, tid) = (std::process::id().into(), super::thread::id().into());
    let sent = [pid, tid, number, info.as_ptr() as u64];
    call(libc::SYS_rt_tgsigqueueinfo, &sent);
}

/// From now on threads are kicked, and kicks come through whatever is blocked. This thread's mask must be set anew.
pub(crate) fn enable_kicks() {
    if !KICKING.swap(true, Ordering::SeqCst) {
        install_handler(KICK, 0);
    }
}

/// Makes a thread's processor come back, and nothing else.
pub(crate) fn kick(pid: u32, tid: u32) {
    let mut info = [0u64; INFO_BYTES / 8];
    info[0] = KICK.into();
    info[1] = u64::from(libc::SI_QUEUE as u32);
    info[2] = std::process::id().into();
    info[3] = KICK_VALUE;
    let sent = [pid.into(), tid.into(), KICK.into(), info.as_ptr() as u64];
    call(libc::SYS_rt_tgsigqueueinfo, &sent);
}

/// Waits for a kick that is on its way, so that it disturbs nothing later.
pub(crate) fn wait_for_kick() {
    WAITING.with(|waiting| {
        while !waiting.kicked.swap(false, Ordering::AcqRel) {
            std::thread::yield_now();
        }
        waiting.set_stop_byte(0);
        if is_pending() {
            // Between the two.
            waiting.set_stop_byte(1);
        }
    });
}

/// Blocks these signals and no others; all, while one waits.
pub(crate) fn set_mask(mask: u64) {
    block(u64::MAX);
    if !is_pending() {
        block(mask);
    }
}

/// Blocks these signals and no others, kicks included; all, while one waits.
pub(crate) fn set_exact_mask(mask: u64) {
    block(u64::MAX);
    if !is_pending() {
        block_exactly(mask);
    }
}

/// Blocks these signals, as far as threads that are kicked can.
fn block(mask: u64) {
    block_exactly(if KICKING.load(Ordering::Relaxed) {
        mask & !KICK_BIT
    } else {
        mask
    });
}

/// Blocks these signals and no others.
pub(crate) fn block_exactly(mask: u64) {
    let how = libc::SIG_SETMASK as u64;
    call(
        libc::SYS_rt_sigprocmask,
        &[how, &raw const mask as u64, 0, SET_BYTES],
    );
}

/// The signals that are blocked.
pub(crate) fn mask() -> u64 {
    let mut mask = 0u64;
    call(
        libc::SYS_rt_sigprocmask,
        &[0, 0, &raw mut mask as u64, SET_BYTES],
    );
    mask
}

/// Keeps a signal for the program from now on; `more` are flags about when there is one.
pub(crate) fn install_handler(signal: u32, more: u64) -> i64 {
    let flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTORER;
    set_action(signal, arrived as *const () as u64, flags as u64 | more)
}

/// Lets the kernel do by itself what there is to do: the default, or nothing.
pub(crate) fn leave_to_kernel(signal: u32, action: u64, flags: u64) -> i64 {
    if signal == KICK && KICKING.load(Ordering::Relaxed) {
        // It is done when one comes.
        return 0;
    }
    set_action(signal, action, flags | libc::SA_RESTORER as u64)
}

/// Not in the crate `libc`.
mod libc {
    pub(super) use ::libc::*;
    pub(super) const SA_RESTORER: c_int = 0x0400_0000;
}

global_asm!(
    ".pushsection .text",
    ".globl pagetrail_vm_restore",
    ".hidden pagetrail_vm_restore",
    "pagetrail_vm_restore:",
    "mov rax, 15",
    "syscall",
    ".popsection",
);

unsafe extern "C" {
    fn pagetrail_vm_restore();
}

fn set_action(signal: u32, handler: u64, flags: u64) -> i64 {
    // `struct kernel_sigaction`: all signals are blocked while the handler runs.
    let action = [
        handler,
        flags,
        pagetrail_vm_restore as *const () as u64,
        u64::MAX,
    ];
    call(
        libc::SYS_rt_sigaction,
        &[signal.into(), action.as_ptr() as u64, 0, SET_BYTES],
    )
}

/// What the kernel does now: the default (0), nothing (1), or a handler.
pub(crate) fn action_now(signal: u32) -> u64 {
    let mut action = [0u64; 4];
    call(
        libc::SYS_rt_sigaction,
        &[signal.into(), 0, action.as_mut_ptr() as u64, SET_BYTES],
    );
    action[0]
}

/// Runs at any instruction of ours: it stores, and changes what the kernel restores when it returns.
extern "C" fn arrived(_: c_int, info: *const c_void, context: *mut c_void) {
    // SAFETY: the kernel hands over a `siginfo_t` and a `ucontext_t`; only one signal is here at a time in a thread, since all
    // are blocked from here on, but for kicks, which write nothing that another signal's run writes.
    unsafe {
        let info = info.cast::<[u8; INFO_BYTES]>().read_unaligned();
        WAITING.with(|waiting| {
            if is_kick(&info) {
                waiting.kicked.store(true, Ordering::Release);
                waiting.set_stop_byte(1);
                return;
            }
            if waiting.arrived.load(Ordering::Acquire) {
                // One by the number of kicks, which is not blocked; a second one is lost, as of all that are no queue.
                return;
            }
            (*waiting.info.get()).write(info);
            waiting.arrived.store(true, Ordering::Release);
            waiting.set_stop_byte(1);
            let context = context.cast::<libc::ucontext_t>();
            let kicks = if KICKING.load(Ordering::Relaxed) {
                KICK_BIT
            } else {
                0
            };
            (&raw mut (*context).uc_sigmask).cast::<u64>().write(!kicks);
            let at = &mut (*context).uc_mcontext.gregs[libc::REG_RIP as usize];
            let between = pagetrail_vm_call_begin as *const () as i64
                ..pagetrail_vm_call_end as *const () as i64;
            if between.contains(at) {
                *at = pagetrail_vm_call_abort as *const () as i64;
            }
        });
    }
}

fn is_kick(info: &[u8; INFO_BYTES]) -> bool {
    let word = |at: usize| info[at..at + 8].try_into().map_or(0, u64::from_le_bytes);
    let code = word(8) as u32 as i32;
    word(0) as u32 == KICK && code == libc::SI_QUEUE && word(24) == KICK_VALUE
}
