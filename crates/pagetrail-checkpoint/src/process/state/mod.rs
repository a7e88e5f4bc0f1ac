//! Finding out a [`ProcessState`]: what it takes to start a process anew, from `/proc`. What cannot
//! be started anew is refused, by its name.

pub(crate) mod files;
mod listeners;
pub(crate) mod memory;
#[cfg(target_arch = "x86_64")]
pub(super) mod padding;
mod sockets;
mod threads;

use crate::error::{Error, Result};
use crate::format::mapped_file::MappedFile;
use crate::format::state::{Credentials, MemoryParts, ProcessState};
use memory::Motion;
use pagetrail::Region;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

/// Why a process cannot be started anew, as the end of a sentence about it.
pub(super) type Refused = String;

/// The namespaces that must be the ones of who takes the checkpoint: it is restored in these.
const NAMESPACES: [&str; 7] = ["mnt", "pid", "user", "ipc", "uts", "net", "time"];

/// Checks that a process could be started anew from a checkpoint that is taken now.
///
/// # Errors
///
/// It could not: one line says why. At another instant it could ([`Error::NotNow`]).
pub fn check_restartable(pid: u32) -> Result<()> {
    let memory = pagetrail::Memory::of(pid)?;
    // It runs meanwhile, so that what belongs together may not be seen together.
    for _ in 1..LOOKS {
        match look(pid, &memory.mappings()?, Motion::Runs) {
            Err(Error::Refused(_)) => std::thread::sleep(BETWEEN_LOOKS),
            outcome => return outcome.map(drop),
        }
    }
    look(pid, &memory.mappings()?, Motion::Runs).map(drop)
}

/// How often a process that runs is looked at before it is refused, and the time in between.
const LOOKS: u32 = 5;
const BETWEEN_LOOKS: Duration = Duration::from_millis(1);

/// What `/proc` says of a process; that which the kernel tells only itself is missing.
pub(super) fn of(pid: u32, regions: &[Region]) -> Result<ProcessState> {
    look(pid, regions, Motion::AtRest)
}

fn look(pid: u32, regions: &[Region], motion: Motion) -> Result<ProcessState> {
    let mut obstacle = None;
    let found = refuse_others(pid)
        .and_then(|()| check_mappings(regions))
        .and_then(|()| read(pid, regions, motion, &mut obstacle));
    let found = found.map_err(|reason| refusal(pid, &reason))?;
    match obstacle {
        None => Ok(found),
        Some(reason) => Err(Error::NotNow(format!(
            "process {pid} could not be started anew from a checkpoint of this instant: {reason}"
        ))),
    }
}

pub(super) fn refusal(pid: u32, reason: &str) -> Error {
    Error::Refused(format!(
        "process {pid} could not be started anew from a checkpoint: {reason}"
    ))
}

fn text(pid: u32, name: &str) -> Result<String, Refused> {
    let bytes = fs::read(format!("/proc/{pid}/{name}"));
    let bytes = bytes.map_err(|error| format!("cannot read its {name} in /proc: {error}"))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The value of a line of `/proc/PID/status` and similar files.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let mut lines = text.lines();
    lines.find_map(|line| Some(line.strip_prefix(name)?.strip_prefix(':')?.trim()))
}

/// Refuses what nothing here restores.
fn refuse_others(pid: u32) -> Result<(), Refused> {
    for name in NAMESPACES {
        let (its, ours) = (
            fs::read_link(format!("/proc/{pid}/ns/{name}")),
            fs::read_link(format!("/proc/self/ns/{name}")),
        );
        match (its, ours) {
            (Ok(its), Ok(ours)) if its != ours => {
                return Err(format!("it is in another {name} namespace"));
            }
            (Err(error), Ok(_)) => return Err(format!("cannot read its namespaces: {error}")),
            _ => {}
        }
    }
    threads::check(pid)?;
    if let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) {
        for task in tasks.flatten() {
            let children = fs::read_to_string(task.path().join("children")).unwrap_or_default();
            if let Some(child) = children.split_whitespace().next() {
                let name = fs::read(format!("/proc/{child}/comm")).unwrap_or_default();
                let name = String::from_utf8_lossy(name.trim_ascii_end()).into_owned();
                return Err(format!("it has a child, process {child} ({name})"));
            }
        }
    }
    let timers = text(pid, "timers").unwrap_or_default();
    if !timers.is_empty() {
        return Err("it has a timer of timer_create(2)".into());
    }
    let executable = fs::read_link(format!("/proc/{pid}/exe"));
    let executable = executable.map_err(|error| format!("cannot read its executable: {error}"))?;
    if executable.to_string_lossy().ends_with(" (deleted)") {
        return Err(format!("its executable is gone: {}", executable.display()));
    }
    match fs::read_link(format!("/proc/{pid}/root")) {
        Ok(root) if root.as_os_str() == "/" => Ok(()),
        _ => Err("it has another root directory".into()),
    }
}

/// Refuses mappings that nothing here restores.
fn check_mappings(regions: &[Region]) -> Result<(), Refused> {
    let known = [
        "",
        "[heap]",
        "[stack]",
        "[vdso]",
        "[vvar]",
        "[vvar_vclock]",
        "[vsyscall]",
    ];
    for region in regions {
        let name = region.name.as_str();
        let what = if region.inode == 0 {
            match known.contains(&name) || name.starts_with("[anon:") || !region.permissions.shared
            {
                true if !name.starts_with("anon_inode:") && name != "[uprobes]" => continue,
                _ => "a mapping of a kind that is not restored",
            }
        } else if name.starts_with("/SYSV") {
            "System V shared memory"
        } else if is_shared_anonymous(name) || memory::is_memfd(name) {
            continue;
        } else if name.starts_with("/anon_hugepage") {
            "huge pages of hugetlbfs"
        } else if name.starts_with("/[aio]") {
            "asynchronous I/O"
        } else if name.starts_with("/dev/") && !name.starts_with("/dev/shm/") {
            "a device"
        } else if name.ends_with(" (deleted)") {
            "a file that is gone"
        } else if name.contains('\u{fffd}') {
            "a file whose name is no text"
        } else if name.contains("\\012") {
            // As /proc shows it; a name with a backslash looks the same.
            "a file whose name has a line break"
        } else if name.starts_with('/') {
            continue;
        } else {
            "a mapping of a kind that is not restored"
        };
        return Err(format!("it has mapped {what}: {} {name}", region.range));
    }
    Ok(())
}

/// Whether a mapping is `MAP_SHARED | MAP_ANONYMOUS`, by its name.
pub fn is_shared_anonymous(name: &str) -> bool {
    name == "/dev/zero (deleted)" || name.starts_with("[anon_shmem:")
}

/// `obstacle`: what may be otherwise at another instant.
fn read(
    pid: u32,
    regions: &[Region],
    motion: Motion,
    obstacle: &mut Option<Refused>,
) -> Result<ProcessState, Refused> {
    let stat = text(pid, "stat")?;
    let fields: Vec<&str> = stat
        .rsplit(')')
        .next()
        .unwrap_or_default()
        .split_whitespace()
        .collect();
    // `proc_pid_stat(5)` counts from 1, and the first field here is the third.
    let number = |field: usize| -> u64 {
        let text = fields.get(field - 3);
        text.and_then(|text| text.parse().ok()).unwrap_or(0)
    };
    let status = text(pid, "status")?;
    let directory = fs::read_link(format!("/proc/{pid}/cwd"));
    let directory = directory.map_err(|error| format!("cannot read its directory: {error}"))?;
    let directory = directory
        .to_str()
        .filter(|path| !path.ends_with(" (deleted)"))
        .ok_or("its working directory is gone")?;
    let octal = |text: &str| u32::from_str_radix(text, 8).ok();
    let personality = text(pid, "personality").unwrap_or_default();
    let credentials = credentials(&status).ok_or("its credentials cannot be read")?;
    let memory = memory::of(pid, regions, motion)?;
    let (files, mut objects) = files::of(pid, &memory, motion, obstacle)?;
    objects.memory = memory.into_iter().map(|readable| readable.memory).collect();
    Ok(ProcessState {
        kernel: Default::default(),
        parts: MemoryParts {
            code: (number(26), number(27)),
            data: (number(45), number(46)),
            heap_start: number(47),
            stack_start: number(28),
            arguments: (number(48), number(49)),
            environment: (number(50), number(51)),
        },
        directory: directory.into(),
        umask: field(&status, "Umask").and_then(octal).unwrap_or(0o22),
        personality: u32::from_str_radix(personality.trim(), 16).unwrap_or(0),
        leads_session: number(6) == u64::from(pid),
        leads_group: number(5) == u64::from(pid),
        limits: limits(&text(pid, "limits")?),
        dumpable: is_dumpable(pid, &credentials),
        credentials,
        mapped: mapped(regions)?,
        may_become_writable: may_become_writable(pid, regions),
        files,
        objects,
    })
}

/// Whether others of its user may look into it: its files in `/proc` are this user's then, else
/// root's. Of a process of root nothing shows it.
fn is_dumpable(pid: u32, credentials: &Credentials) -> bool {
    let [_, effective, ..] = credentials.users;
    fs::metadata(format!("/proc/{pid}/status")).is_ok_and(|file| file.uid() == effective)
}

/// The files of private mappings, as they are now.
fn mapped(regions: &[Region]) -> Result<Vec<MappedFile>, Refused> {
    let private = regions.iter().filter(|region| !region.permissions.shared);
    let names: BTreeSet<&str> = private
        .filter(|region| {
            region.inode != 0 && region.name.starts_with('/') && !memory::is_memfd(&region.name)
        })
        .map(|region| region.name.as_str())
        .collect();
    let describe = |name| match fs::metadata(name) {
        Ok(metadata) => Ok(MappedFile::of(name, &metadata)),
        Err(error) => Err(format!("it has mapped {name}, which is hidden: {error}")),
    };
    names.into_iter().map(describe).collect()
}

/// Shared mappings of files that are not writable, but whose file was opened for writing
/// (`/proc/PID/map_files` shows how): `mprotect(2)` may make these writable.
fn may_become_writable(pid: u32, regions: &[Region]) -> Vec<u64> {
    const OWNER_MAY_WRITE: u32 = 0o200;
    let opened_for_writing = |region: &&Region| {
        let (start, end) = (region.range.start(), region.range.end());
        fs::symlink_metadata(format!("/proc/{pid}/map_files/{start:x}-{end:x}"))
            .is_ok_and(|link| link.mode() & OWNER_MAY_WRITE != 0)
    };
    let shared = regions.iter().filter(|region| {
        let rights = region.permissions;
        region.inode != 0 && rights.shared && !rights.write
    });
    let found = shared.filter(opened_for_writing);
    found.map(|region| region.range.start()).collect()
}

/// The lines of `/proc/PID/limits`, by the numbers of `RLIMIT_*` on x86-64.
const LIMITS: [&str; 16] = [
    "Max cpu time",
    "Max file size",
    "Max data size",
    "Max stack size",
    "Max core file size",
    "Max resident set",
    "Max processes",
    "Max open files",
    "Max locked memory",
    "Max address space",
    "Max file locks",
    "Max pending signals",
    "Max msgqueue size",
    "Max nice priority",
    "Max realtime priority",
    "Max realtime timeout",
];

fn limits(text: &str) -> Vec<(u64, u64)> {
    let of = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        let mut words = line.unwrap_or_default().split_whitespace();
        let mut word = || words.next().and_then(|word| word.parse().ok());
        (word().unwrap_or(u64::MAX), word().unwrap_or(u64::MAX))
    };
    LIMITS.iter().map(|name| of(name)).collect()
}

/// Who a process is for the kernel; `None` if it cannot be read.
pub fn credentials_of(pid: u32) -> Option<Credentials> {
    credentials(&text(pid, "status").ok()?)
}

fn credentials(status: &str) -> Option<Credentials> {
    let numbers = |name: &str| -> Vec<u32> {
        let words = field(status, name).unwrap_or_default().split_whitespace();
        words.filter_map(|word| word.parse().ok()).collect()
    };
    let set = |name: &str| u64::from_str_radix(field(status, name)?, 16).ok();
    Some(Credentials {
        users: numbers("Uid").try_into().ok()?,
        groups: numbers("Gid").try_into().ok()?,
        supplementary: numbers("Groups"),
        capabilities: [
            set("CapInh")?,
            set("CapPrm")?,
            set("CapEff")?,
            set("CapBnd")?,
            set("CapAmb").unwrap_or(0),
        ],
        no_new_privileges: field(status, "NoNewPrivs") == Some("1"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_read_by_their_names() {
        let text = "Limit                     Soft Limit           Hard Limit           Units     \n\
            Max cpu time              unlimited            unlimited            seconds   \n\
            Max open files            1024                 4096                 files     \n\
            Max realtime timeout      7                    unlimited            us        \n";
        let limits = limits(text);
        assert_eq!(limits[7], (1024, 4096));
        assert_eq!(limits[0], (u64::MAX, u64::MAX));
        assert_eq!(limits[15], (7, u64::MAX));
    }
}
