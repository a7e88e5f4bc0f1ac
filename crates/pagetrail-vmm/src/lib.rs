//! Dirty tracking for the monitor (VMM) that runs a virtual machine.
//!
//! A monitor (VMM) has a guest's memory, its memslots and its vCPUs already. This crate tells it
//! which pages were written since it looked last, no matter who wrote them: the guest, by KVM's
//! dirty log or ring ([`kvm`]); and the monitor itself ([`OwnWrites`]).
//!
//! * **Superset.** A write that completes before [`Consumer::collect`] returns is in that round or
//!   in the next. There may be false positives, never false negatives.
//! * **Rounds are transactions.** A [`Round`] that is dropped without commit comes back.
//! * **Consumers are independent.** A snapshot and a guest that is given its own log
//!   ([`GuestLog`]) take pages from one log; neither loses one to the other.
//!
//! ```
//! use pagetrail_vmm::{OwnWrites, Region, Regions, Start, Tracker};
//! # let mut memory = vec![0u64; 4 * 512 + 512];
//! # let start = memory.as_mut_ptr().cast::<u8>();
//! # let start = start.wrapping_add(start.align_offset(4096));
//! // SAFETY: the memory is there until the end.
//! let region = unsafe { Region::new(0, 0x10_0000, start, 4 * 4096) };
//! let device = OwnWrites::new();
//! let logs: Vec<Box<dyn pagetrail_vmm::DirtyLog>> = vec![Box::new(device.clone())];
//! let tracker = Tracker::new(Regions::new([region])?, logs)?;
//! let snapshots = tracker.consumer(Start::Now)?;
//!
//! device.mark(0x10_1ff8, 16); // a device has written these bytes
//! let round = snapshots.collect()?;
//! let ranges: Vec<_> = round.ranges().map(|range| (range.guest_address, range.bytes)).collect();
//! assert_eq!(ranges, [(0x10_1000, 2 * 4096)]);
//! round.commit();
//! # Ok::<(), pagetrail_vmm::Error>(())
//! ```
#![deny(unsafe_code)]

mod error;
mod guest_log;
pub mod kvm;
mod log;
mod own_writes;
mod pages;
mod regions;
#[cfg(feature = "vm-memory")]
mod rust_vmm;
#[cfg(feature = "store")]
pub mod store;
mod sys;
#[cfg(target_arch = "x86_64")]
pub mod tables;
mod tracker;
pub mod userfault;
mod vhost;

pub use error::{Error, Result};
pub use guest_log::GuestLog;
pub use log::DirtyLog;
pub use own_writes::OwnWrites;
pub use pages::{Bitmap, DirtyPages, DirtyRange};
pub use regions::Regions;
#[cfg(feature = "vm-memory")]
pub use rust_vmm::{MarkedWrites, MemoryLog};
pub use sys::memory::{DeviceMemory, Region, TableMemory};
pub use tracker::{Consumer, Round, Start, Tracker};
pub use vhost::VhostLog;

/// The book's chapter, whose example is a test.
#[cfg(all(doctest, feature = "store"))]
#[doc = include_str!("../../../docs/book/src/guide/vmm.md")]
struct Chapter;
