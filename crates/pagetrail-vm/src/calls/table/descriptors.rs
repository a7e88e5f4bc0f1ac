//! Calls on descriptors: input and output, sockets, pipes, waiting, and System V messages and
//! semaphores.

use super::super::descriptors;
use super::super::lists::IOVEC_BYTES;
use super::super::reads::Input as In;
use super::super::written::{Output as Out, options};
use super::{Row, WaitMask, writes_nothing};

const TIMESPEC_BYTES: u64 = 16;
const SIGNAL_SET_BYTES: u64 = 8;

pub(super) const CALLS: &[Row] = &[
    Row::forward(libc::SYS_read)
        .writes(&[Out::Filled(1, 2, 1)])
        .socket_timeout(libc::SO_RCVTIMEO),
    Row::forward(libc::SYS_pread64).writes(&[Out::Filled(1, 2, 1)]),
    // The list is read; the buffers are written.
    Row::forward(libc::SYS_readv)
        .writes(&[Out::Vector(1, 2)])
        .reads(&[In::Array(1, 2, IOVEC_BYTES)])
        .socket_timeout(libc::SO_RCVTIMEO),
    Row::forward(libc::SYS_preadv)
        .writes(&[Out::Vector(1, 2)])
        .reads(&[In::Array(1, 2, IOVEC_BYTES)]),
    Row::forward(libc::SYS_preadv2)
        .writes(&[Out::Vector(1, 2)])
        .reads(&[In::Array(1, 2, IOVEC_BYTES)]),
    Row::forward(libc::SYS_write)
        .writes(&[Out::ProcessFile {
            offset: None,
            is_list: false,
        }])
        .reads(&[In::Returned(1)])
        .socket_timeout(libc::SO_SNDTIMEO),
    Row::forward(libc::SYS_writev)
        .writes(&[Out::ProcessFile {
            offset: None,
            is_list: true,
        }])
        .reads(&[In::Vector(1, 2)])
        .socket_timeout(libc::SO_SNDTIMEO),
    Row::forward(libc::SYS_pwrite64)
        .writes(&[Out::ProcessFile {
            offset: Some(3),
            is_list: false,
        }])
        .reads(&[In::Returned(1)]),
    Row::forward(libc::SYS_pwritev)
        .writes(&[Out::ProcessFile {
            offset: Some(3),
            is_list: true,
        }])
        .reads(&[In::Vector(1, 2)]),
    Row::forward(libc::SYS_pwritev2)
        .writes(&[Out::ProcessFile {
            offset: Some(3),
            is_list: true,
        }])
        .reads(&[In::Vector(1, 2)]),
    Row::forward(libc::SYS_sendfile)
        .writes(&[Out::Bytes(2, 8)])
        .socket_timeout(libc::SO_SNDTIMEO),
    Row::forward(libc::SYS_splice).writes(&[Out::Bytes(1, 8), Out::Bytes(3, 8)]),
    Row::forward(libc::SYS_copy_file_range).writes(&[Out::Bytes(1, 8), Out::Bytes(3, 8)]),
    Row::forward(libc::SYS_pipe).writes(&[Out::Bytes(0, 8)]),
    Row::forward(libc::SYS_pipe2).writes(&[Out::Bytes(0, 8)]),
    Row::forward(libc::SYS_socketpair).writes(&[Out::Bytes(3, 8)]),
    Row::forward(libc::SYS_poll)
        .writes(&[Out::Array(0, 1, 8)])
        .never_restarts(),
    Row::forward(libc::SYS_ppoll)
        .writes(&[Out::Array(0, 1, 8), Out::Bytes(2, TIMESPEC_BYTES)])
        .reads(&[In::Bytes(3, SIGNAL_SET_BYTES)])
        .never_restarts()
        .wait_mask(WaitMask::At(3)),
    Row::forward(libc::SYS_select)
        .writes(&[
            Out::Bits(1, 0),
            Out::Bits(2, 0),
            Out::Bits(3, 0),
            Out::Bytes(4, TIMESPEC_BYTES),
        ])
        .never_restarts(),
    Row::forward(libc::SYS_pselect6)
        .writes(&[
            Out::Bits(1, 0),
            Out::Bits(2, 0),
            Out::Bits(3, 0),
            Out::Bytes(4, TIMESPEC_BYTES),
        ])
        .reads(&[In::Bytes(5, 16)])
        .never_restarts()
        .wait_mask(WaitMask::Indirect(5)),
    Row::forward(libc::SYS_epoll_wait)
        .writes(&[Out::Filled(1, 2, 12)])
        .never_restarts(),
    Row::forward(libc::SYS_epoll_pwait)
        .writes(&[Out::Filled(1, 2, 12)])
        .reads(&[In::Bytes(4, SIGNAL_SET_BYTES)])
        .never_restarts()
        .wait_mask(WaitMask::At(4)),
    Row::forward(libc::SYS_epoll_pwait2)
        .writes(&[Out::Filled(1, 2, 12)])
        .reads(&[In::Bytes(3, TIMESPEC_BYTES), In::Bytes(4, SIGNAL_SET_BYTES)])
        .never_restarts()
        .wait_mask(WaitMask::At(4)),
    writes_nothing(libc::SYS_epoll_create),
    writes_nothing(libc::SYS_epoll_create1),
    writes_nothing(libc::SYS_epoll_ctl).reads(&[In::Bytes(3, 12)]),
    Row::forward(libc::SYS_recvfrom)
        .writes(&[Out::Filled(1, 2, 1), Out::Counted(4, 5)])
        .socket_timeout(libc::SO_RCVTIMEO),
    Row::forward(libc::SYS_recvmsg)
        .writes(&[Out::Message(1)])
        .reads(&[In::Message(1)])
        .socket_timeout(libc::SO_RCVTIMEO),
    Row::forward(libc::SYS_recvmmsg).socket_timeout(libc::SO_RCVTIMEO),
    writes_nothing(libc::SYS_sendto)
        .reads(&[In::Returned(1), In::Sized(4, 5)])
        .socket_timeout(libc::SO_SNDTIMEO),
    writes_nothing(libc::SYS_sendmsg)
        .reads(&[In::Message(1)])
        .socket_timeout(libc::SO_SNDTIMEO),
    Row::forward(libc::SYS_sendmmsg).socket_timeout(libc::SO_SNDTIMEO),
    Row::forward(libc::SYS_accept)
        .writes(&[Out::Counted(1, 2)])
        .socket_timeout(libc::SO_RCVTIMEO),
    Row::forward(libc::SYS_accept4)
        .writes(&[Out::Counted(1, 2)])
        .socket_timeout(libc::SO_RCVTIMEO),
    Row::forward(libc::SYS_getsockname).writes(&[Out::Counted(1, 2)]),
    Row::forward(libc::SYS_getpeername).writes(&[Out::Counted(1, 2)]),
    Row::forward(libc::SYS_getsockopt)
        .writes_by(|arguments| options::getsockopt(arguments[1], arguments[2])),
    writes_nothing(libc::SYS_setsockopt).reads(&[In::Sized(3, 4)]),
    writes_nothing(libc::SYS_socket),
    writes_nothing(libc::SYS_bind).reads(&[In::Sized(1, 2)]),
    writes_nothing(libc::SYS_listen),
    writes_nothing(libc::SYS_connect)
        .reads(&[In::Sized(1, 2)])
        .socket_timeout(libc::SO_SNDTIMEO),
    writes_nothing(libc::SYS_shutdown),
    Row::forward(libc::SYS_fcntl).writes_by(|arguments| options::fcntl(arguments[1])),
    Row::forward(libc::SYS_ioctl).writes_by(|arguments| options::ioctl(arguments[1])),
    Row::perform(libc::SYS_close, |guest, call| {
        Ok(descriptors::close(guest, call))
    })
    .writes(&[]),
    Row::perform(libc::SYS_close_range, |guest, call| {
        Ok(descriptors::close_range(guest, call))
    })
    .writes(&[]),
    writes_nothing(libc::SYS_dup),
    Row::perform(libc::SYS_dup2, |guest, call| {
        Ok(descriptors::duplicate(guest, call))
    })
    .writes(&[]),
    Row::perform(libc::SYS_dup3, |guest, call| {
        Ok(descriptors::duplicate(guest, call))
    })
    .writes(&[]),
    writes_nothing(libc::SYS_lseek),
    writes_nothing(libc::SYS_eventfd),
    writes_nothing(libc::SYS_eventfd2),
    writes_nothing(libc::SYS_signalfd).reads(&[In::Sized(1, 2)]),
    writes_nothing(libc::SYS_signalfd4).reads(&[In::Sized(1, 2)]),
    writes_nothing(libc::SYS_timerfd_create),
    Row::forward(libc::SYS_timerfd_settime)
        .writes(&[Out::Bytes(3, 32)])
        .reads(&[In::Bytes(2, 32)]),
    Row::forward(libc::SYS_timerfd_gettime).writes(&[Out::Bytes(1, 32)]),
    writes_nothing(libc::SYS_inotify_init),
    writes_nothing(libc::SYS_inotify_init1),
    writes_nothing(libc::SYS_inotify_add_watch).reads(&[In::Text(1)]),
    writes_nothing(libc::SYS_inotify_rm_watch),
    writes_nothing(libc::SYS_memfd_create).reads(&[In::Text(0)]),
    // Its writes would come later, and from elsewhere.
    Row::absent(libc::SYS_io_setup),
    // Its writes would come later, and from elsewhere.
    Row::absent(libc::SYS_io_uring_setup),
    Row::absent(libc::SYS_userfaultfd),
    writes_nothing(libc::SYS_msgget),
    writes_nothing(libc::SYS_msgsnd).never_restarts(),
    Row::forward(libc::SYS_msgrcv).never_restarts(),
    writes_nothing(libc::SYS_semget),
    writes_nothing(libc::SYS_semop).never_restarts(),
    writes_nothing(libc::SYS_semtimedop).never_restarts(),
    writes_nothing(libc::SYS_shmget),
    Row::forward(libc::SYS_shmctl).writes_by(|arguments| options::shmctl(arguments[1])),
    writes_nothing(libc::SYS_flock),
    writes_nothing(libc::SYS_fsync),
    writes_nothing(libc::SYS_fdatasync),
    writes_nothing(libc::SYS_sync),
    writes_nothing(libc::SYS_fadvise64),
];
