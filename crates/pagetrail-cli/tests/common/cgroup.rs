//! [`Cgroup`]: a control group that ends with its test.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// A control group of version 2 that is removed at the end; `None` where none can be made.
pub(crate) struct Cgroup(PathBuf);

impl Cgroup {
    pub(crate) fn new() -> Option<Self> {
        let mounts = fs::read_to_string("/proc/mounts").ok()?;
        let mount = mounts.lines().find(|line| line.contains(" cgroup2 "))?;
        let mount = Path::new(mount.split(' ').nth(1)?);
        // Tests of one file run at once.
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = mount.join(format!("pagetrail-test-{}-{number}", std::process::id()));
        fs::create_dir(&path).ok()?;
        Some(Self(path))
    }

    /// Its directory.
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Moves a process into it.
    pub(crate) fn take(&self, pid: u32) {
        fs::write(self.0.join("cgroup.procs"), pid.to_string()).expect("it takes a process");
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let deadline = Instant::now() + Duration::from_secs(120);
        while fs::remove_dir(&self.0).is_err() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
