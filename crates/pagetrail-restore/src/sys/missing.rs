//! `userfaultfd(2)` for pages that do not exist: faults are resolved with contents from elsewhere,
//! and the program says when it forks, moves and discards memory meanwhile.
//!
//! See `ioctl_userfaultfd(2)` and `Documentation/admin-guide/mm/userfaultfd.rst`.

use crate::holes;
use linux_raw_sys::general::{
    self as raw, uffd_msg, uffdio_api, uffdio_copy, uffdio_range, uffdio_register, uffdio_zeropage,
};
use pagetrail::PageRange;
use rustix::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use rustix::io::Errno;
use rustix::ioctl::{Opcode, Setter, Updater, ioctl, opcode};
use std::mem::ManuallyDrop;

const API: Opcode = opcode::read_write::<uffdio_api>(0xaa, 0x3f);
const REGISTER: Opcode = opcode::read_write::<uffdio_register>(0xaa, 0);
const WAKE: Opcode = opcode::read::<uffdio_range>(0xaa, 2);
const COPY: Opcode = opcode::read_write::<uffdio_copy>(0xaa, 3);
const ZEROPAGE: Opcode = opcode::read_write::<uffdio_zeropage>(0xaa, 4);

/// What is asked of the kernel: messages about all that makes an address lack something else.
pub(crate) const FEATURES: u64 = (raw::UFFD_FEATURE_EVENT_FORK
    | raw::UFFD_FEATURE_EVENT_REMAP
    | raw::UFFD_FEATURE_EVENT_REMOVE
    | raw::UFFD_FEATURE_EVENT_UNMAP
    | raw::UFFD_FEATURE_THREAD_ID) as u64;
/// The flags of `userfaultfd(2)`: faults of the kernel, in system calls of the program, are
/// resolved as well.
pub(crate) const FLAGS: u32 = raw::O_CLOEXEC | raw::O_NONBLOCK;
/// Messages that are read at once.
const MESSAGES: usize = 16;
/// An address at which no program has a mapping (`vm.mmap_min_addr` has 64 KiB at most).
const NOWHERE: u64 = 0x1_0000;

/// What a process says.
#[derive(Debug)]
pub(crate) enum Message {
    /// A thread waits for a page.
    Fault {
        /// The address, rounded down to a page.
        address: u64,
        /// The thread's ID.
        thread: u32,
    },
    /// There is a child, which lacks what its parent lacks.
    Fork(Missing),
    /// What was in a range is at another address.
    Moved(PageRange, u64),
    /// A range becomes zeros.
    Discarded(PageRange),
    /// A range is mapped no more.
    Unmapped(PageRange),
}

/// What has come of an attempt to fill pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Filled {
    /// So many bytes are there now.
    Bytes(u64),
    /// The first page was there already.
    WasThere,
    /// Memory is being changed: messages say how.
    Changing,
    /// The first page is mapped no more.
    Unmapped,
    /// The process has gone.
    Gone,
}

/// The userfaultfd of an address space.
#[derive(Debug)]
pub(crate) struct Missing(OwnedFd);

impl Missing {
    /// One of this process, with which nothing is registered: whether it may have one.
    pub(crate) fn own() -> Result<Self, Errno> {
        let flags = rustix::mm::UserfaultfdFlags::from_bits_retain(FLAGS);
        // SAFETY: the descriptor can be used only through this type, which fills pages that do not
        // exist of what is registered.
        let fd = unsafe { rustix::mm::userfaultfd(flags)? };
        Self::handshake(fd)
    }

    /// Makes the handshake on a new descriptor.
    pub(crate) fn handshake(fd: OwnedFd) -> Result<Self, Errno> {
        let mut api = uffdio_api {
            api: raw::UFFD_API.into(),
            features: FEATURES,
            ioctls: 0,
        };
        // SAFETY: UFFDIO_API reads and fills a `uffdio_api`, which `api` is.
        unsafe { ioctl(&fd, Updater::<API, _>::new(&mut api))? };
        Ok(Self(fd))
    }

    /// Has faults in a range wait for this.
    pub(crate) fn register(&self, range: PageRange) -> Result<(), Errno> {
        let mut argument = uffdio_register {
            range: uffdio(range),
            mode: raw::UFFDIO_REGISTER_MODE_MISSING.into(),
            ioctls: 0,
        };
        // SAFETY: UFFDIO_REGISTER reads and fills a `uffdio_register`, which `argument` is; pages
        // that exist keep their contents.
        unsafe { ioctl(&self.0, Updater::<REGISTER, _>::new(&mut argument)) }
    }

    /// Fills pages that do not exist, from an address on, and wakes who waits for them.
    pub(crate) fn fill(&self, address: u64, contents: &[u8]) -> Result<Filled, Errno> {
        let mut argument = uffdio_copy {
            dst: address,
            src: contents.as_ptr() as u64,
            len: contents.len() as u64,
            mode: 0,
            copy: 0,
        };
        // SAFETY: UFFDIO_COPY reads `len` bytes of `contents`, and fills only pages that do not
        // exist of another process, which lacks them.
        let outcome = unsafe { ioctl(&self.0, Updater::<COPY, _>::new(&mut argument)) };
        filled(outcome, argument.copy)
    }

    /// Makes the page at an address zeros, if there is none, and wakes who waits for it.
    pub(crate) fn zero(&self, page: PageRange) -> Result<Filled, Errno> {
        let mut argument = uffdio_zeropage {
            range: uffdio(page),
            mode: 0,
            zeropage: 0,
        };
        // SAFETY: UFFDIO_ZEROPAGE reads and fills a `uffdio_zeropage`, which `argument` is; pages
        // that exist keep their contents.
        let outcome = unsafe { ioctl(&self.0, Updater::<ZEROPAGE, _>::new(&mut argument)) };
        filled(outcome, argument.zeropage)
    }

    /// Wakes who waits for a page, to look again.
    pub(crate) fn wake(&self, page: PageRange) -> Result<(), Errno> {
        // SAFETY: UFFDIO_WAKE reads a `uffdio_range`, and changes no memory.
        unsafe { ioctl(&self.0, Setter::<WAKE, _>::new(uffdio(page))) }
    }

    /// Wakes who waits for any page, to look again, and say so again.
    pub(crate) fn wake_all(&self) {
        if let Some(all) = PageRange::new(NOWHERE, holes::END) {
            // Nobody waits where that fails.
            let _ = self.wake(all);
        }
    }

    /// Whether the process has gone.
    pub(crate) fn is_gone(&self) -> bool {
        let page = PageRange::new(NOWHERE, NOWHERE + pagetrail::page_size());
        page.is_some_and(|page| self.zero(page) == Ok(Filled::Gone))
    }

    /// Hands out what has been said; gives how much that was, 0 if there is nothing now. Allocates
    /// nothing.
    pub(crate) fn messages(&self, mut each: impl FnMut(Message)) -> Result<usize, Errno> {
        let mut buffer = [0u8; MESSAGES * size_of::<uffd_msg>()];
        let length = match rustix::io::read(&self.0, &mut buffer) {
            Err(Errno::AGAIN | Errno::INTR) => return Ok(0),
            outcome => outcome?,
        };
        let messages = buffer[..length].chunks_exact(size_of::<uffd_msg>());
        let count = messages.len();
        for message in messages {
            // SAFETY: the chunk has the size of a `uffd_msg`, for which any bytes are valid;
            // alignment is not required.
            let message = unsafe { message.as_ptr().cast::<uffd_msg>().read_unaligned() };
            if let Some(message) = read(&message) {
                each(message);
            }
        }
        Ok(count)
    }
}

/// One that this process has by a number, and that stays open.
pub(crate) fn inherited(number: RawFd) -> ManuallyDrop<Missing> {
    // SAFETY: it is not closed when this goes; whether it still is what it was, the kernel checks
    // at each call.
    ManuallyDrop::new(Missing(unsafe { OwnedFd::from_raw_fd(number) }))
}

fn read(message: &uffd_msg) -> Option<Message> {
    let (event, argument) = (u32::from(message.event), message.arg);
    // SAFETY: each event says which member of the union the kernel has set, and all of them consist
    // of integers. The descriptor of a fork is a new one, which nobody else has.
    unsafe {
        match event {
            raw::UFFD_EVENT_PAGEFAULT => Some(Message::Fault {
                address: argument.pagefault.address & !(pagetrail::page_size() - 1),
                thread: argument.pagefault.feat.ptid,
            }),
            raw::UFFD_EVENT_FORK => {
                let fd = OwnedFd::from_raw_fd(argument.fork.ufd as i32);
                Some(Message::Fork(Missing(fd)))
            }
            raw::UFFD_EVENT_REMAP => {
                let moved = argument.remap;
                let range = PageRange::new(moved.from, moved.from + moved.len)?;
                Some(Message::Moved(range, moved.to))
            }
            raw::UFFD_EVENT_REMOVE => {
                PageRange::new(argument.remove.start, argument.remove.end).map(Message::Discarded)
            }
            raw::UFFD_EVENT_UNMAP => {
                PageRange::new(argument.remove.start, argument.remove.end).map(Message::Unmapped)
            }
            _ => None,
        }
    }
}

impl AsFd for Missing {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// What a call has come to that says how many bytes it has done, or why none.
fn filled(outcome: Result<(), Errno>, done: i64) -> Result<Filled, Errno> {
    match outcome {
        // It stopped in between: what is left is for another call.
        Ok(()) => Ok(Filled::Bytes(done as u64)),
        Err(_) if done > 0 => Ok(Filled::Bytes(done as u64)),
        Err(Errno::EXIST) => Ok(Filled::WasThere),
        Err(Errno::AGAIN) => Ok(Filled::Changing),
        Err(Errno::NOENT) => Ok(Filled::Unmapped),
        Err(Errno::SRCH) => Ok(Filled::Gone),
        Err(errno) => Err(errno),
    }
}

fn uffdio(range: PageRange) -> uffdio_range {
    uffdio_range {
        start: range.start(),
        len: range.bytes(),
    }
}
