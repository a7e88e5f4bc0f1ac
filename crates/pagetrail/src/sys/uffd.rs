//! `userfaultfd(2)`: creating one, the handshake, registering, write-protecting, reading faults.
//!
//! See `ioctl_userfaultfd(2)` and `Documentation/admin-guide/mm/userfaultfd.rst`.

use super::shared_words::SharedWords;
use crate::page_set::PageRange;
use linux_raw_sys::general::{
    self as raw, uffd_msg, uffdio_api, uffdio_copy, uffdio_range, uffdio_register,
    uffdio_writeprotect,
};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::ioctl::{Opcode, Setter, Updater, opcode};
use rustix::mm::UserfaultfdFlags;

/// Features of a userfaultfd (`UFFD_FEATURE_*`).
pub(crate) mod feature {
    use linux_raw_sys::general as raw;
    /// The kernel resolves write-protect faults itself (Linux 6.7).
    pub(crate) const WP_ASYNC: u64 = raw::UFFD_FEATURE_WP_ASYNC as u64;
    /// Shared memory and hugetlb can be write-protected (Linux 5.19).
    pub(crate) const WP_HUGETLBFS_SHMEM: u64 = raw::UFFD_FEATURE_WP_HUGETLBFS_SHMEM as u64;
    /// Pages can be protected against reads, too (Linux 7.3).
    pub(crate) const RWP: u64 = 1 << 17;
    /// The kernel resolves those faults itself (Linux 7.3).
    pub(crate) const RWP_ASYNC: u64 = 1 << 18;
    /// Write-protect faults say that they are such (Linux 5.7).
    pub(crate) const PAGEFAULT_FLAG_WP: u64 = raw::UFFD_FEATURE_PAGEFAULT_FLAG_WP as u64;
}

/// What a registered range notices (`UFFDIO_REGISTER_MODE_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Writes to write-protected pages.
    WriteProtect,
    /// Those, and the first touch of pages that do not exist (yet, or any more).
    WriteProtectAndMissing,
    /// Reads and writes of protected pages; excludes the other modes for the same mapping.
    ReadWriteProtect,
}

/// A fault that a thread waits in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fault {
    /// The address, rounded down to a page.
    pub(crate) address: u64,
    /// Write-protected (true) or missing (false).
    pub(crate) write_protect: bool,
    /// Whether the access is a write.
    pub(crate) write: bool,
}

/// A userfaultfd after its handshake, of the own or another address space.
#[derive(Debug)]
pub(crate) struct Uffd {
    fd: OwnedFd,
}

const API: Opcode = opcode::read_write::<uffdio_api>(0xaa, 0x3f);
const REGISTER: Opcode = opcode::read_write::<uffdio_register>(0xaa, 0);
const UNREGISTER: Opcode = opcode::read::<uffdio_range>(0xaa, 1);
const WAKE: Opcode = opcode::read::<uffdio_range>(0xaa, 2);
const COPY: Opcode = opcode::read_write::<uffdio_copy>(0xaa, 3);
const WRITEPROTECT: Opcode = opcode::read_write::<uffdio_writeprotect>(0xaa, 6);
/// `UFFDIO_RWPROTECT`; `struct uffdio_rwprotect` has the layout of `uffdio_writeprotect`.
const RWPROTECT: Opcode = opcode::read_write::<uffdio_writeprotect>(0xaa, 9);

/// `UFFDIO_WRITEPROTECT_MODE_WP`, which linux-raw-sys lacks.
const WRITEPROTECT_MODE_WP: u64 = 1;
/// `UFFDIO_COPY_MODE_WP`, likewise.
const COPY_MODE_WP: u64 = 2;
/// `UFFDIO_RWPROTECT_MODE_RWP`, likewise.
const RWPROTECT_MODE_RWP: u64 = 1;
/// `UFFDIO_REGISTER_MODE_RWP`, likewise.
const REGISTER_MODE_RWP: u32 = 8;

impl Uffd {
    /// A userfaultfd on the own address space.
    ///
    /// `kernel_faults`: also resolve faults that the kernel takes on the program's behalf, which needs
    /// `CAP_SYS_PTRACE` or `vm.unprivileged_userfaultfd=1`. [`feature::WP_ASYNC`] does not: it never waits
    /// for user space.
    pub(crate) fn own(kernel_faults: bool) -> Result<OwnedFd, Errno> {
        // SAFETY: the descriptor can only be used through this type, which protects pages against
        // writes and lifts that again, and never changes what memory holds.
        unsafe {
            rustix::mm::userfaultfd(UserfaultfdFlags::from_bits_retain(Self::flags(
                kernel_faults,
            )))
        }
    }

    /// The flags for `userfaultfd(2)`, for this process or to be run in another.
    pub(crate) fn flags(kernel_faults: bool) -> u32 {
        let user_mode_only = if kernel_faults {
            0
        } else {
            raw::UFFD_USER_MODE_ONLY
        };
        raw::O_CLOEXEC | raw::O_NONBLOCK | user_mode_only
    }

    /// Performs the handshake on a fresh descriptor; `EINVAL` when the kernel lacks one of `features`.
    pub(crate) fn handshake(fd: OwnedFd, features: u64) -> Result<Self, Errno> {
        let mut api = uffdio_api {
            api: u64::from(raw::UFFD_API),
            features,
            ioctls: 0,
        };
        // SAFETY: UFFDIO_API takes and fills a `uffdio_api`.
        unsafe { rustix::ioctl::ioctl(&fd, Updater::<API, _>::new(&mut api))? };
        Ok(Self { fd })
    }

    /// Registers a range; `EBUSY` when another userfaultfd has it, `ESRCH` when the address space is gone.
    pub(crate) fn register(&self, range: PageRange, mode: Mode) -> Result<(), Errno> {
        let mode = match mode {
            Mode::WriteProtect => raw::UFFDIO_REGISTER_MODE_WP,
            Mode::WriteProtectAndMissing => {
                raw::UFFDIO_REGISTER_MODE_WP | raw::UFFDIO_REGISTER_MODE_MISSING
            }
            Mode::ReadWriteProtect => REGISTER_MODE_RWP,
        };
        let mut arg = uffdio_register {
            range: uffdio(range),
            mode: u64::from(mode),
            ioctls: 0,
        };
        // SAFETY: UFFDIO_REGISTER takes and fills a `uffdio_register`; pages keep their contents.
        let outcome =
            unsafe { rustix::ioctl::ioctl(&self.fd, Updater::<REGISTER, _>::new(&mut arg)) };
        match outcome {
            // The kernel says so as well where the address space is gone (`userfaultfd_register` in fs/userfaultfd.c), of
            // which others of its calls tell. This one finds nothing to lift.
            Err(Errno::NOMEM) if self.release(range) == Err(Errno::SRCH) => Err(Errno::SRCH),
            outcome => outcome,
        }
    }

    /// Ends the registration of a range and lifts its write protection.
    pub(crate) fn unregister(&self, range: PageRange) -> Result<(), Errno> {
        // SAFETY: UFFDIO_UNREGISTER takes a `uffdio_range`.
        unsafe { rustix::ioctl::ioctl(&self.fd, Setter::<UNREGISTER, _>::new(uffdio(range))) }
    }

    /// Write-protects a registered range.
    pub(crate) fn protect(&self, range: PageRange) -> Result<(), Errno> {
        self.write_protect(range, WRITEPROTECT_MODE_WP)
    }

    /// Lifts the protection and wakes the threads that wait in the range.
    pub(crate) fn release(&self, range: PageRange) -> Result<(), Errno> {
        self.write_protect(range, 0)
    }

    fn write_protect(&self, range: PageRange, mode: u64) -> Result<(), Errno> {
        let mut arg = uffdio_writeprotect {
            range: uffdio(range),
            mode,
        };
        while_changing(|| {
            // SAFETY: UFFDIO_WRITEPROTECT takes a `uffdio_writeprotect`; pages keep their contents.
            unsafe { rustix::ioctl::ioctl(&self.fd, Updater::<WRITEPROTECT, _>::new(&mut arg)) }
        })
    }

    /// Protects the pages that exist in a range registered with [`Mode::ReadWriteProtect`] against every access.
    ///
    /// `ENOENT`, and nothing is protected, when a part of the range is not registered so.
    pub(crate) fn protect_from_access(&self, range: PageRange) -> Result<(), Errno> {
        self.access_protect(range, RWPROTECT_MODE_RWP)
    }

    /// Lifts that protection.
    pub(crate) fn release_to_access(&self, range: PageRange) -> Result<(), Errno> {
        self.access_protect(range, 0)
    }

    fn access_protect(&self, range: PageRange, mode: u64) -> Result<(), Errno> {
        let mut arg = uffdio_writeprotect {
            range: uffdio(range),
            mode,
        };
        while_changing(|| {
            // SAFETY: UFFDIO_RWPROTECT takes a `uffdio_rwprotect`, which is laid out the same; pages keep their contents.
            unsafe { rustix::ioctl::ioctl(&self.fd, Updater::<RWPROTECT, _>::new(&mut arg)) }
        })
    }

    /// Fills a range that does not exist with the beginning of `zeros`, write-protected or not; `EEXIST` when
    /// it came into being meanwhile. Wakes the waiting threads.
    ///
    /// (`UFFDIO_ZEROPAGE` would refuse places with a write-protection marker, and huge pages.)
    pub(crate) fn fill(
        &self,
        range: PageRange,
        zeros: &SharedWords,
        protect: bool,
    ) -> Result<(), Errno> {
        if range.bytes() > size_of_val(&**zeros) as u64 {
            return Err(Errno::INVAL);
        }
        let mode = if protect { COPY_MODE_WP } else { 0 };
        let mut arg = uffdio_copy {
            dst: range.start(),
            src: zeros.as_ptr() as u64,
            len: range.bytes(),
            mode,
            copy: 0,
        };
        // SAFETY: UFFDIO_COPY reads `len` bytes at `src`, which are there, and fills only what does not exist.
        unsafe { rustix::ioctl::ioctl(&self.fd, Updater::<COPY, _>::new(&mut arg)) }
    }

    /// Wakes threads that wait in a range, to fault again.
    pub(crate) fn wake(&self, range: PageRange) -> Result<(), Errno> {
        // SAFETY: UFFDIO_WAKE takes a `uffdio_range`.
        unsafe { rustix::ioctl::ioctl(&self.fd, Setter::<WAKE, _>::new(uffdio(range))) }
    }

    /// Reads waiting faults into `faults` without blocking; returns how many.
    pub(crate) fn read_faults(&self, faults: &mut [Fault; FAULTS_AT_ONCE]) -> Result<usize, Errno> {
        let mut buffer = [0u8; FAULTS_AT_ONCE * size_of::<uffd_msg>()];
        let len = rustix::io::read(&self.fd, &mut buffer)?;
        let mut count = 0;
        for message in buffer[..len].chunks_exact(size_of::<uffd_msg>()) {
            // SAFETY: `uffd_msg` is plain data of exactly this size; the read may be unaligned.
            let message = unsafe { message.as_ptr().cast::<uffd_msg>().read_unaligned() };
            if u32::from(message.event) == raw::UFFD_EVENT_PAGEFAULT {
                // SAFETY: the event says which member of the union is set.
                let fault = unsafe { message.arg.pagefault };
                faults[count] = Fault {
                    address: fault.address & !(crate::page_set::page_size() - 1),
                    write: fault.flags & u64::from(raw::UFFD_PAGEFAULT_FLAG_WRITE) != 0,
                    write_protect: fault.flags & u64::from(raw::UFFD_PAGEFAULT_FLAG_WP) != 0,
                };
                count += 1;
            }
        }
        Ok(count)
    }
}

/// Faults that [`Uffd::read_faults`] reads in one call.
pub(crate) const FAULTS_AT_ONCE: usize = 64;

impl AsFd for Uffd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Calls again while the address space is changing (fork, mremap), as the man pages ask for.
fn while_changing(mut call: impl FnMut() -> Result<(), Errno>) -> Result<(), Errno> {
    loop {
        match call() {
            Err(Errno::AGAIN) => std::thread::yield_now(),
            outcome => return outcome,
        }
    }
}

fn uffdio(range: PageRange) -> uffdio_range {
    uffdio_range {
        start: range.start(),
        len: range.bytes(),
    }
}
