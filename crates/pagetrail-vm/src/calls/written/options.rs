//! What calls write and read that an argument selects: `fcntl(2)`, `ioctl(2)`, `prctl(2)`,
//! `getsockopt(2)`, `futex(2)`, `shmctl(2)`.
//!
//! An option that is not listed may have written anywhere, as a call that the table does not list.

use super::super::reads::Input;
use super::Output;
use super::Output::{Bytes, Counted, Filled};

/// `fcntl(2)`. The numbers that the crate `libc` lacks are from include/uapi/linux/fcntl.h.
pub(in crate::calls) fn fcntl(command: u64) -> Option<&'static [Output]> {
    const GETOWNER_UIDS: i32 = 17;
    const DUPFD_QUERY: i32 = 1027;
    const CREATED_QUERY: i32 = 1028;
    const HINTS: std::ops::RangeInclusive<i32> = 1035..=1038;
    Some(match command as i32 {
        libc::F_GETLK | libc::F_OFD_GETLK => &[Bytes(2, 32)],
        16 | GETOWNER_UIDS => &[Bytes(2, 8)],
        command if HINTS.contains(&command) => &[Bytes(2, 8)],
        libc::F_DUPFD
        | libc::F_GETFD
        | libc::F_SETFD
        | libc::F_GETFL
        | libc::F_SETFL
        | libc::F_SETLK
        | libc::F_SETLKW
        | libc::F_SETOWN
        | libc::F_GETOWN
        // F_SETSIG, F_GETSIG, F_SETOWN_EX
        | 10
        | 11
        | 15
        | libc::F_OFD_SETLK
        | libc::F_OFD_SETLKW
        | libc::F_SETLEASE
        | libc::F_GETLEASE
        | libc::F_NOTIFY
        | DUPFD_QUERY
        | CREATED_QUERY
        | libc::F_DUPFD_CLOEXEC
        | libc::F_SETPIPE_SZ
        | libc::F_GETPIPE_SZ
        | libc::F_ADD_SEALS
        | libc::F_GET_SEALS => &[],
        _ => return None,
    })
}

/// `ioctl(2)`, for the requests of terminals and of all files (include/uapi/asm-generic/ioctls.h).
/// They are compared as whole numbers, since devices have other requests of the same type.
pub(in crate::calls) fn ioctl(request: u64) -> Option<&'static [Output]> {
    Some(match request as u32 {
        // TCGETS, TCGETA, TCGETS2
        0x5401 => &[Bytes(2, 60)],
        0x5405 => &[Bytes(2, 18)],
        0x802c_542a => &[Bytes(2, 44)],
        // TIOCGPGRP, TIOCOUTQ, TIOCMGET, TIOCGSOFTCAR, FIONREAD, TIOCGETD, TIOCGSID
        0x540f | 0x5411 | 0x5415 | 0x5419 | 0x541b | 0x5424 | 0x5429 => &[Bytes(2, 4)],
        // TIOCGPTN, TIOCGPKT, TIOCGPTLCK, TIOCGEXCL
        0x8004_5430 | 0x8004_5438 | 0x8004_5439 | 0x8004_5440 => &[Bytes(2, 4)],
        // TIOCGWINSZ, FIOQSIZE
        0x5413 | 0x5460 => &[Bytes(2, 8)],
        // TIOCGSERIAL, TIOCGICOUNT
        0x541e => &[Bytes(2, 72)],
        0x545d => &[Bytes(2, 80)],
        // FIGETBSZ
        2 => &[Bytes(2, 4)],
        // TCSETS and its like, TCSBRK, TCXONC, TCFLSH, TIOCEXCL, TIOCNXCL, TIOCSCTTY
        0x5402..=0x5404 | 0x5406..=0x540e => &[],
        0x402c_542b..=0x402c_542d => &[],
        // TIOCSPGRP, TIOCSTI, TIOCSWINSZ, TIOCMBIS and its like, TIOCSSOFTCAR
        0x5410 | 0x5412 | 0x5414 | 0x5416..=0x5418 | 0x541a => &[],
        // TIOCCONS, TIOCSSERIAL, TIOCPKT, FIONBIO, TIOCNOTTY, TIOCSETD, TCSBRKP, TIOCSBRK, TIOCCBRK
        0x541d | 0x541f..=0x5423 | 0x5425 | 0x5427 | 0x5428 => &[],
        // TIOCSPTLCK, TIOCGPTPEER, FIONCLEX, FIOCLEX, FIOASYNC, FICLONE
        0x4004_5431 | 0x5441 | 0x5450..=0x5452 | 0x4004_9409 => &[],
        _ => return None,
    })
}

/// `prctl(2)`, by include/uapi/linux/prctl.h.
pub(in crate::calls) fn prctl(option: u64) -> Option<&'static [Output]> {
    const SCHED_CORE: i32 = 62;
    const GET_AUXV: i32 = 0x4155_5856;
    const SET_VMA: i32 = 0x5356_4d41;
    const SET_PTRACER: i32 = 0x5961_6d61;
    Some(match option as i32 {
        libc::PR_GET_PDEATHSIG
        | libc::PR_GET_UNALIGN
        | libc::PR_GET_FPEMU
        | libc::PR_GET_FPEXC
        | libc::PR_GET_ENDIAN
        | libc::PR_GET_TSC
        | libc::PR_GET_CHILD_SUBREAPER => &[Bytes(1, 4)],
        libc::PR_GET_NAME => &[Bytes(1, 16)],
        libc::PR_GET_TID_ADDRESS => &[Bytes(1, 8)],
        SCHED_CORE => &[Bytes(4, 8)],
        GET_AUXV => &[Filled(1, 2, 1)],
        libc::PR_SET_PDEATHSIG
        | libc::PR_GET_DUMPABLE
        | libc::PR_SET_DUMPABLE
        | libc::PR_GET_KEEPCAPS
        | libc::PR_SET_KEEPCAPS
        | libc::PR_GET_TIMING
        | libc::PR_SET_NAME
        | libc::PR_GET_SECCOMP
        | libc::PR_SET_SECCOMP
        | libc::PR_CAPBSET_READ
        | libc::PR_CAPBSET_DROP
        | libc::PR_SET_TSC
        | libc::PR_GET_SECUREBITS
        | libc::PR_SET_SECUREBITS
        | libc::PR_SET_TIMERSLACK
        | libc::PR_GET_TIMERSLACK
        | libc::PR_SET_MM
        | libc::PR_SET_CHILD_SUBREAPER
        | libc::PR_SET_NO_NEW_PRIVS
        | libc::PR_GET_NO_NEW_PRIVS
        | libc::PR_SET_THP_DISABLE
        | libc::PR_GET_THP_DISABLE
        | libc::PR_CAP_AMBIENT
        // PR_GET_SPECULATION_CTRL, PR_SET_SPECULATION_CTRL, PR_SET_SYSCALL_USER_DISPATCH,
        // PR_SET_MDWE, PR_GET_MDWE
        | 52
        | 53
        | 59
        | 65
        | 66
        | SET_VMA
        | SET_PTRACER => &[],
        _ => return None,
    })
}

/// `getsockopt(2)`, which writes at most the length in the word that the last argument points to.
/// Options that count otherwise, or that map memory (`TCP_ZEROCOPY_RECEIVE`), are unknown.
pub(in crate::calls) fn getsockopt(level: u64, option: u64) -> Option<&'static [Output]> {
    const GET_FILTER: i32 = 26;
    const ZEROCOPY_RECEIVE: i32 = 35;
    const IP_LAST: i32 = 40;
    match (level as i32, option as i32) {
        (libc::SOL_SOCKET, GET_FILTER) | (libc::IPPROTO_TCP, ZEROCOPY_RECEIVE) => None,
        (libc::SOL_SOCKET | libc::IPPROTO_TCP, _) => Some(&[Counted(3, 4)]),
        (libc::IPPROTO_IP | libc::IPPROTO_IPV6, 0..=IP_LAST) => Some(&[Counted(3, 4)]),
        _ => None,
    }
}

/// `futex(2)`. For operations that wait for a lock, the kernel takes the lock.
pub(in crate::calls) fn futex(operation: u64) -> Option<&'static [Output]> {
    let flags = libc::FUTEX_PRIVATE_FLAG | libc::FUTEX_CLOCK_REALTIME;
    Some(match operation as i32 & !flags {
        libc::FUTEX_WAKE_OP => &[Bytes(4, 4)],
        libc::FUTEX_LOCK_PI
        | libc::FUTEX_LOCK_PI2
        | libc::FUTEX_TRYLOCK_PI
        | libc::FUTEX_UNLOCK_PI => &[Bytes(0, 4)],
        libc::FUTEX_WAIT_REQUEUE_PI | libc::FUTEX_CMP_REQUEUE_PI => &[Bytes(0, 4), Bytes(4, 4)],
        libc::FUTEX_WAIT
        | libc::FUTEX_WAKE
        | libc::FUTEX_REQUEUE
        | libc::FUTEX_CMP_REQUEUE
        | libc::FUTEX_WAIT_BITSET
        | libc::FUTEX_WAKE_BITSET => &[],
        _ => return None,
    })
}

/// `shmctl(2)`.
pub(in crate::calls) fn shmctl(command: u64) -> Option<&'static [Output]> {
    // With IPC_64, which x86-64 ignores.
    Some(match command as i32 & !0x100 {
        libc::IPC_RMID | libc::IPC_SET | libc::SHM_LOCK | libc::SHM_UNLOCK => &[],
        // IPC_STAT, IPC_INFO, and those by index
        libc::IPC_STAT | 3 | 13..=15 => &[Bytes(2, 112)],
        _ => return None,
    })
}

/// What `futex(2)` reads: the word, and for operations that wait or lock also the time limit.
pub(in crate::calls) fn futex_reads(operation: u64) -> &'static [Input] {
    match is_wait(operation) {
        true => &[Input::Bytes(0, 4), Input::Bytes(3, 16)],
        false => &[Input::Bytes(0, 4)],
    }
}

/// Whether a futex operation has a time limit: those that wait or lock.
fn is_wait(operation: u64) -> bool {
    const LOCK_PI2: i32 = 13;
    let operation = operation as i32 & !(libc::FUTEX_PRIVATE_FLAG | libc::FUTEX_CLOCK_REALTIME);
    matches!(
        operation,
        libc::FUTEX_WAIT
            | libc::FUTEX_LOCK_PI
            | libc::FUTEX_WAIT_BITSET
            | libc::FUTEX_WAIT_REQUEUE_PI
            | LOCK_PI2
    )
}
