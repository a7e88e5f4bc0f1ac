//! The processes of a control group, version 2 (`cgroups(7)`): `cgroup.procs` of its directory and
//! of those below it.

use crate::error::{Error, Result};
use std::fs;
use std::path::Path;

/// How deep groups may be nested; the kernel has no limit by default, and a path has one.
const DEPTH_MAX: u32 = 64;

/// Checks that a path is the directory of a control group of version 2.
pub(crate) fn check(path: &Path) -> Result<()> {
    // Groups of version 1 have no `cgroup.controllers`.
    if path.join("cgroup.controllers").is_file() && path.join("cgroup.procs").is_file() {
        return Ok(());
    }
    Err(Error::WrongTree {
        reason: format!(
            "{} is not the directory of a control group of version 2",
            path.display()
        ),
    })
}

/// Whether the group is still there.
pub(crate) fn exists(path: &Path) -> bool {
    path.join("cgroup.procs").exists()
}

/// The PIDs of the processes in a group and in those below it. A group that vanishes meanwhile has
/// none; nor have processes outside of this PID namespace, which the kernel lists as 0.
pub(crate) fn processes(path: &Path) -> Vec<u32> {
    let mut pids = Vec::new();
    add(path, DEPTH_MAX, &mut pids);
    pids
}

fn add(path: &Path, depth: u32, pids: &mut Vec<u32>) {
    // Of a threaded group it cannot be read: its processes are those of a group above.
    let text = fs::read_to_string(path.join("cgroup.procs")).unwrap_or_default();
    let listed = text
        .lines()
        .filter_map(|line| line.trim().parse::<u32>().ok());
    pids.extend(listed.filter(|pid| *pid != 0));
    if depth == 0 {
        return;
    }
    for entry in fs::read_dir(path).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            add(&entry.path(), depth - 1, pids);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_directories_are_refused() {
        for path in ["/", "/proc/self", "/no such directory"] {
            let error = check(Path::new(path)).unwrap_err().to_string();
            assert!(error.contains("control group"), "{error}");
        }
        assert!(processes(Path::new("/no such directory")).is_empty());
    }
}
