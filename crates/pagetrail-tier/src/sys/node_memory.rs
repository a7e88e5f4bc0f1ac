//! [`NodeMemory`]: private memory of this process that comes from one node: to measure the node,
//! and to move pages to it.
//!
//! # Safety
//!
//! A mapping belongs to its value alone, which unmaps it; accesses stay within it.
#![allow(unsafe_code, reason = "mmap(2), mbind(2) and bare memory")]

use std::ffi::c_void;
use std::ptr;

use pagetrail::page_size;
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use super::move_pages::{self, last_errno};

/// Takes memory of other nodes where this one has none. `MPOL_BIND` would have the kernel kill a
/// process instead.
const MPOL_PREFERRED: libc::c_long = 1;
/// Nodes that a mask has room for.
const NODES_MAX: u32 = 1024;
/// Accesses are to a line each.
const LINE_WORDS: usize = 8;
/// Full periods of a linear congruential generator, one for each kind of access: multipliers are 1
/// more than a multiple of 4, and increments odd.
const READS: (usize, usize) = (6_364_136_223_846_793_005, 1_442_695_040_888_963_407);
const WRITES: (usize, usize) = (2_862_933_555_777_941_757, 3_037_000_493);

/// Memory of a node.
#[derive(Debug)]
pub(crate) struct NodeMemory {
    start: *mut u64,
    bytes: usize,
    node: u32,
    /// Where the last access of each kind was, in lines.
    read_at: usize,
    written_at: usize,
}

// SAFETY: the mapping is no thread's own, and is accessed through exclusive references only.
unsafe impl Send for NodeMemory {}

impl NodeMemory {
    /// Maps memory that is to come from a node: a power of two of bytes, at least a page. Each line
    /// has the number of the next one to read.
    pub(crate) fn filled(node: u32, bytes: u64) -> Result<Self, Errno> {
        let bytes = usize::try_from(bytes).map_err(|_| Errno::NOMEM)?;
        assert!(bytes.is_power_of_two() && bytes as u64 >= page_size());
        // SAFETY: the kernel chooses the address, so that nothing is replaced.
        let start = unsafe {
            mmap_anonymous(
                ptr::null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        }?;
        let memory = Self {
            start: start.cast(),
            bytes,
            node,
            read_at: 0,
            written_at: 0,
        };
        prefer(start, bytes, node)?;
        for line in 0..memory.lines() {
            let next = memory.next(line, READS);
            // SAFETY: `line` is below `lines()`, so that its first word is in the mapping, which is
            // writable; nobody else has its address.
            unsafe { memory.start.add(line * LINE_WORDS).write(next as u64) };
        }
        Ok(memory)
    }

    fn lines(&self) -> usize {
        self.bytes / 8 / LINE_WORDS
    }

    fn next(&self, line: usize, (factor, add): (usize, usize)) -> usize {
        line.wrapping_mul(factor).wrapping_add(add) & (self.lines() - 1)
    }

    /// Whether the kernel had memory of this node for all of it, by its first page in each MiB.
    pub(crate) fn is_on_its_node(&self) -> bool {
        let step = (1 << 20).min(self.bytes);
        let start = self.start as u64;
        let addresses: Vec<u64> = (0..self.bytes)
            .step_by(step)
            .map(|offset| start + offset as u64)
            .collect();
        let mut states = vec![-1; addresses.len()];
        let asked = move_pages::query(std::process::id(), &addresses, &mut states);
        asked.is_ok() && states.iter().all(|state| *state == self.node as i32)
    }

    /// Reads so many lines, each at the address that the one before it has.
    pub(crate) fn read(&mut self, count: u64) {
        let mut line = self.read_at;
        for _ in 0..count {
            // SAFETY: `line` is masked to a number below `lines()`, see above.
            let next = unsafe { self.start.add(line * LINE_WORDS).read_volatile() };
            line = next as usize & (self.lines() - 1);
        }
        self.read_at = line;
    }

    /// Writes a word of so many lines, whose addresses do not depend on memory.
    pub(crate) fn write(&mut self, count: u64) {
        let mut line = self.written_at;
        for _ in 0..count {
            line = self.next(line, WRITES);
            // SAFETY: `next` is below `lines()`, and the second word of a line is in the mapping.
            unsafe { self.start.add(line * LINE_WORDS + 1).write_volatile(1) };
        }
        self.written_at = line;
    }
}

impl Drop for NodeMemory {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours alone, as long as it was mapped, and not used again.
        let _ = unsafe { munmap(self.start.cast(), self.bytes) };
    }
}

/// Has pages that come into being at some addresses come from a node, if it has room.
pub(crate) fn prefer(start: *mut c_void, bytes: usize, node: u32) -> Result<(), Errno> {
    if node >= NODES_MAX {
        return Err(Errno::INVAL);
    }
    let mut mask = [0u64; NODES_MAX as usize / 64];
    mask[node as usize / 64] = 1 << (node % 64);
    // SAFETY: the call reads the mask, as many bits of it as it has; it changes where memory comes
    // from, never what it holds.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mbind,
            start,
            bytes,
            MPOL_PREFERRED,
            mask.as_ptr(),
            // The kernel takes one less.
            u64::from(NODES_MAX) + 1,
            0,
        )
    };
    match result {
        0 => Ok(()),
        // A kernel without nodes has one, which all memory comes from.
        _ if last_errno() == Errno::NOSYS && node == 0 => Ok(()),
        _ => Err(last_errno()),
    }
}
