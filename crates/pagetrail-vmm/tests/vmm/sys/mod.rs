//! A guest of a few instructions, and memory for it: a monitor as small as can be.
#![allow(unsafe_code, reason = "guest memory and KVM's calls name addresses")]

#[cfg(any(target_arch = "aarch64", target_arch = "x86_64"))]
pub(crate) mod guest;
pub(crate) mod memory;
pub(crate) mod vhost;
