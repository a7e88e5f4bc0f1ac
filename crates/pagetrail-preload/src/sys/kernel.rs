//! What the kernel is asked: which file a descriptor is, `PAGEMAP_SCAN`, bits of the own memory. No
//! allocation anywhere.

use linux_raw_sys::general::{MADV_POPULATE_READ, page_region, pm_scan_arg, uffdio_register};
use pagetrail::PageRange;
use rustix::fd::{BorrowedFd, RawFd};
use rustix::io::Errno;
use rustix::ioctl::{Opcode, opcode};

/// `PAGEMAP_SCAN`, `_IOWR('f', 16, struct pm_scan_arg)` in uapi/linux/fs.h.
pub(crate) const PAGEMAP_SCAN: Opcode = opcode::read_write::<pm_scan_arg>(b'f', 16);

/// `UFFDIO_REGISTER`, `_IOWR(0xaa, 0, struct uffdio_register)` in uapi/linux/userfaultfd.h.
pub(crate) const UFFDIO_REGISTER: Opcode = opcode::read_write::<uffdio_register>(0xaa, 0);

/// `PROC_SUPER_MAGIC`.
const PROC: u64 = 0x9fa0;

/// What makes an open file itself and no other, as long as it is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) device: u64,
    pub(crate) inode: u64,
}

/// The file of a descriptor of the program; `None` when it is closed.
pub(crate) fn identity(fd: RawFd) -> Option<Identity> {
    let stat = rustix::fs::fstat(borrow(fd)?).ok()?;
    Some(Identity {
        device: stat.st_dev,
        inode: stat.st_ino,
    })
}

/// Whether the file lies in a `proc` file system.
pub(crate) fn is_proc(fd: RawFd) -> bool {
    borrow(fd)
        .is_some_and(|fd| rustix::fs::fstatfs(fd).is_ok_and(|statfs| statfs.f_type as u64 == PROC))
}

/// Whether a descriptor is open.
pub(crate) fn is_open(fd: RawFd) -> bool {
    borrow(fd).is_some_and(|fd| rustix::io::fcntl_getfd(fd).is_ok())
}

/// Calls `each` with the number of each open descriptor, and that of the list itself.
pub(crate) fn descriptors(mut each: impl FnMut(RawFd)) -> Result<(), Errno> {
    use rustix::fs::{Mode, OFlags, RawDir, open};
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = open(c"/proc/self/fd", flags, Mode::empty())?;
    let mut buffer = [std::mem::MaybeUninit::uninit(); 1024];
    let mut entries = RawDir::new(directory, &mut buffer);
    while let Some(entry) = entries.next() {
        let name = entry?.file_name().to_bytes().to_owned();
        if let Some(fd) = std::str::from_utf8(&name)
            .ok()
            .and_then(|name| name.parse().ok())
        {
            each(fd);
        }
    }
    Ok(())
}

/// The path of an open file, as `/proc/self/fd` has it, in `buffer`.
pub(crate) fn path(fd: RawFd, buffer: &mut [u8; 256]) -> Option<&[u8]> {
    let mut link = *b"/proc/self/fd/0000000000\0";
    let mut digits = [0_u8; 10];
    let mut rest = u32::try_from(fd).ok()?;
    let mut count = 0;
    loop {
        digits[count] = b'0' + (rest % 10) as u8;
        rest /= 10;
        count += 1;
        if rest == 0 {
            break;
        }
    }
    let prefix = b"/proc/self/fd/".len();
    for (place, digit) in digits[..count].iter().rev().enumerate() {
        link[prefix + place] = *digit;
    }
    link[prefix + count] = 0;
    let link = std::ffi::CStr::from_bytes_until_nul(&link).ok()?;
    read_link(link, buffer)
}

/// A type that any bytes are a value of, without padding.
///
/// # Safety
///
/// It is just that.
pub(crate) unsafe trait Plain: Copy {}

// SAFETY: a number.
unsafe impl Plain for u64 {}
// SAFETY: three numbers of 64 bits.
unsafe impl Plain for page_region {}
// SAFETY: twelve numbers of 64 bits.
unsafe impl Plain for pm_scan_arg {}
// SAFETY: an address, which need not be valid, and a length.
unsafe impl Plain for libc::iovec {}

/// Reads from an address that the program named, which may be any number.
pub(crate) fn copy_in<T: Plain>(to: &mut T, address: u64) -> Result<(), Errno> {
    let bytes = size_of::<T>();
    let (own, named) = (
        vector(std::ptr::from_mut(to) as u64, bytes),
        vector(address, bytes),
    );
    // SAFETY: the kernel writes `to` alone, to which any bytes may be written.
    let copied = unsafe { libc::process_vm_readv(libc::getpid(), &own, 1, &named, 1, 0) };
    if is_forbidden(copied) {
        check_readable(address, bytes as u64)?;
        // SAFETY: a filter of system calls keeps the kernel from copying; the program names its own
        // memory, which has just been found readable.
        *to = unsafe { (address as *const T).read_unaligned() };
        return Ok(());
    }
    whole(copied, bytes)
}

/// Reads bytes from an address that the program named, which may be any number.
pub(crate) fn copy_bytes_in(to: &mut [u8], address: u64) -> Result<(), Errno> {
    // SAFETY: the call has no arguments, and cannot fail.
    copy_bytes_of(unsafe { libc::getpid() }, to, address)
}

/// [`copy_bytes_in`], where the process's ID is known.
pub(crate) fn copy_bytes_of(pid: libc::pid_t, to: &mut [u8], address: u64) -> Result<(), Errno> {
    if to.is_empty() {
        return Ok(());
    }
    let (own, named) = (
        vector(to.as_mut_ptr() as u64, to.len()),
        vector(address, to.len()),
    );
    // SAFETY: the kernel writes the bytes of `to` alone.
    let copied = unsafe { libc::process_vm_readv(pid, &own, 1, &named, 1, 0) };
    if is_forbidden(copied) {
        check_readable(address, to.len() as u64)?;
        // SAFETY: a seccomp filter forbids the checked copy; the program names its own memory,
        // which has just been found readable, and `to` is ours, so the two do not overlap.
        unsafe { std::ptr::copy_nonoverlapping(address as *const u8, to.as_mut_ptr(), to.len()) };
        return Ok(());
    }
    whole(copied, to.len())
}

/// Replaces a descriptor of `clear_refs` that can be written by a sealed, empty memfd.
///
/// The kernel without soft-dirty bits takes a "4" and does nothing. On the memfd every write that
/// bypasses the library fails with `EPERM` (`F_SEAL_WRITE` in fcntl(2)) instead.
pub(crate) fn substitute(fd: RawFd, pid: u32) -> Result<(), Errno> {
    use rustix::fs::{MemfdFlags, OFlags, SealFlags, fcntl_add_seals, fcntl_getfl, memfd_create};
    use rustix::io::{FdFlags, fcntl_getfd};
    let file = borrow(fd).ok_or(Errno::BADF)?;
    if (fcntl_getfl(file)? & OFlags::RWMODE) == OFlags::RDONLY {
        return Ok(());
    }
    let flags = match fcntl_getfd(file)?.contains(FdFlags::CLOEXEC) {
        true => libc::O_CLOEXEC,
        false => 0,
    };
    let name = crate::descriptors::substitute_name(pid);
    let memfd = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::NOEXEC_SEAL)?;
    fcntl_add_seals(
        &memfd,
        SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL,
    )?;
    use rustix::fd::AsRawFd;
    // SAFETY: dup3(2) touches no memory; the program does not have `fd` yet, so it loses nothing.
    match unsafe { libc::syscall(libc::SYS_dup3, memfd.as_raw_fd(), fd, flags) } {
        -1 => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::MFILE)),
        _ => Ok(()),
    }
}

/// Gives a number another file, by which nothing can be read (`O_PATH` in open(2)).
pub(crate) fn make_unreadable(fd: RawFd) {
    use rustix::fd::AsRawFd;
    use rustix::fs::{Mode, OFlags, open};
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let file = open(c"/proc/self/pagemap", flags, Mode::empty());
    // SAFETY: neither call touches memory. Without a descriptor to spare the number is closed: the
    // program has no use for it but to close it.
    unsafe {
        match file {
            Ok(file) => libc::syscall(libc::SYS_dup3, file.as_raw_fd(), fd, libc::O_CLOEXEC),
            Err(_) => libc::syscall(libc::SYS_close, fd),
        };
    }
}

/// Writes to the kernel's own `clear_refs` of a process.
pub(crate) fn write_clear_refs(pid: u32, text: &[u8]) -> Result<usize, Errno> {
    use rustix::fs::{Mode, OFlags, open};
    let flags = OFlags::WRONLY | OFlags::CLOEXEC;
    let file = open(format!("/proc/{pid}/clear_refs"), flags, Mode::empty())?;
    rustix::io::write(&file, text)
}

/// Whether the standard output that this program was started with may be a `clear_refs`: it lies in
/// a `proc` file system, or in the one of memfds. One call, for every program that is started.
pub(crate) fn may_have_inherited_clear_refs() -> bool {
    /// `TMPFS_MAGIC`, of memfds too.
    const TMPFS: u64 = 0x0102_1994;
    borrow(libc::STDOUT_FILENO)
        .and_then(|fd| rustix::fs::fstatfs(fd).ok())
        .is_some_and(|statfs| matches!(statfs.f_type as u64, PROC | TMPFS))
}

/// Writes to an address that the program named for it, which may be any number.
pub(crate) fn copy_out<T: Plain>(address: u64, from: &[T]) -> Result<(), Errno> {
    let bytes = size_of_val(from);
    if bytes == 0 {
        return Ok(());
    }
    let (own, named) = (vector(from.as_ptr() as u64, bytes), vector(address, bytes));
    // SAFETY: the kernel reads `from`, and writes where the program has asked it to write.
    let copied = unsafe { libc::process_vm_writev(libc::getpid(), &own, 1, &named, 1, 0) };
    if is_forbidden(copied) {
        if !is_writable(address, bytes as u64) {
            return Err(Errno::FAULT);
        }
        // SAFETY: a filter of system calls keeps the kernel from copying; the program names its own
        // memory, which has just been found writable.
        unsafe { std::ptr::copy(from.as_ptr().cast::<u8>(), address as *mut u8, bytes) };
        return Ok(());
    }
    whole(copied, bytes)
}

/// Whether so many bytes can be written where the program says, at least four, which may be any
/// number. The first bytes of each page there change.
///
/// getresuid(2) writes to three addresses that it checks, in less time than any other call. False
/// also where that cannot be found out.
pub(crate) fn is_writable(address: u64, bytes: u64) -> bool {
    let page = pagetrail::page_size();
    let Some(end) = address.checked_add(bytes) else {
        return false;
    };
    let last = end - size_of::<libc::uid_t>() as u64;
    let place = |n: u64| match n {
        0 => address,
        // Past the end, the last bytes once more.
        _ => ((address / page).saturating_add(n).saturating_mul(page)).min(last),
    };
    let pages = (end - 1) / page - address / page + 1;
    (0..pages).step_by(3).all(|n| {
        // SAFETY: the kernel writes into the bytes that the program has named to be written to, or
        // says that it cannot.
        let result =
            unsafe { libc::syscall(libc::SYS_getresuid, place(n), place(n + 1), place(n + 2)) };
        result == 0
    })
}

/// Whether so many bytes can be read where the program says, which may be any number (Linux 5.14).
fn check_readable(address: u64, bytes: u64) -> Result<(), Errno> {
    let start = address / pagetrail::page_size() * pagetrail::page_size();
    let end = address.checked_add(bytes).ok_or(Errno::FAULT)?;
    let (start, length) = (start as *mut libc::c_void, (end - start) as usize);
    // SAFETY: the advice makes pages present, as a look at them would; what cannot be looked at is
    // an error.
    match unsafe { libc::madvise(start, length, MADV_POPULATE_READ as i32) } {
        0 => Ok(()),
        _ => Err(Errno::FAULT),
    }
}

/// Whether a copy failed for another reason than its addresses.
fn is_forbidden(copied: isize) -> bool {
    copied < 0 && std::io::Error::last_os_error().raw_os_error() != Some(libc::EFAULT)
}

fn vector(address: u64, bytes: usize) -> libc::iovec {
    libc::iovec {
        iov_base: address as *mut _,
        iov_len: bytes,
    }
}

fn whole(copied: isize, bytes: usize) -> Result<(), Errno> {
    match copied == bytes as isize {
        true => Ok(()),
        false => Err(Errno::FAULT),
    }
}

/// Where a symbolic link leads; `None` when that is longer than the buffer.
pub(crate) fn read_link<'a>(link: &std::ffi::CStr, buffer: &'a mut [u8; 256]) -> Option<&'a [u8]> {
    let length = rustix::fs::readlinkat_raw(rustix::fs::CWD, link, buffer.as_mut_slice()).ok()?;
    (length < buffer.len()).then(|| &buffer[..length])
}

/// One call of `PAGEMAP_SCAN`, without a vector if `regions` is empty; how many regions it filled
/// in.
pub(crate) fn pagemap_scan(
    fd: RawFd,
    arg: &mut pm_scan_arg,
    regions: &mut [page_region],
) -> Result<usize, Errno> {
    arg.size = size_of::<pm_scan_arg>() as u64;
    arg.vec = match regions.is_empty() {
        true => 0,
        false => regions.as_mut_ptr() as u64,
    };
    arg.vec_len = regions.len() as u64;
    let fd = borrow(fd).ok_or(Errno::BADF)?;
    // SAFETY: the opcode fits the argument, which names `regions` and their number.
    unsafe { rustix::ioctl::ioctl(fd, Scan(arg)) }
}

struct Scan<'a>(&'a mut pm_scan_arg);

// SAFETY: opcode and argument are PAGEMAP_SCAN's; the kernel writes `walk_end` in it and regions to
// the vector it names.
unsafe impl rustix::ioctl::Ioctl for Scan<'_> {
    type Output = usize;
    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        PAGEMAP_SCAN
    }

    fn as_ptr(&mut self) -> *mut std::ffi::c_void {
        std::ptr::from_mut(self.0).cast()
    }

    unsafe fn output_from_ptr(
        out: rustix::ioctl::IoctlOutput,
        _: *mut std::ffi::c_void,
    ) -> rustix::io::Result<usize> {
        Ok(out as usize)
    }
}

/// A descriptor number of the program's, for the time of one call.
pub(crate) fn borrow<'a>(fd: RawFd) -> Option<BorrowedFd<'a>> {
    // SAFETY: a number that is not open makes the call fail with EBADF, as it would the program's
    // own; nothing is kept.
    (fd >= 0).then(|| unsafe { BorrowedFd::borrow_raw(fd) })
}

/// Takes ownership of a descriptor that nothing else owns.
#[cfg(test)]
pub(crate) fn own(fd: RawFd) -> rustix::fd::OwnedFd {
    use std::os::fd::FromRawFd;
    // SAFETY: for tests, with a number that they have just let go of.
    unsafe { rustix::fd::OwnedFd::from_raw_fd(fd) }
}

/// An environment variable, as the program has it now.
pub(crate) fn variable(name: &std::ffi::CStr) -> Option<&'static [u8]> {
    // SAFETY: the environment is the program's; a program that changes it while it starts to use
    // these files would get the same trouble from its libc.
    unsafe {
        let value = libc::getenv(name.as_ptr());
        (!value.is_null()).then(|| std::ffi::CStr::from_ptr(value).to_bytes())
    }
}

/// Whether this kernel has soft-dirty bits: a page of a new mapping, once written, carries one.
/// `None` when `pagemap` cannot be read.
pub(crate) fn has_soft_dirty() -> Option<bool> {
    use rustix::fs::{Mode, OFlags, open};
    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
    let bytes = rustix::param::page_size();
    let file = open(
        c"/proc/self/pagemap",
        OFlags::RDONLY | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .ok()?;
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    let mut entry = [0; 8];
    // SAFETY: a fresh mapping that is written, looked at, and removed again; nothing else knows of
    // it.
    let read = unsafe {
        let page =
            mmap_anonymous(std::ptr::null_mut(), bytes, protection, MapFlags::PRIVATE).ok()?;
        page.cast::<u8>().write_volatile(1);
        let read = rustix::io::pread(&file, &mut entry, (page as usize / bytes * 8) as u64);
        let _ = munmap(page, bytes);
        read
    };
    (read == Ok(8)).then(|| u64::from_ne_bytes(entry) & 1 << 55 != 0)
}

/// Whether a page that is armed by `arm` is still write-protected after it has moved to another
/// address, where nobody watches it any more: `mremap(2)` before Linux 6.13. Yes, when it cannot be
/// found out.
pub(crate) fn keeps_protection_when_moved<T>(arm: impl FnOnce(PageRange) -> Option<T>) -> bool {
    use rustix::fs::{Mode, OFlags, open};
    use rustix::mm::{MapFlags, MremapFlags, ProtFlags, mmap_anonymous, mremap_fixed, munmap};
    let bytes = rustix::param::page_size();
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let Ok(file) = open(c"/proc/self/pagemap", flags, Mode::empty()) else {
        return true;
    };
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    let mut entry = [0; 8];
    // SAFETY: a fresh mapping of two pages, of which the first is written, and moves over the
    // second; nothing else knows of them.
    let found = unsafe {
        let null = std::ptr::null_mut();
        let Ok(first) = mmap_anonymous(null, 2 * bytes, protection, MapFlags::PRIVATE) else {
            return true;
        };
        let second = first.byte_add(bytes);
        first.cast::<u8>().write_volatile(1);
        let range = PageRange::new(first as u64, second as u64);
        let armed = range.and_then(arm);
        let moved = armed.is_some()
            && mremap_fixed(first, bytes, bytes, MremapFlags::MAYMOVE, second).is_ok();
        let at = (second as usize / bytes * 8) as u64;
        let read = moved && rustix::io::pread(&file, &mut entry, at) == Ok(8);
        drop(armed);
        // Where the first page was, another thread may have mapped something by now.
        let _ = match moved {
            true => munmap(second, bytes),
            false => munmap(first, 2 * bytes),
        };
        read
    };
    !found || u64::from_ne_bytes(entry) & 1 << 57 != 0
}

/// Sets the position of an open file, in bytes.
pub(crate) fn seek(fd: RawFd, position: u64) -> Option<u64> {
    rustix::fs::seek(borrow(fd)?, rustix::fs::SeekFrom::Start(position)).ok()
}

/// Moves the position of an open file on; the position before, in bytes.
pub(crate) fn advance(fd: RawFd, bytes: u64) -> Option<u64> {
    let by = i64::try_from(bytes).ok()?;
    let after = rustix::fs::seek(borrow(fd)?, rustix::fs::SeekFrom::Current(by)).ok()?;
    after.checked_sub(bytes)
}

/// The position of an open file, in bytes.
pub(crate) fn position(fd: RawFd) -> Option<u64> {
    rustix::fs::tell(borrow(fd)?).ok()
}
