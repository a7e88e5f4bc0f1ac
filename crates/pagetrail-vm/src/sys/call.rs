//! A system call exactly as the program made it.
//!
//! # Safety
//!
//! The program decides what the call does, in its own process. Calls that could harm the machine
//! (its memory, its descriptors, its threads) do not come here unchanged: see [`crate::calls`].
#![allow(unsafe_code, reason = "system calls with arguments of any kind")]

use std::arch::asm;

/// A system call's number and arguments, as in registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Call {
    pub(crate) number: u64,
    pub(crate) arguments: [u64; 6],
}

impl Call {
    /// Makes the call. A negative result is an error number, as the kernel returns it.
    pub(crate) fn forward(&self) -> i64 {
        let [a, b, c, d, e, f] = self.arguments;
        let result: i64;
        // SAFETY: the operands and clobbers are those of the x86-64 system-call convention
        // (syscall(2)). The kernel writes only to the program's memory, of which no Rust reference
        // exists, since calls that could reach the machine's own memory are performed by
        // `crate::calls`.
        unsafe {
            asm!(
                "syscall",
                inlateout("rax") self.number as i64 => result,
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
}

/// Makes a call with up to six arguments.
pub(crate) fn call(number: libc::c_long, arguments: &[u64]) -> i64 {
    let mut call = Call {
        number: number as u64,
        arguments: [0; 6],
    };
    call.arguments[..arguments.len()].copy_from_slice(arguments);
    call.forward()
}
