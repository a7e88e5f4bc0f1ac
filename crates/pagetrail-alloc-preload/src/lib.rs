//! `libpagetrail_alloc.so`: under `LD_PRELOAD` a program's small objects are placed so that writes are told apart within a
//! page. `PAGETRAIL_PARTS` says into how many parts a page is divided: 1, 2, 4, 8 (without it), 16, 32 or 64.
//!
//! The heap is that of `pagetrail-alloc`; here it gets libc's names.
#![deny(unsafe_code)]

mod sys;
