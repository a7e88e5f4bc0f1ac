//! `get_robust_list(2)`: where a thread's list of robust mutexes begins.
//!
//! # Safety
//!
//! The kernel only writes to the two variables that it is given.
#![allow(unsafe_code, reason = "get_robust_list(2) has no wrapper")]

/// The address that a thread has registered; `None` if it has registered none, has ended, or must
/// not be inspected.
pub(crate) fn head(thread: u32) -> Option<u64> {
    let thread = libc::pid_t::try_from(thread).ok().filter(|id| *id > 0)?;
    let mut head = 0_usize;
    let mut length = 0_usize;
    // SAFETY: both variables are valid places for a pointer and a size.
    let result = unsafe {
        libc::syscall(
            libc::SYS_get_robust_list,
            libc::c_long::from(thread),
            &raw mut head,
            &raw mut length,
        )
    };
    (result == 0 && head != 0).then_some(head as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_of_libc_has_one_and_no_thread_has_none() {
        let own = rustix::thread::gettid().as_raw_nonzero().get();
        assert!(head(own as u32).is_some());
        assert_eq!(head(u32::MAX), None);
        assert_eq!(head(0), None);
    }
}
