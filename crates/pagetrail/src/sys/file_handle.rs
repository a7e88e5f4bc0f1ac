//! `name_to_handle_at(2)`: which file a path leads to, for as long as the file system knows it.

use rustix::io::Errno;
use std::ffi::CString;

/// `MAX_HANDLE_SZ` in `include/linux/exportfs.h`.
const BYTES_MAX: usize = 128;

/// What tells a file from all others of its file system, also from those that get the number of its
/// inode after it: common file systems give each a generation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FileHandle(Handle);

/// `struct file_handle` with all the room there can be.
#[repr(C)]
#[derive(Clone, Debug, PartialEq, Eq)]
struct Handle {
    bytes: u32,
    kind: i32,
    handle: [u8; BYTES_MAX],
}

impl FileHandle {
    /// The file to which a path leads, links followed.
    ///
    /// # Errors
    ///
    /// What following the path fails with; `EOPNOTSUPP` if the file system has no handles.
    pub(crate) fn of(path: &str) -> Result<Self, Errno> {
        let path = CString::new(path).map_err(|_| Errno::INVAL)?;
        let mut handle = Handle {
            bytes: BYTES_MAX as u32,
            kind: 0,
            handle: [0; BYTES_MAX],
        };
        let mut mount: libc::c_int = 0;
        // SAFETY: the kernel reads the path, which ends with a zero, and writes to the two locals:
        // a number, and as many bytes as the handle says that it has room for.
        let outcome = unsafe {
            libc::syscall(
                libc::SYS_name_to_handle_at,
                libc::AT_FDCWD,
                path.as_ptr(),
                &raw mut handle,
                &raw mut mount,
                libc::AT_SYMLINK_FOLLOW,
            )
        };
        match outcome {
            -1 => {
                Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::NOSYS))
            }
            _ => Ok(Self(handle)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_file_has_a_handle_of_its_own() {
        let own = std::env::current_exe().unwrap();
        let handle = match FileHandle::of(own.to_str().unwrap()) {
            Err(Errno::OPNOTSUPP) => return,
            handle => handle.unwrap(),
        };
        assert_eq!(FileHandle::of("/proc/self/exe"), Ok(handle.clone()));
        assert_ne!(FileHandle::of("/"), Ok(handle));
        assert_eq!(FileHandle::of("/no/such/file"), Err(Errno::NOENT));
    }
}
