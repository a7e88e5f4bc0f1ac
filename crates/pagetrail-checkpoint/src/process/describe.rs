//! What `/proc` says of a process besides its memory: who it is, its threads' names, its open
//! descriptors.

use crate::error::{Error, Result};
use crate::format::manifest::{Descriptor, Process};
use rustix::io::Errno;
use std::fs;

/// More descriptors than this are not looked at while the process stands still.
const DESCRIPTORS_AT_REST: usize = 256;

/// Who a process is; constant until it replaces its program.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    pid: u32,
    start_ticks: u64,
    executable: String,
    command: Vec<String>,
    auxv: Vec<u8>,
}

impl Identity {
    pub(crate) fn of(pid: u32) -> Result<Self> {
        let id = pagetrail::Memory::of(pid)?.proc_id();
        let auxv =
            fs::read(format!("/proc/{id}/auxv")).map_err(|error| {
                match Errno::from_io_error(&error) {
                    Some(Errno::NOENT | Errno::SRCH) => pagetrail::Error::Gone { pid }.into(),
                    _ => Error::io(format!("cannot read the auxiliary vector of process {pid}"))(
                        error,
                    ),
                }
            })?;
        let executable = fs::read_link(format!("/proc/{id}/exe"));
        let command = fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
        let words = command.strip_suffix(b"\0").unwrap_or(&command);
        let words = words.split(|byte| *byte == 0);
        Ok(Self {
            pid,
            start_ticks: start_ticks(pid).ok_or(pagetrail::Error::NoSuchProcess { pid })?,
            executable: executable
                .map_or_else(|_| String::new(), |path| path.display().to_string()),
            command: words
                .map(|word| String::from_utf8_lossy(word).into_owned())
                .collect(),
            auxv,
        })
    }

    /// The part of a manifest that this is.
    pub(crate) fn process(&self) -> Process {
        let this = self.clone();
        Process {
            pid: this.pid,
            start_ticks: this.start_ticks,
            executable: this.executable,
            command: this.command,
            auxv: this.auxv,
            ..Process::default()
        }
    }
}

/// When a process started, in clock ticks since boot (`proc_pid_stat(5)`, field 22).
pub(crate) fn start_ticks(pid: u32) -> Option<u64> {
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    // The second field is a name in parentheses that may hold any bytes.
    let stat = String::from_utf8_lossy(&stat);
    let fields = stat.rsplit_once(')')?.1;
    fields.split_whitespace().nth(19)?.parse().ok()
}

/// The name of a thread.
pub(crate) fn thread_name(pid: u32, tid: u32) -> String {
    let name = fs::read(format!("/proc/{pid}/task/{tid}/comm")).unwrap_or_default();
    String::from_utf8_lossy(name.trim_ascii_end()).into_owned()
}

/// The open descriptors of a process that stands still; `None` when there are so many that it
/// should not wait for them.
pub(crate) fn descriptors_at_rest(pid: u32) -> Option<Vec<Descriptor>> {
    let numbers = numbers(pid);
    (numbers.len() <= DESCRIPTORS_AT_REST).then(|| describe(pid, &numbers))
}

/// The open descriptors; those that come and go meanwhile may be missing.
pub(crate) fn descriptors(pid: u32) -> Vec<Descriptor> {
    describe(pid, &numbers(pid))
}

fn numbers(pid: u32) -> Vec<u32> {
    let mut numbers: Vec<u32> = fs::read_dir(format!("/proc/{pid}/fd"))
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    numbers.sort_unstable();
    numbers
}

fn describe(pid: u32, numbers: &[u32]) -> Vec<Descriptor> {
    let each = numbers.iter().filter_map(|&number| {
        let target = fs::read_link(format!("/proc/{pid}/fd/{number}")).ok()?;
        let info = fs::read_to_string(format!("/proc/{pid}/fdinfo/{number}")).unwrap_or_default();
        let field = |name: &str| info.lines().find_map(|line| line.strip_prefix(name));
        Some(Descriptor {
            number,
            target: target.display().to_string(),
            position: field("pos:").map_or(0, |text| text.trim().parse().unwrap_or(0)),
            flags: field("flags:")
                .map_or(0, |text| u32::from_str_radix(text.trim(), 8).unwrap_or(0)),
        })
    });
    each.collect()
}
