//! `getpgid(2)`: a call that does next to nothing in the kernel.

/// Makes the call. Its result, which may be 0 in a PID namespace, is of no interest.
pub(crate) fn call() {
    // SAFETY: the call takes a number and only returns one.
    unsafe { libc::getpgid(0) };
}
