//! The functions that programs call instead of libc's (`malloc(3)`, `posix_memalign(3)`,
//! `malloc_usable_size(3)`).
#![allow(
    unsafe_code,
    reason = "the fence: the C boundary is unsafe, everything else is safe"
)]

mod exports;
