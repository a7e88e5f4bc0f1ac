//! `userfaultfd(2)`: creation, handshake, registration, write protection, and reading faults.
//!
//! See `ioctl_userfaultfd(2)` and `Documentation/admin-guide/mm/userfaultfd.rst`.

use super::zeros::Zeros;
use crate::features::Features;
use linux_raw_sys::general::{
    self as raw, uffd_msg, uffdio_api, uffdio_copy, uffdio_range, uffdio_register,
    uffdio_writeprotect,
};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::ioctl::{Opcode, Setter, Updater, opcode};
use rustix::mm::UserfaultfdFlags;
use std::ops::Range;

/// The faults that a registered range detects (`UFFDIO_REGISTER_MODE_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mode {
    /// Detects writes to write-protected pages.
    WriteProtect,
    /// Detects writes to write-protected pages, and the first touch of pages that do not exist.
    WriteProtectAndMissing,
    /// Detects reads and writes of protected pages; a mapping with this mode can have no other.
    ReadWriteProtect,
}

/// Which faults a userfaultfd resolves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Faults {
    /// Faults of the program's own instructions. [`Features::WP_ASYNC`] needs no others: its faults
    /// never wait for user space.
    UserMode,
    /// Faults of its instructions, and those that the kernel takes on the program's behalf: this
    /// needs `CAP_SYS_PTRACE` or `vm.unprivileged_userfaultfd=1`.
    UserAndKernel,
}

/// What may be done to pages that [`Userfaultfd::fill`] makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filled {
    /// What their mapping allows.
    Writable,
    /// They are write-protected: the first write is a fault.
    WriteProtected,
}

/// A fault in which a thread waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Fault {
    /// The address, rounded down to a page.
    pub address: u64,
    /// Whether the page is write-protected (true) or missing (false).
    pub write_protect: bool,
    /// Whether the access is a write.
    pub write: bool,
}

/// A userfaultfd of any address space, after its handshake.
#[derive(Debug)]
pub struct Userfaultfd {
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
/// `UFFDIO_COPY_MODE_WP`, which linux-raw-sys lacks.
const COPY_MODE_WP: u64 = 2;
/// `UFFDIO_RWPROTECT_MODE_RWP`, which linux-raw-sys lacks.
const RWPROTECT_MODE_RWP: u64 = 1;
/// `UFFDIO_REGISTER_MODE_RWP`, which linux-raw-sys lacks.
const REGISTER_MODE_RWP: u32 = 8;

impl Userfaultfd {
    /// Creates a userfaultfd on the own address space.
    pub fn create(faults: Faults) -> Result<OwnedFd, Errno> {
        // SAFETY: the descriptor can be used only through this type, which protects pages, lifts
        // protection and fills missing pages with zeros, and thus never changes contents.
        unsafe { rustix::mm::userfaultfd(UserfaultfdFlags::from_bits_retain(Self::flags(faults))) }
    }

    /// The flags of `userfaultfd(2)`, whether this process or another makes the call.
    pub fn flags(faults: Faults) -> u32 {
        let user_mode_only = match faults {
            Faults::UserMode => raw::UFFD_USER_MODE_ONLY,
            Faults::UserAndKernel => 0,
        };
        raw::O_CLOEXEC | raw::O_NONBLOCK | user_mode_only
    }

    /// Performs the handshake on a new descriptor; `EINVAL` if the kernel lacks one of `features`.
    pub fn handshake(fd: OwnedFd, features: Features) -> Result<Self, Errno> {
        let mut api = uffdio_api {
            api: u64::from(raw::UFFD_API),
            features: features.bits(),
            ioctls: 0,
        };
        // SAFETY: UFFDIO_API reads and fills a `uffdio_api`, which `api` is.
        unsafe { rustix::ioctl::ioctl(&fd, Updater::<API, _>::new(&mut api))? };
        Ok(Self { fd })
    }

    /// Registers a range; `EBUSY` if another userfaultfd has it, `ESRCH` if the address space is
    /// gone.
    pub fn register(&self, range: impl Into<Range<u64>>, mode: Mode) -> Result<(), Errno> {
        let mode = match mode {
            Mode::WriteProtect => raw::UFFDIO_REGISTER_MODE_WP,
            Mode::WriteProtectAndMissing => {
                raw::UFFDIO_REGISTER_MODE_WP | raw::UFFDIO_REGISTER_MODE_MISSING
            }
            Mode::ReadWriteProtect => REGISTER_MODE_RWP,
        };
        self.register_as(range.into(), mode)
    }

    fn register_as(&self, range: Range<u64>, mode: u32) -> Result<(), Errno> {
        let mut arg = uffdio_register {
            range: uffdio(range.clone()),
            mode: u64::from(mode),
            ioctls: 0,
        };
        // SAFETY: UFFDIO_REGISTER reads and fills a `uffdio_register`, which `arg` is; pages keep
        // their contents.
        let outcome =
            unsafe { rustix::ioctl::ioctl(&self.fd, Updater::<REGISTER, _>::new(&mut arg)) };
        match outcome {
            // `ENOMEM` may also mean that the address space is gone (`userfaultfd_register` in
            // fs/userfaultfd.c). UFFDIO_WRITEPROTECT reports that by `ESRCH`, and has no protection
            // to lift here.
            Err(Errno::NOMEM) if self.release(range) == Err(Errno::SRCH) => Err(Errno::SRCH),
            outcome => outcome,
        }
    }

    /// Ends the registration of a range and lifts its write protection.
    pub fn unregister(&self, range: impl Into<Range<u64>>) -> Result<(), Errno> {
        // SAFETY: UFFDIO_UNREGISTER reads a `uffdio_range`; pages keep their contents.
        unsafe {
            rustix::ioctl::ioctl(&self.fd, Setter::<UNREGISTER, _>::new(uffdio(range.into())))
        }
    }

    /// Hands a range that is registered with [`Mode::WriteProtect`] over to another userfaultfd of
    /// the same address space, with the protection of its pages as it is.
    ///
    /// It takes some microseconds for each mapping, however many pages this has: page tables are
    /// left alone. To end a registration lifts the protection page by page, but only where it is
    /// for writes (`userfaultfd_clear_vma` in `mm/userfaultfd.c`), so it is made one for missing
    /// pages first. The two descriptors need not have the same features: with
    /// [`Features::WP_ASYNC`] on one side alone, this changes who resolves the faults.
    ///
    /// Nobody may write to the range meanwhile: such a write would leave no trace.
    ///
    /// # Errors
    ///
    /// As of [`Self::register`]. The range is registered as before then, unless a part of it cannot
    /// be registered, or belongs to another userfaultfd by now; its pages still have the mark of
    /// protection.
    pub fn hand_over(&self, range: impl Into<Range<u64>>, to: &Self) -> Result<(), Errno> {
        let range = range.into();
        let outcome = self
            .register_as(range.clone(), raw::UFFDIO_REGISTER_MODE_MISSING)
            .and_then(|()| self.unregister(range.clone()))
            .and_then(|()| to.register_as(range.clone(), raw::UFFDIO_REGISTER_MODE_WP));
        if outcome.is_err() {
            // Registered for missing pages, it would make threads wait that touch new ones.
            let _ = self.register_as(range, raw::UFFDIO_REGISTER_MODE_WP);
        }
        outcome
    }

    /// Write-protects a registered range.
    pub fn protect(&self, range: impl Into<Range<u64>>) -> Result<(), Errno> {
        self.write_protect(range.into(), WRITEPROTECT_MODE_WP)
    }

    /// Lifts the protection and wakes the threads that wait in the range.
    pub fn release(&self, range: impl Into<Range<u64>>) -> Result<(), Errno> {
        self.write_protect(range.into(), 0)
    }

    fn write_protect(&self, range: Range<u64>, mode: u64) -> Result<(), Errno> {
        let mut arg = uffdio_writeprotect {
            range: uffdio(range),
            mode,
        };
        while_changing(|| {
            // SAFETY: UFFDIO_WRITEPROTECT reads a `uffdio_writeprotect`, which `arg` is; pages keep
            // their contents.
            unsafe { rustix::ioctl::ioctl(&self.fd, Updater::<WRITEPROTECT, _>::new(&mut arg)) }
        })
    }

    /// Protects the pages that exist in a range registered with [`Mode::ReadWriteProtect`] against
    /// every access.
    ///
    /// `ENOENT`, and nothing is protected, if a part of the range is not registered in that mode.
    pub fn protect_from_access(&self, range: impl Into<Range<u64>>) -> Result<(), Errno> {
        self.access_protect(range.into(), RWPROTECT_MODE_RWP)
    }

    /// Lifts the protection of [`Self::protect_from_access`].
    pub fn release_to_access(&self, range: impl Into<Range<u64>>) -> Result<(), Errno> {
        self.access_protect(range.into(), 0)
    }

    fn access_protect(&self, range: Range<u64>, mode: u64) -> Result<(), Errno> {
        let mut arg = uffdio_writeprotect {
            range: uffdio(range),
            mode,
        };
        while_changing(|| {
            // SAFETY: UFFDIO_RWPROTECT reads a `uffdio_rwprotect`, which has the same layout as
            // `arg`; pages keep their contents.
            unsafe { rustix::ioctl::ioctl(&self.fd, Updater::<RWPROTECT, _>::new(&mut arg)) }
        })
    }

    /// Fills a range without pages with the beginning of `zeros`, and wakes the waiting threads;
    /// `EEXIST` if pages were created meanwhile.
    ///
    /// (`UFFDIO_ZEROPAGE` would refuse entries with a write-protection marker, and huge pages.)
    pub fn fill(
        &self,
        range: impl Into<Range<u64>>,
        zeros: &Zeros,
        filled: Filled,
    ) -> Result<(), Errno> {
        let uffdio_range { start, len } = uffdio(range.into());
        if len > zeros.bytes() {
            return Err(Errno::INVAL);
        }
        let mode = match filled {
            Filled::Writable => 0,
            Filled::WriteProtected => COPY_MODE_WP,
        };
        let mut arg = uffdio_copy {
            dst: start,
            src: zeros.address(),
            len,
            mode,
            copy: 0,
        };
        // SAFETY: UFFDIO_COPY reads `len` bytes at `src`, which `zeros` has as just checked, and
        // fills only pages that do not exist.
        unsafe { rustix::ioctl::ioctl(&self.fd, Updater::<COPY, _>::new(&mut arg)) }
    }

    /// Wakes the threads that wait in a range, so that they fault again.
    pub fn wake(&self, range: impl Into<Range<u64>>) -> Result<(), Errno> {
        // SAFETY: UFFDIO_WAKE reads a `uffdio_range`, and changes no memory.
        unsafe { rustix::ioctl::ioctl(&self.fd, Setter::<WAKE, _>::new(uffdio(range.into()))) }
    }

    /// Reads waiting faults into `faults` without blocking; returns their number.
    pub fn read_faults(&self, faults: &mut [Fault; FAULTS_AT_ONCE]) -> Result<usize, Errno> {
        let mut buffer = [0u8; FAULTS_AT_ONCE * size_of::<uffd_msg>()];
        let len = rustix::io::read(&self.fd, &mut buffer)?;
        let mut count = 0;
        for message in buffer[..len].chunks_exact(size_of::<uffd_msg>()) {
            // SAFETY: the chunk has the size of a `uffd_msg`, for which any bytes are valid;
            // alignment is not required.
            let message = unsafe { message.as_ptr().cast::<uffd_msg>().read_unaligned() };
            if u32::from(message.event) == raw::UFFD_EVENT_PAGEFAULT {
                // SAFETY: UFFD_EVENT_PAGEFAULT says that the kernel has set this member of the
                // union.
                let fault = unsafe { message.arg.pagefault };
                faults[count] = Fault {
                    address: fault.address & !(crate::page_size() - 1),
                    write: fault.flags & u64::from(raw::UFFD_PAGEFAULT_FLAG_WRITE) != 0,
                    write_protect: fault.flags & u64::from(raw::UFFD_PAGEFAULT_FLAG_WP) != 0,
                };
                count += 1;
            }
        }
        Ok(count)
    }
}

/// The most faults that [`Userfaultfd::read_faults`] reads in one call.
pub const FAULTS_AT_ONCE: usize = 64;

impl AsFd for Userfaultfd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Repeats a call while the address space is changing (fork, mremap), as the man pages require.
fn while_changing(mut call: impl FnMut() -> Result<(), Errno>) -> Result<(), Errno> {
    loop {
        match call() {
            Err(Errno::AGAIN) => std::thread::yield_now(),
            outcome => return outcome,
        }
    }
}

fn uffdio(range: Range<u64>) -> uffdio_range {
    uffdio_range {
        start: range.start,
        len: range.end.saturating_sub(range.start),
    }
}
