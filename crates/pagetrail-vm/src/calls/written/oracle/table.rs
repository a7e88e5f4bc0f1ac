//! The calls that the oracle makes, and their possible arguments.

use super::ARENA;

/// The source of an argument.
#[derive(Clone, Copy, Debug)]
pub(super) enum Argument {
    /// A number.
    Is(u64),
    /// One of these numbers.
    Of(&'static [u64]),
    /// An address in the arena.
    Out,
    /// An address in the arena, or null.
    Maybe,
    /// A length, of up to three pages.
    Length,
    /// A descriptor of this kind.
    On(Kind),
    /// A pointer to a text or a structure outside the arena.
    In(&'static [u64]),
    /// A pointer to a 32-bit length in the arena.
    LengthAt,
    /// A pointer to a time limit in the arena.
    Briefly,
    /// A pointer to a list of two buffers in the arena.
    ListAt,
    /// A pointer to a `struct msghdr` in the arena, with such a list.
    MessageAt,
    /// An address in the arena, as the offset in a file.
    OffsetAt,
}

/// The kind of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Zero,
    Plain,
    Directory,
    Pipe,
    Socket,
    Terminal,
    OwnMemory,
    Queue,
}

use Argument::*;
use Kind::*;

const HERE: u64 = libc::AT_FDCWD as u64;
/// "/proc/self/exe", "/", "user.x" and zeros.
const LINK: &[u64] = &[0x65732f636f72702f, 0x6578652f666c, 0];
const ROOT: &[u64] = &[0x2f];
const SOON: &[u64] = &[0, 1000, 0, 1000];
const NO_SIGNALS: &[u64] = &[0, 8];

pub(super) type Row = (i64, &'static [Argument]);

pub(super) const CALLS: &[Row] = &[
    (libc::SYS_read, &[On(Zero), Out, Length]),
    (libc::SYS_read, &[On(Plain), Out, Length]),
    (libc::SYS_read, &[On(Pipe), Out, Length]),
    (libc::SYS_read, &[On(Socket), Out, Length]),
    (libc::SYS_read, &[On(Queue), Out, Length]),
    (
        libc::SYS_pread64,
        &[On(Plain), Out, Length, Of(&[0, 5, 5000, 1 << 40])],
    ),
    (libc::SYS_readv, &[On(Zero), ListAt, Is(2)]),
    (libc::SYS_readv, &[On(Pipe), ListAt, Is(2)]),
    (libc::SYS_preadv, &[On(Plain), ListAt, Is(2), Is(0), Is(0)]),
    (
        libc::SYS_preadv2,
        &[On(Plain), ListAt, Is(2), Is(0), Is(0), Is(0)],
    ),
    (
        libc::SYS_write,
        &[On(OwnMemory), In(&[7; 512]), Of(&[8, 100, 4096])],
    ),
    (libc::SYS_writev, &[On(OwnMemory), ListAt, Is(2)]),
    (
        libc::SYS_pwrite64,
        &[On(OwnMemory), In(&[7; 512]), Of(&[8, 100, 4096]), OffsetAt],
    ),
    (
        libc::SYS_pwritev,
        &[On(OwnMemory), ListAt, Is(2), OffsetAt, Is(0)],
    ),
    (
        libc::SYS_pwritev2,
        &[On(OwnMemory), ListAt, Is(2), OffsetAt, Is(0), Is(0)],
    ),
    (libc::SYS_write, &[On(Plain), Out, Length]),
    (
        libc::SYS_recvfrom,
        &[On(Socket), Out, Length, Is(0x40), Is(0), Is(0)],
    ),
    (
        libc::SYS_recvfrom,
        &[On(Socket), Out, Length, Is(0x60), Out, LengthAt],
    ),
    (libc::SYS_recvmsg, &[On(Socket), MessageAt, Is(0x40)]),
    (libc::SYS_getsockname, &[On(Socket), Out, LengthAt]),
    (libc::SYS_getpeername, &[On(Socket), Out, LengthAt]),
    (
        libc::SYS_getsockopt,
        &[
            On(Socket),
            Is(1),
            Of(&[3, 4, 7, 8, 13, 17, 20, 26, 31, 38, 59, 70]),
            Out,
            LengthAt,
        ],
    ),
    (libc::SYS_getrandom, &[Out, Length, Is(0)]),
    (libc::SYS_getcwd, &[Out, Length]),
    (libc::SYS_readlink, &[In(LINK), Out, Length]),
    (libc::SYS_readlinkat, &[Is(HERE), In(LINK), Out, Length]),
    (libc::SYS_getdents64, &[On(Directory), Out, Length]),
    (libc::SYS_getdents, &[On(Directory), Out, Length]),
    (libc::SYS_listxattr, &[In(ROOT), Out, Length]),
    (libc::SYS_getxattr, &[In(ROOT), In(LINK), Out, Length]),
    (libc::SYS_stat, &[In(ROOT), Out]),
    (libc::SYS_lstat, &[In(LINK), Out]),
    (libc::SYS_fstat, &[On(Plain), Out]),
    (libc::SYS_newfstatat, &[Is(HERE), In(ROOT), Out, Is(0)]),
    (
        libc::SYS_statx,
        &[Is(HERE), In(ROOT), Is(0), Is(0xfff), Out],
    ),
    (libc::SYS_statfs, &[In(ROOT), Out]),
    (libc::SYS_fstatfs, &[On(Plain), Out]),
    (libc::SYS_poll, &[Out, Of(&[0, 1, 40]), Is(0)]),
    (
        libc::SYS_ppoll,
        &[Out, Of(&[0, 1, 40]), Briefly, Is(0), Is(8)],
    ),
    (
        libc::SYS_select,
        &[Of(&[0, 3, 64, 900, 20_000]), Maybe, Maybe, Maybe, Briefly],
    ),
    (
        libc::SYS_pselect6,
        &[
            Of(&[0, 3, 64, 900, 20_000]),
            Maybe,
            Maybe,
            Maybe,
            Briefly,
            Is(0),
        ],
    ),
    (
        libc::SYS_epoll_wait,
        &[On(Queue), Out, Of(&[1, 8, 400]), Is(0)],
    ),
    (libc::SYS_nanosleep, &[In(SOON), Maybe]),
    (libc::SYS_clock_nanosleep, &[Is(1), Is(0), In(SOON), Maybe]),
    (libc::SYS_clock_gettime, &[Of(&[0, 1, 2, 3, 7, 99]), Out]),
    (libc::SYS_clock_getres, &[Of(&[0, 1, 2, 3, 7, 99]), Out]),
    (libc::SYS_gettimeofday, &[Maybe, Maybe]),
    (libc::SYS_time, &[Out]),
    (libc::SYS_times, &[Out]),
    (libc::SYS_getitimer, &[Of(&[0, 1, 2, 9]), Out]),
    (libc::SYS_uname, &[Out]),
    (libc::SYS_sysinfo, &[Out]),
    (libc::SYS_getrlimit, &[Of(&[0, 3, 7, 99]), Out]),
    (
        libc::SYS_prlimit64,
        &[Is(0), Of(&[0, 3, 7, 99]), Is(0), Out],
    ),
    (libc::SYS_getrusage, &[Of(&[0, 1, u64::MAX]), Out]),
    (libc::SYS_getgroups, &[Of(&[0, 1, 64]), Out]),
    (libc::SYS_getresuid, &[Out, Out, Out]),
    (libc::SYS_getresgid, &[Out, Out, Out]),
    (libc::SYS_getcpu, &[Maybe, Maybe, Is(0)]),
    (
        libc::SYS_sched_getaffinity,
        &[Is(0), Of(&[1, 8, 128, 1024]), Out],
    ),
    (libc::SYS_sched_getparam, &[Is(0), Out]),
    (
        libc::SYS_sched_getattr,
        &[Is(0), Out, Of(&[48, 56, 100]), Is(0)],
    ),
    (libc::SYS_sched_rr_get_interval, &[Is(0), Out]),
    (libc::SYS_capget, &[Out, Maybe]),
    (
        libc::SYS_rt_sigaction,
        &[Of(&[10, 12, 99]), Is(0), Out, Is(8)],
    ),
    (libc::SYS_rt_sigprocmask, &[Is(0), Is(0), Out, Is(8)]),
    (libc::SYS_rt_sigpending, &[Out, Is(8)]),
    (
        libc::SYS_rt_sigtimedwait,
        &[In(NO_SIGNALS), Out, In(SOON), Is(8)],
    ),
    (libc::SYS_sigaltstack, &[Is(0), Out]),
    (libc::SYS_get_robust_list, &[Is(0), Out, Out]),
    (libc::SYS_mincore, &[Is(ARENA), Length, Out]),
    (
        libc::SYS_prctl,
        &[
            Of(&[2, 3, 5, 9, 11, 16, 19, 21, 25, 37, 39, 40, 62, 999]),
            Out,
            Out,
            Is(0),
            Out,
        ],
    ),
    (
        libc::SYS_prctl,
        &[Is(0x4155_5856), Out, Length, Is(0), Is(0)],
    ),
    (
        libc::SYS_fcntl,
        &[
            On(Plain),
            Of(&[1, 3, 5, 9, 11, 16, 17, 36, 1025, 1035, 1037, 777]),
            Out,
        ],
    ),
    (libc::SYS_fcntl, &[On(Pipe), Of(&[1, 3, 9, 16, 1032]), Out]),
    (libc::SYS_ioctl, &[On(Terminal), Of(TERMINAL), Out]),
    (libc::SYS_ioctl, &[On(Pipe), Of(&[0x541b, 0x5460, 2]), Out]),
    (
        libc::SYS_ioctl,
        &[On(Plain), Of(&[0x541b, 0x5460, 2, 0x8008_6601]), Out],
    ),
    (
        libc::SYS_ioctl,
        &[On(Socket), Of(&[0x541b, 0x5411, 0x8905, 0x8912]), Out],
    ),
    (libc::SYS_pipe2, &[Out, Is(0)]),
    (libc::SYS_socketpair, &[Is(1), Is(1), Is(0), Out]),
    (libc::SYS_timer_create, &[Of(&[0, 1, 99]), Is(0), Out]),
    (
        libc::SYS_futex,
        &[
            Out,
            Of(&[1, 5, 6, 8, 129, 99]),
            Is(1),
            Is(0),
            Out,
            Is(0x0100_0000),
        ],
    ),
    (libc::SYS_sendfile, &[On(Socket), On(Plain), Out, Is(10)]),
];

const TERMINAL: &[u64] = &[
    0x5401,
    0x5405,
    0x802c_542a,
    0x540f,
    0x5411,
    0x5413,
    0x5415,
    0x5419,
    0x541b,
    0x541e,
    0x5424,
    0x5429,
    0x545d,
    0x8004_5430,
    0x8004_5438,
    0x8004_5439,
    0x8004_5440,
    0x5460,
    0x5456,
];
