//! The interrupt of a device of QEMU's that is memory (`ivshmem-doorbell`): what its server would
//! say, said in advance by a socket that QEMU inherits. Who has the event raises the interrupt.
//!
//! The protocol is in QEMU's `docs/specs/ivshmem-spec.rst`.

use std::fs::File;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use anyhow::{Context, Result};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
    sendmsg, socketpair,
};

const PROTOCOL_VERSION: i64 = 0;
/// The device's own number among those that share the memory: it is alone.
const OWN_ID: i64 = 0;
/// Comes with the memory, in the place of a number.
const MEMORY: i64 = -1;

/// Kept while the emulator runs, which takes the end of the socket for the end of its server.
#[derive(Debug)]
pub(super) struct Doorbell {
    of_qemu: OwnedFd,
    event: OwnedFd,
    _server: OwnedFd,
}

impl Doorbell {
    /// A device with this file as its memory, and one interrupt.
    pub(super) fn new(memory: &Path, bytes: u64) -> Result<Self> {
        let file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(memory);
        let file = file.with_context(|| memory.display().to_string())?;
        file.set_len(bytes)?;
        // Both are inherited by the emulator.
        let event = eventfd(0, EventfdFlags::NONBLOCK)?;
        let (server, of_qemu) = socketpair(
            AddressFamily::UNIX,
            SocketType::STREAM,
            SocketFlags::empty(),
            None,
        )?;
        fcntl_setfd(&server, FdFlags::CLOEXEC)?;
        let say = |number: i64, descriptor| say(server.as_fd(), number, descriptor);
        say(PROTOCOL_VERSION, None)?;
        say(OWN_ID, None)?;
        say(MEMORY, Some(file.as_fd()))?;
        // Its first vector.
        say(OWN_ID, Some(event.as_fd()))?;
        Ok(Self {
            of_qemu,
            event,
            _server: server,
        })
    }

    /// The descriptor of the socket, in the emulator too.
    pub(super) fn socket(&self) -> i32 {
        self.of_qemu.as_raw_fd()
    }

    /// The descriptor of the event, in the emulator too.
    pub(super) fn event(&self) -> i32 {
        self.event.as_raw_fd()
    }
}

fn say(to: BorrowedFd<'_>, number: i64, descriptor: Option<BorrowedFd<'_>>) -> Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut with = SendAncillaryBuffer::new(&mut space);
    let descriptors: Vec<BorrowedFd<'_>> = descriptor.into_iter().collect();
    if !descriptors.is_empty() {
        with.push(SendAncillaryMessage::ScmRights(&descriptors));
    }
    let bytes = number.to_le_bytes();
    sendmsg(to, &[IoSlice::new(&bytes)], &mut with, SendFlags::empty())?;
    Ok(())
}
