//! `kcmp(2)`: whether two descriptors of a process share position and flags.

/// `KCMP_FILE` in `include/uapi/linux/kcmp.h`.
const KCMP_FILE: libc::c_int = 0;

/// Whether two descriptors of a process lead to one open file; false where the kernel does not say.
pub(crate) fn same_file(pid: u32, one: u32, other: u32) -> bool {
    // SAFETY: `kcmp` takes numbers only.
    let result = unsafe {
        libc::syscall(
            libc::SYS_kcmp,
            libc::c_long::from(pid),
            libc::c_long::from(pid),
            libc::c_long::from(KCMP_FILE),
            libc::c_ulong::from(one),
            libc::c_ulong::from(other),
        )
    };
    result == 0
}
