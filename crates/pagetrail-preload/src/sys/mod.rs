//! The border to C: the functions that programs call instead of libc's, libc's own, our heap, and
//! the few system calls without a safe wrapper. All `unsafe` stands here.
#![allow(
    unsafe_code,
    reason = "the fence: the C boundary is unsafe, everything above is safe"
)]

#[cfg(not(test))]
pub(crate) mod exports;
pub(crate) mod guard;
#[cfg(not(test))]
mod heap;
pub(crate) mod kernel;
#[cfg(not(test))]
mod passed;
pub(crate) mod process;
pub(crate) mod published;
#[cfg(not(test))]
mod reads;
pub(crate) mod real;
#[cfg(not(test))]
mod stdout;
#[cfg(not(test))]
pub(crate) mod stream;
#[cfg(not(test))]
mod writes;
