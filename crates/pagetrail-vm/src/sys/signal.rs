//! Signals of this process, kept until the program is at a point where it can take one.
//!
//! The one handler here stores a signal, and blocks all others when it returns, so that there is never more than one. A
//! processor that runs, or is about to, comes back; a system call that has not begun yet does not begin. The latter is told
//! by the instruction pointer: between the look at [`ARRIVED`] and the instruction `syscall` there must be no gap.
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
pub(crate) const NOT_BEGUN: i64 = -512;
/// The length of a `siginfo_t`.
pub(crate) const INFO_BYTES: usize = 128;
/// The length of the kernel's signal sets.
const SET_BYTES: u64 = 8;

struct Slot(UnsafeCell<MaybeUninit<[u8; INFO_BYTES]>>);

// SAFETY: written by the handler while ARRIVED is false, read by `take` while it is true; signals go to one thread.
unsafe impl Sync for Slot {}

static INFO: Slot = Slot(UnsafeCell::new(MaybeUninit::uninit()));
/// Whether a signal waits in [`INFO`].
static ARRIVED: AtomicBool = AtomicBool::new(false);
/// The byte by which KVM is told not to run on.
static STOP_BYTE: AtomicPtr<u8> = AtomicPtr::new(ptr::null_mut());

// rdi: number and six arguments; rsi: ARRIVED.
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

/// Makes the program's call, unless a signal waits: [`NOT_BEGUN`].
pub(crate) fn pass_on_unless_arrived(wanted: &Call) -> i64 {
    let [a, b, c, d, e, f] = wanted.arguments;
    let words = [wanted.number, a, b, c, d, e, f];
    // SAFETY: a function of the above, by C's convention; for what the call does see `super::call`.
    unsafe { pagetrail_vm_call(words.as_ptr(), &raw const ARRIVED) }
}

/// Which byte makes the processor come back.
pub(crate) fn stop_by(byte: *mut u8) {
    STOP_BYTE.store(byte, Ordering::Release);
}

/// Whether a signal waits.
pub(crate) fn has_arrived() -> bool {
    ARRIVED.load(Ordering::Acquire)
}

/// The number of the signal that waits.
pub(crate) fn arrived_number() -> Option<u32> {
    if !has_arrived() {
        return None;
    }
    // SAFETY: as in `take`.
    let info = unsafe { (*INFO.0.get()).assume_init() };
    Some(u32::from_le_bytes([info[0], info[1], info[2], info[3]]))
}

/// Makes the processor come back at once while a signal waits, also when it was let run.
pub(crate) fn let_run_no_more() {
    if has_arrived() {
        set_stop_byte(1);
    }
}

/// Lets a processor run although a signal waits: it is where none can be taken.
pub(crate) fn let_run() {
    set_stop_byte(0);
}

fn set_stop_byte(value: u8) {
    let byte = STOP_BYTE.load(Ordering::Acquire);
    if !byte.is_null() {
        // SAFETY: the byte of a processor that lives as long as the program.
        unsafe { byte.write_volatile(value) };
    }
}

/// The signal that waits, as a `siginfo_t`. All signals stay blocked until [`set_mask`].
pub(crate) fn take() -> Option<[u8; INFO_BYTES]> {
    if !has_arrived() {
        return None;
    }
    // SAFETY: the handler has written it, and does not again while all signals are blocked.
    let info = unsafe { (*INFO.0.get()).assume_init() };
    let_run();
    ARRIVED.store(false, Ordering::Release);
    Some(info)
}

/// Blocks these signals and no others; all, while one waits.
pub(crate) fn set_mask(mask: u64) {
    block(u64::MAX);
    if !has_arrived() {
        block(mask);
    }
}

fn block(mask: u64) {
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
pub(crate) fn keep(signal: u32, more: u64) -> i64 {
    let flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTORER;
    set_action(signal, arrived as *const () as u64, flags as u64 | more)
}

/// Lets the kernel do by itself what there is to do: the default, or nothing.
pub(crate) fn leave(signal: u32, action: u64, flags: u64) -> i64 {
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
    // SAFETY: the kernel hands over a `siginfo_t` and a `ucontext_t`; only one signal is here at a time, since all are
    // blocked from here on.
    unsafe {
        (*INFO.0.get()).write(info.cast::<[u8; INFO_BYTES]>().read_unaligned());
        ARRIVED.store(true, Ordering::Release);
        set_stop_byte(1);
        let context = context.cast::<libc::ucontext_t>();
        (&raw mut (*context).uc_sigmask)
            .cast::<u64>()
            .write(u64::MAX);
        let at = &mut (*context).uc_mcontext.gregs[libc::REG_RIP as usize];
        let between =
            pagetrail_vm_call_begin as *const () as i64..pagetrail_vm_call_end as *const () as i64;
        if between.contains(at) {
            *at = pagetrail_vm_call_abort as *const () as i64;
        }
    }
}
