//! [`Memory`]: reads and writes another process's memory, whatever the access rights there.
//!
//! `process_vm_readv(2)` copies most of it; pages that the process itself may not read are read
//! through `proc_pid_mem(5)`, which needs the same permission. Nothing here stops the process: hold
//! it ([`Hold`](crate::Hold)) for a copy of one instant.

use crate::attach::target_check::explain;
use crate::error::{Error, Result};
use crate::page_set::{PageRange, PageSet, page_size};
use crate::proc::maps::Maps;
use crate::proc::status::memory_id;
use crate::region::Region;
use crate::sys::remote_memory::{self, RANGES_MAX};
use rustix::io::Errno;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;

/// The memory of a running process.
///
/// ```no_run
/// # fn main() -> pagetrail::Result<()> {
/// use pagetrail::{Memory, PageRange};
/// # let (pid, range) = (1234, PageRange::new(0x1000, 0x3000).unwrap());
/// let memory = Memory::of(pid)?;
/// let mut buffer = vec![0; range.bytes() as usize];
/// let unreadable = memory.read(&[range], &mut buffer)?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Memory {
    pid: u32,
    /// The opened `/proc/PID/mem`.
    file: File,
}

impl Memory {
    /// Opens the memory of another process.
    ///
    /// # Errors
    ///
    /// There is no such process, it is this one, or it may not be traced.
    pub fn of(pid: u32) -> Result<Self> {
        if pid == std::process::id() {
            return Err(Error::OwnProcess { pid });
        }
        let opened = OpenOptions::new()
            .read(true)
            .write(true)
            .open(format!("/proc/{}/mem", memory_id(pid)));
        match opened {
            Ok(file) => Ok(Self { pid, file }),
            Err(error) => {
                let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
                Err(explain(pid, "open the memory", errno))
            }
        }
    }

    /// The ID under which `/proc` shows what belongs to this memory: the PID or, if the main thread
    /// has ended before others, the ID of a thread that runs on.
    pub fn proc_id(&self) -> u32 {
        memory_id(self.pid)
    }

    /// The current mappings, ascending.
    ///
    /// # Errors
    ///
    /// [`Error::Gone`] if the process has ended.
    pub fn mappings(&self) -> Result<Vec<Region>> {
        let read = || Maps::open(Some(self.pid))?.changed();
        match read() {
            Ok(Some(regions)) if !regions.is_empty() => Ok(regions),
            Ok(_) => Err(Error::Gone { pid: self.pid }),
            Err(error) => Err(Error::io("reading maps")(error)),
        }
    }

    /// Copies whole pages into `buffer`, one range after the other. Returns the pages that could
    /// not be read; they are zeros in `buffer`.
    ///
    /// # Errors
    ///
    /// The process has ended, or may not be read.
    ///
    /// # Panics
    ///
    /// If `buffer` is shorter than all ranges together.
    pub fn read(&self, ranges: &[PageRange], buffer: &mut [u8]) -> Result<PageSet> {
        let mut missing = PageSet::new();
        let mut rest = buffer;
        for ranges in ranges.chunks(RANGES_MAX) {
            let bytes = ranges.iter().map(PageRange::bytes).sum::<u64>() as usize;
            let (part, after) = rest.split_at_mut(bytes);
            rest = after;
            let done = match remote_memory::read_ranges(self.pid, ranges, part) {
                Ok(done) => done,
                Err(Errno::FAULT) => 0,
                Err(errno) => return Err(self.failed(errno)),
            };
            if done < bytes {
                self.read_piecewise(ranges, part, done, &mut missing)?;
            }
        }
        Ok(missing)
    }

    /// Continues page by page after `done` bytes, where a read ended early.
    fn read_piecewise(
        &self,
        ranges: &[PageRange],
        part: &mut [u8],
        done: usize,
        missing: &mut PageSet,
    ) -> Result<()> {
        let page = page_size();
        let pages = ranges
            .iter()
            .flat_map(|range| (range.start()..range.end()).step_by(page as usize));
        let intact = done / page as usize;
        for (address, into) in pages.zip(part.chunks_exact_mut(page as usize)).skip(intact) {
            let whole = match remote_memory::read(self.pid, address, into) {
                Ok(done) => done == into.len(),
                Err(Errno::FAULT) => false,
                Err(errno) => return Err(self.failed(errno)),
            };
            if !whole && self.file.read_exact_at(into, address).is_err() {
                into.fill(0);
                missing.extend(PageRange::new(address, address + page));
            }
        }
        Ok(())
    }

    /// Overwrites memory of the process, even where the process itself may not write.
    ///
    /// # Errors
    ///
    /// The memory is not mapped, belongs to a file that may not be written, or the process has
    /// ended. Some bytes may have been written by then.
    pub fn write(&self, address: u64, bytes: &[u8]) -> Result<()> {
        let mut done = 0;
        while done < bytes.len() {
            match remote_memory::write(self.pid, address + done as u64, &bytes[done..]) {
                Ok(0) | Err(Errno::FAULT) => break,
                Ok(written) => done += written,
                Err(errno) => return Err(self.failed(errno)),
            }
        }
        self.file
            .write_all_at(&bytes[done..], address + done as u64)
            .map_err(Error::io(format!(
                "writing to {address:#x} of process {}",
                self.pid
            )))
    }

    fn failed(&self, errno: Errno) -> Error {
        match errno {
            Errno::SRCH => Error::Gone { pid: self.pid },
            errno => explain(self.pid, "read the memory", errno),
        }
    }
}
