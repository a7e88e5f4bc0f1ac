//! Virtual machine monitors on KVM (QEMU, Firecracker, Cloud Hypervisor ..) from outside: which
//! processes are some, what their guests are called, and where guest memory lies in them.
//!
//! The kernel does not list the memslots of another process. QEMU marks the memory of its memslots
//! (`MADV_DONTFORK`, `dc` among the flags in `/proc/PID/smaps`); of other monitors guest memory is
//! taken to be every large writable mapping that is not of a file on a disk.

use std::fs;
use std::io;
use std::path::Path;

use pagetrail::{PageRange, PageSet};

/// Mappings that a guest could run in, of monitors that mark none.
const LARGE_BYTES: u64 = 16 << 20;
/// Of marked mappings, smaller ones are firmware and registers, which are used all the time.
const MARKED_BYTES: u64 = 1 << 20;

/// Whether a process has a virtual machine of KVM.
pub fn is_monitor(pid: u32) -> bool {
    has_vm(Path::new(&format!("/proc/{pid}/fd")))
}

fn has_vm(descriptors: &Path) -> bool {
    let entries = fs::read_dir(descriptors).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| fs::read_link(entry.path()).ok())
        .any(|link| link.as_os_str() == "anon_inode:kvm-vm")
}

/// The name of the guest, as its monitor was given it.
pub fn guest_name(pid: u32) -> Option<String> {
    name_of(&pagetrail::command_line(pid))
}

/// By the command line: `-name` of QEMU (libvirt sets `guest=`), `--id` of Firecracker.
fn name_of(line: &[String]) -> Option<String> {
    let mut words = line.iter().map(String::as_str);
    let mut name = None;
    while let Some(word) = words.next() {
        name = match word {
            "-name" | "--name" => words.next().and_then(qemu_name),
            "--id" => words.next().map(str::to_owned),
            _ => word.strip_prefix("--id=").map(str::to_owned),
        };
        if name.is_some() {
            break;
        }
    }
    name.filter(|name| !name.is_empty())
}

/// `NAME`, or `guest=NAME`, among other parameters.
fn qemu_name(value: &str) -> Option<String> {
    let mut parameters = value.split(',');
    let first = value.split(',').next().filter(|first| !first.contains('='));
    let guest = parameters.find_map(|parameter| parameter.strip_prefix("guest="));
    guest.or(first).map(str::to_owned)
}

/// The text of a monitor's `smaps`. The kernel walks page tables for it.
pub(crate) fn smaps(pid: u32) -> io::Result<String> {
    let bytes = fs::read(format!("/proc/{pid}/smaps"))?;
    // Names of files may be any bytes.
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The addresses of guest memory in a monitor, by the text of its `smaps`.
pub(crate) fn guest_memory(smaps: &str) -> PageSet {
    guest_mappings(smaps).into_iter().collect()
}

/// The mappings that it consists of, ascending.
pub(crate) fn guest_mappings(smaps: &str) -> Vec<PageRange> {
    let mut mappings: Vec<Mapping> = Vec::new();
    for line in smaps.lines() {
        if let Some(mapping) = Mapping::parse(line) {
            mappings.push(mapping);
        } else if let (Some(flags), Some(last)) =
            (line.strip_prefix("VmFlags:"), mappings.last_mut())
        {
            last.is_marked = flags.split_whitespace().any(|flag| flag == "dc");
        }
    }
    let memory = mappings.iter().filter(|mapping| mapping.is_memory);
    let marked = memory
        .clone()
        .filter(|mapping| mapping.is_marked && mapping.range.bytes() >= MARKED_BYTES);
    let marked: Vec<PageRange> = marked.map(|mapping| mapping.range).collect();
    if !marked.is_empty() {
        return marked;
    }
    memory
        .filter(|mapping| mapping.range.bytes() >= LARGE_BYTES)
        .map(|mapping| mapping.range)
        .collect()
}

struct Mapping {
    range: PageRange,
    /// Whether it is writable, and memory of a kind that guests are given.
    is_memory: bool,
    is_marked: bool,
}

impl Mapping {
    /// A line such as `7f0000000000-7f0010000000 rw-p 00000000 00:00 0 [heap]`.
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split_whitespace();
        let (start, end) = words.next()?.split_once('-')?;
        let number = |text| u64::from_str_radix(text, 16).ok();
        let range = PageRange::new(number(start)?, number(end)?)?;
        let permissions = words.next()?;
        let name = words.nth(3).unwrap_or_default();
        let anonymous = name.is_empty() || name.starts_with("[anon");
        // Shared memory is not on a disk; hugetlbfs is mounted at any place.
        let shared = [
            "/memfd:",
            "/dev/shm/",
            "/dev/hugepages",
            "/dev/zero",
            "/SYSV",
        ];
        let shared = shared.iter().any(|prefix| name.starts_with(prefix));
        Some(Self {
            range,
            is_memory: permissions.starts_with("rw") && (anonymous || shared),
            is_marked: false,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guests_are_called_as_their_monitors_say() {
        let name = |line: &str| {
            let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
            name_of(&words)
        };
        let some = |name: &str| Some(name.to_owned());
        assert_eq!(
            name("qemu -name guest=web1,debug-threads=on -m 1G"),
            some("web1")
        );
        assert_eq!(name("qemu -m 1G -name web2"), some("web2"));
        assert_eq!(name("qemu -name web3,process=q"), some("web3"));
        assert_eq!(name("firecracker --id abc --api-sock s"), some("abc"));
        assert_eq!(name("firecracker --id=abc"), some("abc"));
        for nameless in [
            "qemu -m 1G",
            "qemu -name",
            "qemu -name debug-threads=on",
            "x --id=",
        ] {
            assert_eq!(name(nameless), None, "{nameless}");
        }
    }

    fn mapping(range: &str, permissions: &str, name: &str, flags: &str) -> String {
        format!(
            "{range} {permissions} 00000000 00:01 77   {name}\nSize: 4 kB\nRss: 4 kB\nVmFlags: {flags}\n"
        )
    }

    fn set(ranges: &[(u64, u64)]) -> PageSet {
        let ranges = ranges.iter();
        ranges
            .filter_map(|(start, end)| PageRange::new(*start, *end))
            .collect()
    }

    #[test]
    fn marked_mappings_are_guest_memory() {
        let smaps = [
            mapping("10000000-20000000", "rw-p", "[heap]", "rd wr mr mw me ac"),
            mapping(
                "7f0000000000-7f0040000000",
                "rw-p",
                "",
                "rd wr mr mw me dc ac hg",
            ),
            // Firmware, and memory of a device that is read only.
            mapping(
                "7f0050000000-7f0050020000",
                "rw-p",
                "",
                "rd wr mr mw me dc ac",
            ),
            mapping("7f0060000000-7f0061000000", "r--p", "", "rd mr mw me dc ac"),
            mapping(
                "7f0070000000-7f0090000000",
                "rw-s",
                "/memfd:ram",
                "rd wr sh mr mw dc",
            ),
            mapping("7f00a0000000-7f00b0000000", "rw-p", "", "rd wr mr mw me ac"),
        ]
        .concat();
        let expected = [
            (0x7f00_0000_0000, 0x7f00_4000_0000),
            (0x7f00_7000_0000, 0x7f00_9000_0000),
        ];
        assert_eq!(guest_memory(&smaps), set(&expected));
    }

    #[test]
    fn without_marks_large_mappings_without_a_disk_are() {
        let smaps = [
            mapping("10000000-20000000", "rw-p", "[heap]", "rd wr"),
            mapping(
                "7f0000000000-7f0008000000",
                "rw-s",
                "/memfd:guest_mem (deleted)",
                "rd wr sh",
            ),
            mapping("7f0010000000-7f0010100000", "rw-p", "", "rd wr"),
            mapping(
                "7f0020000000-7f0030000000",
                "rw-s",
                "/var/lib/disk.img",
                "rd wr sh",
            ),
            mapping("7f0040000000-7f0050000000", "---p", "", "mr mw"),
        ]
        .concat();
        assert_eq!(
            guest_memory(&smaps),
            set(&[(0x7f00_0000_0000, 0x7f00_0800_0000)])
        );
        for nonsense in ["", "VmFlags: dc", "x-y rw-p", "20-10 rw-p 0 0 0\n", "\u{0}"] {
            assert!(guest_memory(nonsense).is_empty(), "{nonsense:?}");
        }
    }

    #[test]
    fn a_process_without_a_virtual_machine_is_none() {
        assert!(!is_monitor(std::process::id()));
        assert!(!is_monitor(u32::MAX));
        let directory = tempfile::tempdir().unwrap();
        let link = directory.path().join("7");
        std::os::unix::fs::symlink("anon_inode:kvm-vm", link).unwrap();
        assert!(has_vm(directory.path()));
    }
}
