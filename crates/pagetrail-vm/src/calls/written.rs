//! What the kernel writes to the program's memory for a system call. Pure, but for reading the program's lists of buffers.
//!
//! The processor logs nothing of it. A call that is not known here may have written anywhere.

use crate::sys::call::Call;
use crate::sys::program_memory::read_word;

/// Where a call puts something. Arguments count from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Output {
    /// So many bytes at an argument.
    Bytes(usize, u64),
    /// At an argument, as many bytes as another one says.
    Sized(usize, usize),
    /// At an argument, as many things of a size as another one says.
    Array(usize, usize, u64),
    /// At an argument, as many things of a size as the call returns.
    Returned(usize, u64),
    /// At an argument, as many bytes as the 32-bit word says to which another one points, and that word.
    Counted(usize, usize),
    /// Into a list of buffers; argument and length of the list.
    Vector(usize, usize),
    /// Into the buffers of a `struct msghdr`, and into that.
    Message(usize),
}

use Output::{Array, Bytes, Counted, Message, Returned, Sized, Vector};

/// Hands out what a call has written, as address and length; false where that is not known.
pub(crate) fn by(call: &Call, result: i64, mut each: impl FnMut(u64, u64)) -> bool {
    let Some(outputs) = outputs(call) else {
        return false;
    };
    let argument = |n: usize| call.arguments[n];
    let returned = u64::try_from(result).unwrap_or(0);
    for output in outputs {
        match *output {
            Bytes(at, bytes) => each(argument(at), bytes),
            Sized(at, bytes) => each(argument(at), argument(bytes)),
            Array(at, count, bytes) => each(argument(at), argument(count).saturating_mul(bytes)),
            Returned(at, bytes) => each(argument(at), returned.saturating_mul(bytes)),
            Counted(at, length) => {
                // What is there now is what was written; more than that was not.
                let bytes = read_word(argument(length)).unwrap_or(0) & 0xffff_ffff;
                each(argument(at), bytes);
                each(argument(length), 4);
            }
            Vector(at, count) => vector(argument(at), argument(count), &mut each),
            Message(at) => message(argument(at), &mut each),
        }
    }
    true
}

/// `struct iovec`, many of them. Which of the buffers are filled does not matter much: they are there to be.
fn vector(list: u64, count: u64, each: &mut impl FnMut(u64, u64)) {
    for n in 0..count.min(1024) {
        let at = list + n * 16;
        if let (Ok(buffer), Ok(bytes)) = (read_word(at), read_word(at + 8)) {
            each(buffer, bytes);
        }
    }
}

/// `struct msghdr`: name, length of it, buffers, how many, control data, length of that, flags.
fn message(at: u64, each: &mut impl FnMut(u64, u64)) {
    let word = |n: u64| read_word(at + n * 8).unwrap_or(0);
    each(at, 56);
    each(word(0), word(1) & 0xffff_ffff);
    vector(word(2), word(3), each);
    each(word(4), word(5));
}

/// The outputs of a call; `None` where they are not known.
fn outputs(call: &Call) -> Option<&'static [Output]> {
    const STAT: u64 = 144;
    const TIMESPEC: u64 = 16;
    const RUSAGE: u64 = 144;
    Some(match call.number as i64 {
        libc::SYS_getrandom | libc::SYS_getcwd => &[Returned(0, 1)],
        libc::SYS_read
        | libc::SYS_pread64
        | libc::SYS_getdents64
        | libc::SYS_getdents
        | libc::SYS_readlink
        | libc::SYS_listxattr
        | libc::SYS_flistxattr
        | libc::SYS_llistxattr => &[Returned(1, 1)],
        libc::SYS_readlinkat | libc::SYS_getxattr | libc::SYS_fgetxattr | libc::SYS_lgetxattr => {
            &[Returned(2, 1)]
        }
        libc::SYS_readv | libc::SYS_preadv | libc::SYS_preadv2 => &[Vector(1, 2)],
        libc::SYS_stat | libc::SYS_fstat | libc::SYS_lstat => &[Bytes(1, STAT)],
        libc::SYS_newfstatat => &[Bytes(2, STAT)],
        libc::SYS_statx => &[Bytes(4, 256)],
        libc::SYS_statfs | libc::SYS_fstatfs => &[Bytes(1, 120)],
        libc::SYS_pipe | libc::SYS_pipe2 => &[Bytes(0, 8)],
        libc::SYS_socketpair => &[Bytes(3, 8)],
        libc::SYS_poll | libc::SYS_ppoll => &[Array(0, 1, 8), Bytes(2, TIMESPEC)],
        libc::SYS_select => &[
            Bytes(1, 128),
            Bytes(2, 128),
            Bytes(3, 128),
            Bytes(4, TIMESPEC),
        ],
        libc::SYS_pselect6 => &[
            Bytes(1, 128),
            Bytes(2, 128),
            Bytes(3, 128),
            Bytes(4, TIMESPEC),
        ],
        libc::SYS_epoll_wait | libc::SYS_epoll_pwait | libc::SYS_epoll_pwait2 => &[Returned(1, 12)],
        libc::SYS_nanosleep => &[Bytes(1, TIMESPEC)],
        libc::SYS_clock_nanosleep => &[Bytes(3, TIMESPEC)],
        libc::SYS_clock_gettime | libc::SYS_clock_getres => &[Bytes(1, TIMESPEC)],
        libc::SYS_gettimeofday => &[Bytes(0, TIMESPEC), Bytes(1, 8)],
        libc::SYS_time => &[Bytes(0, 8)],
        libc::SYS_times => &[Bytes(0, 32)],
        libc::SYS_getitimer => &[Bytes(1, 32)],
        libc::SYS_setitimer => &[Bytes(2, 32)],
        libc::SYS_timer_create => &[Bytes(2, 4)],
        libc::SYS_timer_gettime | libc::SYS_timerfd_gettime => &[Bytes(1, 32)],
        libc::SYS_timer_settime | libc::SYS_timerfd_settime => &[Bytes(3, 32)],
        libc::SYS_uname => &[Bytes(0, 390)],
        libc::SYS_sysinfo => &[Bytes(0, 112)],
        libc::SYS_getrlimit => &[Bytes(1, 16)],
        libc::SYS_prlimit64 => &[Bytes(3, 16)],
        libc::SYS_getrusage => &[Bytes(1, RUSAGE)],
        libc::SYS_wait4 => &[Bytes(1, 4), Bytes(3, RUSAGE)],
        libc::SYS_waitid => &[Bytes(2, 128), Bytes(4, RUSAGE)],
        libc::SYS_getgroups => &[Returned(1, 4)],
        libc::SYS_getresuid | libc::SYS_getresgid => &[Bytes(0, 4), Bytes(1, 4), Bytes(2, 4)],
        libc::SYS_getcpu => &[Bytes(0, 4), Bytes(1, 4)],
        libc::SYS_sched_getaffinity => &[Returned(2, 1)],
        libc::SYS_sched_getparam => &[Bytes(1, 8)],
        libc::SYS_sched_getattr => &[Sized(1, 2)],
        libc::SYS_sched_rr_get_interval => &[Bytes(1, TIMESPEC)],
        libc::SYS_capget => &[Bytes(0, 8), Bytes(1, 24)],
        libc::SYS_rt_sigaction => &[Bytes(2, 32)],
        libc::SYS_rt_sigprocmask => &[Bytes(2, 8)],
        libc::SYS_rt_sigpending => &[Bytes(0, 8)],
        libc::SYS_rt_sigtimedwait => &[Bytes(1, 128)],
        libc::SYS_sigaltstack => &[Bytes(1, 24)],
        libc::SYS_arch_prctl => &[Bytes(1, 8)],
        libc::SYS_prctl => &[Bytes(1, 16)],
        libc::SYS_recvfrom => &[Returned(1, 1), Counted(4, 5)],
        libc::SYS_recvmsg => &[Message(1)],
        libc::SYS_accept | libc::SYS_accept4 | libc::SYS_getsockname | libc::SYS_getpeername => {
            &[Counted(1, 2)]
        }
        libc::SYS_getsockopt => &[Counted(3, 4)],
        libc::SYS_sendfile => &[Bytes(2, 8)],
        libc::SYS_splice | libc::SYS_copy_file_range => &[Bytes(1, 8), Bytes(3, 8)],
        libc::SYS_fcntl => &[Bytes(2, 32)],
        libc::SYS_ioctl if call.arguments[1] >> 8 & 0xff == u64::from(b'T') => &[Bytes(2, 64)],
        libc::SYS_get_robust_list => &[Bytes(1, 8), Bytes(2, 8)],
        libc::SYS_mincore => &[Array(2, 1, 1)],
        libc::SYS_futex => match (call.arguments[1] & 0x7f) as i32 {
            libc::FUTEX_WAKE_OP => &[Bytes(4, 4)],
            libc::FUTEX_LOCK_PI
            | libc::FUTEX_LOCK_PI2
            | libc::FUTEX_TRYLOCK_PI
            | libc::FUTEX_UNLOCK_PI => &[Bytes(0, 4)],
            libc::FUTEX_WAIT_REQUEUE_PI | libc::FUTEX_CMP_REQUEUE_PI => &[Bytes(0, 4), Bytes(4, 4)],
            _ => &[],
        },
        libc::SYS_execve | libc::SYS_execveat => &[],
        libc::SYS_write
        | libc::SYS_pwrite64
        | libc::SYS_writev
        | libc::SYS_pwritev
        | libc::SYS_pwritev2
        | libc::SYS_open
        | libc::SYS_openat
        | libc::SYS_openat2
        | libc::SYS_creat
        | libc::SYS_close
        | libc::SYS_close_range
        | libc::SYS_lseek
        | libc::SYS_access
        | libc::SYS_faccessat
        | libc::SYS_faccessat2
        | libc::SYS_dup
        | libc::SYS_dup2
        | libc::SYS_dup3
        | libc::SYS_fsync
        | libc::SYS_fdatasync
        | libc::SYS_sync
        | libc::SYS_truncate
        | libc::SYS_ftruncate
        | libc::SYS_fallocate
        | libc::SYS_fadvise64
        | libc::SYS_flock
        | libc::SYS_chdir
        | libc::SYS_fchdir
        | libc::SYS_mkdir
        | libc::SYS_mkdirat
        | libc::SYS_rmdir
        | libc::SYS_rename
        | libc::SYS_renameat
        | libc::SYS_renameat2
        | libc::SYS_link
        | libc::SYS_linkat
        | libc::SYS_symlink
        | libc::SYS_symlinkat
        | libc::SYS_unlink
        | libc::SYS_unlinkat
        | libc::SYS_chmod
        | libc::SYS_fchmod
        | libc::SYS_fchmodat
        | libc::SYS_chown
        | libc::SYS_fchown
        | libc::SYS_lchown
        | libc::SYS_fchownat
        | libc::SYS_umask
        | libc::SYS_utimensat
        | libc::SYS_utimes
        | libc::SYS_mknod
        | libc::SYS_mknodat
        | libc::SYS_setxattr
        | libc::SYS_fsetxattr
        | libc::SYS_lsetxattr
        | libc::SYS_getpid
        | libc::SYS_getppid
        | libc::SYS_gettid
        | libc::SYS_getuid
        | libc::SYS_geteuid
        | libc::SYS_getgid
        | libc::SYS_getegid
        | libc::SYS_getpgid
        | libc::SYS_getpgrp
        | libc::SYS_getsid
        | libc::SYS_setpgid
        | libc::SYS_setsid
        | libc::SYS_setuid
        | libc::SYS_setgid
        | libc::SYS_setgroups
        | libc::SYS_setresuid
        | libc::SYS_setresgid
        | libc::SYS_getpriority
        | libc::SYS_setpriority
        | libc::SYS_setrlimit
        | libc::SYS_kill
        | libc::SYS_tgkill
        | libc::SYS_tkill
        | libc::SYS_pause
        | libc::SYS_alarm
        | libc::SYS_rt_sigsuspend
        | libc::SYS_rt_sigqueueinfo
        | libc::SYS_sched_yield
        | libc::SYS_sched_setaffinity
        | libc::SYS_sched_getscheduler
        | libc::SYS_sched_setscheduler
        | libc::SYS_sched_get_priority_max
        | libc::SYS_sched_get_priority_min
        | libc::SYS_set_robust_list
        | libc::SYS_set_tid_address
        | libc::SYS_socket
        | libc::SYS_bind
        | libc::SYS_listen
        | libc::SYS_connect
        | libc::SYS_sendto
        | libc::SYS_sendmsg
        | libc::SYS_shutdown
        | libc::SYS_setsockopt
        | libc::SYS_epoll_create
        | libc::SYS_epoll_create1
        | libc::SYS_epoll_ctl
        | libc::SYS_eventfd
        | libc::SYS_eventfd2
        | libc::SYS_signalfd
        | libc::SYS_signalfd4
        | libc::SYS_timerfd_create
        | libc::SYS_timer_delete
        | libc::SYS_inotify_init
        | libc::SYS_inotify_init1
        | libc::SYS_inotify_add_watch
        | libc::SYS_inotify_rm_watch
        | libc::SYS_memfd_create
        | libc::SYS_msync
        | libc::SYS_mlock
        | libc::SYS_mlock2
        | libc::SYS_munlock
        | libc::SYS_membarrier
        | libc::SYS_pidfd_open
        | libc::SYS_pidfd_send_signal
        | libc::SYS_personality
        | libc::SYS_ioprio_get
        | libc::SYS_ioprio_set => &[],
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spans(number: i64, arguments: [u64; 6], result: i64) -> Option<Vec<(u64, u64)>> {
        let call = Call {
            number: number as u64,
            arguments,
        };
        let mut spans = Vec::new();
        by(&call, result, |address, bytes| spans.push((address, bytes))).then_some(spans)
    }

    #[test]
    fn what_a_call_fills_is_named() {
        assert_eq!(
            spans(libc::SYS_read, [3, 0x1000, 4096, 0, 0, 0], 17),
            Some(vec![(0x1000, 17)])
        );
        assert_eq!(
            spans(libc::SYS_read, [3, 0x1000, 4096, 0, 0, 0], -5),
            Some(vec![(0x1000, 0)])
        );
        assert_eq!(
            spans(libc::SYS_fstat, [1, 0x2000, 0, 0, 0, 0], 0),
            Some(vec![(0x2000, 144)])
        );
        assert_eq!(
            spans(libc::SYS_write, [1, 0x1000, 5, 0, 0, 0], 5),
            Some(vec![])
        );
        assert_eq!(
            spans(libc::SYS_ioctl, [1, 0x5413, 0x3000, 0, 0, 0], 0),
            Some(vec![(0x3000, 64)])
        );
    }

    #[test]
    fn what_is_not_known_is_not_guessed() {
        assert_eq!(
            spans(libc::SYS_ioctl, [1, 0xc010_6401, 0x3000, 0, 0, 0], 0),
            None
        );
        assert_eq!(spans(9999, [0; 6], 0), None);
    }

    #[test]
    fn buffers_are_read_from_the_programs_lists() {
        let list: [u64; 4] = [0x1000, 10, 0x5000, 20];
        let at = list.as_ptr() as u64;
        let expected = vec![(0x1000, 10), (0x5000, 20)];
        assert_eq!(
            spans(libc::SYS_readv, [0, at, 2, 0, 0, 0], 30),
            Some(expected)
        );
        let message: [u64; 7] = [0x9000, 16, at, 2, 0x7000, 24, 0];
        let header = message.as_ptr() as u64;
        let expected = vec![
            (header, 56),
            (0x9000, 16),
            (0x1000, 10),
            (0x5000, 20),
            (0x7000, 24),
        ];
        assert_eq!(
            spans(libc::SYS_recvmsg, [0, header, 0, 0, 0, 0], 30),
            Some(expected)
        );
    }
}
