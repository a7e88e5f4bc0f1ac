//! A word per thread: its cache.
//!
//! Neither `thread_local!` nor `pthread_getspecific(3)`. The former asks `__tls_get_addr` for each
//! access in a shared library, which may call `malloc` itself; the latter is a call of libc's in
//! each of ours. A library that is there from the start of the program has its thread-local words
//! at a fixed distance from the thread pointer (the initial-exec model), two instructions away.

use super::cache::Cache;

#[cfg(target_arch = "x86_64")]
mod word {
    use std::arch::{asm, global_asm};

    global_asm!(
        ".pushsection .tbss,\"awT\",@nobits",
        ".globl pagetrail_alloc_thread_word",
        ".hidden pagetrail_alloc_thread_word",
        ".type pagetrail_alloc_thread_word, @object",
        ".size pagetrail_alloc_thread_word, 8",
        ".balign 8",
        "pagetrail_alloc_thread_word:",
        ".zero 8",
        ".popsection",
    );

    #[inline]
    pub(super) fn get() -> usize {
        let word;
        // SAFETY: reads this thread's own word.
        unsafe {
            asm!(
                "mov {0}, qword ptr [rip + pagetrail_alloc_thread_word@GOTTPOFF]",
                "mov {0}, qword ptr fs:[{0}]",
                out(reg) word,
                options(nostack, readonly, preserves_flags),
            );
        }
        word
    }

    pub(super) fn set(word: usize) {
        // SAFETY: the word belongs to this thread, and no reference to it exists.
        unsafe {
            asm!(
                "mov {0}, qword ptr [rip + pagetrail_alloc_thread_word@GOTTPOFF]",
                "mov qword ptr fs:[{0}], {1}",
                out(reg) _,
                in(reg) word,
                options(nostack, preserves_flags),
            );
        }
    }

    /// The thread pointer.
    pub(super) fn address() -> usize {
        let address;
        // SAFETY: its first word holds its own address (the System V ABI, "Thread-Local Storage").
        unsafe {
            asm!(
                "mov {0}, qword ptr fs:[0]",
                out(reg) address,
                options(nostack, readonly, preserves_flags),
            );
        }
        address
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod word {
    use std::cell::Cell;

    thread_local! {
        static WORD: Cell<usize> = const { Cell::new(0) };
    }

    pub(super) fn get() -> usize {
        WORD.get()
    }

    pub(super) fn set(word: usize) {
        WORD.set(word);
    }

    pub(super) fn address() -> usize {
        WORD.with(|word| (&raw const *word) as usize)
    }
}

/// What a thread's word says.
pub(crate) enum Word {
    /// It has not asked for memory before.
    Fresh,
    /// It has a cache.
    Has(*mut Cache),
    /// It is coming to its end, and has given its cache back.
    Leaving,
}

const LEAVING: usize = 1;

/// This thread's word.
#[inline]
pub(crate) fn get() -> Word {
    match word::get() {
        0 => Word::Fresh,
        LEAVING => Word::Leaving,
        cache => Word::Has(cache as *mut Cache),
    }
}

/// Sets this thread's word.
pub(crate) fn set(to: Word) {
    word::set(match to {
        Word::Fresh => 0,
        Word::Leaving => LEAVING,
        Word::Has(cache) => cache as usize,
    });
}

/// A number that differs from that of most other threads.
pub(crate) fn number() -> usize {
    (word::address() as u64 >> 6).wrapping_mul(0x9e37_79b9_7f4a_7c15) as usize >> 48
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_thread_has_its_own() {
        let before = word::get();
        set(Word::Leaving);
        std::thread::spawn(|| {
            assert!(matches!(get(), Word::Fresh));
            word::set(4096);
            assert!(matches!(get(), Word::Has(cache) if cache as usize == 4096));
            word::set(0);
        })
        .join()
        .unwrap();
        assert!(matches!(get(), Word::Leaving));
        word::set(before);
    }
}
