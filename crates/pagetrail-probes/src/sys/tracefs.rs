//! tracefs, mounted nowhere: a mount that only a descriptor knows (`fsmount(2)`), so that nobody
//! has to mount it, and nothing is left of it.

use std::ffi::CStr;
use std::fs::File;
use std::io::{self, Read};

use rustix::fd::{AsRawFd, FromRawFd, OwnedFd};
use rustix::fs::{Mode, OFlags, openat};

const FSCONFIG_CMD_CREATE: libc::c_uint = 6;
const FLAG_CLOEXEC: libc::c_uint = 1;

/// The root of tracefs.
#[derive(Debug)]
pub(crate) struct Tracefs(OwnedFd);

fn descriptor(result: libc::c_long) -> io::Result<OwnedFd> {
    match result {
        -1 => Err(io::Error::last_os_error()),
        // SAFETY: the kernel has just returned this descriptor, which nobody else has.
        result => Ok(unsafe { OwnedFd::from_raw_fd(result as i32) }),
    }
}

impl Tracefs {
    pub(crate) fn open() -> io::Result<Self> {
        let name: &CStr = c"tracefs";
        // SAFETY: the name ends with 0.
        let context = unsafe { libc::syscall(libc::SYS_fsopen, name.as_ptr(), FLAG_CLOEXEC) };
        let context = descriptor(context)?;
        let (none, number) = (std::ptr::null::<u8>(), context.as_raw_fd());
        // SAFETY: this command takes neither key nor value.
        let made = unsafe {
            libc::syscall(
                libc::SYS_fsconfig,
                number,
                FSCONFIG_CMD_CREATE,
                none,
                none,
                0,
            )
        };
        if made == -1 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: this call takes numbers.
        let root = unsafe { libc::syscall(libc::SYS_fsmount, number, FLAG_CLOEXEC, 0) };
        descriptor(root).map(Self)
    }

    /// The text of a file.
    pub(crate) fn read(&self, path: &str) -> io::Result<String> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let mut text = String::new();
        File::from(openat(&self.0, path, flags, Mode::empty())?).read_to_string(&mut text)?;
        Ok(text)
    }
}
