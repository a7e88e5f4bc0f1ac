//! What a thread did when it faulted, from the context of its signal: a read, a write, or a fetch.

/// What a thread did when it faulted.
pub(super) enum Access {
    Read,
    Write,
    Fetch,
}

/// The access, by the processor's error code (Intel SDM volume 3, "Page-fault exceptions").
#[cfg(target_arch = "x86_64")]
pub(super) fn access(context: &libc::ucontext_t) -> Access {
    const WRITE: i64 = 1 << 1;
    const FETCH: i64 = 1 << 4;
    match context.uc_mcontext.gregs[libc::REG_ERR as usize] {
        error if error & FETCH != 0 => Access::Fetch,
        error if error & WRITE != 0 => Access::Write,
        _ => Access::Read,
    }
}

/// The access, by the exception's syndrome (Arm ARM, "ESR_EL1").
#[cfg(target_arch = "aarch64")]
pub(super) fn access(context: &libc::ucontext_t) -> Access {
    /// Instruction aborts, from a lower exception level and from the same.
    const FETCHES: [u64; 2] = [0x20, 0x21];
    /// Not a read (WnR).
    const WRITE: u64 = 1 << 6;
    match syndrome(&context.uc_mcontext) {
        Some(syndrome) if syndrome & WRITE != 0 && !FETCHES.contains(&(syndrome >> 26 & 0x3f)) => {
            Access::Write
        }
        Some(syndrome) if !FETCHES.contains(&(syndrome >> 26 & 0x3f)) => Access::Read,
        // Like a fetch, an unknown access is left to the handler that was there before.
        _ => Access::Fetch,
    }
}

/// The syndrome in a signal's context: in one of the records after the registers, each of which
/// begins with its magic number and its size (`struct esr_context` in `asm/sigcontext.h`).
#[cfg(target_arch = "aarch64")]
fn syndrome(context: &libc::mcontext_t) -> Option<u64> {
    const ESR_MAGIC: u32 = 0x4553_5201;
    let bytes = std::ptr::from_ref(context).cast::<u8>();
    let word = |at: usize| {
        let fits = at + size_of::<u32>() <= size_of::<libc::mcontext_t>();
        // SAFETY: the four bytes are in the context, as just checked, which the kernel has written
        // whole.
        fits.then(|| unsafe { bytes.add(at).cast::<u32>().read_unaligned() })
    };
    let after_registers = std::mem::offset_of!(libc::mcontext_t, pstate) + size_of::<u64>();
    let mut at = after_registers.next_multiple_of(16);
    loop {
        let (magic, size) = (word(at)?, word(at + 4)?);
        match magic {
            ESR_MAGIC => return Some(u64::from(word(at + 8)?) | u64::from(word(at + 12)?) << 32),
            0 => return None,
            _ if size < 8 => return None,
            _ => at += size as usize,
        }
    }
}
