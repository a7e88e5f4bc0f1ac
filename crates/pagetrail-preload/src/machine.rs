//! [`Machine`]: the own bits where the program is a guest of `pagetrail vm`, read from the page
//! tables of the machine, without a system call and without a fault; a clear is one call.
//!
//! For collectors alone. The machine does not see what other processes write to this memory, and a
//! mapping that is new is clean until it is written to.

use pagetrail_guest::{Error, Guest, Kinds, Range};

/// The end of the addresses that page tables of four levels have for programs.
const USER_END: u64 = 1 << 47;
const PAGE: u64 = 4096;
/// Bit 55 of an entry of `pagemap`.
const SOFT_DIRTY: u64 = 1 << 55;
const ENTRY: usize = size_of::<u64>();

/// The machine, and whether all bits have been cleared: until then everything counts as written.
#[derive(Debug)]
pub(crate) struct Machine {
    guest: Guest,
    is_cleared: bool,
}

impl Machine {
    /// Starts to keep the own bits, if there is a machine that can.
    pub(crate) fn start() -> Result<Self, Error> {
        Ok(Self {
            guest: Guest::open()?,
            is_cleared: false,
        })
    }

    /// Clears all bits.
    pub(crate) fn clear(&mut self) -> Result<(), Error> {
        let all = Range {
            start: PAGE,
            end: USER_END - PAGE,
        };
        self.guest.forget(all, Kinds::DIRTY)?;
        self.is_cleared = true;
        Ok(())
    }

    /// Makes everything count as written until the next clear.
    pub(crate) fn give_up(&mut self) {
        self.is_cleared = false;
    }

    /// Fills in entries, from that of address `first` on, with nothing in them but bit 55. False
    /// where all of it counts as written, or is no program's memory.
    pub(crate) fn bare(&self, first: u64, entries: &mut [u8]) -> bool {
        let bytes = (entries.len() / ENTRY) as u64 * PAGE;
        let Some(end) = first.checked_add(bytes).filter(|end| *end < USER_END) else {
            return false;
        };
        if !self.is_cleared {
            return false;
        }
        entries.fill(0);
        self.guest
            .look(Range { start: first, end }, Kinds::DIRTY, |page| {
                let at = ((page - first) / PAGE) as usize * ENTRY;
                if let Some(entry) = entries.get_mut(at..at + ENTRY) {
                    entry.copy_from_slice(&SOFT_DIRTY.to_ne_bytes());
                }
            });
        true
    }
}
