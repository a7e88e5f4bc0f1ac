//! [`Memory`]: where CRIU leaves image files that stay in memory. It is a file system that is
//! mounted nowhere (`fsmount(2)`), so it goes with the last process that has it open, however that
//! ends.

use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::fs::statvfs;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_string, fsmount,
    fsopen,
};

/// Which part of the memory that is left image files may take.
const SHARE: u64 = 4;
/// Where no more than so much room is left, more was wanted, in bytes: CRIU writes pages by the
/// hundred.
const FULL_BYTES: u64 = 1 << 20;
/// Where control groups are mounted.
const GROUPS: &str = "/sys/fs/cgroup";

/// A file system in memory.
#[derive(Debug)]
pub(crate) struct Memory {
    root: OwnedFd,
    directories: AtomicU32,
}

/// A directory of it, which goes when this is dropped.
#[derive(Debug)]
pub(crate) struct MemoryDirectory {
    memory: Arc<Memory>,
    path: PathBuf,
}

/// Makes a file system in memory that is mounted nowhere. In huge pages, which not all kernels
/// have, CRIU writes files to it in half the time.
fn mount(bytes: u64, in_huge_pages: bool) -> Option<OwnedFd> {
    let system = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC).ok()?;
    let size = bytes.to_string();
    let options = [("size", &*size), ("mode", "0700")];
    let huge = in_huge_pages.then_some(("huge", "within_size"));
    for (name, value) in options.into_iter().chain(huge) {
        fsconfig_set_string(&system, name, value).ok()?;
    }
    fsconfig_create(&system).ok()?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    fsmount(&system, FsMountFlags::FSMOUNT_CLOEXEC, attributes).ok()
}

impl Memory {
    /// Makes one for so many bytes; `None` where that cannot be had: it needs Linux 5.2 and
    /// CAP_SYS_ADMIN.
    pub(crate) fn new(bytes: u64) -> Option<Arc<Self>> {
        if bytes == 0 {
            return None; // To tmpfs that is no limit.
        }
        let root = mount(bytes, true).or_else(|| mount(bytes, false))?;
        Some(Arc::new(Self {
            root,
            directories: AtomicU32::new(0),
        }))
    }

    /// Its path, for this process and those that it starts.
    fn path(&self) -> PathBuf {
        let (pid, fd) = (std::process::id(), self.root.as_raw_fd());
        format!("/proc/{pid}/fd/{fd}").into()
    }

    /// How much room is left, in bytes.
    pub(crate) fn room(&self) -> u64 {
        let found = statvfs(self.path());
        found.map_or(0, |found| found.f_bavail.saturating_mul(found.f_frsize))
    }

    /// Whether there was too little room.
    pub(crate) fn is_full(&self) -> bool {
        self.room() <= FULL_BYTES
    }

    /// A new directory.
    pub(crate) fn directory(self: &Arc<Self>) -> Option<MemoryDirectory> {
        let number = self.directories.fetch_add(1, Ordering::Relaxed);
        let path = self.path().join(number.to_string());
        fs::create_dir(&path).ok()?;
        Some(MemoryDirectory {
            memory: Arc::clone(self),
            path,
        })
    }
}

impl MemoryDirectory {
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether there was too little room in its file system.
    pub(crate) fn is_full(&self) -> bool {
        self.memory.is_full()
    }
}

impl Drop for MemoryDirectory {
    fn drop(&mut self) {
        // Else it goes with the file system.
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// How much memory image files may take, in bytes: a part of what the machine, and the control
/// group of this process, have left.
pub(crate) fn to_spare() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let machine = kib(&text, "MemAvailable:").unwrap_or(0);
    machine.min(left_to_group().unwrap_or(u64::MAX)) / SHARE
}

/// What the files of a control group are called that have its limit and what it uses.
const VERSION_2: [&str; 2] = ["memory.max", "memory.current"];
const VERSION_1: [&str; 2] = ["memory.limit_in_bytes", "memory.usage_in_bytes"];

/// The least that a group above this process may still take; `None` without a limit.
fn left_to_group() -> Option<u64> {
    let text = fs::read_to_string("/proc/self/cgroup").ok()?;
    left_to_groups(&text, Path::new(GROUPS))
}

/// The least that one of the groups may still take that `/proc/PID/cgroup` lists (`cgroups(7)`), of
/// both versions, and those above them, where groups are mounted at `root`.
fn left_to_groups(text: &str, root: &Path) -> Option<u64> {
    let lines = text.lines().filter_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next()?, fields.next()?);
        let (root, files) = match controllers {
            "" => (root.to_owned(), VERSION_2),
            _ if controllers.split(',').any(|name| name == "memory") => {
                (root.join("memory"), VERSION_1)
            }
            _ => return None,
        };
        let group = root.join(path.trim_start_matches('/'));
        let groups = group.ancestors().take_while(|path| path.starts_with(&root));
        groups.filter_map(|group| left_to(group, files)).min()
    });
    lines.min()
}

fn left_to(group: &Path, [limit, used]: [&str; 2]) -> Option<u64> {
    let number = |name| {
        let text = fs::read_to_string(group.join(name)).ok()?;
        text.trim().parse::<u64>().ok()
    };
    Some(number(limit)?.saturating_sub(number(used)?))
}

/// How much memory a process and its descendants have, in bytes: CRIU saves no more, but for shared
/// memory that none of them has touched.
pub(crate) fn of_tree(pid: u32) -> u64 {
    let mut bytes = 0;
    let mut left = vec![pid];
    while let Some(pid) = left.pop() {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let parts = ["VmRSS:", "VmSwap:"].map(|name| kib(&status, name).unwrap_or(0));
        bytes += parts.iter().sum::<u64>();
        left.extend(children(pid));
    }
    bytes
}

/// The children of a process, of all its threads.
fn children(pid: u32) -> Vec<u32> {
    let threads = fs::read_dir(format!("/proc/{pid}/task"));
    let lists = threads.into_iter().flatten().flatten();
    let lists = lists.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    lists
        .flat_map(|list| {
            let pids = list.split_whitespace().map(str::parse);
            pids.flatten().collect::<Vec<_>>()
        })
        .collect()
}

/// A number of KiB in a file of `/proc`, as bytes.
fn kib(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_stay_in_memory_as_far_as_there_is_room_and_go_with_it() {
        assert!(Memory::new(0).is_none());
        let Some(memory) = Memory::new(8 << 20) else {
            return pagetrail_skips::not_here("needs Linux 5.2 and CAP_SYS_ADMIN");
        };
        let first = memory.directory().unwrap();
        let second = memory.directory().unwrap();
        assert_ne!(first.path(), second.path());
        assert!(!memory.is_full() && memory.room() <= 8 << 20);
        let file = first.path().join("pages-1.img");
        let written = fs::write(&file, vec![7; 16 << 20]);
        assert!(written.is_err() && second.is_full());
        let path = first.path().to_owned();
        drop(first);
        assert!(!path.exists() && !memory.is_full());
        drop((second, memory));
        assert!(!path.exists());
    }

    #[test]
    fn limits_of_control_groups_of_both_versions_count() {
        let root = tempfile::tempdir().unwrap();
        let write = |group: &str, name: &str, text: &str| {
            let group = root.path().join(group);
            fs::create_dir_all(&group).unwrap();
            fs::write(group.join(name), text).unwrap();
        };
        let left = |text: &str| left_to_groups(text, root.path());
        let both = "9:cpu:/x\n4:hugetlb,memory:/a/b\n0::/c/d\n";
        assert_eq!(left(both), None);
        write("c/d", VERSION_2[0], "max\n");
        write("c/d", VERSION_2[1], "100\n");
        assert_eq!(left(both), None);
        // A group above has one.
        write("c", VERSION_2[0], "5000\n");
        write("c", VERSION_2[1], "1000\n");
        assert_eq!(left(both), Some(4000));
        write("memory/a", VERSION_1[0], "3000\n");
        write("memory/a", VERSION_1[1], "2900\n");
        assert_eq!(left(both), Some(100));
        assert_eq!(left("4:memory:/elsewhere\n0::/c\n"), Some(4000));
        write("memory/a/b", VERSION_1[0], "1\n");
        write("memory/a/b", VERSION_1[1], "2\n");
        assert_eq!(left(both), Some(0));
    }

    #[test]
    fn memory_of_a_tree_is_that_of_its_processes() {
        let own = of_tree(std::process::id());
        assert!(own > 1 << 20, "{own}");
        assert_eq!(of_tree(u32::MAX), 0);
        assert_eq!(kib("VmRSS:\t    12 kB\n", "VmRSS:"), Some(12 << 10));
        assert_eq!(kib("VmRSS: x kB\n", "VmRSS:"), None);
        assert!(to_spare() > 0);
    }
}
