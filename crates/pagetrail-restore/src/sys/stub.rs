//! The stub: all the code that a process executes while it is being restored. It makes the system
//! calls of a list, one after the other, until one fails, and stops. It needs no stack, calls
//! nothing, and lies anywhere.
//!
//! `rbx` points to the list. An entry has [`ENTRY_WORDS`] words: the number of the call, six
//! arguments, and room for the result. The number -1 ends the list.

use core::arch::global_asm;

/// How many words an entry has.
pub(crate) const ENTRY_WORDS: usize = 8;
/// The number that ends a list.
pub(crate) const END: u64 = u64::MAX;

global_asm!(
    ".pushsection .rodata.pagetrail_restore_stub, \"a\", @progbits",
    ".global pagetrail_restore_stub_start",
    ".hidden pagetrail_restore_stub_start",
    ".global pagetrail_restore_stub_end",
    ".hidden pagetrail_restore_stub_end",
    "pagetrail_restore_stub_start:",
    "2: mov rax, [rbx]",
    "cmp rax, -1",
    "je 3f",
    "mov rdi, [rbx + 8]",
    "mov rsi, [rbx + 16]",
    "mov rdx, [rbx + 24]",
    "mov r10, [rbx + 32]",
    "mov r8, [rbx + 40]",
    "mov r9, [rbx + 48]",
    "syscall",
    "mov [rbx + 56], rax",
    "add rbx, 64",
    "cmp rax, -4095",
    "jb 2b",
    "3: int3",
    "pagetrail_restore_stub_end:",
    ".popsection",
);

unsafe extern "C" {
    #[link_name = "pagetrail_restore_stub_start"]
    static START: [u8; 0];
    #[link_name = "pagetrail_restore_stub_end"]
    static AFTER: [u8; 0];
}

/// The stub's code, which runs at any address.
pub(crate) fn code() -> &'static [u8] {
    let (start, end) = (&raw const START, &raw const AFTER);
    let length = end as usize - start as usize;
    // SAFETY: the assembler puts the code between the two labels into read-only data, which lives
    // as long as the program.
    unsafe { std::slice::from_raw_parts(start.cast(), length) }
}

/// Where the stub's `syscall` instruction is, in bytes from its beginning.
pub(crate) fn syscall_offset() -> u64 {
    let found = code().windows(2).position(|two| two == [0x0f, 0x05]);
    found.unwrap_or(0) as u64
}
