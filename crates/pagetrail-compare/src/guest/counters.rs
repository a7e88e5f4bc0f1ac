//! [`Counters`]: what KVM counts of one virtual machine, in `kvm/PID-FD` of debugfs: exits of some
//! kinds, page faults of the guest, and what its MMU does. Root alone may read it.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

/// Where debugfs is.
const DIRECTORY: &str = "/sys/kernel/debug/kvm";

/// The counters at an instant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters(BTreeMap<String, i64>);

impl Counters {
    /// The counters of the virtual machines of a process.
    ///
    /// # Errors
    ///
    /// The directory cannot be listed, or has no virtual machine of this process.
    pub fn of(pid: u32) -> io::Result<Self> {
        Self::below(Path::new(DIRECTORY), pid)
    }

    fn below(directory: &Path, pid: u32) -> io::Result<Self> {
        let own = format!("{pid}-");
        let mut counters = BTreeMap::new();
        let mut is_there = false;
        for machine in fs::read_dir(directory)? {
            let machine = machine?;
            if !machine.file_name().to_string_lossy().starts_with(&own) {
                continue;
            }
            is_there = true;
            for file in fs::read_dir(machine.path())? {
                let file = file?;
                let name = file.file_name().to_string_lossy().into_owned();
                // The most that there ever was, not a count.
                if name.starts_with("max_") {
                    continue;
                }
                // Directories of virtual processors, and files of several numbers, are left out.
                let text = fs::read_to_string(file.path()).unwrap_or_default();
                if let Ok(count) = text.trim().parse::<i64>() {
                    *counters.entry(name).or_default() += count;
                }
            }
        }
        match is_there {
            true => Ok(Self(counters)),
            false => Err(io::ErrorKind::NotFound.into()),
        }
    }

    /// What has changed since then, and by how much.
    pub fn since(&self, before: &Self) -> BTreeMap<String, i64> {
        let changes = self.0.iter().map(|(name, count)| {
            let change = count - before.0.get(name).unwrap_or(&0);
            (name.clone(), change)
        });
        changes.filter(|(_, change)| *change != 0).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_of_one_process_are_read_and_subtracted() {
        let directory = std::env::temp_dir().join(format!("counters-{}", std::process::id()));
        let file = |machine: &str, name: &str, text: &str| {
            fs::create_dir_all(directory.join(machine)).expect("it can be made");
            fs::write(directory.join(machine).join(name), text).expect("it can be written");
        };
        file("7-11", "exits", "100\n");
        file("7-11", "pages_4k", "12\n");
        file("7-11", "mmu_unsync", "0\n");
        file("7-11", "max_mmu_rmap_size", "9\n");
        file("7-11", "halt_poll_success_hist", "1 2 3\n");
        file("7-11/vcpu0", "tsc-offset", "-5\n");
        file("77-11", "exits", "5000\n");
        let before = Counters::below(&directory, 7).expect("it is there");
        file("7-11", "exits", "142\n");
        file("7-11", "pages_4k", "2\n");
        let after = Counters::below(&directory, 7).expect("it is there");
        assert!(Counters::below(&directory, 8).is_err());
        fs::remove_dir_all(&directory).expect("it can be removed");
        let changes = BTreeMap::from([("exits".to_owned(), 42), ("pages_4k".to_owned(), -10)]);
        assert_eq!(after.since(&before), changes);
    }
}
