//! [`Events`]: the kernel's events on all threads of a process, and the rings that receive their
//! samples.
//!
//! An event is for one thread on one processor, and threads that are created later inherit it: the
//! kernel lets no inherited event that follows its thread from processor to processor have a ring.
//! Each processor has one ring, of an event of our own that counts nothing, so that the events on
//! the threads can be replaced.

use std::collections::HashSet;
use std::fs;

use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;

use crate::error::{Error, Result};
use crate::sys::event::{self, Counted, Settings, flag};
use crate::sys::ring::Ring;

/// Times that threads are listed until no new one is found.
const LISTINGS_MAX: usize = 16;

/// Events and rings.
pub(crate) struct Events {
    pid: u32,
    settings: Settings,
    pub(crate) rings: Vec<(u32, Ring)>,
    /// The events on the threads, which end with their descriptors.
    opened: Vec<OwnedFd>,
}

impl Events {
    /// Makes a ring for each processor, and an event for each thread on each.
    pub(crate) fn open(pid: u32, settings: Settings, ring_bytes: usize) -> Result<Self> {
        let mut rings = Vec::new();
        for cpu in processors() {
            let owner = Settings {
                counted: Counted::Nothing,
                flags: flag::WATERMARK | flag::EXCLUDE_KERNEL,
                wakeup_bytes: (ring_bytes / 8) as u32,
                ..settings
            };
            let event = match event::open(&owner, 0, Some(cpu)) {
                // It went offline.
                Err(Errno::NODEV | Errno::INVAL) if cpu > 0 => continue,
                opened => opened.map_err(|errno| refused(errno, pid))?,
            };
            let ring = Ring::new(event, ring_bytes).map_err(Error::kernel("mmap"))?;
            rings.push((cpu, ring));
        }
        let mut events = Self {
            pid,
            settings,
            rings,
            opened: Vec::new(),
        };
        events.opened = events.open_all()?;
        Ok(events)
    }

    /// Replaces all events by such with another period and another length of the copy of the
    /// stack. Threads that are created meanwhile are covered by the old or the new ones, or both.
    pub(crate) fn replace(&mut self, period: u32, stack_bytes: u32) -> Result<()> {
        self.settings.period = period.into();
        self.settings.stack_bytes = stack_bytes;
        self.opened = match self.open_all() {
            Err(Error::TooManyThreads { .. }) => {
                // There is room for one set of descriptors only.
                self.opened.clear();
                self.open_all()?
            }
            opened => opened?,
        };
        Ok(())
    }

    fn open_all(&self) -> Result<Vec<OwnedFd>> {
        let mut opened = Vec::new();
        let mut known = HashSet::new();
        for _ in 0..LISTINGS_MAX {
            let threads = threads(self.pid);
            let new: Vec<u32> = threads.into_iter().filter(|t| known.insert(*t)).collect();
            if new.is_empty() {
                break;
            }
            for thread in new {
                self.open_thread(thread, known.len(), &mut opened)?;
            }
        }
        match opened.is_empty() {
            true => Err(Error::Gone { pid: self.pid }),
            false => Ok(opened),
        }
    }

    fn open_thread(&self, thread: u32, threads: usize, opened: &mut Vec<OwnedFd>) -> Result<()> {
        for (cpu, ring) in &self.rings {
            for counted in [Counted::MinorFaults, Counted::MajorFaults] {
                let code = match counted {
                    Counted::MinorFaults => flag::MMAP | flag::COMM | flag::COMM_EXEC,
                    _ => 0,
                };
                let settings = Settings {
                    counted,
                    flags: self.settings.flags | code,
                    ..self.settings
                };
                let event = match event::open(&settings, thread, Some(*cpu)) {
                    Ok(event) => event,
                    // The thread has ended.
                    Err(Errno::SRCH) => return Ok(()),
                    Err(Errno::MFILE | Errno::NFILE) => {
                        return Err(Error::TooManyThreads {
                            threads,
                            processors: self.rings.len(),
                        });
                    }
                    Err(errno) => return Err(refused(errno, self.pid)),
                };
                event::set_output(event.as_fd(), ring.fd())
                    .map_err(Error::kernel("PERF_EVENT_IOC_SET_OUTPUT"))?;
                opened.push(event);
            }
        }
        Ok(())
    }
}

/// Makes an error of the one that the kernel gave.
pub(crate) fn refused(errno: Errno, pid: u32) -> Error {
    match errno {
        // NOSYS comes from a filter of system calls, or a kernel without perf events.
        Errno::ACCESS | Errno::PERM | Errno::NOSYS => Error::NotPermitted {
            errno,
            paranoid: fs::read_to_string("/proc/sys/kernel/perf_event_paranoid")
                .map_or_else(|_| "unknown".into(), |value| value.trim().into()),
        },
        Errno::SRCH => Error::Gone { pid },
        errno => Error::Kernel {
            call: "perf_event_open",
            errno,
        },
    }
}

/// IDs of the threads of a process.
fn threads(pid: u32) -> Vec<u32> {
    let entries = fs::read_dir(format!("/proc/{pid}/task"));
    let entries = entries.into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect()
}

/// Numbers of the processors that are online.
fn processors() -> Vec<u32> {
    let list = fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
    let all = parse_list(&list);
    match all.is_empty() {
        true => (0..std::thread::available_parallelism().map_or(1, |n| n.get() as u32)).collect(),
        false => all,
    }
}

/// A list as in `0-3,8`.
fn parse_list(list: &str) -> Vec<u32> {
    let parts = list.trim().split(',').filter_map(|part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.parse::<u32>().ok()?, last.parse::<u32>().ok()?);
        (last < 1 << 16).then_some(first..=last)
    });
    parts.flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_processors_are_read() {
        assert_eq!(parse_list("0-3,8,10-11\n"), [0, 1, 2, 3, 8, 10, 11]);
        assert_eq!(parse_list("0\n"), [0]);
        assert_eq!(parse_list(""), []);
        assert_eq!(parse_list("x,5"), [5]);
    }
}
