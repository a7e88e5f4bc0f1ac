//! What the kernel reads of the program's memory for a system call. Pure, but for reading the program's lists and texts.
//!
//! The processor sets no bit for it in the program's page tables. What the kernel writes is touched as well, and stands in
//! [`super::written`] alone; so does a call that is not known, which may have written anywhere.

use crate::sys::call::Call;
use crate::sys::program_memory::{read_text, read_word};

/// What a call takes. Arguments count from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Input {
    /// So many bytes at an argument.
    Bytes(usize, u64),
    /// At an argument, as many bytes as another one says.
    Sized(usize, usize),
    /// At an argument, as many things of a size as another one says.
    Array(usize, usize, u64),
    /// At an argument, as many bytes as the call returns.
    Returned(usize),
    /// A text at an argument.
    Text(usize),
    /// A list of buffers and what is in them; argument and length of the list.
    Vector(usize, usize),
    /// A `struct msghdr` and what it names.
    Message(usize),
}

use Input::{Array, Bytes, Message, Returned, Sized, Text, Vector};

/// Bytes of a `struct iovec`.
const VECTOR: u64 = 16;
/// As many as a call may name (`IOV_MAX`).
const VECTORS_MAX: u64 = 1024;

/// Hands out what a call has read, as address and length.
pub(super) fn by(call: &Call, result: i64, mut each: impl FnMut(u64, u64)) {
    let argument = |n: usize| call.arguments[n];
    for input in inputs(call) {
        match *input {
            Bytes(at, bytes) => each(argument(at), bytes),
            Sized(at, bytes) => each(argument(at), argument(bytes)),
            Array(at, count, bytes) => each(argument(at), argument(count).saturating_mul(bytes)),
            Returned(at) => each(argument(at), u64::try_from(result).unwrap_or(0)),
            Text(at) => {
                if let Ok(text) = read_text(argument(at)) {
                    each(argument(at), text.len() as u64 + 1);
                }
            }
            Vector(at, count) => vector(argument(at), argument(count), &mut each),
            Message(at) => message(argument(at), &mut each),
        }
    }
}

fn vector(list: u64, count: u64, each: &mut impl FnMut(u64, u64)) {
    let count = count.min(VECTORS_MAX);
    each(list, count * VECTOR);
    for n in 0..count {
        let at = list.wrapping_add(n * VECTOR);
        if let (Ok(buffer), Ok(bytes)) = (read_word(at), read_word(at + 8)) {
            each(buffer, bytes);
        }
    }
}

/// `struct msghdr`: name, length of it, buffers, how many, control data, length of that, flags.
fn message(at: u64, each: &mut impl FnMut(u64, u64)) {
    let word = |n: u64| read_word(at.wrapping_add(n * 8)).unwrap_or(0);
    each(at, 56);
    each(word(0), word(1) & 0xffff_ffff);
    vector(word(2), word(3), each);
    each(word(4), word(5));
}

/// The inputs of a call.
fn inputs(call: &Call) -> &'static [Input] {
    const TIMESPEC: u64 = 16;
    const SIGNAL_SET: u64 = 8;
    match call.number as i64 {
        libc::SYS_write | libc::SYS_pwrite64 => &[Returned(1)],
        libc::SYS_writev | libc::SYS_pwritev | libc::SYS_pwritev2 => &[Vector(1, 2)],
        // The list; the buffers are written to.
        libc::SYS_readv | libc::SYS_preadv | libc::SYS_preadv2 => &[Array(1, 2, VECTOR)],
        libc::SYS_sendto => &[Returned(1), Sized(4, 5)],
        libc::SYS_sendmsg | libc::SYS_recvmsg => &[Message(1)],
        libc::SYS_connect | libc::SYS_bind => &[Sized(1, 2)],
        libc::SYS_setsockopt => &[Sized(3, 4)],
        libc::SYS_open
        | libc::SYS_creat
        | libc::SYS_stat
        | libc::SYS_lstat
        | libc::SYS_access
        | libc::SYS_chdir
        | libc::SYS_mkdir
        | libc::SYS_rmdir
        | libc::SYS_unlink
        | libc::SYS_chmod
        | libc::SYS_chown
        | libc::SYS_lchown
        | libc::SYS_readlink
        | libc::SYS_truncate
        | libc::SYS_statfs
        | libc::SYS_mknod
        | libc::SYS_listxattr
        | libc::SYS_llistxattr
        | libc::SYS_memfd_create => &[Text(0)],
        libc::SYS_openat
        | libc::SYS_newfstatat
        | libc::SYS_statx
        | libc::SYS_faccessat
        | libc::SYS_faccessat2
        | libc::SYS_mkdirat
        | libc::SYS_mknodat
        | libc::SYS_unlinkat
        | libc::SYS_readlinkat
        | libc::SYS_fchmodat
        | libc::SYS_fchownat
        | libc::SYS_fgetxattr
        | libc::SYS_inotify_add_watch => &[Text(1)],
        libc::SYS_rename | libc::SYS_link | libc::SYS_symlink => &[Text(0), Text(1)],
        libc::SYS_getxattr | libc::SYS_lgetxattr => &[Text(0), Text(1)],
        libc::SYS_renameat | libc::SYS_renameat2 | libc::SYS_linkat => &[Text(1), Text(3)],
        libc::SYS_symlinkat => &[Text(0), Text(2)],
        libc::SYS_openat2 => &[Text(1), Sized(2, 3)],
        libc::SYS_utimensat => &[Text(1), Bytes(2, 2 * TIMESPEC)],
        libc::SYS_utimes => &[Text(0), Bytes(1, 2 * TIMESPEC)],
        libc::SYS_setxattr | libc::SYS_lsetxattr => &[Text(0), Text(1), Sized(2, 3)],
        libc::SYS_fsetxattr => &[Text(1), Sized(2, 3)],
        libc::SYS_nanosleep => &[Bytes(0, TIMESPEC)],
        libc::SYS_clock_nanosleep => &[Bytes(2, TIMESPEC)],
        libc::SYS_ppoll => &[Bytes(3, SIGNAL_SET)],
        libc::SYS_pselect6 => &[Bytes(5, 16)],
        libc::SYS_epoll_ctl => &[Bytes(3, 12)],
        libc::SYS_epoll_pwait => &[Bytes(4, SIGNAL_SET)],
        libc::SYS_epoll_pwait2 => &[Bytes(3, TIMESPEC), Bytes(4, SIGNAL_SET)],
        libc::SYS_futex if is_wait(call.arguments[1]) => &[Bytes(0, 4), Bytes(3, TIMESPEC)],
        libc::SYS_futex => &[Bytes(0, 4)],
        libc::SYS_rt_sigaction => &[Bytes(1, 32)],
        libc::SYS_rt_sigprocmask => &[Bytes(1, SIGNAL_SET)],
        libc::SYS_rt_sigsuspend => &[Bytes(0, SIGNAL_SET)],
        libc::SYS_rt_sigtimedwait => &[Bytes(0, SIGNAL_SET), Bytes(2, TIMESPEC)],
        libc::SYS_rt_sigqueueinfo => &[Bytes(2, 128)],
        libc::SYS_sigaltstack => &[Bytes(0, 24)],
        libc::SYS_signalfd | libc::SYS_signalfd4 => &[Sized(1, 2)],
        libc::SYS_setitimer => &[Bytes(1, 32)],
        libc::SYS_timer_settime | libc::SYS_timerfd_settime => &[Bytes(2, 32)],
        libc::SYS_timer_create => &[Bytes(1, 64)],
        libc::SYS_setrlimit => &[Bytes(1, 16)],
        libc::SYS_prlimit64 => &[Bytes(2, 16)],
        libc::SYS_setgroups => &[Array(1, 0, 4)],
        libc::SYS_sched_setaffinity => &[Sized(2, 1)],
        libc::SYS_sched_setscheduler => &[Bytes(2, 4)],
        _ => &[],
    }
}

/// Whether a futex operation has a time: to wait, to lock.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn spans(number: i64, arguments: [u64; 6], result: i64) -> Vec<(u64, u64)> {
        let call = Call {
            number: number as u64,
            arguments,
        };
        let mut spans = Vec::new();
        by(&call, result, |address, bytes| spans.push((address, bytes)));
        spans
    }

    #[test]
    fn what_a_call_takes_is_named() {
        let write = [1, 0x1000, 4096, 0, 0, 0];
        assert_eq!(spans(libc::SYS_write, write, 17), [(0x1000, 17)]);
        assert_eq!(spans(libc::SYS_write, write, -5), [(0x1000, 0)]);
        assert_eq!(
            spans(libc::SYS_bind, [3, 0x2000, 16, 0, 0, 0], 0),
            [(0x2000, 16)]
        );
        assert_eq!(spans(libc::SYS_getpid, [0x1000; 6], 0), []);
    }

    #[test]
    fn texts_and_lists_are_read_from_the_program() {
        let text = c"/etc/passwd".as_ptr() as u64;
        assert_eq!(
            spans(libc::SYS_openat, [0, text, 0, 0, 0, 0], -2),
            [(text, 12)]
        );
        assert_eq!(spans(libc::SYS_open, [16, 0, 0, 0, 0, 0], -14), []);
        let list: [u64; 4] = [0x1000, 10, 0x5000, 20];
        let at = list.as_ptr() as u64;
        let buffers = [(at, 32), (0x1000, 10), (0x5000, 20)];
        assert_eq!(spans(libc::SYS_writev, [0, at, 2, 0, 0, 0], 30), buffers);
        assert_eq!(spans(libc::SYS_readv, [0, at, 2, 0, 0, 0], 30), [(at, 32)]);
        let message: [u64; 7] = [0x9000, 16, at, 2, 0x7000, 24, 0];
        let header = message.as_ptr() as u64;
        let mut expected = vec![(header, 56), (0x9000, 16)];
        expected.extend(buffers);
        expected.push((0x7000, 24));
        assert_eq!(
            spans(libc::SYS_sendmsg, [0, header, 0, 0, 0, 0], 30),
            expected
        );
    }
}
