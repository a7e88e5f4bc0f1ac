//! Where the time of a program in the kernel goes: named functions of the kernel, timed by
//! sampling; exits of virtual machines by reason; events.
//!
//! The method is that of "A Comparison of Hardware Virtual Machines Versus Native Performance in
//! Xen" (Kloster et al., 2007, section 3.7.1): every call is counted, and one call of *n* is timed,
//! where *n* is drawn anew each time from an [`Interval`], so that no rhythm of the program meets
//! that of the samples. What taking the time costs is measured first, and subtracted.
//!
//! [`Probes`] does so on a stock kernel: small BPF programs stand before and after each function
//! (`fentry` and `fexit`, Linux 5.5 and later, with BTF). They run for the threads that the calling
//! thread starts, and for those that these start, and for nobody else. Everything here goes away
//! with its descriptors, and so with the process.
//!
//! It needs root, or the capabilities `CAP_BPF`, `CAP_PERFMON` and `CAP_SYS_ADMIN`.
#![deny(unsafe_code)]

mod btf;
mod code;
mod format;
mod found;
mod interval;
mod probes;
mod programs;
#[allow(unsafe_code, reason = "unsafe code lives in sys/")]
mod sys;

pub use found::{Count, Found, Function};
pub use interval::{BadInterval, Interval};
pub use probes::{EVENTS, Error, Probes, Settings};
