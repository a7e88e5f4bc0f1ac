//! What has no safe form: reading the processor's time stamp counter.
#![allow(unsafe_code, reason = "the instruction has no safe form")]

#[cfg(target_arch = "x86_64")]
pub(super) mod counter;
