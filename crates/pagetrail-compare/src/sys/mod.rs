//! What the tests of suites ask of the kernel and safe Rust has no word for; all unsafe code.

use std::hint::black_box;
use std::io;

pub(crate) mod child;
pub(crate) mod heap_end;
pub(crate) mod machine;
pub(crate) mod mapping;
pub(crate) mod session;
pub(crate) mod usage;

/// Refuses all threads but the first of a process, which starts no other before a test that needs
/// to be alone. `/proc/self/task` cannot be asked: in the virtual machine it has threads of the
/// machine, too.
fn check_is_first_thread() -> io::Result<()> {
    match rustix::thread::gettid() == rustix::process::getpid() {
        true => Ok(()),
        false => Err(io::Error::other(
            "this test needs a process of its own, and its first thread",
        )),
    }
}

/// Writes to a page, and only then looks whether it was empty: a page that is read first faults
/// twice, for a page of zeros and for its own.
pub(crate) fn write_first(page: &mut [u8]) -> bool {
    page[0] = 1;
    black_box(page)[1] == 0
}
