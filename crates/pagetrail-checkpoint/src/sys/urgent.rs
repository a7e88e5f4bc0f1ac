//! [`Urgent`]: the highest priority for this thread, while a process stands still because of it.
//!
//! On a busy machine a thread that has work to do waits for a processor, milliseconds each time.
//! For the moment that a process is held, this one should not. It needs CAP_SYS_NICE, and changes
//! nothing without.

use std::marker::PhantomData;

/// Nice values: the priority of this thread while the value lives, and the one it had.
const HIGHEST: libc::c_int = -20;

/// This thread has the highest priority until the value is dropped, by the same thread.
#[derive(Debug)]
pub(crate) struct Urgent {
    before: libc::c_int,
    _same_thread: PhantomData<*const ()>,
}

impl Urgent {
    /// Raises the priority, if that is allowed.
    pub(crate) fn begin() -> Self {
        // SAFETY: the calls take numbers only. On Linux 0 means the calling thread, not its process
        // (`setpriority(2)`, "C library/kernel differences"). -1 as a result is a nice value, too,
        // and one that is put back as well as any.
        let before = unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) };
        // SAFETY: the call takes numbers only, and 0 means the calling thread.
        unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, HIGHEST) };
        Self {
            before,
            _same_thread: PhantomData,
        }
    }
}

impl Drop for Urgent {
    fn drop(&mut self) {
        // SAFETY: the call takes numbers only, and 0 means the calling thread. To lower a priority
        // is always allowed.
        unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, self.before) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nice() -> libc::c_int {
        // SAFETY: the call takes numbers only.
        unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) }
    }

    #[test]
    fn the_priority_is_put_back() {
        let before = nice();
        let urgent = Urgent::begin();
        assert!(nice() == HIGHEST || nice() == before);
        drop(urgent);
        assert_eq!(nice(), before);
    }
}
