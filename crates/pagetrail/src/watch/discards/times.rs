//! Whether every change to a file after a check of its times changes these times.
//!
//! Since Linux 6.13 it does on some file systems, tmpfs among them: a time that has been read is
//! not given to a later change (`Documentation/filesystems/multigrain-ts.rst`). In older kernels
//! the time advances once per tick.

use rustix::fs::{MemfdFlags, StatxFlags, statx};
use std::sync::OnceLock;

/// `TMPFS_MAGIC` in `include/uapi/linux/magic.h`.
const TMPFS_MAGIC: i64 = 0x0102_1994;
/// The number of changes that are tried.
const TRIES: u8 = 5;

/// Whether the times of the file at `path` are exact; false where that cannot be found out.
pub(super) fn are_exact(path: &str) -> bool {
    static TMPFS: OnceLock<bool> = OnceLock::new();
    *TMPFS.get_or_init(|| of_tmpfs().unwrap_or(false))
        && rustix::fs::statfs(path).is_ok_and(|system| system.f_type == TMPFS_MAGIC)
}

/// Changes a file in quick succession, and reads its time after each change.
fn of_tmpfs() -> rustix::io::Result<bool> {
    let file = rustix::fs::memfd_create("pagetrail-probe", MemfdFlags::CLOEXEC)?;
    let mut last = None;
    for byte in 0..TRIES {
        rustix::io::pwrite(&file, &[byte], 0)?;
        let flags = rustix::fs::AtFlags::EMPTY_PATH;
        let changed = statx(&file, "", flags, StatxFlags::CTIME)?.stx_ctime;
        let time = Some((changed.tv_sec, changed.tv_nsec));
        if time == last {
            return Ok(false);
        }
        last = time;
    }
    Ok(true)
}
