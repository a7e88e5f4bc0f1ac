//! What a descriptor of a target is, as far as it matters for transfers.

use crate::attach::inject::pidfd_thread;
use crate::proc::text;
use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, CWD, FileType, StatxFlags, statx};
use rustix::net::{AddressFamily, SocketType, sockopt};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use rustix::termios::{LocalModes, SpecialCodeIndex, tcgetattr};
use std::ffi::CStr;

/// A descriptor of a thread.
#[derive(Clone, Copy, Debug)]
pub(super) struct Descriptor {
    pub(super) pid: u32,
    pub(super) tid: u32,
    pub(super) number: i32,
}

impl Descriptor {
    /// The type of the file, with its device number, without asking a network.
    fn kind(self) -> Option<(FileType, u32, u32)> {
        let Self { pid, tid, number } = self;
        let path = format_args!("/proc/{pid}/task/{tid}/fd/{number}");
        let statx = |path: &CStr| statx(CWD, path, AtFlags::STATX_DONT_SYNC, StatxFlags::TYPE);
        let found = text::at(path, statx).ok()?;
        let kind = FileType::from_raw_mode(found.stx_mode.into());
        Some((kind, found.stx_rdev_major, found.stx_rdev_minor))
    }

    /// Whether this is one of the memory devices (`drivers/char/mem.c`) that yield any number of
    /// bytes: zero, full, random, urandom.
    pub(super) fn yields_without_end(self) -> bool {
        matches!(
            self.kind(),
            Some((FileType::CharacterDevice, 1, 5 | 7 | 8 | 9))
        )
    }

    /// Whether this is a FIFO or a character device whose writers wait.
    pub(super) fn writers_wait(self) -> bool {
        let kind = self.kind().map(|(kind, ..)| kind);
        matches!(kind, Some(FileType::Fifo | FileType::CharacterDevice)) && self.waits()
    }

    /// Whether this is a stream socket that waits.
    pub(super) fn is_waiting_stream(self) -> bool {
        self.socket_type() == Some(SocketType::STREAM) && self.waits()
    }

    /// Whether this is a socket with messages that waits.
    pub(super) fn has_waiting_messages(self) -> bool {
        let messages = [SocketType::DGRAM, SocketType::SEQPACKET, SocketType::RAW];
        let kind = self.socket_type();
        kind.is_some_and(|kind| messages.contains(&kind)) && self.waits()
    }

    /// Whether this is a socket of the family `AF_UNIX`.
    pub(super) fn is_unix(self) -> bool {
        let socket = self.copy();
        socket.is_some_and(|socket| sockopt::socket_domain(socket) == Ok(AddressFamily::UNIX))
    }

    /// Takes the error that the socket would report next.
    pub(super) fn take_error(self) {
        if let Some(socket) = self.copy() {
            let _ = sockopt::socket_error(socket);
        }
    }

    /// For how many bytes a read waits: of a terminal that does not wait for lines (`VMIN` without
    /// `VTIME`, termios(3)).
    pub(super) fn terminal_minimum(self) -> Option<u64> {
        let (kind, ..) = self.kind()?;
        if kind != FileType::CharacterDevice || !self.waits() {
            return None;
        }
        let settings = tcgetattr(self.copy()?).ok()?;
        let waits = !settings.local_modes.contains(LocalModes::ICANON)
            && settings.special_codes[SpecialCodeIndex::VTIME] == 0;
        // `iterate_tty_read` in drivers/tty/tty_io.c waits for one buffer at most.
        let minimum = settings.special_codes[SpecialCodeIndex::VMIN].min(64);
        waits.then_some(minimum.into())
    }

    fn socket_type(self) -> Option<SocketType> {
        let (kind, ..) = self.kind()?;
        let socket = (kind == FileType::Socket).then(|| self.copy())??;
        sockopt::socket_type(socket).ok()
    }

    /// Whether calls wait; false where that cannot be found out.
    fn waits(self) -> bool {
        let Self { pid, tid, number } = self;
        let mut flags = None;
        let path = format_args!("/proc/{pid}/task/{tid}/fdinfo/{number}");
        let _ = text::lines(path, |line| {
            if let Some(octal) = line.strip_prefix(b"flags:") {
                let octal = std::str::from_utf8(octal.trim_ascii()).ok();
                flags = flags.or(octal.and_then(|octal| i32::from_str_radix(octal, 8).ok()));
            }
        });
        flags.is_some_and(|flags| flags & libc::O_NONBLOCK == 0)
    }

    /// A copy of it, by the thread's own table where the kernel can name that.
    fn copy(self) -> Option<OwnedFd> {
        let open = |id: u32, flags| pidfd_open(Pid::from_raw(id as i32)?, flags).ok();
        let holder = open(self.tid, pidfd_thread()).or_else(|| open(self.pid, PidfdFlags::empty()));
        pidfd_getfd(holder?, self.number, PidfdGetfdFlags::empty()).ok()
    }
}
