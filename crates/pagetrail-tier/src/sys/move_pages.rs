//! `move_pages(2)`: where pages of a process are, and moving them to another node.
//!
//! # Safety
//!
//! The call reads and writes the arrays that it is given, and changes where the physical memory of
//! a process is, never what it holds.
#![allow(unsafe_code, reason = "move_pages(2) has no safe wrapper")]

use std::ffi::c_void;

use rustix::io::Errno;

/// Only pages that no other process maps.
const MPOL_MF_MOVE: libc::c_int = 1 << 1;

/// The state of a page as `move_pages(2)` has it: a node, or the negative number of an error.
pub(crate) type State = i32;

/// Where pages are: a node each, or the negative number of an error (`ENOENT`: not in memory).
pub(crate) fn query(pid: u32, addresses: &[u64], states: &mut [State]) -> Result<(), Errno> {
    call(pid, addresses, None, states).map(drop)
}

/// Moves pages to a node; what the kernel does not get to keeps its state.
pub(crate) fn to_node(
    pid: u32,
    addresses: &[u64],
    node: i32,
    states: &mut [State],
) -> Result<(), Errno> {
    let nodes = vec![node; addresses.len()];
    call(pid, addresses, Some(&nodes), states).map(drop)
}

fn call(
    pid: u32,
    addresses: &[u64],
    nodes: Option<&[i32]>,
    states: &mut [State],
) -> Result<i64, Errno> {
    assert_eq!(addresses.len(), states.len(), "a state for each page");
    let nodes = nodes.map_or(std::ptr::null(), <[i32]>::as_ptr);
    // SAFETY: the kernel reads `addresses.len()` addresses, which it does not follow in this
    // process, as many nodes where there are any, and writes as many states; all arrays are that
    // long.
    let result = unsafe {
        libc::syscall(
            libc::SYS_move_pages,
            pid as libc::pid_t,
            addresses.len(),
            addresses.as_ptr().cast::<*const c_void>(),
            nodes,
            states.as_mut_ptr(),
            MPOL_MF_MOVE,
        )
    };
    match result {
        -1 => Err(last_errno()),
        // Since Linux 4.17: how many pages were not moved.
        left => Ok(left),
    }
}

pub(super) fn last_errno() -> Errno {
    let code = std::io::Error::last_os_error().raw_os_error();
    Errno::from_raw_os_error(code.unwrap_or(libc::EINVAL))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_of_ours_is_on_a_node() {
        let buffer = vec![1u8; 1 << 16];
        let page = pagetrail::page_size();
        let address = buffer.as_ptr() as u64 & !(page - 1);
        let mut states = [State::MIN; 2];
        query(std::process::id(), &[address + page, 4096], &mut states).unwrap();
        assert!(states[0] >= 0, "{states:?}");
        assert!(states[1] < 0, "nothing is mapped at the bottom: {states:?}");
        let mut states = [State::MIN];
        let node = to_node(std::process::id(), &[address + page], 0, &mut states);
        assert_eq!((node, states[0]), (Ok(()), 0));
    }

    #[test]
    fn who_is_gone_is_named() {
        // Above the highest number that a process can have.
        assert_eq!(query(1 << 30, &[4096], &mut [0]), Err(Errno::SRCH));
    }
}
