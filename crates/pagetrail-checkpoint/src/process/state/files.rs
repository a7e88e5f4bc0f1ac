//! The open descriptors of a process, as far as they can be opened anew.

use super::Refused;
use crate::format::state::{FileKind, OpenFile};
use crate::sys::kcmp::same_file;
use std::fs::{self, Metadata};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

/// The most bytes of a file of `/proc/PID/fdinfo` that are read: of an epoll descriptor it has a
/// line for each file that is waited for.
const INFO_BYTES_MAX: u64 = 1 << 20;

/// Devices that have no state.
const STATELESS: [&str; 5] = [
    "/dev/null",
    "/dev/zero",
    "/dev/full",
    "/dev/random",
    "/dev/urandom",
];

/// Whether a path is of a device that has no state: opened anew, it is what it was.
pub fn is_stateless_device(path: &str) -> bool {
    STATELESS.contains(&path)
}

/// Whether a path may be a terminal's.
pub fn is_terminal_name(path: &str) -> bool {
    path.starts_with("/dev/pts/") || path.starts_with("/dev/tty")
}

/// All open descriptors, ascending.
pub(super) fn of(pid: u32) -> Result<Vec<OpenFile>, Refused> {
    let entries = fs::read_dir(format!("/proc/{pid}/fd"));
    let entries = entries.map_err(|error| format!("cannot read its descriptors: {error}"))?;
    let mut numbers: Vec<u32> = entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    numbers.sort_unstable();
    let mut files: Vec<OpenFile> = Vec::with_capacity(numbers.len());
    for number in numbers {
        let mut file = one(pid, number)?;
        file.same_as = files
            .iter()
            .find(|other| other.kind == file.kind && same_file(pid, other.number, number))
            .map(|other| other.number);
        files.push(file);
    }
    for file in &files {
        if let FileKind::Epoll { targets } = &file.kind
            && let Some((target, ..)) = targets
                .iter()
                .find(|(target, ..)| files.iter().all(|file| file.number != *target))
        {
            return Err(format!(
                "descriptor {} waits for descriptor {target}, which is closed",
                file.number
            ));
        }
    }
    for file in files.iter().filter(|file| file.is_inner_pipe(&files)) {
        check_empty(pid, file.number)?;
    }
    Ok(files)
}

/// Refuses a pipe in which bytes are on their way.
fn check_empty(pid: u32, number: u32) -> Result<(), Refused> {
    use std::os::unix::fs::OpenOptionsExt;
    let mut options = fs::OpenOptions::new();
    options.read(true).custom_flags(libc::O_NONBLOCK);
    let pipe = options.open(format!("/proc/{pid}/fd/{number}"));
    let bytes = pipe.and_then(|pipe| Ok(rustix::io::ioctl_fionread(&pipe)?));
    match bytes {
        Ok(0) => Ok(()),
        Ok(bytes) => Err(format!(
            "descriptor {number} is a pipe within the process with {bytes} unread bytes"
        )),
        Err(error) => Err(format!(
            "cannot look into the pipe of descriptor {number}: {error}"
        )),
    }
}

fn one(pid: u32, number: u32) -> Result<OpenFile, Refused> {
    let link = format!("/proc/{pid}/fd/{number}");
    let unreadable = |error| format!("cannot read its descriptor {number}: {error}");
    let target = fs::read_link(&link).map_err(unreadable)?;
    let target = target.to_string_lossy().into_owned();
    let info = info(pid, number).map_err(unreadable)?;
    let refused = |what: &str| Err(format!("descriptor {number} is {what}: {target}"));
    if info.lines().any(|line| line.starts_with("lock:")) {
        return refused("of a file on which it holds a lock");
    }
    let field = |name: &str| {
        let mut lines = info.lines();
        lines.find_map(|line| Some(line.strip_prefix(name)?.strip_prefix(':')?.trim()))
    };
    let kind = match target.split_once(':') {
        Some(("socket", _)) => return refused("a socket"),
        Some(("pipe", inode)) => FileKind::Pipe {
            inode: inode
                .trim_matches(['[', ']'])
                .parse()
                .map_err(|_| format!("descriptor {number} is a pipe of an unknown kind"))?,
        },
        Some(("anon_inode", kind)) => match special(kind, &info, &field) {
            Some(kind) => kind,
            None => return refused("of a kind that is not restored"),
        },
        _ => {
            let metadata = fs::metadata(&link).map_err(unreadable)?;
            match named(&target, &metadata) {
                Ok(kind) => kind,
                Err(what) => return refused(what),
            }
        }
    };
    Ok(OpenFile {
        number,
        flags: field("flags")
            .and_then(|text| u32::from_str_radix(text, 8).ok())
            .unwrap_or(0),
        position: field("pos").and_then(|text| text.parse().ok()).unwrap_or(0),
        same_as: None,
        kind,
    })
}

fn info(pid: u32, number: u32) -> std::io::Result<String> {
    use std::io::Read;
    let file = fs::File::open(format!("/proc/{pid}/fdinfo/{number}"))?;
    let mut bytes = Vec::new();
    file.take(INFO_BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// What has a name in the file system.
fn named(target: &str, metadata: &Metadata) -> Result<FileKind, &'static str> {
    let path = target.to_owned();
    let kind = metadata.file_type();
    if kind.is_char_device() {
        return match () {
            () if is_stateless_device(target) => Ok(FileKind::Stateless { path }),
            () if is_terminal_name(target) => Ok(FileKind::Terminal { path }),
            () => Err("a device"),
        };
    }
    if kind.is_fifo() {
        return Err("a named pipe");
    }
    if !kind.is_file() && !kind.is_dir() {
        return Err("of a kind that is not restored");
    }
    let identity = |metadata: &Metadata| (metadata.dev(), metadata.ino());
    let now = fs::metadata(Path::new(target)).map_err(|_| "of a file that has no name any more")?;
    if identity(&now) != identity(metadata) {
        return Err("of a file that has no name any more");
    }
    Ok(match kind.is_dir() {
        true => FileKind::Stateless { path },
        false => FileKind::Regular {
            path,
            bytes: metadata.len(),
        },
    })
}

/// What has no name; `proc_pid_fdinfo(5)` says what is known of it.
fn special<'a>(
    kind: &str,
    info: &'a str,
    field: &impl Fn(&str) -> Option<&'a str>,
) -> Option<FileKind> {
    let number = |name: &str| field(name)?.parse::<u64>().ok();
    match kind {
        "[eventfd]" => Some(FileKind::Counter {
            value: u64::from_str_radix(field("eventfd-count")?, 16).ok()?,
            semaphore: number("eventfd-semaphore").unwrap_or(0) != 0,
        }),
        "[timerfd]" => {
            let pair = |name: &str| {
                let inner = field(name)?.strip_prefix('(')?.strip_suffix(')')?;
                let (seconds, nanoseconds) = inner.split_once(',')?;
                Some((
                    seconds.trim().parse().ok()?,
                    nanoseconds.trim().parse().ok()?,
                ))
            };
            let flags = field("settime flags")?;
            Some(FileKind::Timer {
                clock: number("clockid")? as u32,
                ticks: number("ticks")?,
                set_flags: u32::from_str_radix(flags, 8).ok()?,
                value: pair("it_value")?,
                interval: pair("it_interval")?,
            })
        }
        "[signalfd]" => Some(FileKind::Signals {
            mask: u64::from_str_radix(field("sigmask")?, 16).ok()?,
        }),
        "[eventpoll]" => {
            let lines = info.lines().filter(|line| line.starts_with("tfd:"));
            let targets: Option<Vec<_>> = lines.map(target_of_epoll).collect();
            targets.map(|targets| FileKind::Epoll { targets })
        }
        _ => None,
    }
}

/// A line like `tfd:        5 events: 80000019 data:                5  pos:0 ino:61 sdev:7`.
fn target_of_epoll(line: &str) -> Option<(u32, u32, u64)> {
    let value = |name: &str| {
        let rest = line.split_once(name)?.1.trim_start();
        rest.split_whitespace().next()
    };
    Some((
        value("tfd:")?.parse().ok()?,
        u32::from_str_radix(value("events:")?, 16).ok()?,
        u64::from_str_radix(value("data:")?, 16).ok()?,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_epoll_waits_for_is_read() {
        let line = "tfd:        5 events: 80000019 data:               5f  pos:0 ino:61 sdev:7";
        assert_eq!(target_of_epoll(line), Some((5, 0x8000_0019, 0x5f)));
        assert_eq!(target_of_epoll("tfd: x"), None);
    }
}
