//! Holds the signals of this process until the program is at a point where it can take one.
//!
//! The one handler here stores a signal for its thread, and blocks all others when it returns, so
//! that a thread never has more than one pending. A vCPU that runs, or is about to, exits; a system
//! call that has not started does not start. The handler recognizes such a call by the instruction
//! pointer, so that no signal can arrive unnoticed between the check of [`Pending::arrived`] and
//! the instruction `syscall`.
//!
//! Threads also make each other's vCPUs exit by a signal: [`KICK`], once there is more than one
//! thread, or a recorder that may hold the program.
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

/// The result of a call that was not started: an error number that the kernel never returns to
/// programs (`ERESTARTSYS`).
pub(crate) const NOT_STARTED: i64 = -512;
/// The result of a call that a signal has ended.
pub(crate) const EINTR: i64 = -(::libc::EINTR as i64);
/// The length of a `siginfo_t`.
pub(crate) const INFO_BYTES: usize = 128;
/// The length of the kernel's signal sets.
const SET_BYTES: u64 = 8;
/// `SIGSTKFLT`, which Linux itself never sends. It makes a vCPU exit.
pub(crate) const KICK: u32 = 16;
const KICK_BIT: u64 = 1 << (KICK - 1);
/// The value that distinguishes a kick from a `SIGSTKFLT` of another sender.
const KICK_VALUE: u64 = 0x7061_6765_6b69_636b;

/// What the handler leaves for the thread that it runs in.
struct Pending {
    info: UnsafeCell<MaybeUninit<[u8; INFO_BYTES]>>,
    /// Whether a signal waits in `info`.
    arrived: AtomicBool,
    kicked: AtomicBool,
    /// The byte that makes KVM_RUN return at once (`immediate_exit`), of this thread's vCPU.
    stop_byte: AtomicPtr<u8>,
}

thread_local! {
    // Initialized by a constant, and nothing to drop, since the handler may run at any time of a
    // thread.
    static PENDING: Pending = const {
        Pending {
            info: UnsafeCell::new(MaybeUninit::uninit()),
            arrived: AtomicBool::new(false),
            kicked: AtomicBool::new(false),
            stop_byte: AtomicPtr::new(ptr::null_mut()),
        }
    };
}

impl Pending {
    /// Makes the vCPU exit (1), or lets it run (0).
    fn set_stop_byte(&self, value: u8) {
        let byte = self.stop_byte.load(Ordering::Acquire);
        if !byte.is_null() {
            // SAFETY: the byte is in the mapping of this thread's vCPU, which outlives its use
            // here: `unset_stop_byte` runs before the vCPU is given to another thread.
            unsafe { byte.write_volatile(value) };
        }
    }
}

/// Whether kicks are enabled. [`KICK`] is then the machine's signal.
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

/// Makes the program's call, unless a signal is pending: then the result is [`NOT_STARTED`].
pub(crate) fn forward_unless_signalled(wanted: &Call) -> i64 {
    let [a, b, c, d, e, f] = wanted.arguments;
    let words = [wanted.number, a, b, c, d, e, f];
    let arrived = PENDING.with(|pending| &raw const pending.arrived);
    // SAFETY: the assembly above follows the C calling convention, reads seven words at `words` and
    // one byte at `arrived`, and both outlive the call. `super::call` says why the program's call
    // may be made.
    unsafe { pagetrail_vm_call(words.as_ptr(), arrived) }
}

/// Sets the byte that makes this thread's vCPU exit.
pub(crate) fn use_stop_byte(byte: *mut u8) {
    PENDING.with(|pending| pending.stop_byte.store(byte, Ordering::Release));
}

/// Unsets the byte, before the thread's vCPU is given to another thread.
pub(crate) fn unset_stop_byte() {
    request_run();
    use_stop_byte(ptr::null_mut());
}

/// Whether a signal is pending for this thread.
pub(crate) fn is_pending() -> bool {
    PENDING.with(|pending| pending.arrived.load(Ordering::Acquire))
}

/// The pending signal, as a `siginfo_t`.
fn pending_info() -> Option<[u8; INFO_BYTES]> {
    // SAFETY: `arrived` is set, so that the handler has written `info` in this thread; it does not
    // write again while all signals are blocked, which they are until `take`.
    is_pending().then(|| PENDING.with(|pending| unsafe { (*pending.info.get()).assume_init() }))
}

/// The number of the pending signal.
pub(crate) fn pending_number() -> Option<u32> {
    let info = pending_info()?;
    Some(u32::from_le_bytes([info[0], info[1], info[2], info[3]]))
}

/// Makes the vCPU exit at once if a signal is pending, which ends what [`request_run`] permitted.
pub(crate) fn clear_run_request() {
    PENDING.with(|pending| {
        if pending.arrived.load(Ordering::Acquire) {
            pending.set_stop_byte(1);
        }
    });
}

/// Lets a vCPU run although a signal is pending, since it is at a place where no signal can be
/// taken.
pub(crate) fn request_run() {
    PENDING.with(|pending| pending.set_stop_byte(0));
}

/// Makes the next run of a vCPU exit at once.
pub(crate) fn request_exit() {
    PENDING.with(|pending| pending.set_stop_byte(1));
}

/// Takes the pending signal, as a `siginfo_t`. All signals stay blocked until [`set_mask`].
pub(crate) fn take() -> Option<[u8; INFO_BYTES]> {
    let info = pending_info()?;
    request_run();
    PENDING.with(|pending| pending.arrived.store(false, Ordering::Release));
    Some(info)
}

/// Blocks all signals. Returns false if one is already pending, which must be taken first.
pub(crate) fn block_all() -> bool {
    block(u64::MAX);
    !is_pending()
}

/// Discards what has arrived for a child that shared this thread's memory.
pub(crate) fn discard_pending() {
    take();
    PENDING.with(|pending| pending.kicked.store(false, Ordering::Release));
}

/// Sends this thread a signal again. The signal must be blocked.
pub(crate) fn requeue(info: &[u8; INFO_BYTES]) {
    let number = u64::from(u32::from_le_bytes([info[0], info[1], info[2], info[3]]));
    let (pid, tid) = (std::process::id().into(), super::thread::id().into());
    let sent = [pid, tid, number, info.as_ptr() as u64];
    call(libc::SYS_rt_tgsigqueueinfo, &sent);
}

/// Enables kicks, which arrive whatever is blocked. The caller must set this thread's mask again.
pub(crate) fn enable_kicks() {
    if !KICKING.swap(true, Ordering::SeqCst) {
        install_handler(KICK, 0);
    }
}

/// Makes a thread's vCPU exit, and has no other effect.
pub(crate) fn kick(pid: u32, tid: u32) {
    let mut info = [0u64; INFO_BYTES / 8];
    info[0] = KICK.into();
    info[1] = u64::from(libc::SI_QUEUE as u32);
    info[2] = std::process::id().into();
    info[3] = KICK_VALUE;
    let sent = [pid.into(), tid.into(), KICK.into(), info.as_ptr() as u64];
    call(libc::SYS_rt_tgsigqueueinfo, &sent);
}

/// Waits for a kick that has been sent, so that it does not arrive later.
pub(crate) fn wait_for_kick() {
    PENDING.with(|pending| {
        while !pending.kicked.swap(false, Ordering::AcqRel) {
            std::thread::yield_now();
        }
        pending.set_stop_byte(0);
        if is_pending() {
            // A signal arrived between the two.
            pending.set_stop_byte(1);
        }
    });
}

/// Forgets kicks that were sent to end a system call; no more of them are sent.
pub(crate) fn forget_kicks() {
    // A signal that is there arrives before a system call returns.
    call(libc::SYS_getpid, &[]);
    PENDING.with(|pending| {
        pending.kicked.store(false, Ordering::Release);
        pending.set_stop_byte(is_pending().into());
    });
}

/// Blocks exactly these signals; all signals, while one is pending.
pub(crate) fn set_mask(mask: u64) {
    block(u64::MAX);
    if !is_pending() {
        block(mask);
    }
}

/// Blocks exactly these signals, kicks included; all signals, while one is pending.
pub(crate) fn set_exact_mask(mask: u64) {
    block(u64::MAX);
    if !is_pending() {
        block_exactly(mask);
    }
}

/// Blocks these signals, except kicks while those are enabled.
fn block(mask: u64) {
    block_exactly(if KICKING.load(Ordering::Relaxed) {
        mask & !KICK_BIT
    } else {
        mask
    });
}

/// Blocks exactly these signals.
pub(crate) fn block_exactly(mask: u64) {
    let how = libc::SIG_SETMASK as u64;
    call(
        libc::SYS_rt_sigprocmask,
        &[how, &raw const mask as u64, 0, SET_BYTES],
    );
}

/// The thread's signal mask.
pub(crate) fn mask() -> u64 {
    let mut mask = 0u64;
    call(
        libc::SYS_rt_sigprocmask,
        &[0, 0, &raw mut mask as u64, SET_BYTES],
    );
    mask
}

/// Installs the handler for a signal that the program handles. `more` are flags about when the
/// kernel sends it.
pub(crate) fn install_handler(signal: u32, more: u64) -> i64 {
    let flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTORER;
    set_action(signal, arrived as *const () as u64, flags as u64 | more)
}

/// Leaves a signal to the kernel: the default action, or none.
pub(crate) fn leave_to_kernel(signal: u32, action: u64, flags: u64) -> i64 {
    if signal == KICK && KICKING.load(Ordering::Relaxed) {
        // The handler performs the default action when one arrives.
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

/// The present action of a signal: the default (0), none (1), or a handler's address.
pub(crate) fn action_now(signal: u32) -> u64 {
    let mut action = [0u64; 4];
    call(
        libc::SYS_rt_sigaction,
        &[signal.into(), 0, action.as_mut_ptr() as u64, SET_BYTES],
    );
    action[0]
}

/// The handler, which may run at any instruction of this process: it stores the signal, and changes
/// the context that the kernel restores.
extern "C" fn arrived(_: c_int, info: *const c_void, context: *mut c_void) {
    // SAFETY: with SA_SIGINFO the kernel passes a valid `siginfo_t` and `ucontext_t`
    // (sigaction(2)). Only one signal runs here at a time in a thread, since the handler blocks all
    // signals; only kicks may nest, and they write nothing that another signal's run writes.
    unsafe {
        let info = info.cast::<[u8; INFO_BYTES]>().read_unaligned();
        PENDING.with(|pending| {
            if is_kick(&info) {
                pending.kicked.store(true, Ordering::Release);
                pending.set_stop_byte(1);
                return;
            }
            if pending.arrived.load(Ordering::Acquire) {
                // The number of kicks is not blocked, so that a second signal of it may arrive. It
                // is lost, as a second pending standard signal is.
                return;
            }
            (*pending.info.get()).write(info);
            pending.arrived.store(true, Ordering::Release);
            pending.set_stop_byte(1);
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
