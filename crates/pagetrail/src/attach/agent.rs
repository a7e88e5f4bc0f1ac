//! The agent: the process that stops threads of a target, and lives on when the tracker is killed.
//!
//! A stop interrupts system calls, and what it does to some of them the kernel does not undo
//! (`super::interrupted`). A tracer that is killed right after a stop would leave them so. So the
//! tracer is a process of our own that a kill of the tracker does not reach
//! ([`survivor`](crate::sys::survivor)): it finishes what it has begun, lets go, and ends. It is
//! started before anything is stopped, so it makes no pause longer.
//!
//! What was considered instead: a process made by `fork(2)` copies the page tables of the program
//! around us, which may be large, and its signal at its end, its handlers and its locks are that
//! program's; one that executes a file of ours is no way for a library. Memory in common has its
//! price, too: whatever the agent does while threads stand still must neither allocate nor lock,
//! for a killed tracker leaves locks held.
//!
//! Where there can be no such process (a limit on processes, a filter of system calls), or where it
//! may not trace what the tracker may (Yama), the tracker's own thread does the work, and a kill
//! leaves an interrupted call as it is.

use super::failure::Attempt;
use crate::error::{Error, Result};
use crate::proc::text;
use crate::sys::survivor;
use rustix::cmsg_space;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::io::{Errno, IoSlice, IoSliceMut};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use rustix::process::{PidfdFlags, getpid, getppid, pidfd_open};
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

/// The tracker's end of the connection.
#[derive(Debug)]
pub(super) struct Client {
    socket: OwnedFd,
    /// Set before anything that was stopped is let go.
    is_over: Arc<AtomicBool>,
}

/// After such a time without an order it is looked whether the tracker is stopped.
const LOOK: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 20_000_000,
};

/// Whether the tracker, the parent of the agent, is stopped. Allocates nothing.
fn is_stopped() -> bool {
    let Some(tracker) = getppid() else {
        return false;
    };
    let tracker = tracker.as_raw_nonzero();
    let mut stopped = false;
    let read = text::lines(format_args!("/proc/{tracker}/status"), |line| {
        stopped |= line.starts_with(b"State:\tT");
    });
    read.is_ok() && stopped
}

/// The agent's end.
#[derive(Debug)]
pub(super) struct Link {
    socket: OwnedFd,
    /// Becomes readable when the tracker has ended; a copy of its end of the socket may stay open
    /// in a process that it has forked.
    tracker: Option<OwnedFd>,
    is_over: Arc<AtomicBool>,
}

/// Connects the tracker with an agent to come.
pub(super) fn connect() -> Result<(Client, Link)> {
    let (ours, socket) = socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )
    .map_err(Error::os("socketpair(2)"))?;
    let tracker = pidfd_open(getpid(), PidfdFlags::empty()).ok();
    let is_over = Arc::new(AtomicBool::new(false));
    let client = Client {
        socket: ours,
        is_over: Arc::clone(&is_over),
    };
    let link = Link {
        socket,
        tracker,
        is_over,
    };
    Ok((client, link))
}

/// Whether an agent was refused what this process may do: Yama lets a process trace its
/// descendants, and lets those be traced by nobody else. Stopping nothing, it can be tried again.
pub(super) fn is_refused<T>(outcome: &Attempt<T>) -> bool {
    let is_refusal = outcome.as_ref().is_err_and(|failure| failure.is_refusal());
    is_refusal && {
        let scope = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope");
        scope.is_ok_and(|scope| scope.trim() == "1")
    }
}

impl Link {
    /// Has the agent do the work; the calling thread does it itself where there is no agent, where
    /// one was killed, or where `is_refused` says that it may not.
    pub(super) fn survive<T: Send>(
        &self,
        mut work: impl FnMut() -> T + Send,
        is_refused: impl Fn(&T) -> bool,
    ) -> T {
        let mut keep = [self.socket.as_raw_fd(); 2];
        if let Some(tracker) = &self.tracker {
            keep[1] = tracker.as_raw_fd();
        }
        keep.sort_unstable();
        match survivor::run(&keep, &mut work) {
            Ok(outcome) if is_refused(&outcome) => work(),
            Ok(outcome) => outcome,
            Err(reason) => {
                tracing::debug!(?reason, "no agent; this process stops threads itself");
                work()
            }
        }
    }

    /// Waits for an order; `None` when there will be none any more, or, unless `is_patient`, when
    /// the tracker is stopped (`SIGSTOP`), since nobody knows for how long.
    pub(super) fn order(&self, is_patient: bool) -> Option<u8> {
        let wait = (!is_patient).then_some(LOOK);
        let mut was_stopped = false;
        let nothing = PollFlags::empty();
        loop {
            let socket = PollFd::new(&self.socket, PollFlags::IN);
            let mut both = [socket.clone(), socket];
            if let Some(tracker) = &self.tracker {
                both[1] = PollFd::new(tracker, PollFlags::IN);
            }
            match poll(&mut both, wait.as_ref()) {
                Err(Errno::INTR) => continue,
                Err(_) => return None,
                Ok(0) => {
                    // Seen twice, so that one that goes on is not caught in between.
                    match (
                        std::mem::replace(&mut was_stopped, is_stopped()),
                        was_stopped,
                    ) {
                        (true, true) => return None,
                        _ => continue,
                    }
                }
                Ok(_) if both[0].revents() == nothing => return None,
                Ok(_) => return receive(self.socket.as_fd()).map(|(order, _)| order),
            }
        }
    }

    /// Says that from now on the target goes on, to a tracker that may be stopped and would learn
    /// of it too late otherwise.
    pub(super) fn is_letting_go(&self) {
        self.is_over.store(true, SeqCst);
    }

    /// Says something to the tracker, and gives it a copy of a descriptor.
    pub(super) fn send(&self, word: u8, fd: Option<BorrowedFd<'_>>) -> bool {
        send(self.socket.as_fd(), word, fd)
    }
}

impl Client {
    /// Whether the agent has begun to let go.
    pub(super) fn is_over(&self) -> bool {
        self.is_over.load(SeqCst)
    }

    /// Gives an order and waits for the answer; `None` if there is nobody any more.
    pub(super) fn ask(&self, order: u8) -> Option<u8> {
        send(self.socket.as_fd(), order, None).then(|| self.wait())?
    }

    /// Gives an order that has no answer.
    pub(super) fn tell(&self, order: u8) {
        send(self.socket.as_fd(), order, None);
    }

    /// Waits for a word of the agent.
    pub(super) fn wait(&self) -> Option<u8> {
        receive(self.socket.as_fd()).map(|(word, _)| word)
    }

    /// The descriptor that the agent has sent before it ended.
    ///
    /// Where this process may have no more descriptors, the message comes without it
    /// (`scm_detach_fds` in `net/core/scm.c`).
    pub(super) fn take_fd(&self) -> Result<OwnedFd, Errno> {
        let mut ready = [PollFd::new(&self.socket, PollFlags::IN)];
        let is_there = poll(&mut ready, Some(&rustix::event::Timespec::default()))?;
        let message = (is_there > 0)
            .then(|| receive(self.socket.as_fd()))
            .flatten();
        let (_, fd) = message.ok_or(Errno::PIPE)?;
        fd.ok_or(Errno::MFILE)
    }
}

fn send(socket: BorrowedFd<'_>, word: u8, fd: Option<BorrowedFd<'_>>) -> bool {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
    let mut along = SendAncillaryBuffer::new(&mut space);
    let fds = fd.map(|fd| [fd]);
    if let Some(fds) = &fds
        && !along.push(SendAncillaryMessage::ScmRights(fds))
    {
        return false;
    }
    loop {
        match sendmsg(
            socket,
            &[IoSlice::new(&[word])],
            &mut along,
            SendFlags::NOSIGNAL,
        ) {
            Err(Errno::INTR) => {}
            outcome => return outcome.is_ok(),
        }
    }
}

fn receive(socket: BorrowedFd<'_>) -> Option<(u8, Option<OwnedFd>)> {
    let mut word = [0];
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
    let mut along = RecvAncillaryBuffer::new(&mut space);
    let received = loop {
        let into = &mut [IoSliceMut::new(&mut word)];
        match recvmsg(socket, into, &mut along, RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => {}
            outcome => break outcome.ok()?,
        }
    };
    if received.bytes == 0 {
        return None;
    }
    let fd = along.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    Some((word[0], fd))
}
