//! `PAGEMAP_SCAN` and the asynchronous modes of `userfaultfd(2)`, by safe types: which pages of an
//! address space were written since the last look.
//!
//! ```no_run
//! use pagemap_scan::{Faults, Features, Mode, Pagemap, Query, Userfaultfd, Vector};
//! # fn main() -> std::io::Result<()> {
//! # let range = 0x7f00_0000_0000..0x7f00_0010_0000;
//! let fd = Userfaultfd::create(Faults::UserMode)?;
//! let uffd = Userfaultfd::handshake(fd, Features::WP_ASYNC)?;
//! uffd.register(range.clone(), Mode::WriteProtect)?;
//! let pagemap = Pagemap::own()?;
//! pagemap.write_protect(range.clone())?;
//! // .. the program writes ..
//! let mut written = Vec::new();
//! let query = Query::WRITTEN_SINCE_LAST_SCAN;
//! pagemap.scan(range, query, &mut Vector::new(), |pages, _| written.push(pages))?;
//! # Ok(())
//! # }
//! ```
//!
//! Ranges are addresses in bytes and must be multiples of [`page_size`]; the kernel answers
//! `EINVAL` to others. No call changes the contents of memory. Nothing is remembered from one call
//! to the next: mappings that come and go are the caller's concern, and the crate `pagetrail` deals
//! with them.
//!
//! Sources: `PAGEMAP_SCAN(2const)`, `ioctl_userfaultfd(2)`, `proc_pid_pagemap(5)`, and
//! `Documentation/admin-guide/mm/{pagemap,userfaultfd}.rst` of the kernel.
#![cfg(target_os = "linux")]
#![deny(unsafe_code)]

mod categories;
mod entry;
mod features;
mod query;
mod sys;

pub use categories::Categories;
pub use entry::Entry;
pub use features::Features;
pub use query::Query;
pub use rustix::io::Errno;
pub use sys::pagemap::{Pagemap, Vector};
pub use sys::userfaultfd::{FAULTS_AT_ONCE, Fault, Faults, Filled, Mode, Userfaultfd};
pub use sys::zeros::Zeros;

use std::sync::OnceLock;

/// The page size of this machine, in bytes (`getauxval(AT_PAGESZ)`).
pub fn page_size() -> u64 {
    // Asking libc takes longer than most computations with the result.
    static ASKED: OnceLock<u64> = OnceLock::new();
    *ASKED.get_or_init(|| rustix::param::page_size() as u64)
}
