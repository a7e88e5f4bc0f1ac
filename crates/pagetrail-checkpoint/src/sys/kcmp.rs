//! `kcmp(2)`: whether two descriptors, or two threads, have something in common.

/// `KCMP_FILE`, `KCMP_FILES` and `KCMP_FS` in `include/uapi/linux/kcmp.h`.
const KCMP_FILE: libc::c_int = 0;
const KCMP_FILES: libc::c_int = 2;
const KCMP_FS: libc::c_int = 3;

/// What threads have in common unless they ask for their own.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Part {
    /// The table of descriptors.
    Files,
    /// Root and working directory, and the umask.
    FileSystem,
}

/// Whether two descriptors of a process lead to one open file; false where the kernel does not say.
pub(crate) fn same_file(pid: u32, one: u32, other: u32) -> bool {
    kcmp([pid, pid], KCMP_FILE, [one, other]) == 0
}

/// Whether a thread does not share a part with the main one of its process; false where the kernel
/// does not say.
pub(crate) fn has_its_own(pid: u32, tid: u32, part: Part) -> bool {
    let which = match part {
        Part::Files => KCMP_FILES,
        Part::FileSystem => KCMP_FS,
    };
    // Positive results are orders of what differs.
    kcmp([pid, tid], which, [0; 2]) > 0
}

fn kcmp(tasks: [u32; 2], which: libc::c_int, of: [u32; 2]) -> libc::c_long {
    // SAFETY: `kcmp` takes numbers only.
    unsafe {
        libc::syscall(
            libc::SYS_kcmp,
            libc::c_long::from(tasks[0]),
            libc::c_long::from(tasks[1]),
            libc::c_long::from(which),
            libc::c_ulong::from(of[0]),
            libc::c_ulong::from(of[1]),
        )
    }
}
