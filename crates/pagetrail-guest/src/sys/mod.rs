//! The calls, and the page tables as words; all `unsafe` is here.
#![allow(unsafe_code, reason = "system calls, and memory that the machine maps")]

pub(crate) mod sampling;

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU64, Ordering};

/// The entry of the auxiliary vector with the machine's version of the calls.
const AUXILIARY: u64 = 0x7074_6701;
/// The number of the first call: none of Linux's.
#[cfg(target_arch = "x86_64")]
const CALLS: u64 = 0x2074_6700;

/// The machine's version of the calls; 0 natively.
pub(crate) fn version() -> u64 {
    // SAFETY: getauxval(3) reads the process's own vector; an unknown kind yields 0.
    unsafe { libc::getauxval(AUXILIARY) }
}

/// Makes a call; a negative result is an error number.
#[cfg(target_arch = "x86_64")]
pub(crate) fn call(number: u64, arguments: [u64; 6]) -> i64 {
    if version() == 0 {
        return -i64::from(libc::ENOSYS);
    }
    let [a, b, c, d, e, f] = arguments;
    let result: i64;
    // SAFETY: the operands and clobbers are those of the x86-64 system-call convention. The callers
    // pass pointers to memory that they own, or that is atomic, with its length.
    unsafe {
        core::arch::asm!(
            "syscall",
            inlateout("rax") (CALLS + number) as i64 => result,
            in("rdi") a,
            in("rsi") b,
            in("rdx") c,
            in("r10") d,
            in("r8") e,
            in("r9") f,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    result
}

/// There are no guests on other processors.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn call(_number: u64, _arguments: [u64; 6]) -> i64 {
    -i64::from(libc::ENOSYS)
}

/// The page tables, which the machine maps read-only.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tables(*const AtomicU64);

// SAFETY: the machine maps the tables for the life of the process, and access is to atomic words.
unsafe impl Send for Tables {}
// SAFETY: shared access is to atomic words, too, and the mapping is never unmapped.
unsafe impl Sync for Tables {}

impl Tables {
    /// The tables at the address that the machine has returned.
    pub(crate) fn at(address: u64) -> Self {
        Self(address as *const AtomicU64)
    }

    /// A word, by its number, which is that of an entry.
    pub(crate) fn word(self, number: u64) -> u64 {
        // SAFETY: `number` is the root's or comes from an entry of the tables, which refers to a
        // table in the same mapping. Tables are never unmapped.
        unsafe { (*self.0.add(number as usize)).load(Ordering::Acquire) }
    }
}

#[repr(align(4096))]
struct Page(UnsafeCell<[u8; 4096]>);

// SAFETY: its only byte in use is written atomically, and never read.
unsafe impl Sync for Page {}

static TRIED: Page = Page(UnsafeCell::new([0; 4096]));

/// The address of a page that nothing else uses.
pub(crate) fn page_to_try() -> u64 {
    TRIED.0.get() as u64
}

/// Writes to that page.
pub(crate) fn write_to_try() {
    // SAFETY: the cell is valid and aligned for a word, and only written, atomically.
    let word = unsafe { AtomicU64::from_ptr(TRIED.0.get().cast()) };
    word.fetch_add(1, Ordering::SeqCst);
}
