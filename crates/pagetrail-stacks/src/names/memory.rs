//! [`Memory`]: the memory of a process, as far as it can be read.

use std::fs::File;
use std::os::unix::fs::FileExt;

/// Memory by address.
pub(super) trait Memory {
    /// Reads bytes; `None` if not all of them can be read.
    fn read(&self, address: u64, into: &mut [u8]) -> Option<()>;

    /// Reads words of 64 bits.
    fn words<const COUNT: usize>(&self, address: u64) -> Option<[u64; COUNT]> {
        let mut bytes = vec![0; COUNT * 8];
        self.read(address, &mut bytes)?;
        let mut words = [0; COUNT];
        for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
            *word = u64::from_ne_bytes(bytes.try_into().ok()?);
        }
        Some(words)
    }

    /// Reads one word of 64 bits.
    fn word(&self, address: u64) -> Option<u64> {
        let [word] = self.words(address)?;
        Some(word)
    }
}

/// The memory of a running process, by `/proc/PID/mem`.
#[derive(Debug)]
pub(super) struct ProcessMemory(File);

impl ProcessMemory {
    /// Opens the memory; `None` if the process has ended or must not be read.
    pub(super) fn open(pid: u32) -> Option<Self> {
        File::open(format!("/proc/{pid}/mem")).ok().map(Self)
    }
}

impl Memory for ProcessMemory {
    fn read(&self, address: u64, into: &mut [u8]) -> Option<()> {
        self.0.read_exact_at(into, address).ok()
    }
}
