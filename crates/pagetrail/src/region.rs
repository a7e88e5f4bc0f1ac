//! [`Region`]: a mapping (VMA) of a process, as `proc_pid_maps(5)` describes it.

use crate::page_set::PageRange;
use crate::proc::map_files;
use std::fmt;

/// The access rights of a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Permissions {
    /// The memory can be read (`PROT_READ`).
    pub read: bool,
    /// The memory can be written (`PROT_WRITE`).
    pub write: bool,
    /// The memory can be executed (`PROT_EXEC`).
    pub execute: bool,
    /// The mapping is shared (`MAP_SHARED`): stores reach the file, or the other processes that map
    /// it.
    pub shared: bool,
}

impl Permissions {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        match text.as_bytes() {
            [r, w, x, s, ..] => Some(Self {
                read: *r == b'r',
                write: *w == b'w',
                execute: *x == b'x',
                shared: *s == b's',
            }),
            _ => None,
        }
    }
}

impl fmt::Display for Permissions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let flag = |set, c| if set { c } else { '-' };
        let sharing = if self.shared { 's' } else { 'p' };
        write!(
            f,
            "{}{}{}{sharing}",
            flag(self.read, 'r'),
            flag(self.write, 'w'),
            flag(self.execute, 'x')
        )
    }
}

/// A mapping of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Region {
    /// The mapped addresses.
    pub range: PageRange,
    /// The access rights of the mapping.
    pub permissions: Permissions,
    /// The offset into the mapped file, in bytes.
    pub offset: u64,
    /// The major and minor number of the mapped file's device.
    pub device: (u32, u32),
    /// The inode of the mapped file, 0 for anonymous memory.
    pub inode: u64,
    /// The path of the mapped file, the kernel's name in brackets, or empty.
    pub name: String,
}

impl Region {
    /// A region of anonymous memory; set the other fields for a mapped file or a name.
    pub fn new(range: PageRange, permissions: Permissions) -> Self {
        Self {
            range,
            permissions,
            offset: 0,
            device: (0, 0),
            inode: 0,
            name: String::new(),
        }
    }

    /// Whether the page tables record writes to this memory.
    ///
    /// Devices and kernel rings (`/dev/..`, `anon_inode:..`) are written without the page tables,
    /// and the kernel's own pages (`[vvar]`, `[vsyscall]`) do not belong to the program.
    pub fn is_trackable(&self) -> bool {
        let memory_in_dev = [
            "/dev/shm/",
            "/dev/zero",
            "/dev/hugepages/",
            "/dev/hugepages1G/",
        ];
        let device = self.name.starts_with("/dev/")
            && !memory_in_dev.iter().any(|p| self.name.starts_with(p));
        let kernel = ["[vvar", "[vsyscall]", "[vdso]", "anon_inode:"]
            .iter()
            .any(|p| self.name.starts_with(p));
        !device && !kernel
    }

    /// Whether this is hugetlb memory of `pid` (`None`: the own process).
    pub(crate) fn is_hugetlb(&self, pid: Option<u32>) -> bool {
        const HUGETLBFS_MAGIC: i64 = 0x9584_58f6;
        if self.inode == 0 {
            return false;
        }
        match rustix::fs::statfs(map_files::link(pid, self.range)) {
            Ok(file_system) => file_system.f_type == HUGETLBFS_MAGIC,
            Err(_) => {
                self.name.starts_with("/anon_hugepage") || self.name.starts_with("/dev/hugepages")
            }
        }
    }

    /// A region that describes anonymous memory which was just mapped.
    pub(crate) fn scratch(range: PageRange) -> Self {
        let permissions = Permissions {
            read: true,
            write: true,
            execute: false,
            shared: false,
        };
        Self::new(range, permissions)
    }

    /// The part of this mapping in `range`, with its file offset; `None` if they do not overlap.
    pub fn cut(&self, range: PageRange) -> Option<Self> {
        let range = self.range.intersection(&range)?;
        let offset = if self.inode == 0 {
            0
        } else {
            self.offset + (range.start() - self.range.start())
        };
        Some(Self {
            range,
            offset,
            ..self.clone()
        })
    }
}

impl fmt::Display for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.range, self.permissions, self.name)
    }
}
