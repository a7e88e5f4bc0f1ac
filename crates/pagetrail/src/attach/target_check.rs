//! Whether a process can be watched at all, and if not, the one clear reason.

use super::stop::Backoff;
use crate::error::{Error, Result};
use crate::proc::status::{Status, memory_id, stat_fields};
use crate::sys::same_memory::share_memory;
use rustix::io::Errno;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::Path;
use std::time::{Duration, Instant};

/// The inode of the first PID namespace (`PROC_PID_INIT_INO` in `include/linux/proc_ns.h`).
const FIRST_PID_NAMESPACE: &str = "pid:[4026531836]";

/// Refuses processes that cannot be watched by any technique.
pub(crate) fn check(pid: u32) -> Result<()> {
    if pid == std::process::id() {
        return Err(Error::OwnProcess { pid });
    }
    if pid == 0 || i32::try_from(pid).is_err() {
        return Err(Error::NoSuchProcess { pid });
    }
    let status = match Status::of(pid) {
        Ok(status) => status,
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            return Err(permission(pid, "read the state"));
        }
        Err(error) if is_missing(&error) => return Err(Error::NoSuchProcess { pid }),
        // No descriptors are left (ulimit -n), or no memory: that says nothing about the process.
        Err(error) => {
            return Err(Error::io(format!("reading the state of process {pid}"))(
                error,
            ));
        }
    };
    if matches!(status.state, 'Z' | 'X') {
        return Err(Error::NoSuchProcess { pid });
    }
    if !status.has_memory {
        return Err(match is_kernel_thread(pid) {
            true => Error::KernelThread { pid },
            false => Error::NoSuchProcess { pid },
        });
    }
    if pid == 1 && first_pid_namespace() {
        // In a container PID 1 is a program like any other.
        return Err(Error::Attach {
            pid,
            reason: "it is init; if it stopped, so would the system".into(),
        });
    }
    // A thread of this process, or one of those that hold processes for it.
    let is_thread = Path::new(&format!("/proc/{pid}")).exists()
        && std::fs::metadata(format!("/proc/self/task/{pid}")).is_ok();
    if is_thread || share_memory(memory_id(pid), std::process::id()).unwrap_or(false) {
        return Err(Error::OwnProcess { pid });
    }
    if is_32_bit(pid) {
        return Err(Error::ThirtyTwoBit { pid });
    }
    match lasting_tracer(pid, status.tracer) {
        0 => Ok(()),
        tracer => Err(Error::Traced { pid, tracer }),
    }
}

/// Whether a file of `/proc` is missing because its process is.
fn is_missing(error: &std::io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH))
}

/// How long another tracker may take until it lets go.
pub(super) const TRACKER_TIMEOUT: Duration = Duration::from_secs(1);

/// The tracer of a thread after waiting for trackers that attach for a moment only; 0 if there is
/// none.
fn lasting_tracer(tid: u32, mut tracer: u32) -> u32 {
    let mut backoff = Backoff::until(Instant::now() + TRACKER_TIMEOUT);
    let mut others = 0;
    while tracer != 0 && others < 10 && backoff.wait() {
        // One that begins shows up as the parent at first.
        others = if is_tracker(tracer) { 0 } else { others + 1 };
        tracer = Status::of(tid).map_or(0, |status| status.tracer);
    }
    tracer
}

/// How the threads of this library that trace are named.
pub(crate) const TRACER_NAME: &str = "pagetrail-trace";

/// Whether a tracer is one that lets go soon: a thread of this library in any process, by its
/// name, or one that has ended by now.
pub(super) fn is_tracker(tracer: u32) -> bool {
    let Ok(name) = std::fs::read(format!("/proc/{tracer}/comm")) else {
        return true;
    };
    // The thread of `launch` keeps its program until the end; its name is cut off.
    name.starts_with(b"pagetrail") && !name.starts_with(b"pagetrail-keepe")
}

/// `PF_KTHREAD` in the flags of `proc_pid_stat(5)`; a program on its way out has no memory either.
fn is_kernel_thread(pid: u32) -> bool {
    let flags = stat_fields(pid).get(6).and_then(|flags| flags.parse().ok());
    flags.is_some_and(|flags: u64| flags & 0x0020_0000 != 0)
}

fn first_pid_namespace() -> bool {
    std::fs::read_link("/proc/self/ns/pid").is_ok_and(|link| link == Path::new(FIRST_PID_NAMESPACE))
}

/// `EI_CLASS` of the ELF header, `elf(5)`. A file that cannot be read says nothing.
fn is_32_bit(pid: u32) -> bool {
    let mut header = [0; 5];
    File::open(format!("/proc/{}/exe", memory_id(pid)))
        .and_then(|mut exe| exe.read_exact(&mut header))
        .is_ok()
        && header == [0x7f, b'E', b'L', b'F', 1]
}

/// What to say when the kernel answered `EPERM` or `EACCES`.
pub(crate) fn permission(pid: u32, what: &'static str) -> Error {
    let scope = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    let cure = match scope.trim() {
        "1" => {
            "kernel.yama.ptrace_scope is 1: run as root or with CAP_SYS_PTRACE, or start the program with \
                'pagetrail record -- CMD'"
        }
        "2" => "kernel.yama.ptrace_scope is 2: run as root or with CAP_SYS_PTRACE",
        "3" => "kernel.yama.ptrace_scope is 3, which forbids it to everyone until the next boot",
        _ => "run as its owner, as root, or with CAP_SYS_PTRACE",
    };
    Error::Permission {
        pid,
        what,
        cure: cure.into(),
    }
}

/// Turns a failed system call on `pid` into the error that names the cause.
pub(crate) fn explain(pid: u32, what: &'static str, errno: Errno) -> Error {
    match errno {
        Errno::SRCH | Errno::NOENT | Errno::CHILD => Error::NoSuchProcess { pid },
        Errno::PERM | Errno::ACCESS => match Status::of(pid) {
            Ok(status) if status.tracer != 0 => Error::Traced {
                pid,
                tracer: status.tracer,
            },
            // What the kernel says of processes on their way out.
            Ok(status) if !status.has_memory => Error::NoSuchProcess { pid },
            Err(error) if error.kind() == ErrorKind::NotFound => Error::NoSuchProcess { pid },
            _ => permission(pid, what),
        },
        _ => Error::Attach {
            pid,
            reason: format!("{what} failed: {errno}"),
        },
    }
}
