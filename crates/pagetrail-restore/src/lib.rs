//! Starting a process anew from a checkpoint, without privilege: one process, its threads, and
//! ordinary descriptors.
//!
//! [`restore`] executes the program's own executable and stops it before its first instruction: the
//! new process has the right `/proc/PID/exe` so, which nothing but privilege could set later. Then
//! a stub of some thirty bytes is all that it executes: the stub makes the system calls that this
//! process writes down for it. They unmap everything, map what the image has, and restore signal
//! actions, descriptors and threads. At last each thread gets its registers, and goes on. No code
//! is injected into a running program, and no libc takes part.
//!
//! What is restored, and what is not, is in the book. Only checkpoints that were taken with
//! [`ProcessOptions::restartable`](pagetrail_checkpoint::ProcessOptions::restartable) can be.
//!
//! An image decides what the new process executes and opens, with the rights of who restores it:
//! restore only what you trust as you trust a program.
#![deny(unsafe_code)]

#[cfg(target_arch = "x86_64")]
mod ahead;
#[cfg(target_arch = "x86_64")]
mod check;
#[cfg(target_arch = "x86_64")]
mod ending;
mod error;
#[cfg(target_arch = "x86_64")]
mod files;
#[cfg(target_arch = "x86_64")]
mod holes;
#[cfg(target_arch = "x86_64")]
mod lacking;
#[cfg(target_arch = "x86_64")]
mod listeners;
#[cfg(target_arch = "x86_64")]
mod objects;
mod options;
#[cfg(target_arch = "x86_64")]
mod paged;
#[cfg(target_arch = "x86_64")]
mod pager;
#[cfg(target_arch = "x86_64")]
mod process;
#[cfg(target_arch = "x86_64")]
mod remote;
#[cfg(target_arch = "x86_64")]
mod restore;
#[cfg(not(target_arch = "x86_64"))]
#[path = "no_restore.rs"]
mod restore;
mod restored;
#[cfg(target_arch = "x86_64")]
mod shortage;
#[cfg(target_arch = "x86_64")]
mod space;
#[cfg(target_arch = "x86_64")]
mod spread;
#[cfg(target_arch = "x86_64")]
mod sys;
#[cfg(target_arch = "x86_64")]
mod threads;
#[cfg(target_arch = "x86_64")]
mod wiped;

pub use error::{Error, Result};
pub use options::{Missing, PidChoice, RestoreOptions, Stdio};
#[cfg(target_arch = "x86_64")]
pub use pager::{Given, Pager};
#[cfg(not(target_arch = "x86_64"))]
pub use restore::{Given, Pager};
pub use restore::{check_lazily, restore, restore_copies, restore_lazily};
pub use restored::Restored;
