//! The open descriptors of a process, as far as they can be opened anew.

use super::memory::{Motion, Readable, is_memfd};
use super::{Refused, listeners, sockets};
use crate::format::objects::{Objects, PipeContents};
use crate::format::open_file::{FileKind, OpenFile};
use crate::sys::kcmp::same_file;
use std::cell::Cell;
use std::fs::{self, Metadata};
use std::io;
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

/// By this flag of its end for writing a pipe keeps packets apart.
const DIRECT: u32 = libc::O_DIRECT as u32;

/// How much a pipe holds where nobody has set its size, in bytes (`pipe(7)`).
const PIPE_BYTES: usize = 1 << 16;

/// All open descriptors, ascending, and what those of them hold that lead to objects of the kernel;
/// of its shared `memory` the descriptors name the places. `obstacle`: what may be otherwise at
/// another instant.
pub(super) fn of(
    pid: u32,
    memory: &[Readable],
    motion: Motion,
    obstacle: &mut Option<Refused>,
) -> Result<(Vec<OpenFile>, Objects), Refused> {
    let entries = fs::read_dir(format!("/proc/{pid}/fd"));
    let entries = entries.map_err(|error| format!("cannot read its descriptors: {error}"))?;
    let mut numbers: Vec<u32> = entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    numbers.sort_unstable();
    let mut files: Vec<OpenFile> = Vec::with_capacity(numbers.len());
    let mut objects = Objects::default();
    for number in numbers {
        let target = || fs::read_link(format!("/proc/{pid}/fd/{number}")).ok();
        let (before, has_changed) = (target(), Cell::new(false));
        let mut file = match one(pid, number, memory, &mut objects, obstacle, &has_changed) {
            // It may have been closed, or opened, since it was listed.
            Err(_) if motion == Motion::Runs && (has_changed.get() || target() != before) => {
                continue;
            }
            file => file?,
        };
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
        if let FileKind::Pipe { inode } = file.kind
            && objects.pipes.iter().all(|pipe| pipe.inode != inode)
        {
            let pipe = contents(pid, file.number, inode).map_err(|error| {
                format!(
                    "cannot look into the pipe of descriptor {}: {error}",
                    file.number
                )
            })?;
            let in_packets = |end: &OpenFile| {
                end.kind == file.kind && end.is_write_only() && end.flags & DIRECT != 0
            };
            if !pipe.unread.is_empty() && files.iter().any(in_packets) {
                obstacle.get_or_insert_with(|| {
                    format!(
                        "descriptor {} is a pipe with packets that nobody has read",
                        file.number
                    )
                });
            }
            let is_ordinary = pipe.unread.is_empty() && pipe.capacity as usize == PIPE_BYTES;
            if !is_ordinary {
                objects.pipes.push(pipe);
            }
        }
    }
    for socket in objects.sockets.iter().filter(|socket| socket.peer != 0) {
        if objects.sockets.iter().all(|peer| peer.inode != socket.peer) {
            let file = files.iter().find(|file| {
                file.kind
                    == FileKind::Socket {
                        inode: socket.inode,
                    }
            });
            return Err(format!(
                "descriptor {} is a socket whose peer is another process's",
                file.map_or(0, |file| file.number)
            ));
        }
    }
    Ok((files, objects))
}

/// What a pipe holds, which it holds still.
fn contents(pid: u32, number: u32, inode: u64) -> std::io::Result<PipeContents> {
    use rustix::pipe::{
        PipeFlags, SpliceFlags, fcntl_getpipe_size, fcntl_setpipe_size, pipe_with, tee,
    };
    use std::io::Read;
    use std::os::unix::fs::OpenOptionsExt;
    let mut options = fs::OpenOptions::new();
    options.read(true).custom_flags(libc::O_NONBLOCK);
    let pipe = options.open(format!("/proc/{pid}/fd/{number}"))?;
    let capacity = fcntl_getpipe_size(&pipe)?;
    let bytes = rustix::io::ioctl_fionread(&pipe)? as usize;
    let mut unread = vec![0; bytes];
    if bytes != 0 {
        let (output, input) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        if fcntl_getpipe_size(&input)? < capacity {
            fcntl_setpipe_size(&input, capacity)?;
        }
        if tee(&pipe, &input, bytes, SpliceFlags::NONBLOCK)? != bytes {
            return Err(std::io::Error::other("it holds more than can be copied"));
        }
        fs::File::from(output).read_exact(&mut unread)?;
    }
    Ok(PipeContents {
        inode,
        capacity: capacity as u32,
        unread,
    })
}

/// One descriptor. `has_changed` where it is refused since it is closed by now, or leads to what
/// was not there a moment ago.
fn one(
    pid: u32,
    number: u32,
    memory: &[Readable],
    objects: &mut Objects,
    obstacle: &mut Option<Refused>,
    has_changed: &Cell<bool>,
) -> Result<OpenFile, Refused> {
    let link = format!("/proc/{pid}/fd/{number}");
    let unreadable = |error: io::Error| {
        has_changed.set(has_changed.get() || error.kind() == io::ErrorKind::NotFound);
        format!("cannot read its descriptor {number}: {error}")
    };
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
        Some(("socket", inode)) => {
            let Some(inode) = number_of(inode) else {
                return refused("a socket");
            };
            if let Some(listener) = listeners::of(pid, number, obstacle)? {
                FileKind::Listener(listener)
            } else {
                if objects.sockets.iter().all(|socket| socket.inode != inode) {
                    match sockets::of(pid, number, inode, obstacle)? {
                        Some(socket) => objects.sockets.push(socket),
                        None => return refused("a socket"),
                    }
                }
                FileKind::Socket { inode }
            }
        }
        Some(("pipe", inode)) => FileKind::Pipe {
            inode: number_of(inode)
                .ok_or_else(|| format!("descriptor {number} is a pipe of an unknown kind"))?,
        },
        Some(("anon_inode", kind)) => match special(kind, &info, &field) {
            Some(kind) => kind,
            None => return refused("of a kind that is not restored"),
        },
        _ if is_memfd(&target) => {
            let metadata = fs::metadata(&link).map_err(unreadable)?;
            let device = (
                rustix::fs::major(metadata.dev()),
                rustix::fs::minor(metadata.dev()),
            );
            let key = (device, metadata.ino());
            match memory.iter().position(|memory| memory.key() == key) {
                Some(index) => FileKind::Memory {
                    index: index as u32,
                },
                None => {
                    has_changed.set(true);
                    return refused("of shared memory that has just come");
                }
            }
        }
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

/// The inode in a link like `pipe:[123]`, after the colon.
fn number_of(inode: &str) -> Option<u64> {
    inode.trim_matches(['[', ']']).parse().ok()
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
