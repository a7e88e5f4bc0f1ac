//! The priority of the calling thread.

/// Nice values, of which this is the highest priority.
const HIGHEST: libc::c_int = -20;

/// Raises the priority of the calling thread, for good, if that is allowed: what it does is waited
/// for while a target stands still.
pub(crate) fn raise_priority() {
    // SAFETY: the call takes numbers only. On Linux 0 means the calling thread, not its process
    // (`setpriority(2)`, "C library/kernel differences").
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, HIGHEST) };
}
