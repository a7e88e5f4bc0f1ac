//! [`Devices`]: where device and inode of a mapping name one file, and no other.
//!
//! `/proc/PID/maps` shows the device of the whole file system. Subvolumes of Btrfs have one between
//! them and number their files each for itself, and of overlays it is not said what their numbers
//! are. Memory of System V shows its identifier in the place of the inode, which each IPC namespace
//! counts for itself, on the device that has all other shared memory without a name (`newseg`,
//! `ipc/shm.c`). So only those count that are known to be numbered once and for all.

use crate::process::state::is_shared_anonymous;
use crate::process::state::memory::is_memfd;
use pagetrail::{Region, page_size};
use rustix::fs::{MemfdFlags, fstat, major, memfd_create, minor};
use rustix::system::uname;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

/// A device, by its major and minor number.
type Device = (u32, u32);

/// Devices of which the inodes are known to be numbered once.
#[derive(Debug, Default)]
pub(crate) struct Devices {
    file_systems: BTreeSet<Device>,
    /// That of shared memory without a name in a file system.
    shared_memory: Option<Device>,
}

impl Devices {
    #[cfg(test)]
    pub(crate) fn of_file_systems(devices: impl IntoIterator<Item = Device>) -> Self {
        Self {
            file_systems: devices.into_iter().collect(),
            shared_memory: None,
        }
    }

    /// Whether other mappings of the same device and inode show the same file.
    pub(crate) fn identify(&self, region: &Region) -> bool {
        let is_in_no_file = Some(region.device) == self.shared_memory
            && (is_shared_anonymous(&region.name) || is_memfd(&region.name));
        region.inode != 0 && (is_in_no_file || self.file_systems.contains(&region.device))
    }
}

/// Since then shared memory without a name is numbered by 64 bits (`shmem_get_inode`,
/// `mm/shmem.c`): before, a number could come again.
const SHARED_MEMORY_NUMBERED: (u32, u32) = (5, 9);

/// Devices by mount namespace.
#[derive(Debug, Default)]
pub(crate) struct Known(BTreeMap<Option<PathBuf>, Arc<Devices>>);

impl Known {
    /// The devices that a process sees.
    pub(crate) fn of(&mut self, pid: u32) -> Arc<Devices> {
        let namespace = fs::read_link(format!("/proc/{pid}/ns/mnt")).ok();
        let devices = self.0.entry(namespace).or_insert_with(|| {
            let mounts = fs::read_to_string(format!("/proc/{pid}/mountinfo")).unwrap_or_default();
            Arc::new(Devices {
                file_systems: mounts.lines().filter_map(device).collect(),
                shared_memory: shared_memory(),
            })
        });
        Arc::clone(devices)
    }
}

/// The device of a line of `mountinfo`, if its file system numbers inodes once and for all.
fn device(line: &str) -> Option<Device> {
    let (mount, system) = line.split_once(" - ")?;
    let mut words = system.split(' ');
    let is_sure = match words.next()? {
        "ext2" | "ext3" | "ext4" | "xfs" => true,
        // With 32 bits they begin anew.
        "tmpfs" => words.nth(1)?.split(',').any(|option| option == "inode64"),
        _ => false,
    };
    let (major, minor) = mount.split(' ').nth(2)?.split_once(':')?;
    is_sure.then_some((major.parse().ok()?, minor.parse().ok()?))
}

/// The device of anonymous shared memory and of `memfd_create(2)`.
fn shared_memory() -> Option<Device> {
    let release = uname();
    let mut release = release.release().to_str().ok()?.split(['.', '-', '+']);
    let mut number = || release.next()?.parse::<u32>().ok();
    if (number()?, number()?) < SHARED_MEMORY_NUMBERED {
        return None;
    }
    let memory = memfd_create("pagetrail", MemfdFlags::CLOEXEC).ok()?;
    let found = fstat(&memory).ok()?;
    // That of huge pages lies elsewhere.
    let is_small = u64::try_from(found.st_blksize).ok()? == page_size();
    is_small.then(|| (major(found.st_dev), minor(found.st_dev)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagetrail::{PageRange, Permissions};

    #[test]
    fn file_systems_count_that_number_their_inodes_once() {
        let line = |system: &str| format!("27 1 254:3 / / rw,relatime shared:1 - {system}");
        for sure in [
            "ext4 /dev/vda rw",
            "xfs /dev/sda1 rw,inode64",
            "tmpfs tmpfs rw,size=9k,inode64",
        ] {
            assert_eq!(device(&line(sure)), Some((254, 3)), "{sure}");
        }
        for unsure in [
            "btrfs /dev/sda rw,subvolid=5",
            "overlay overlay rw,inode64",
            "tmpfs tmpfs rw",
            "tmpfs tmpfs rw,inode32",
            "tmpfs inode64 rw",
            "tmpfs",
        ] {
            assert_eq!(device(&line(unsure)), None, "{unsure}");
        }
        for damaged in [
            "",
            " - ext4 a b",
            "1 2 x:y / / - ext4 a b",
            "1 2 3 / / - ext4 a b",
        ] {
            assert_eq!(device(damaged), None, "{damaged}");
        }
    }

    #[test]
    fn memory_of_system_v_is_not_known_by_its_number() {
        let device = (0, 1);
        let devices = Devices {
            file_systems: BTreeSet::from([(8, 1)]),
            shared_memory: Some(device),
        };
        let identified = |name: &str, device, inode| {
            let range = PageRange::new(0x1000_0000, 0x1000_1000).unwrap();
            let permissions = Permissions {
                read: true,
                write: true,
                execute: false,
                shared: true,
            };
            let mut region = Region::new(range, permissions);
            (region.name, region.device, region.inode) = (name.into(), device, inode);
            devices.identify(&region)
        };
        assert!(identified("/dev/zero (deleted)", device, 5));
        assert!(identified("/memfd:x (deleted)", device, 5));
        assert!(identified("/srv/file", (8, 1), 5));
        for (name, device, inode) in [
            ("/SYSV00000000 (deleted)", device, 5),
            ("/dev/zero (deleted)", (0, 2), 5),
            ("/srv/file", (8, 2), 5),
            ("", (0, 0), 0),
            ("/dev/zero (deleted)", device, 0),
        ] {
            assert!(!identified(name, device, inode), "{name}");
        }
    }

    /// What the kernel shows of such memory is what it shows of a file there.
    #[test]
    fn anonymous_shared_memory_is_known() {
        let devices = Known::default().of(std::process::id());
        let Some(device) = shared_memory() else {
            return;
        };
        assert_eq!(devices.shared_memory, Some(device));
    }
}
