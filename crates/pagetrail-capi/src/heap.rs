//! The library's own heap, in mappings of its own.
//!
//! A collector asks for a round while all other threads stand still, and one of them may stand
//! inside `malloc` with its lock held; or `malloc` may be the collector itself. So nothing that a
//! round does may call it. (Starting a thread does, which the technique `userfaultfd` needs when a
//! watch starts.) And what lies in mappings of its own is not in the memory that a program has
//! tracked.

use dlmalloc::GlobalDlmalloc;

#[global_allocator]
static HEAP: GlobalDlmalloc = GlobalDlmalloc;
