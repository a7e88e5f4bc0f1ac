//! `libpagetrail_softdirty.so`: under `LD_PRELOAD` it gives a program the kernel's soft-dirty
//! interface where the kernel has none: bit 55 of `/proc/PID/pagemap`, `4` to
//! `/proc/PID/clear_refs`, `PAGE_IS_SOFT_DIRTY` of `PAGEMAP_SCAN(2const)`.
//!
//! Reading needs no metadata. A [`Watch`](pagetrail::Watch) by `pagemap-scan` leaves its memory in
//! the kernel's own page tables: an entry that is write-protected for userfaultfd (bit 57 of
//! `pagemap`) was not written since the last clear, any other was. So a read is the program's own
//! `read(2)` plus arithmetic on what it returned (`answer`), allocates nothing, and is as cheap as
//! the kernel's. Only a clear, which re-arms, goes through the watch (`tracker`), and where no
//! mapping has changed past it.
//!
//! The watch on the own process lives in it (`own`); that on another lives in a small process of
//! its own (`holder`). A collector that is a guest of `pagetrail vm` needs neither: the machine's
//! page tables have its bits (`machine`). Nor does one that asks for a log of `/dev/ooh` (`log`).
//!
//! Everything else in the process passes through: one load and one branch per call
//! (`sys::exports`). A program that never opens one of these files never does more.
//!
//! The library lives in a program that is not ours, at moments that are not of our choosing: in
//! signal handlers, with the world stopped, between `vfork` and `execve`. `sys::guard` has the
//! rules for that.
#![deny(unsafe_code)]
#![cfg_attr(
    test,
    allow(
        dead_code,
        reason = "without the exports, which would be the test's own libc, nothing calls it"
    )
)]

mod answer;
mod descriptors;
mod habits;
mod holder;
mod log;
mod machine;
mod own;
mod scan;
mod settings;
mod spans;
mod sys;
#[cfg(test)]
mod testing;
mod tracker;
