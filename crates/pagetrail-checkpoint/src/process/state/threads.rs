//! What each thread may have of its own and is restored only as the main thread has it: refused,
//! by its name.

use super::{Refused, credentials, field};
use crate::sys::kcmp::{Part, has_its_own};
use std::{fs, io};

/// Refuses a thread that is not as the main one.
pub(super) fn check(pid: u32) -> Result<(), Refused> {
    let unreadable = |error: io::Error| format!("cannot read its threads: {error}");
    let main = fs::read_to_string(format!("/proc/{pid}/status")).map_err(unreadable)?;
    let main = credentials(&main);
    for entry in fs::read_dir(format!("/proc/{pid}/task")).map_err(unreadable)? {
        let entry = entry.map_err(unreadable)?;
        let name = entry.file_name();
        let Some(tid) = name.to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        let status = match fs::read_to_string(entry.path().join("status")) {
            Ok(status) => status,
            // One that has ended; none does while they stand still.
            Err(error) if has_ended(&error) => continue,
            Err(error) => return Err(unreadable(error)),
        };
        let has = |what: &str| Err(format!("thread {tid} has {what}"));
        if field(&status, "Seccomp").is_some_and(|mode| mode != "0") {
            return has("a seccomp filter");
        }
        if has_its_own(pid, tid, Part::Files) {
            return has("descriptors of its own (CLONE_FILES)");
        }
        if has_its_own(pid, tid, Part::FileSystem) {
            return has("a working directory and umask of its own (CLONE_FS)");
        }
        if credentials(&status) != main {
            return has("other users, groups or capabilities than the main thread");
        }
    }
    Ok(())
}

fn has_ended(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ESRCH)
}
