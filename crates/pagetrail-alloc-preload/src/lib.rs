//! `libpagetrail_alloc.so`: under `LD_PRELOAD` a program's small objects are placed so that the
//! page tables distinguish writes within a page. `PAGETRAIL_SUBPAGES` sets the number of sub-pages
//! per page: 1, 2, 4, 8 (the default), 16, 32 or 64.
//!
//! The heap is that of `pagetrail-alloc`; this library exports it under libc's names.
#![deny(unsafe_code)]

mod sys;
