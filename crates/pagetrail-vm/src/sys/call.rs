//! A system call exactly as the program made it.
//!
//! # Safety
//!
//! What the call does is up to the program, whose process this is. Calls that could harm the machine itself (its memory,
//! its descriptors, its threads) do not come here as they are: see [`crate::calls`].
#![allow(unsafe_code, reason = "system calls with arguments of any kind")]

use std::arch::asm;

/// Number and arguments, as in registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Call {
    pub(crate) number: u64,
    pub(crate) arguments: [u64; 6],
}

impl Call {
    /// Makes the call; a negative result is an error number, as the kernel returns it.
    pub(crate) fn forward(&self) -> i64 {
        let [a, b, c, d, e, f] = self.arguments;
        let result: i64;
        // SAFETY: the convention of system calls on x86-64. What memory the kernel writes to is the program's: no
        // reference to any of it exists in Rust.
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
