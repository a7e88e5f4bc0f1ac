//! [`PhysicalMemory`]: frames of 4 KiB, handed out and taken back.
//!
//! A frame has contents only once a word was written to it: page tables, logs and ring buffers do,
//! the data of programs does not, since only the addresses of their accesses matter. Memory is
//! proportional to the frames handed out (a pointer each) and to the frames with contents.

use super::address::{HUGE_PAGES, Hpa, PAGE_BYTES};
use crate::Error;

const WORDS: usize = 512;

/// The memory of the host.
#[derive(Debug)]
pub struct PhysicalMemory {
    /// By frame number. Frame 0 is never handed out, so that address 0 can mean "none".
    frames: Vec<Option<Box<[u64; WORDS]>>>,
    free: Vec<u64>,
    limit_frames: u64,
}

impl PhysicalMemory {
    /// Memory of `limit_bytes`, all of it free.
    pub fn new(limit_bytes: u64) -> Self {
        Self {
            frames: vec![None],
            free: Vec::new(),
            limit_frames: limit_bytes / PAGE_BYTES,
        }
    }

    /// Frames handed out at this moment.
    pub fn frames_in_use(&self) -> u64 {
        (self.frames.len() - 1 - self.free.len()) as u64
    }

    /// Frames with contents at this moment.
    pub fn frames_with_contents(&self) -> u64 {
        self.frames.iter().flatten().count() as u64
    }

    /// A frame that reads as zero.
    pub(crate) fn allocate(&mut self) -> Result<Hpa, Error> {
        if let Some(frame) = self.free.pop() {
            return Ok(Hpa::new(frame * PAGE_BYTES));
        }
        let frame = self.frames.len() as u64;
        if frame > self.limit_frames {
            return Err(Error::OutOfMemory);
        }
        self.frames.push(None);
        Ok(Hpa::new(frame * PAGE_BYTES))
    }

    /// 512 adjacent frames that read as zero, aligned to a large page.
    pub(crate) fn allocate_huge(&mut self) -> Result<Hpa, Error> {
        let next = self.frames.len() as u64;
        let start = next.next_multiple_of(HUGE_PAGES);
        if start + HUGE_PAGES > self.limit_frames + 1 {
            return Err(Error::OutOfMemory);
        }
        self.free.extend(next..start);
        self.frames
            .resize_with((start + HUGE_PAGES) as usize, || None);
        Ok(Hpa::new(start * PAGE_BYTES))
    }

    /// Takes a frame back, contents and all.
    pub(crate) fn release(&mut self, frame: Hpa) {
        let number = frame.page_number();
        self.frames[number as usize] = None;
        self.free.push(number);
    }

    /// Makes a frame read as zero.
    pub(crate) fn clear(&mut self, frame: Hpa) {
        if let Some(contents) = self.frames.get_mut(frame.page_number() as usize) {
            *contents = None;
        }
    }

    /// The word at `at`.
    pub(crate) fn read(&self, at: Hpa) -> u64 {
        match self.frames.get(at.page_number() as usize) {
            Some(Some(words)) => words[word_of(at)],
            _ => 0,
        }
    }

    /// Sets the word at `at`.
    pub(crate) fn write(&mut self, at: Hpa, value: u64) {
        let number = at.page_number() as usize;
        if number >= self.frames.len() {
            // A machine without a hypervisor hands out its frames itself.
            self.frames.resize_with(number + 1, || None);
        }
        self.frames[number].get_or_insert_with(|| Box::new([0; WORDS]))[word_of(at)] = value;
    }
}

fn word_of(at: Hpa) -> usize {
    (at.get() % PAGE_BYTES / 8) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents_cost_memory_only_where_written() {
        let mut memory = PhysicalMemory::new(1 << 30);
        let frames: Vec<Hpa> = (0..1000).map(|_| memory.allocate().unwrap()).collect();
        assert_eq!(
            (memory.frames_in_use(), memory.frames_with_contents()),
            (1000, 0)
        );
        memory.write(frames[7].add(16), 42);
        assert_eq!(
            (memory.read(frames[7].add(16)), memory.read(frames[7])),
            (42, 0)
        );
        assert_eq!(memory.frames_with_contents(), 1);
        memory.release(frames[7]);
        assert_eq!(memory.allocate().unwrap(), frames[7]);
        assert_eq!(
            memory.read(frames[7].add(16)),
            0,
            "a frame handed out again reads as zero"
        );
    }

    #[test]
    fn the_limit_holds_and_large_pages_are_aligned() {
        let mut memory = PhysicalMemory::new(4 << 20);
        memory.allocate().unwrap();
        let huge = memory.allocate_huge().unwrap();
        assert_eq!(huge, huge.huge_page());
        assert_eq!(memory.allocate_huge(), Err(Error::OutOfMemory));
        while memory.allocate().is_ok() {}
        assert_eq!(memory.frames_in_use(), 1024);
    }
}
