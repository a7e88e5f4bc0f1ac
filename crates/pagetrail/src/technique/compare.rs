//! `compare`: keeps a copy of every page and compares; any process, any kernel, no privilege beyond
//! reading.
//!
//! The tracked program pays nothing between rounds; a round costs a copy and a comparison of
//! everything that is populated, and the copies take as much memory again. It detects changes of
//! content, exact to the byte. A store that leaves a page as it was between two rounds is invisible
//! to it, which is harmless to a consumer that reads the content at the instant of the collect. One
//! that copies a page later, while the program runs, may copy what is gone by the next collect, and
//! no round reports that: memory that is moved away and back, say.

use super::{ArmError, Armed, Collected, Tracker};
use crate::error::{Error, Result};
use crate::page_set::{PageRange, PageSet, page_size};
use crate::region::Region;
use crate::sys::pagemap::{Pagemap, Vector};
use crate::sys::remote_memory;
use rustix::io::Errno;
use std::collections::HashMap;

/// Bytes read from the target at once: enough to make the cost of the system call negligible.
const CHUNK_BYTES: u64 = 1 << 20;

struct Copy {
    bytes: Box<[u8]>,
    /// The last collect that found the page populated.
    collect: u64,
}

/// The technique's state for one address space.
pub(crate) struct Compare {
    pid: u32,
    pagemap: Pagemap,
    vector: Vector,
    armed: PageSet,
    /// Private anonymous memory: a page without a copy was never touched, so it contained zeros.
    zeros: PageSet,
    copies: HashMap<u64, Copy>,
    collects: u64,
    buffer: Vec<u8>,
}

impl Compare {
    /// Starts without armed memory; `pid` is `None` for the own address space.
    pub(crate) fn new(pid: Option<u32>) -> Result<Self> {
        Ok(Self {
            pid: pid.unwrap_or_else(std::process::id),
            pagemap: Pagemap::open(pid).map_err(Error::io("opening pagemap"))?,
            vector: Vector::new(),
            armed: PageSet::new(),
            zeros: PageSet::new(),
            copies: HashMap::new(),
            collects: 0,
            buffer: vec![0; CHUNK_BYTES as usize],
        })
    }

    /// Reads all populated pages of `range` and calls `page` with the address and the content, or
    /// without content if the page cannot be read (protected, or unmapped meanwhile).
    fn read(
        &mut self,
        range: PageRange,
        mut page: impl FnMut(&mut Self, u64, Option<&[u8]>),
    ) -> Result<()> {
        let mut populated = PageSet::new();
        self.pagemap
            .populated(range, &mut self.vector, &mut populated)
            .map_err(Error::io("reading pagemap"))?;
        let unit = page_size();
        let mut buffer = std::mem::take(&mut self.buffer);
        for run in populated.ranges() {
            let mut start = run.start();
            while start < run.end() {
                let len = CHUNK_BYTES.min(run.end() - start) as usize;
                let read = match remote_memory::read(self.pid, start, &mut buffer[..len]) {
                    Ok(read) => read,
                    Err(errno @ (Errno::PERM | Errno::NOSYS | Errno::SRCH)) => {
                        self.buffer = buffer;
                        return Err(self.refused(errno));
                    }
                    Err(_) => 0,
                };
                let whole = read as u64 / unit * unit;
                for offset in (0..whole).step_by(unit as usize) {
                    let content = &buffer[offset as usize..(offset + unit) as usize];
                    page(self, start + offset, Some(content));
                }
                if whole == 0 {
                    page(self, start, None);
                }
                start += whole.max(unit);
            }
        }
        self.buffer = buffer;
        Ok(())
    }

    /// The error for a process of which nothing can be read.
    fn refused(&self, errno: Errno) -> Error {
        match errno {
            Errno::SRCH => Error::Gone { pid: self.pid },
            errno => Error::os("process_vm_readv(2), which a container may forbid,")(errno),
        }
    }

    fn keep(&mut self, address: u64, content: &[u8]) {
        let collect = self.collects;
        self.copies.insert(
            address,
            Copy {
                bytes: content.into(),
                collect,
            },
        );
    }

    /// Compares one page with its copy, updates the copy, and returns whether the page changed.
    fn changed(&mut self, address: u64, content: &[u8]) -> bool {
        let Some(copy) = self.copies.get_mut(&address) else {
            self.keep(address, content);
            return !(self.zeros.contains(address) && content.iter().all(|&byte| byte == 0));
        };
        copy.collect = self.collects;
        let changed = *copy.bytes != *content;
        if changed {
            copy.bytes.copy_from_slice(content);
        }
        changed
    }
}

impl Tracker for Compare {
    fn arm(&mut self, region: &Region) -> Result<(), ArmError> {
        self.read(region.range, |this, address, content| {
            if let Some(content) = content {
                this.keep(address, content);
            }
        })?;
        self.armed.insert(region.range);
        if !region.permissions.shared && region.inode == 0 {
            self.zeros.insert(region.range);
        }
        Ok(())
    }

    fn add_populated(&mut self, region: &Region, out: &mut PageSet) -> Result<()> {
        self.pagemap
            .populated(region.range, &mut self.vector, out)
            .map_err(Error::io("reading pagemap"))
    }

    fn splits_mappings(&self) -> bool {
        false
    }

    fn refuses_read_only(&self) -> bool {
        false
    }

    fn forget(&mut self, range: PageRange) {
        self.armed.remove(range);
        self.zeros.remove(range);
        self.copies.retain(|address, _| !range.contains(*address));
    }

    fn collect(&mut self, _: &[Armed], out: &mut PageSet) -> Result<Collected> {
        self.collects += 1;
        for range in self.armed.clone().ranges() {
            self.read(*range, |this, address, content| {
                let written = match content {
                    Some(content) => this.changed(address, content),
                    // A page that cannot be read now may have been written before, and may be zeros
                    // when it can be read again.
                    None => {
                        if let Some(page) = PageRange::new(address, address + page_size()) {
                            this.zeros.remove(page);
                        }
                        true
                    }
                };
                if written {
                    out.extend_back(address, page_size());
                }
            })?;
        }
        // Pages that no longer exist were discarded: their contents are zeros now, or the file's.
        let mut discarded = Vec::new();
        let collects = self.collects;
        self.copies.retain(|&address, copy| {
            let kept = copy.collect == collects;
            if !kept {
                discarded.extend(PageRange::new(address, address + page_size()));
            }
            kept
        });
        out.extend(discarded);
        Ok(Collected::default())
    }
}
