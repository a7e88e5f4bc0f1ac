//! The time stamp counter of the processor.

/// Its value now.
pub(crate) fn time_stamp() -> u64 {
    // SAFETY: every x86-64 processor has RDTSC, which touches no memory.
    unsafe { std::arch::x86_64::_rdtsc() }
}
