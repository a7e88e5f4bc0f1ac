//! The list of calls, with what each writes to the program's memory.

use super::Output::{Array, Bits, Bytes, Counted, Filled, Memory, Message, PerPage, Sized, Vector};
use super::{Output, options};
use crate::sys::call::Call;

/// The outputs of a call; `None` where they are not known.
pub(super) fn outputs(call: &Call) -> Option<&'static [Output]> {
    const STAT: u64 = 144;
    const TIMESPEC: u64 = 16;
    const RUSAGE: u64 = 144;
    Some(match call.number as i64 {
        libc::SYS_getrandom | libc::SYS_getcwd => &[Filled(0, 1, 1)],
        libc::SYS_read
        | libc::SYS_pread64
        | libc::SYS_getdents64
        | libc::SYS_getdents
        | libc::SYS_readlink
        | libc::SYS_listxattr
        | libc::SYS_flistxattr
        | libc::SYS_llistxattr => &[Filled(1, 2, 1)],
        libc::SYS_readlinkat | libc::SYS_getxattr | libc::SYS_fgetxattr | libc::SYS_lgetxattr => {
            &[Filled(2, 3, 1)]
        }
        libc::SYS_readv | libc::SYS_preadv | libc::SYS_preadv2 => &[Vector(1, 2)],
        libc::SYS_stat | libc::SYS_fstat | libc::SYS_lstat => &[Bytes(1, STAT)],
        libc::SYS_newfstatat => &[Bytes(2, STAT)],
        libc::SYS_statx => &[Bytes(4, 256)],
        libc::SYS_statfs | libc::SYS_fstatfs => &[Bytes(1, 120)],
        libc::SYS_pipe | libc::SYS_pipe2 => &[Bytes(0, 8)],
        libc::SYS_socketpair => &[Bytes(3, 8)],
        libc::SYS_poll => &[Array(0, 1, 8)],
        libc::SYS_ppoll => &[Array(0, 1, 8), Bytes(2, TIMESPEC)],
        libc::SYS_select | libc::SYS_pselect6 => {
            &[Bits(1, 0), Bits(2, 0), Bits(3, 0), Bytes(4, TIMESPEC)]
        }
        libc::SYS_epoll_wait | libc::SYS_epoll_pwait | libc::SYS_epoll_pwait2 => {
            &[Filled(1, 2, 12)]
        }
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
        libc::SYS_getgroups => &[Filled(1, 0, 4)],
        libc::SYS_getresuid | libc::SYS_getresgid => &[Bytes(0, 4), Bytes(1, 4), Bytes(2, 4)],
        libc::SYS_getcpu => &[Bytes(0, 4), Bytes(1, 4)],
        libc::SYS_sched_getaffinity => &[Filled(2, 1, 1)],
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
        libc::SYS_prctl => return options::prctl(call.arguments[0]),
        libc::SYS_recvfrom => &[Filled(1, 2, 1), Counted(4, 5)],
        libc::SYS_recvmsg => &[Message(1)],
        libc::SYS_accept | libc::SYS_accept4 | libc::SYS_getsockname | libc::SYS_getpeername => {
            &[Counted(1, 2)]
        }
        libc::SYS_getsockopt => return options::getsockopt(call.arguments[1], call.arguments[2]),
        libc::SYS_sendfile => &[Bytes(2, 8)],
        libc::SYS_splice | libc::SYS_copy_file_range => &[Bytes(1, 8), Bytes(3, 8)],
        libc::SYS_fcntl => return options::fcntl(call.arguments[1]),
        libc::SYS_ioctl => return options::ioctl(call.arguments[1]),
        libc::SYS_get_robust_list => &[Bytes(1, 8), Bytes(2, 8)],
        libc::SYS_mincore => &[PerPage(2, 1)],
        libc::SYS_futex => return options::futex(call.arguments[1]),
        libc::SYS_execve | libc::SYS_execveat => &[],
        libc::SYS_shmctl => return options::shmctl(call.arguments[1]),
        libc::SYS_shmget
        | libc::SYS_semget
        | libc::SYS_semop
        | libc::SYS_semtimedop
        | libc::SYS_msgget
        | libc::SYS_msgsnd => &[],
        libc::SYS_unshare | libc::SYS_setns | libc::SYS_chroot => &[],
        libc::SYS_write | libc::SYS_writev => &[Memory(None)],
        libc::SYS_pwrite64 | libc::SYS_pwritev | libc::SYS_pwritev2 => &[Memory(Some(3))],
        libc::SYS_open
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
