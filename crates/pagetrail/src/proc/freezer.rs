//! Whether a control group keeps a process frozen (`cgroups(7)`): a frozen process does not stop
//! for a tracer.

use std::fs;
use std::path::{Path, PathBuf};

/// The directory where control groups are mounted.
const MOUNT: &str = "/sys/fs/cgroup";

/// Whether the process is frozen, as far as the mounted control groups show.
pub(crate) fn is_frozen(pid: u32) -> bool {
    let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    let mut states = groups.lines().filter_map(state_file);
    states.any(|(file, frozen)| {
        fs::read_to_string(file).is_ok_and(|text| text.lines().any(|line| line == frozen))
    })
}

/// The file that shows whether a group of `/proc/PID/cgroup` is frozen, and the line in it that
/// means frozen.
fn state_file(line: &str) -> Option<(PathBuf, &'static str)> {
    let mut parts = line.splitn(3, ':');
    let (_, controllers, group) = (parts.next()?, parts.next()?, parts.next()?);
    let group = group.trim_start_matches('/');
    // Version 2 freezes by `cgroup.freeze`, version 1 by a controller of its own.
    if controllers.is_empty() {
        let unified = Path::new(MOUNT).join("unified");
        let root = if unified.is_dir() {
            unified
        } else {
            MOUNT.into()
        };
        return Some((root.join(group).join("cgroup.events"), "frozen 1"));
    }
    let freezes = controllers.split(',').any(|name| name == "freezer");
    freezes.then(|| {
        let group = Path::new(MOUNT).join("freezer").join(group);
        (group.join("freezer.state"), "FROZEN")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cgroup_version_has_its_state_file() {
        let file = |line| state_file(line).map(|(file, _)| file.display().to_string());
        let expected = "/sys/fs/cgroup/freezer/a/b/freezer.state";
        assert_eq!(file("6:freezer:/a/b").as_deref(), Some(expected));
        assert_eq!(file("6:cpu,freezer:/a/b").as_deref(), Some(expected));
        assert_eq!(file("7:blkio:/a"), None);
        assert_eq!(file("nonsense"), None);
        assert!(file("0::/a:b").unwrap().ends_with("a:b/cgroup.events"));
    }

    #[test]
    fn a_running_process_is_not_frozen() {
        assert!(!is_frozen(std::process::id()));
    }
}
