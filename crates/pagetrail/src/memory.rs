//! [`Memory`]: copies of another process's memory, and back, whatever the access rights there.
//!
//! `process_vm_readv(2)` does the bulk; pages that the process itself may not read come through `proc_pid_mem(5)`, which
//! needs the same permission. Nothing here stops the process: who wants one instant holds it ([`Hold`](crate::Hold)).

use crate::attach::target_check::explain;
use crate::error::{Error, Result};
use crate::page_set::{PageRange, PageSet, page_size};
use crate::proc::maps::Maps;
use crate::region::Region;
use crate::sys::remote_memory::{self, RANGES_MAX};
use rustix::io::Errno;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;

/// The memory of a running process.
#[derive(Debug)]
pub struct Memory {
    pid: u32,
    /// `/proc/PID/mem`.
    file: File,
}

impl Memory {
    /// Opens the memory of another process.
    ///
    /// # Errors
    ///
    /// There is no such process, it is this one, or may not be traced.
    pub fn of(pid: u32) -> Result<Self> {
        if pid == std::process::id() {
            return Err(Error::OwnProcess { pid });
        }
        let opened = OpenOptions::new()
            .read(true)
            .write(true)
            .open(format!("/proc/{pid}/mem"));
        match opened {
            Ok(file) => Ok(Self { pid, file }),
            Err(error) => {
                let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
                Err(explain(pid, "open the memory", errno))
            }
        }
    }

    /// The mappings as they are now, ascending.
    ///
    /// # Errors
    ///
    /// The process has ended.
    pub fn mappings(&self) -> Result<Vec<Region>> {
        let read = || Maps::open(Some(self.pid))?.changed();
        match read() {
            Ok(Some(regions)) if !regions.is_empty() => Ok(regions),
            Ok(_) => Err(Error::Gone { pid: self.pid }),
            Err(error) => Err(Error::io("reading maps")(error)),
        }
    }

    /// Copies whole pages, range behind range, into `buffer`, which is as long as all of them together. Pages that
    /// cannot be read become zeros there, and are the answer.
    ///
    /// # Errors
    ///
    /// The process has ended, or may not be read.
    pub fn read(&self, ranges: &[PageRange], buffer: &mut [u8]) -> Result<PageSet> {
        let mut missing = PageSet::new();
        let mut rest = buffer;
        for ranges in ranges.chunks(RANGES_MAX) {
            let bytes = ranges.iter().map(PageRange::bytes).sum::<u64>() as usize;
            let (part, behind) = rest.split_at_mut(bytes);
            rest = behind;
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

    /// Goes on page by page where a read came to a halt, after `done` bytes.
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

    /// Replaces bytes of the process's memory, also where it may not write itself.
    ///
    /// # Errors
    ///
    /// The memory is not mapped, is a file's that may not be written, or the process has ended. Some bytes may have been
    /// written by then.
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
